# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What a masked convolution over the grid keeps of earlier rows while it generates.

The masked convolution of a target row reads k // 2 rows above it. A new row is multiplied at once
with all rows of the kernel, which gives its part of its own output and of the k // 2 rows below.
For each of these rows the parts of all rows so far are summed up. These pending sums are all that
is kept, so a step costs one row whatever the length of the sentence.

They are kept in a sliding-window layer of the library. One layer holds the sums of all
convolutions, so that beam search reorders one tensor: its keys are [B, 1, rows, L · J · k // 2 ·
channels], the sums after each of the last rows (after the last one alone, unless the library
records the past to crop it), and its values have no width.

Shapes: B sentences, I new target rows, J source columns, R cells of the new rows, L convolutions.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer, EncoderDecoderCache

from .canvas import Canvas


class _LastRows(DynamicSlidingWindowLayer):
    """A sliding window that keeps the last row alone, without a copy of the one before it."""

    def __init__(self) -> None:
        super().__init__(sliding_window=2)  # the library's unit is the new row and those before it

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See the library; returns the new rows alone."""
        if self.record_past:
            super().update(key_states, value_states, *args, **kwargs)
            return key_states, value_states
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.cumulative_length += key_states.shape[-2]
        self.keys, self.values = key_states[:, :, -1:], value_states[:, :, -1:]
        return key_states, value_states


# What a generation makes of the weights. No attribute of the cache, as the library's exporters take
# these for state
_PREPARED: "WeakKeyDictionary[GridCache, dict[Any, Any]]" = WeakKeyDictionary()


class GridCache(DynamicCache):
    """The pending sums of all convolutions after the last row."""

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        """Forget all rows."""
        self.layers = [_LastRows()]
        _PREPARED.pop(self, None)

    def last(self) -> torch.Tensor | None:
        """The sums after the last row, [B, L · J · channels]; None before the first row and for k =
        1.
        """
        layer: Any = self.layers[0]
        if not layer.is_initialized or layer.keys.numel() == 0:
            return None
        last: torch.Tensor = layer.keys[:, 0, -1]
        return last

    def keep(self, sums: torch.Tensor) -> None:
        """Keep the sums [B, I, L, J, channels] after new rows."""
        keys = sums.flatten(2).unsqueeze(1)
        self.update(keys, keys[..., :0], 0)


class RowSums:
    """The pending sums during one run of a network on new rows.

    Args:
        cache: Holds the sums after the earlier rows; `finish` puts those after the new rows there.
        canvas: The places of the new rows' cells.
        num_layers: Masked convolutions L, which are run in their order.
        channels: Channels of a layer's pending sums, k // 2 times those of its outputs.

    Raises:
        ValueError: The cache was filled with other sentences or by another model.
    """

    def __init__(self, cache: GridCache, canvas: Canvas, num_layers: int, channels: int) -> None:
        self._cache, self._canvas = cache, canvas
        self._after: list[torch.Tensor] = []  # of each layer, [B, I, J, k // 2 * channels]
        sentences, _, columns = canvas.shape
        self._before = cache.last()
        if self._before is not None:
            expected = [sentences, num_layers * columns * channels]
            if list(self._before.shape) != expected:
                raise ValueError(
                    f"`cache` must hold [sentences, features] = {expected} for sources "
                    f"[{sentences}, {columns}], got {list(self._before.shape)}: use a cache with "
                    "the source and the model that filled it."
                )
            self._before = self._before.view(sentences, num_layers, columns, channels)

    def prepared(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` makes of the weights, once in a generation; `key` says of which and for which
        type.
        """
        kept = _PREPARED.setdefault(self._cache, {})
        if key not in kept:
            kept[key] = make()
        return kept[key]

    def add(self, products: torch.Tensor, channels: int) -> torch.Tensor:
        """Add the contributions of the rows above to the outputs of the next layer.

        Args:
            products: [R, (k // 2 + 1) * channels], the new rows' contributions to themselves, to
                the next row and so on.
            channels: Channels of the layer's outputs.

        Returns:
            The outputs [R, channels].
        """
        sums = self._canvas.unpack(products)
        before = None if self._before is None else self._before[:, len(self._after)].to(sums.dtype)
        if sums.shape[1] > 1:
            sums = _add_rows_above(sums, before, channels)
        elif before is not None:
            sums = sums + torch.nn.functional.pad(before.unsqueeze(1), (0, channels))
        self._after.append(sums[..., channels:])
        return self._canvas.pack(sums[..., :channels])

    def finish(self) -> None:
        """Keep the sums for the rows below these."""
        self._cache.keep(torch.stack(self._after, dim=2))


def _add_rows_above(
    products: torch.Tensor, before: torch.Tensor | None, channels: int
) -> torch.Tensor:
    """The contributions of all rows so far to each of several rows and to those below it: as
    `products`, summed up.

    Args:
        products: [B, I, J, (k // 2 + 1) * channels], the outputs first, then the pending sums.
        before: The sums [B, J, k // 2 * channels] after the row above them; None = there is none.
        channels: Channels of the outputs.
    """
    parts = list(products.split(channels, dim=-1))
    if before is None:
        before = products.new_zeros(*products[:, 0].shape[:2], channels * (len(parts) - 1))
    for distance in reversed(range(len(parts) - 1)):
        first = before[..., distance * channels : (distance + 1) * channels].unsqueeze(1)
        parts[distance] = parts[distance] + torch.cat([first, parts[distance + 1][:, :-1]], dim=1)
    return torch.cat(parts, dim=-1)


def make_grid_cache() -> EncoderDecoderCache:
    """An empty cache; its cross-attention half stays empty."""
    return EncoderDecoderCache(GridCache(), DynamicCache())
