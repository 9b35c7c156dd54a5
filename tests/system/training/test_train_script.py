# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf train` from end to end: a tiny model on the built-in numbers."""

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict
from safetensors.torch import load_file
from system.training.tiny_runs import TINY, parse

import csan_hf.commands.train
import csan_hf_runtime.command_line
from csan_hf.data import PreparedCorpus, TokenizerPair, load_translation_dataset, train_tokenizer
from csan_hf.evaluation import translate
from csan_hf.evaluation.loading import load_translation_model
from csan_hf.hub.public_files import read_json
from csan_hf.training import load_recipe
from csan_hf.training.output_folder import MARK
from csan_hf.training.plan import resolve
from csan_hf_runtime.characters import read_ranges

ROOT = Path(__file__).parents[3]
RECIPE = (
    f"{TINY} --name tiny --license apache-2.0 --data.train_size 400 --validation_size 20 --test_size 10 "
    "--d_model 32 --encoder_layers 2 --encoder_ffn_dim 64 --decoder_ffn_dim 64 "
    "--max_tokens 2000 --max_steps 24 --eval_steps 8 --logging_steps 4 --report_to tensorboard"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The script in a process of its own."""
    output = tmp_path_factory.mktemp("run") / "out"
    words = f"-m csan_hf train {RECIPE} --output_dir {output}"
    result = subprocess.run(
        [sys.executable, *words.split()],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return output, result


def test_the_folder_is_complete(run):
    output, result = run
    names = (
        "config.json generation_config.json model.safetensors tokenizer.json recipe.yaml "
        "training.png locality.png results.json README.md hypotheses/validation.txt"
    )
    for name in names.split():
        assert (output / name).stat().st_size > 0, name
    assert len((output / "hypotheses" / "test.txt").read_text().split("\n")) == 11
    assert [path.name for path in output.glob(".*")] == [MARK], "nothing half-written"
    for word in ("split", "test", "BLEU", "updates"):
        assert word in result.stdout


def test_results_say_what_was_measured(run):
    state = read_json(run[0] / "checkpoint-24" / "trainer_state.json")
    assert Path(state["best_model_checkpoint"]).is_dir(), "a name that it has when it is complete"
    results = read_json(run[0] / "results.json")
    scores, training = results["scores"], results["training"]
    assert set(scores) == {"validation", "test"}
    assert "version:" in scores["test"]["bleu_signature"]
    assert (scores["test"]["num_beams"], training["updates"]) == (2, 24)
    speeds = (training["tokens_per_second"], training["updates_per_second"])
    assert min(*speeds, scores["test"]["sentences_per_second"]) > 0
    assert results["environment"]["transformers"]


def test_the_checkpoint_loads_and_scores_alike(run):
    output = run[0]
    model, tokenizers = load_translation_model(str(output), device="cpu")
    assert (model.generation_config.num_beams, model.generation_config.max_length) == (2, 24)
    splits, _ = load_translation_dataset(load_recipe(output / "recipe.yaml").data_arguments())
    lengths = sorted(len(tokenizers.source(text).input_ids) for text in splits["train"]["source"])
    usual = {
        "tokens": lengths[math.ceil(0.99 * (len(lengths) - 1))],
        "sentences": 1,
        "language": "en",
    }
    assert model.generation_config.usual_source == usual
    characters = set("".join(splits["train"]["source"])) - {" "}
    assert read_ranges(model.generation_config.source_characters) == characters
    hypotheses = translate(model, tokenizers, list(splits["test"]["source"]))
    assert hypotheses == (output / "hypotheses" / "test.txt").read_text().split("\n")[:-1]


@pytest.mark.parametrize(
    ("words", "usual"),
    [
        ("--preset long", None),
        ("--sinusoids null", {"tokens": 2, "sentences": 2, "language": "en"}),
        ("--model rnnsearch", {"tokens": 2, "sentences": 2, "language": "en"}),
    ],
)
def test_what_follows_its_source_takes_any_number_of_sentences(words, usual):
    train = Dataset.from_dict(
        {"source": ["Two dogs. Three cats."], "input_ids": [[5, 1]], "labels": [[1]]}
    )
    tokenizer = train_tokenizer(train["source"], 300)
    tokenizers = TokenizerPair(tokenizer, tokenizer)
    corpus = PreparedCorpus(tokenizers, DatasetDict(train=train), report="", characters=None)
    model = resolve(parse(f"{TINY} --output_dir run {words}")).build_model(corpus)
    assert model.generation_config.usual_source == usual


def main(words):
    """The command in this process: faster than a subprocess for what ends at once."""
    return csan_hf_runtime.command_line.main(["train", *words.split()])


def test_a_finished_run_is_not_trained_further(run, tmp_path, capsys):
    output = tmp_path / "copy"
    shutil.copytree(run[0], output)
    (output / "results.json").unlink()
    assert main(f"{RECIPE} --output_dir {output}") == 0
    assert "Training had ended at update 24" in capsys.readouterr().err
    old, new = (read_json(folder / "results.json") for folder in (run[0], output))
    for facts in (old, new):
        del facts["training"]["seconds"]  # the last half second is in no checkpoint
    assert new["training"] == old["training"]
    assert new["chosen"] == old["chosen"]
    assert (output / "model.safetensors").read_bytes() == (
        run[0] / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", ["output_dir is missing"]),
        ("--output_dir {x} --source_lang qq", ["data cannot be used", "qq"]),
        (
            "--output_dir {x} --max_source_length 2",
            ["data cannot be used", "max_source_length=2"],
        ),
        (
            "--output_dir {x} --dataset ./none",
            ["data cannot be used: There is no folder ./none to read"],
        ),
        (
            "--output_dir {x} --dataset owner/none",
            ["data cannot be used: Couldn't reach 'owner/none'"],
        ),
        ("second.yaml", ["'second.yaml' is not understood"]),
        ("--output_dir --max_steps 3", ["--output_dir needs a value: str | null"]),
        ("--model --max_steps 3", ["--model needs a value: str"]),
        ("--tokenizer --max_steps 3", ["--tokenizer.pretrained needs a value: str | null"]),
    ],
)
def test_errors_are_one_line(tmp_path, capsys, arguments, words):
    assert main(f"{RECIPE} {arguments}".format(x=tmp_path / "x")) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in ["error: ", *words]), error


@pytest.mark.parametrize(("rank", "times"), [("0", 1), ("1", 0)])
def test_of_several_processes_one_prints_the_dry_run(rank, times, monkeypatch, capsys):
    monkeypatch.setattr(csan_hf.commands.train, "dry_run", lambda recipe: recipe.name)
    monkeypatch.setenv("RANK", rank)
    assert main("numbers --dry_run") == 0
    assert capsys.readouterr().out.count("csan-numbers-en-de") == times


def test_another_family_with_the_same_recipe(tmp_path, capsys):
    output = tmp_path / "grid"
    words = f"{TINY} --model pervasive_attention --output_dir {output}"
    assert main(f"{words} --max_cells 9") == 2
    assert re.search("section training is refused.*raise max_cells", capsys.readouterr().err)
    words += " --num_layers 2 --growth_rate 4 --source_embed_dim 8 --target_embed_dim 8"
    words += " --max_steps 4 --eval_steps 2 --max_cells 5000 --batch_norm_batches 3"
    assert main(words) == 0
    printed = capsys.readouterr()
    message = "config.d_model, config.* left out: PervasiveAttentionConfig has no such fields"
    assert re.search(message, printed.err)
    results = read_json(output / "results.json")
    assert results["model"] == "PervasiveAttentionForConditionalGeneration"
    card = (output / "README.md").read_text()
    assert "2 dense layers of growth rate 4 with 5×5 kernels" in card
    assert "yang-etal" not in card, "the paper of the other family"
    weights = load_file(output / "model.safetensors")
    count = weights["model.decoder.dense_block.feature_norm.num_batches_tracked"]
    assert count == 4 + 3, "updates, and batches with the final weights"


def test_fine_tuning_from_a_checkpoint(run, tmp_path, capsys):
    output = tmp_path / "tuned"
    words = f"{RECIPE} --init_from {run[0]} --local_window 5 --max_steps 2 --eval_steps 2"
    assert main(f"{words} --output_dir {output}") == 0
    told = f"tokenizer.vocab_size not used: the tokenizer of {run[0]} is taken"
    assert told in capsys.readouterr().err
    [locality, _] = read_json(output / "config.json")["encoder_locality"]
    assert locality["window"] == 5
    assert (output / "tokenizer.json").read_bytes() == (run[0] / "tokenizer.json").read_bytes()
    results, before = (read_json(folder / "results.json") for folder in (output, run[0]))
    losses = [outcome["scores"]["test"]["loss"] for outcome in (results, before)]
    assert losses[0] < losses[1] + 0.5, "not from random weights"
