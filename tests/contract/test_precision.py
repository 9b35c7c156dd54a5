# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""bfloat16 and float16: near float32 in logits and gradients, and finite where numbers are large.

On a CPU, too, all operations of every family exist in both types.
"""

import copy

import pytest
import tiny
import torch
from families import FAMILIES, every_family, training_batch
from tiny import every_implementation, every_mode, gradients

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
both_types = pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
CSAN = FAMILIES["csan"]
# Root mean square of the logits' error, in units of their spread: 8 and 11 bits of precision
TOLERANCE = {torch.bfloat16: 0.06, torch.float16: 0.008}


@every_family
@both_types
@every_mode
def test_near_float32(family, dtype, training):
    batch = training_batch()
    exact = family.tiny_model(seed=1).train(training)(**batch)
    model = family.tiny_model(seed=1).to(dtype).train(training)
    outputs = model(**batch)
    assert outputs.logits.dtype == dtype
    real = batch["labels"] != -100
    error = (outputs.logits.float() - exact.logits)[real].square().mean().sqrt() / exact.logits[
        real
    ].std()
    assert error < TOLERANCE[dtype]
    outputs.loss.backward()
    gradients_by_name = gradients(model)
    assert gradients_by_name.keys() == {name for name, _ in model.named_parameters()}
    assert all(gradient.isfinite().all() for gradient in gradients_by_name.values())


@pytest.mark.parametrize("normalize_before", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("part", ["fc2", "out_proj"])
def test_float16_activations_beyond_its_range_stay_finite(part, normalize_before):
    """A sub-layer's output of 10^6: float32 takes it, and float16 must not make NaN of it."""
    model = CSAN.tiny_model(seed=1, normalize_before=normalize_before)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if part in name:
                parameter.mul_(1e5).clamp_(-6e4, 6e4)
    exact = model(**training_batch()).logits
    assert exact.isfinite().all()
    peak = []
    module = model.model.encoder.layers[0].get_submodule(
        "fc2" if part == "fc2" else "self_attn.out_proj"
    )
    module.register_forward_hook(
        lambda _module, _inputs, output: peak.append(output.float().abs().max())
    )
    half = model.half()
    assert half(**training_batch()).logits.isfinite().all()
    assert peak[0].isinf(), peak[0]  # the test is about what it says


@every_implementation
@pytest.mark.parametrize(
    "locality", ["plain", "encoder area", "everything, query", "everything, layer"]
)
def test_float16_stays_finite(locality, implementation):
    """With a row of padding; with energies beyond its range."""
    batch = training_batch()
    batch["attention_mask"][1] = 0
    model = tiny.csan(attn_implementation=implementation, **tiny.LOCALITIES[locality])
    assert copy.deepcopy(model).half()(**batch).logits.isfinite().all()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj.weight" in name or "k_proj.weight" in name:
                parameter.mul_(1000)
    assert model(**training_batch()).logits.isfinite().all()
    assert model.half()(**training_batch()).logits.isfinite().all()


@every_family
def test_autocast(family):
    """Mixed precision: weights and their gradients stay float32."""
    model = family.tiny_model(seed=1).train()
    exact = model(**training_batch()).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**training_batch()).loss
    loss.backward()
    assert abs(loss.item() - exact.item()) < 0.05 * exact.item()
    assert {gradient.dtype for gradient in gradients(model).values()} == {torch.float32}
