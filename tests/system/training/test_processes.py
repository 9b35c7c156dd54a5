# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Two launched processes do what one does: gradients, evaluation, translation, a whole run;
accelerate's files.
"""

import copy
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from system.training.tiny_runs import TINY
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from csan_hf.hub.public_files import read_json
from csan_hf_runtime.text_files import read_lines, write_lines

sys.path.insert(0, str(Path(__file__).parent))
from launched import (
    ACCUMULATION,
    SIZES,
    UPDATES,
    evaluate,
    make_trainer,
    train_student,
    translate_all,
)

ROOT = Path(__file__).parents[3]
FAMILIES = ("csan", "pervasive_attention")
STREAMED = [f"text {number}" for number in range(10, 50)]
RUN = (
    f"{TINY} --model pervasive_attention --validation_size 7 --test_size 5 --source_embed_dim 8 "
    "--target_embed_dim 8 --num_layers 2 --growth_rate 4 --max_cells 8000 --max_steps 4 "
    "--eval_steps 2 --warmup_steps 1 --learning_rate 1e-2 --logging_steps 1 "
    "--batch_norm_batches 2 --generation.max_length 12 --report_to tensorboard"
)


@pytest.fixture(scope="module")
def launched(tmp_path_factory, tokenizers, tokenized):
    """The folder, what every process found, and what the launch printed."""
    folder = tmp_path_factory.mktemp("launched")
    tokenizers.save_pretrained(str(folder / "tokenizer"))
    tokenized.save_to_disk(str(folder / "data"))
    for language in ("en", "de"):
        write_lines(folder / f"train.{language}", STREAMED)
    size = len(tokenizers.source)
    tiny.csan(vocab_size=size, tie_word_embeddings=False).save_pretrained(folder / "csan")
    grid = tiny.grid(vocab_size=size, decoder_vocab_size=size)
    grid.save_pretrained(folder / "pervasive_attention")
    for family in FAMILIES:
        path = folder / family / "generation_config.json"
        # random weights repeat themselves otherwise, whatever the source
        settings = {"max_length": 10, "no_repeat_ngram_size": 1}
        path.write_text(json.dumps({**read_json(path), **settings}))
        tokenizers.save_pretrained(str(folder / family))
    words = (
        "-m accelerate.commands.launch --config_file csan_hf/recipes/accelerate/2_cpu_processes.yaml "
        f"tests/system/training/launched.py {folder} {RUN} --output_dir {folder}/run"
    )
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    result = subprocess.run(
        [sys.executable, *words.split()],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        cwd=ROOT,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    processes = [torch.load(folder / f"found-{rank}.pt", weights_only=False) for rank in (0, 1)]
    return folder, processes, result


def pad_together(batches):
    """One batch of several, as a single process would have collated it."""
    joined = {}
    for name, filler in (("input_ids", 0), ("attention_mask", 0), ("labels", -100)):
        rows = itertools.chain.from_iterable(batch[name] for batch in batches)
        joined[name] = pad_sequence([*rows], batch_first=True, padding_value=filler)
    return joined


def train_alone(model, batches, rate=0.1):
    """Oracle: gradient steps on the smoothed loss per target token over a whole update."""
    model.train()
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), rate)
    for update in range(UPDATES):
        parts = batches[update * ACCUMULATION : (update + 1) * ACCUMULATION]
        tokens = sum(part["labels"].ne(-100).sum() for part in parts)
        loss = 0.0
        for part in parts:
            logits = model(**part).logits.flatten(0, 1)
            labels = part["labels"].flatten()
            total = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.1)
            loss += total / tokens
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("family", FAMILIES)
def test_updates_are_those_of_one_process_with_the_whole_batch(launched, family):
    """Uneven halves, accumulation, label smoothing and, in Pervasive Attention, shared batch
    statistics included.
    """
    folder, processes, _ = launched
    halves = [process[family]["batches"] for process in processes]
    counts = []
    for half in halves:
        counts.append([int(batch["labels"].ne(-100).sum()) for batch in half])
    assert all(left != right for left, right in zip(*counts, strict=True)), (
        "the test wants uneven halves"
    )
    model = make_trainer(folder, family).model
    start = copy.deepcopy(model.state_dict())
    losses = train_alone(model, [pad_together(batches) for batches in zip(*halves, strict=True)])
    rounding = 1e-6 if family == "csan" else 5e-6  # statistics are sums in another order
    weights = model.state_dict()
    for process in processes:
        assert process["pervasive_attention"]["shares"], "the statistics of batch normalisation"
        assert process[family]["losses"] == pytest.approx(losses, abs=2e-6)
        torch.testing.assert_close(
            process[family]["weights"], dict(weights), rtol=1e-5, atol=rounding
        )
    unmoved = [name for name in start if torch.equal(weights[name], start[name])]
    assert len(unmoved) < len(start) / 2


@pytest.mark.parametrize("family", FAMILIES)
def test_evaluations_and_translations_are_put_together_without_loss_or_copies(launched, family):
    """Sizes that two processes cannot share equally, one sentence for two processes among them."""
    folder, processes, _ = launched
    trainer = make_trainer(folder, family)
    alone = evaluate(trainer, folder)
    translated = translate_all(trainer, folder)
    assert [process[family]["translated"] for process in processes] == [translated, translated]
    for process in processes:
        for size in SIZES:
            hypotheses, metrics = process[family]["evaluated"][size]
            assert hypotheses == alone[size][0]
            assert len(hypotheses) == size
            assert metrics["loss"] == pytest.approx(alone[size][1]["loss"], rel=1e-5)
            assert metrics["bleu"] == alone[size][1]["bleu"]
    assert len(set(alone[11][0])) > 5, "the test wants different hypotheses"


def test_processes_share_a_stream(launched):
    """Every pair once in a pass; tests/data/test_streams.py resumes such streams."""
    _, processes, _ = launched
    assert sorted(processes[0]["stream"] + processes[1]["stream"]) == STREAMED


def test_processes_learn_of_a_teacher_as_one_does(launched):
    folder, processes, _ = launched
    alone = train_student(folder, accumulation=2 * ACCUMULATION)
    for process in processes:
        torch.testing.assert_close(process["student"], alone, rtol=1e-5, atol=1e-6)
    untaught = processes[0]["csan"]["weights"]
    assert not torch.equal(untaught["model.shared.weight"], alone["model.shared.weight"])


def test_a_recipe_runs_in_two_processes(launched):
    folder, _, result = launched
    run = folder / "run"
    results = read_json(run / "results.json")
    assert results["training"]["processes"] == 2
    # what only one process says and writes
    assert result.stderr.count("Starting a new run") == result.stderr.count("step 1/4") == 1
    assert result.stdout.count("Weights: ") == 1
    assert [path.name for path in run.glob("[._]*")] == [".csan_hf_run"], "the mark alone"
    states = sorted(path.name for path in run.glob("checkpoint-4/rng_state*"))
    assert states == ["rng_state_0.pth", "rng_state_1.pth"]
    for split, size in (("validation", 7), ("test", 5)):
        assert len(list(read_lines(run / "hypotheses" / f"{split}.txt"))) == size


# ---- the launch configurations beside the recipes


FOLDER = ROOT / "csan_hf" / "recipes" / "accelerate"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_reads_it(path):
    words = f"--config_file {path} -m csan_hf train RECIPE.yaml"
    args, *_ = _validate_launch_command(launch_command_parser().parse_args(words.split()))
    assert args.multi_gpu or args.use_fsdp  # what makes accelerate start more than one process


def test_the_slurm_script_is_valid_shell_and_sets_the_signal_first():
    subprocess.run(["bash", "-n", FOLDER / "slurm.sbatch"], check=True)
    text = (FOLDER / "slurm.sbatch").read_text()
    commands = [line for line in text.splitlines() if line and not line.startswith("#")]
    # SLURM stops reading options at the first command
    assert text.index("#SBATCH --signal") < text.index(commands[0])
