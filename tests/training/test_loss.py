# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The smoothed loss, and gradient accumulation."""

import pytest
import torch
from torch.nn import functional as F

from csan_hf.training import LabelSmoothedCrossEntropy


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.3])
def test_equals_torch(epsilon):
    torch.manual_seed(0)
    logits = torch.randn(3, 5, 11, requires_grad=True)
    labels = torch.randint(0, 11, (3, 5))
    labels[0, 3:] = labels[2, 1:] = -100
    loss = LabelSmoothedCrossEntropy(epsilon)({"logits": logits}, labels)
    kept = labels.ne(-100)
    expected = F.cross_entropy(logits[kept], labels[kept], label_smoothing=epsilon)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        torch.autograd.grad(loss, logits, retain_graph=True), torch.autograd.grad(expected, logits)
    )


def test_no_label_gives_zero_not_nan():
    logits = torch.randn(1, 2, 4, requires_grad=True)
    loss = LabelSmoothedCrossEntropy(0.1)({"logits": logits}, torch.full((1, 2), -100), torch.tensor(0))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad.abs().sum() == 0


def test_accumulation_over_four_equals_the_whole_batch(make_trainer, tokenized):
    """Micro-batches of very different sizes: a mean of means would be far off."""
    rows = tokenized["train"].select(range(16))
    bounds = ((0, 1), (1, 4), (4, 6), (6, 16))
    gradients, losses = [], []
    for accumulate in (1, 4):
        options = {"dropout": 0.0, "label_smoothing_factor": 0.1, "max_steps": 1}
        trainer = make_trainer(f"run{accumulate}", gradient_accumulation_steps=accumulate, **options)
        features = [{k: rows[i][k] for k in ("input_ids", "attention_mask", "labels")} for i in range(16)]
        parts = [features] if accumulate == 1 else [features[start:end] for start, end in bounds]
        batches = [trainer.data_collator(part) for part in parts]
        trainer.create_optimizer_and_scheduler(1)
        samples, count = trainer.get_batch_samples(iter(batches), len(batches), torch.device("cpu"))
        trainer.current_gradient_accumulation_steps = len(samples)
        losses.append(sum(trainer.training_step(trainer.model, batch, count) for batch in samples))
        gradients.append({name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None})
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=1e-6)
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-5, atol=1e-6)
