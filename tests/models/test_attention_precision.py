# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""On a CPU, attention trains in float32 under a bfloat16 autocast: its fused backward pass is slow in bfloat16."""

import pytest
import torch
import torch.nn.functional as F
from tiny import ENCODER, PLAIN, padded_sources
from tiny import csan as tiny_model

LOCALITIES = {"full": {"local_window": None, "head_area": 1}, "local": {**ENCODER, "local_window": 3, "head_area": 3}}


@pytest.mark.parametrize("kind", LOCALITIES)
def test_dtypes_of_training_and_of_inference(kind, monkeypatch):
    model = tiny_model(**{**PLAIN, "dropout": 0.0, **LOCALITIES[kind]}).train()
    seen, fused = set(), F.scaled_dot_product_attention

    def attend(query, *args, **kwargs):
        seen.add(query.dtype)
        assert not torch.is_autocast_enabled("cpu") or query.dtype == torch.bfloat16
        return fused(query, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    ids = torch.tensor([[3, 4, 5, 1], [6, 7, 1, 0]])
    inputs = {"input_ids": ids, "attention_mask": ids.ne(0).long(), "labels": ids}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**inputs).loss
        loss.backward()
        assert seen == {torch.float32}
        seen.clear()
        with torch.no_grad():
            assert model(**inputs).loss.item() == pytest.approx(loss.item(), abs=0.02)
    assert seen == {torch.bfloat16}


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float32])
def test_ready_made_masks_of_any_type_train_in_bfloat16(implementation, dtype):
    """A mask [B, 1, J, J] of the user's own gives what the padding mask gives, whatever attention computes in."""
    model = tiny_model(attn_implementation=implementation, **PLAIN).bfloat16().model.encoder
    inputs = padded_sources((5, 9))
    real = inputs["attention_mask"].bool()
    mask = real[:, None, None, :].expand(2, 1, 9, 9)
    if dtype != torch.bool:
        mask = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
    expected = model(**inputs).last_hidden_state
    states = model(input_ids=inputs["input_ids"], attention_mask=mask).last_hidden_state
    assert torch.equal(states[real], expected[real])
    states.float().square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.layers.parameters())


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_ready_made_masks_of_integers_are_refused(implementation):
    model = tiny_model(attn_implementation=implementation, **PLAIN).model.encoder
    with pytest.raises(ValueError, match=r"`attention_mask` must be boolean.*int64"):
        model(input_ids=torch.tensor([[3, 4]]), attention_mask=torch.ones(1, 1, 2, 2, dtype=torch.long))
