# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""bf16 stays near float32, and torch.compile and torch.func compute the same."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tiny import gradients, labels_of, padded_sources
from tiny import grid as tiny_model
from torch._dynamo.testing import CompileCounterWithBackend


def pairs(*lengths: int) -> dict[str, torch.Tensor]:
    """Sentences whose targets are of the sources' lengths in reverse."""
    return {**padded_sources(lengths), "labels": labels_of(lengths[::-1])}


@pytest.mark.parametrize("training", [True, False])
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
    model, batch = tiny_model().double(), pairs(5, 3, 4)

    def loss_of(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (), batch).loss

    found = torch.func.grad(loss_of)(dict(model.named_parameters()))
    model(**batch).loss.backward()
    torch.testing.assert_close(found, gradients(model), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_compiled_model_computes_the_same_and_is_compiled_for_all_lengths_at_once(training):
    model = tiny_model(num_layers=1).double().train(training)
    twin = copy.deepcopy(model)
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(twin, backend=counter, fullgraph=True)
    counts = []
    for sizes in ((6, 4, 5), (4, 9, 7, 3), (5, 11, 12, 2, 8)):
        for each in (model, twin):
            each.zero_grad()
        batch = pairs(*sizes)
        expected, found = model(**batch), compiled(**batch)
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-9, atol=1e-9)
        expected.loss.backward()
        found.loss.backward()
        torch.testing.assert_close(gradients(twin), gradients(model), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            dict(twin.named_buffers()), dict(model.named_buffers()), rtol=1e-9, atol=1e-9
        )
        counts.append(counter.frame_count)
    assert counts[1] == counts[2], f"compiled anew for new lengths: {counts}"
