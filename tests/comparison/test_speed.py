# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What is timed are the updates of training."""

import torch
from training.test_metrics_in_training import tiny_recipe

from csan_hf.comparison import speed
from csan_hf.training.trainer import TranslationTrainer


def test_updates_are_those_of_training(tmp_path, monkeypatch):
    types, batches = set(), []

    def build(*arguments):
        model = build_model(*arguments)
        layer = model.model.encoder.layers[0].fc1
        layer.register_forward_hook(lambda module, inputs, output: types.add(output.dtype))
        return model

    def training_step(trainer, model, batch, num_items_in_batch):
        batches.append((int(batch["labels"].ne(-100).sum()), int(num_items_in_batch)))
        return step(trainer, model, batch, num_items_in_batch)

    build_model, step = speed.build_model, TranslationTrainer.training_step
    monkeypatch.setattr(speed, "build_model", build)
    monkeypatch.setattr(TranslationTrainer, "training_step", training_step)
    recipe = tiny_recipe(tmp_path, bf16=True, gradient_accumulation_steps=2, max_tokens=400)
    found = speed.measure_speed({"plain": recipe}, rounds=1)["plain"]
    assert types == {torch.bfloat16}
    assert len(batches) == 2 * (speed.WARM_UP + 1)
    assert all(
        first[0] + second[0] == first[1] == second[1] for first, second in zip(*2 * [iter(batches)], strict=True)
    )
    assert found.relative == 1.0
    assert min(found.scoring, found.evaluation) > 0
    assert found.run_seconds(recipe) > 4 * found.seconds
