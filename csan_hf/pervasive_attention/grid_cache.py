# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The grid rows that Pervasive Attention keeps while it generates.

The masked convolution of a new target row reads k // 2 rows above it. Each layer keeps what its convolution makes of
these rows for the rows below, so a step costs one row whatever the length of the sentence. The library's
sliding-window layers do the keeping: rows are their keys, [B, 1, rows, J · channels], and the values have no width.
That brings reordering for beam search, cropping for assisted generation and repetition for several returned sequences.
"""

from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer, EncoderDecoderCache

from .configuration_pervasive_attention import PervasiveAttentionConfig


class GridCache(DynamicCache):
    """The last k // 2 rows of every dense layer: k // 2 products of each, for the rows below it.

    Args:
        num_layers: Dense layers L.
        kernel_size: Kernel k of the masked convolutions.
    """

    def __init__(self, num_layers: int, kernel_size: int) -> None:
        super().__init__()
        # The library's unit is the new row and those before it; it keeps one fewer, and at least one.
        window = max(kernel_size // 2 + 1, 2)
        self.layers = [DynamicSlidingWindowLayer(window) for _ in range(num_layers)]
        # Weights that the first step made ready for the following ones
        self.folded_weights: Any = None

    def extend(self, rows: torch.Tensor, layer_idx: int) -> torch.Tensor:
        """Keep new rows [B, I, J, channels] of a layer; returns them below the earlier ones, [B, I + past, J, ...]."""
        batch, count, columns, channels = rows.shape
        keys = rows.reshape(batch, 1, count, columns * channels)
        keys, _ = self.update(keys, keys[..., :0], layer_idx)
        return keys.view(batch, keys.shape[2], columns, channels)


def make_grid_cache(config: PervasiveAttentionConfig) -> EncoderDecoderCache:
    """An empty cache for a model of this configuration; its cross-attention half stays empty."""
    return EncoderDecoderCache(GridCache(config.num_layers, config.kernel_size), DynamicCache())
