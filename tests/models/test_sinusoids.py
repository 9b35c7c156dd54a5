# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The sinusoids of positions."""

import torch

from csan_hf.models.positions import SinusoidalPositionalEmbedding


def test_a_config_that_asks_for_a_million_positions_gets_those_that_are_used():
    positions = SinusoidalPositionalEmbedding(1_000_000, 4)
    assert positions.weight.shape == (16_384, 4)
    everything = positions.create_weight(20_000)
    for length, offset in ((3, 16_381), (3, 16_382), (5, 19_995), (16_384, 0)):
        assert torch.equal(positions(length, offset), everything[offset : offset + length])
    assert positions(1, 999_999).shape == (1, 4)
