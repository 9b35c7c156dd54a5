# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Which checkpoints stay, and their average."""

import json

import pytest
import torch
from safetensors.torch import save_file

from csan_hf.training.checkpoints import (
    average_weights,
    checkpoint_step,
    find_fault,
    list_checkpoints,
    rank_checkpoints,
    read_weights,
    rotate_checkpoints,
    scores_by_step,
)


def make_checkpoint(folder, step, weights=None, *, complete=True):
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    save_file(weights or {"w": torch.zeros(1)}, path / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (path / name).write_bytes(b"0")
    if complete:
        (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


def steps_of(paths):
    return [checkpoint_step(path) for path in paths]


def test_the_best_and_the_newest_stay(tmp_path):
    best = [make_checkpoint(tmp_path, step) for step in (2, 4, 6, 8, 10)][1]
    rotate_checkpoints(tmp_path, [best])
    assert steps_of(list_checkpoints(tmp_path)) == [4, 8, 10]
    assert (tmp_path / "checkpoint-10" / "optimizer.pt").exists()
    assert not (tmp_path / "checkpoint-4" / "optimizer.pt").exists()
    assert (tmp_path / "checkpoint-4" / "model.safetensors").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-4", "checkpoint-8", "checkpoint-10"}


def test_unfinished_newest_does_not_cost_the_one_before_its_optimizer(tmp_path):
    best = [make_checkpoint(tmp_path, 2)]
    make_checkpoint(tmp_path, 4, complete=False)
    rotate_checkpoints(tmp_path, best)
    assert find_fault(tmp_path / "checkpoint-2") is None


def test_ranking(tmp_path):
    paths = [tmp_path / f"checkpoint-{step}" for step in (1, 2, 3, 10)]

    def ranked(scores, losses=None, **options):
        log = [{"step": step, "eval_bleu": score} for step, score in scores.items()]
        log += [{"step": step, "eval_loss": loss} for step, loss in (losses or {}).items()]
        return steps_of(rank_checkpoints(paths, log, "bleu", **options))

    assert ranked({1: 5.0, 2: 7.0, 10: 5.0}) == [2, 10, 1]
    assert ranked({1: 5.0, 2: 5.0, 3: 1.0}, losses={1: 0.1, 2: 0.2}) == [1, 2, 3]
    assert ranked({1: 5.0, 2: 7.0, 3: 1.0}, greater_is_better=False) == [3, 1, 2]


def test_scores_are_read_from_the_log():
    log = [{"step": 2, "loss": 1.0}, {"step": 2, "eval_bleu": 3.0}, {"step": 4, "eval_bleu": 4.0}]
    assert scores_by_step(log, "bleu") == scores_by_step(log, "eval_bleu") == {2: 3.0, 4: 4.0}


def test_average_is_summed_in_float32(tmp_path):
    # In bf16 1 + 2**-8 is 1: summing there would lose the small parts.
    small = 2.0**-8
    values = [1.0, small, small, small]
    paths = []
    for number, value in enumerate(values):
        full = torch.tensor([value])
        weights = {"half": full.bfloat16(), "full": full, "count": torch.tensor([number])}
        paths.append(make_checkpoint(tmp_path, number, weights))
    average = average_weights(paths)
    expected = torch.tensor([sum(values) / 4])
    assert average["half"].dtype == torch.bfloat16
    torch.testing.assert_close(average["half"], expected.bfloat16(), rtol=0, atol=0)
    torch.testing.assert_close(average["full"], expected)
    assert average["count"].item() == 0


def test_an_index_that_names_files_elsewhere_is_not_read(tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "other.safetensors")
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "../other.safetensors"}}))
    with pytest.raises(ValueError, match="cannot be the name of a file"):
        read_weights(folder)
    assert "cannot be the name of a file" in find_fault(folder, to_resume=False)
