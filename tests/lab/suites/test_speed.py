# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The updates of training are timed."""

from dataclasses import replace

import pytest
import torch
from system.training.test_metrics_in_training import tiny_recipe

from csan_hf.lab.suites import training_speed
from csan_hf.training.errors import RecipeError
from csan_hf.training.teachers import COLUMNS
from csan_hf.training.trainer import TranslationTrainer


@pytest.fixture(autouse=True)
def one_round(monkeypatch):
    monkeypatch.setattr(training_speed, "ROUNDS", 1)
    monkeypatch.setattr(training_speed, "SECONDS", 0)


def test_updates_are_those_of_training(tmp_path, monkeypatch):
    types = set()
    batches = []
    step = TranslationTrainer.training_step

    def training_step(trainer, model, batch, num_items_in_batch):
        layer = trainer.model.model.encoder.layers[0].fc1
        layer.register_forward_hook(lambda module, inputs, output: types.add(output.dtype))
        batches.append((int(batch["labels"].ne(-100).sum()), int(num_items_in_batch)))
        return step(trainer, model, batch, num_items_in_batch)

    monkeypatch.setattr(TranslationTrainer, "training_step", training_step)
    recipe = tiny_recipe(tmp_path, "--bf16 true --gradient_accumulation_steps 2 --max_tokens 400")
    speed = training_speed.measure_speed({"plain": recipe})["plain"]
    assert types == {torch.bfloat16}
    assert len(batches) == 2 * 2 * (training_speed.WARM_UP + 1)  # one of two updates is timed
    for (first, total), (second, same) in zip(batches[::2], batches[1::2], strict=True):
        assert first + second == total == same
    assert speed.relative == 1.0
    assert min(speed.scoring, speed.evaluation) > 0
    assert speed.run_seconds(recipe) > 4 * speed.seconds


def test_the_loss_of_a_student_has_its_teachers_part(tmp_path, monkeypatch):
    seen = []
    step = TranslationTrainer.training_step

    def training_step(trainer, model, batch, num_items_in_batch):
        seen.append({name: tuple(batch[name].shape) for name in ("labels", *COLUMNS)})
        return step(trainer, model, batch, num_items_in_batch)

    monkeypatch.setattr(TranslationTrainer, "training_step", training_step)
    recipe = tiny_recipe(tmp_path, "--max_tokens 400 --teachers not_trained_yet --teacher_top_k 3")
    training_speed.measure_speed({"student": recipe})
    for shapes in seen:
        labels = shapes["labels"]
        assert shapes == {"labels": labels, **dict.fromkeys(COLUMNS, (*labels, 3))}


def test_no_system_pays_for_the_one_before(monkeypatch):
    """On a clock on which an update takes 1 s, after another system's 3 s."""
    now = [0.0]
    last = [""]
    order = []

    def updates(name, seconds):
        while True:
            order.append(name)
            now[0] += seconds * (1 if last[0] == name else 3)
            last[0] = name
            yield 10.0

    monkeypatch.setattr(training_speed.time, "perf_counter", lambda: now[0])
    systems = {"plain": 1.0, "equal": 1.0, "half": 2.0}
    times = training_speed.time_in_turn(
        {name: updates(name, seconds) for name, seconds in systems.items()}, 12, 0.0
    )
    assert times == {name: [(seconds, 10.0)] * 12 for name, seconds in systems.items()}
    places = [order[start : start + 6 : 2].index("plain") for start in range(0, len(order), 6)]
    assert set(places) == {0, 1, 2}
    assert (
        len(training_speed.time_in_turn({"plain": updates("plain", 1.0)}, 1, 30.0)["plain"]) >= 14
    )


def test_the_system_whose_recipe_is_wrong_is_named_and_nothing_is_pushed(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        TranslationTrainer,
        "init_hf_repo",
        lambda trainer, **_: seen.append("pushed"),
        raising=False,
    )
    recipe = tiny_recipe(tmp_path, "--max_tokens 400 --push_to_hub true")
    by_line = replace(
        recipe, config={"preset": "lines", **recipe.config}, data={**recipe.data, "join": 2}
    )
    assert {*training_speed.measure_speed({"plain": recipe, "by line": by_line})} == {
        "plain",
        "by line",
    }
    assert seen == []
    odd = replace(recipe, config={**recipe.config, "d_model": 33})
    with pytest.raises(RecipeError, match=r"odd: .*d_model"):
        training_speed.measure_speed({"plain": recipe, "odd": odd})
