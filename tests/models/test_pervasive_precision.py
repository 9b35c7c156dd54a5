# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""bf16 stays near float32, and torch.func computes the same."""

import torch
import torch.nn.functional as F
from tiny import every_mode, gradients, labels_of, padded_sources
from tiny import grid as tiny_model
from torch import Tensor
from torch.testing import assert_close


def pairs(*lengths: int) -> dict[str, Tensor]:
    """Sentences whose targets are of the sources' lengths in reverse."""
    return {**padded_sources(lengths), "labels": labels_of(lengths[::-1])}


@every_mode
def test_bf16_is_near_float32(training):
    model = tiny_model(seed=0, num_layers=3).train(training)
    batch = pairs(7, 7, 5, 7, 7, 6)
    exact = model(**batch)
    exact.loss.backward()
    expected = gradients(model)
    model.zero_grad()
    model.load_state_dict(tiny_model(seed=0, num_layers=3).state_dict())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(**batch)
    outputs.loss.backward()
    assert outputs.logits.dtype == torch.bfloat16
    spread = exact.logits.std()
    assert (outputs.logits.float() - exact.logits).square().mean().sqrt() < 0.03 * spread
    for name, gradient in gradients(model).items():
        assert gradient.dtype == torch.float32
        # Rounding moves ReLUs and maxima, for torch's own modules under autocast just as much
        assert F.cosine_similarity(gradient.flatten(), expected[name].flatten(), dim=0) > 0.9 or (
            expected[name].norm() < 1e-3
        ), name


def test_torch_func_differentiates():
    model = tiny_model().double()
    batch = pairs(5, 3, 4)

    def loss_of(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, parameters, (), batch).loss

    found = torch.func.grad(loss_of)(dict(model.named_parameters()))
    model(**batch).loss.backward()
    assert_close(found, gradients(model), rtol=1e-6, atol=1e-6)
