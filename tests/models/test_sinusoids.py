# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The sinusoids of positions, in both families."""

import torch

from csan_hf.models.csan_attention import CsanSinusoidalPositionalEmbedding
from csan_hf.models.grid_embeddings import SinusoidalPositionalEmbedding


def test_the_sinusoids_are_alike():
    for width in (6, 7):
        first, second = CsanSinusoidalPositionalEmbedding(9, width), SinusoidalPositionalEmbedding(9, width)
        for length, offset in ((5, 0), (3, 6), (4, 20)):
            assert torch.equal(first(length, offset), second(length, offset))


def test_a_config_that_asks_for_a_million_positions_gets_those_that_are_used():
    for kind in (CsanSinusoidalPositionalEmbedding, SinusoidalPositionalEmbedding):
        positions = kind(1_000_000, 4)
        assert positions.weight.shape == (16_384, 4)
        everything = positions.create_weight(20_000)
        for length, offset in ((3, 16_381), (3, 16_382), (5, 19_995), (16_384, 0)):
            assert torch.equal(positions(length, offset), everything[offset : offset + length])
        assert positions(1, 999_999).shape == (1, 4)
