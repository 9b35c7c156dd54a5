# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The sinusoids of positions."""

import pytest
import torch
from reference.dispatch import Operations

from csan_hf.models.seq2seq_model import SinusoidalPositionalEmbedding


def test_a_config_that_asks_for_a_million_positions_gets_those_that_are_used():
    positions = SinusoidalPositionalEmbedding(1_000_000, 4)
    assert positions.weight.shape == (16_384, 4)
    everything = positions.create_weight(20_000)
    for length, offset in ((3, 16_381), (3, 16_382), (5, 19_995), (16_384, 0)):
        assert torch.equal(positions(length, offset), everything[offset : offset + length])
    assert positions(1, 999_999).shape == (1, 4)


@pytest.mark.parametrize("kind", ["marian", "m2m_100"])
@pytest.mark.parametrize(("length", "offset"), [(6, 0), (1, 12), (5, 30)])
def test_sinusoids_start_at_the_first_real_token(length, offset, kind):
    """Wherever the offset is known, on the host or on the device alone."""
    positions = SinusoidalPositionalEmbedding(20, 8, kind, pad_token_id=1)
    first = torch.tensor([0, 2, 5])
    places = torch.arange(offset, offset + length)
    table = positions.create_weight(40)
    for start in (offset, torch.tensor(offset)):
        assert torch.equal(positions(length, start), table[places])
        assert torch.equal(positions(length, start, first), table[(places - first[:, None]).clamp(min=0)])


@pytest.mark.parametrize("offset", [3, 19, 40])
def test_sinusoids_are_computed_where_the_model_is(offset):
    """In the table and past it: no step of generation waits for the host."""
    positions = SinusoidalPositionalEmbedding(20, 8).to("meta")
    with Operations(device="meta"):
        assert positions(3, offset).device.type == "meta"
