# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Positions are ranks among the real tokens: where the padding stands changes nothing."""

import pytest
import torch
from tiny import LOCALITIES, PAD, padded_sources
from tiny import csan as tiny_model

LENGTHS = (9, 4, 1)
TARGETS = (6, 3, 5)
NAMES = ("plain", "encoder area", "decoder window", "everything, query", "everything, layer")


def shift_right(tensor: torch.Tensor, lengths: tuple[int, ...]) -> torch.Tensor:
    """Rows padded on the right as rows padded on the left."""
    return torch.stack([row.roll(tensor.shape[1] - length) for row, length in zip(tensor, lengths, strict=True)])


def batch() -> dict[str, torch.Tensor]:
    targets = padded_sources(TARGETS, seed=1)
    return {
        **padded_sources(LENGTHS),
        "decoder_input_ids": targets["input_ids"],
        "decoder_attention_mask": targets["attention_mask"],
    }


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "blocked"])
@pytest.mark.parametrize("locality", NAMES)
@torch.no_grad()
def test_padding_on_the_left_and_on_the_right_give_the_same_logits(locality, implementation):
    model = tiny_model(attn_implementation=implementation, **LOCALITIES[locality])
    right = batch()
    left = {name: shift_right(t, TARGETS if name.startswith("decoder") else LENGTHS) for name, t in right.items()}
    assert (left["input_ids"][1, :-4] == PAD).all()
    expected = model(**right, use_cache=False).logits
    found = model(**left, use_cache=False).logits
    for row, length in enumerate(TARGETS):
        torch.testing.assert_close(found[row, -length:], expected[row, :length], rtol=0, atol=1e-5)
