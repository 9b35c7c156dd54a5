# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The grid rows that Pervasive Attention keeps while it generates.

The masked convolution of a new target row reads k // 2 rows above it. Each layer keeps what its convolution makes of
these rows for the rows below, so a step costs one row whatever the length of the sentence. The library's
sliding-window layers do the keeping: rows are their keys, [B, 1, rows, J · channels], and the values have no width.
That brings reordering for beam search, cropping for assisted generation and repetition for several returned sequences.
"""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer, EncoderDecoderCache

from .canvas import Canvas
from .configuration_pervasive_attention import PervasiveAttentionConfig


class Prepared:
    """What the first step of a generation makes ready for those after it.

    It follows from the model and the source mask and is no part of the cache's state, which the library's exporters
    read off its attributes: it lies beside it.
    """

    def __init__(self) -> None:
        self.folded_weights: Any = None
        self._canvas: tuple[torch.Tensor, int, Canvas] | None = None

    def canvas_of(self, shape: tuple[int, int, int], source_mask: torch.Tensor | None) -> Canvas | None:
        """The canvas of an earlier step with new rows of this shape under the very same mask."""
        if self._canvas is None or source_mask is None:
            return None
        mask, version, canvas = self._canvas
        same = mask is source_mask and version == _version_of(source_mask) and canvas.shape == shape
        return canvas if same else None

    def keep_canvas(self, canvas: Canvas, source_mask: torch.Tensor | None) -> None:
        """Keep a canvas for the next step."""
        if source_mask is not None:
            self._canvas = (source_mask, _version_of(source_mask), canvas)


def _version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place; tensors of inference mode do not count."""
    return 0 if tensor.is_inference() else tensor._version


_PREPARED: "WeakKeyDictionary[GridCache, Prepared]" = WeakKeyDictionary()


class GridCache(DynamicCache):
    """The last k // 2 rows of every dense layer: k // 2 products of each, for the rows below it.

    Args:
        num_layers: Dense layers L.
        kernel_size: Kernel k of the masked convolutions.
    """

    def __init__(self, num_layers: int, kernel_size: int) -> None:
        super().__init__()
        # The library's unit is the new row and those before it; it keeps one fewer, and at least one.
        self._window = max(kernel_size // 2 + 1, 2)
        self._num_layers = num_layers
        self._start_anew()

    def _start_anew(self) -> None:
        self.layers = [DynamicSlidingWindowLayer(self._window) for _ in range(self._num_layers)]
        _PREPARED.pop(self, None)

    @property
    def prepared(self) -> Prepared:
        """What earlier steps made ready."""
        return _PREPARED.setdefault(self, Prepared())

    def reset(self) -> None:
        """Forget all rows, and what was prepared for the weights and the source as they were."""
        self._start_anew()

    def extend(self, rows: torch.Tensor, layer_idx: int) -> torch.Tensor:
        """Keep new rows [B, I, J, channels] of a layer; returns them below the earlier ones, [B, I + past, J, ...]."""
        batch, count, columns, channels = rows.shape
        keys = rows.reshape(batch, 1, count, columns * channels)
        keys, _ = self.update(keys, keys[..., :0], layer_idx)
        return keys.view(batch, keys.shape[2], columns, channels)


def make_grid_cache(config: PervasiveAttentionConfig) -> EncoderDecoderCache:
    """An empty cache for a model of this configuration; its cross-attention half stays empty."""
    return EncoderDecoderCache(GridCache(config.num_layers, config.kernel_size), DynamicCache())
