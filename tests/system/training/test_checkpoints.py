# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Which checkpoints stay, and their average."""

import json

import pytest
import torch
from safetensors.torch import save_file
from system.training.tiny_runs import LOSS_ALONE, make_checkpoint, tiny_marian
from torch import distributed
from torch.distributed.fsdp import fully_shard
from transformers import TrainerState

from csan_hf.training.arguments import TranslationTrainingArguments
from csan_hf.training.checkpoints import (
    average_weights,
    checkpoint_step,
    delete_checkpoint,
    find_fault,
    list_checkpoints,
    load_weights,
    rank_checkpoints,
    read_stream_state,
    read_weights,
    rotate_checkpoints,
    write_stream_state,
)
from csan_hf.training.errors import RecipeError


def steps_of(paths):
    return [checkpoint_step(path) for path in paths]


def test_the_best_and_the_newest_stay(tmp_path):
    best = [make_checkpoint(tmp_path, step) for step in (2, 4, 6, 8, 10)][1]
    rotate_checkpoints(tmp_path, [best])
    assert steps_of(sorted(tmp_path.iterdir())) == [10, 4, 8]
    assert (tmp_path / "checkpoint-10" / "optimizer.pt").exists()
    assert find_fault(tmp_path / "checkpoint-4") == "it was saved without the optimizer's state"
    assert find_fault(tmp_path / "checkpoint-4", to_resume=False) is None


def test_what_a_link_leads_to_is_not_deleted(tmp_path):
    for step in (2, 4):
        make_checkpoint(tmp_path / "elsewhere", step)
        (tmp_path / f"checkpoint-{step}").symlink_to(tmp_path / "elsewhere" / f"checkpoint-{step}")
    for step in (6, 8):
        make_checkpoint(tmp_path, step)
    rotate_checkpoints(tmp_path, [tmp_path / "checkpoint-4"])
    delete_checkpoint(tmp_path / "checkpoint-4")
    assert steps_of(list_checkpoints(tmp_path)) == [2, 6, 8]
    assert len([*tmp_path.glob("elsewhere/*/optimizer.pt")]) == 2
    assert not (tmp_path / "_unfinished").exists()


def test_unfinished_newest_does_not_cost_the_one_before_its_optimizer(tmp_path):
    best = [make_checkpoint(tmp_path, 2)]
    (make_checkpoint(tmp_path, 4) / "trainer_state.json").unlink()
    rotate_checkpoints(tmp_path, best)
    assert find_fault(tmp_path / "checkpoint-2") is None


@pytest.mark.parametrize(
    ("metric", "scores", "ranked"),
    [
        ("bleu", {1: (5.0, 0.1), 2: (7.0, 0.1), 10: (5.0, 0.1)}, [2, 10, 1]),
        ("bleu", {1: (5.0, 0.1), 2: (5.0, 0.2), 3: (1.0, 0.1)}, [1, 2, 3]),
        ("ter", {1: (5.0, 0.1), 2: (7.0, 0.1), 3: (1.0, 0.1)}, [3, 1, 2]),
    ],
)
def test_ranking(tmp_path, metric, scores, ranked):
    for step in (1, 2, 3, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
    log = [
        {"step": step, f"eval_{metric}": score, "eval_loss": loss}
        for step, (score, loss) in scores.items()
    ]
    args = TranslationTrainingArguments(
        str(tmp_path), report_to="none", metrics=[metric], metric_for_best_model=metric
    )
    assert steps_of(rank_checkpoints(args, TrainerState(log_history=log))) == ranked


def test_average_is_summed_in_float32(tmp_path):
    # In bf16 1 + 2**-8 is 1: summing there would lose the small parts.
    values = torch.tensor([1.0, 2.0**-8, 2.0**-8, 2.0**-8])
    checkpoints = []
    for number, value in enumerate(values):
        weights = {"half": value.bfloat16(), "full": value, "count": torch.tensor(number)}
        checkpoints.append(make_checkpoint(tmp_path, number, weights))
    average = average_weights(checkpoints)
    assert average["half"].dtype == torch.bfloat16
    assert average["half"] == values.mean().bfloat16()
    torch.testing.assert_close(average["full"], values.mean())
    assert average["count"] == 0


@pytest.mark.parametrize("other_weights", [{"w": torch.zeros(2)}, {"v": torch.zeros(1)}])
def test_different_models_have_no_average(tmp_path, other_weights):
    paths = [make_checkpoint(tmp_path, 1), make_checkpoint(tmp_path, 2, other_weights)]
    with pytest.raises(ValueError, match=r"checkpoint-2 and .*checkpoint-1 hold different weights"):
        average_weights(paths)


@pytest.fixture(params=["whole", "sharded"])
def model(request):
    """A Marian model, whose positions and tied embeddings are not saved."""
    if request.param == "whole":
        yield tiny_marian(20)
        return
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield fully_shard(tiny_marian(20), mesh=distributed.init_device_mesh("cpu", (1,)))
    distributed.destroy_process_group()


def test_weights_that_lack_a_tensor_or_have_another_are_not_loaded(model, tmp_path):
    saved = tiny_marian(20)
    saved.final_logits_bias.fill_(3)
    saved.save_pretrained(tmp_path)
    weights = read_weights(tmp_path)
    load_weights(model, weights)
    assert model.final_logits_bias.max() == 3
    bias = weights.pop("model.encoder.layers.0.fc1.bias")
    with pytest.raises(
        ValueError, match=r"do not fit the model: model\.\S+\.fc1\.bias missing; other unexpected\."
    ):
        load_weights(model, {**weights, "other": bias})


def test_a_run_does_not_go_on_from_half_a_checkpoint(make_trainer):
    options = {"max_steps": 2, "eval_steps": 1, **LOSS_ALONE}
    trainer = make_trainer(**options)
    trainer.train()
    path = list_checkpoints(trainer.args.output_dir)[0]
    weights = read_weights(path)
    del weights["model.encoder.layers.0.fc1.bias"]
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"fc1\.bias missing"):
        make_trainer(**options).train(resume_from_checkpoint=str(path))


def test_an_index_that_names_files_elsewhere_is_not_read(tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "other.safetensors")
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"w": "../other.safetensors"}})
    )
    with pytest.raises(ValueError, match="cannot be the name of a file"):
        read_weights(folder)
    assert "cannot be the name of a file" in find_fault(folder, to_resume=False)


def test_a_stream_goes_on_with_as_many_processes(tmp_path, monkeypatch):
    args = TranslationTrainingArguments(str(tmp_path), report_to="none")
    write_stream_state(tmp_path, args, {"buffers": 3})
    assert read_stream_state(tmp_path, args) == {"buffers": 3}
    monkeypatch.setattr(TranslationTrainingArguments, "world_size", 2)
    with pytest.raises(RecipeError, match=r"no stream_0_of_2\.json: .* with as many processes"):
        read_stream_state(tmp_path, args)
