# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Cache of the masked convolutions over the grid during generation.

The masked convolution of a target row reads k // 2 rows above it. A new row is multiplied at once
with all rows of the kernel, which gives its contribution to its own output and to the k // 2 rows
below. For each of these rows the contributions of all rows so far are summed up. Only these
pending sums are kept, so a step costs one row whatever the length of the sentence. A prefix of
many rows is convolved as without a cache; then only its last k // 2 rows are multiplied so.

The sums are kept in a sliding-window layer of the library. One layer holds those of all
convolutions, so that beam search reorders one tensor: its keys are [B, 1, rows, L · J · k // 2 ·
channels], the sums after each of the last rows (after the last one alone, unless the library
records the past to crop it), and its values have no width.

Shapes: B sentences, I new target rows, J source columns, R cells of the new rows, L convolutions.
"""

from collections.abc import Callable
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer, EncoderDecoderCache

from .canvas import Canvas

# Weights prepared for a generation. The library's exporters take attributes of a cache for state
_PREPARED: "WeakKeyDictionary[GridCache, dict[Any, Any]]" = WeakKeyDictionary()


class GridCache(DynamicCache):
    """The pending sums of all convolutions after the last row."""

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        """Forget all rows."""
        # Of the last row: the library counts the new row, too
        self.layers = [DynamicSlidingWindowLayer(sliding_window=2)]
        _PREPARED.pop(self, None)

    @property
    def _rows(self) -> DynamicSlidingWindowLayer:
        return cast(DynamicSlidingWindowLayer, self.layers[0])

    def takes_prefix(self, rows: int, reach: int) -> bool:
        """Whether new rows are a prefix of which the rows below read only the last `reach`.

        Where the library records the past, the sums after every row are needed."""
        return rows > reach > 0 and not self._rows.is_initialized and not self._rows.record_past

    def last(self) -> Tensor | None:
        """The sums [B, L · J · channels] after the last row; None before any row and for k = 1."""
        keys = self._rows.keys
        if keys is None or keys.numel() == 0:
            return None
        return keys[:, 0, -1]

    def keep(self, sums: Tensor, skipped: int) -> None:
        """Keep the sums [B, I, L, J, channels] after new rows, with `skipped` rows above them."""
        keys = sums.flatten(2).unsqueeze(1)
        self.update(keys, keys[..., :0], 0)
        self._rows.cumulative_length += skipped


class RowSums:
    """The pending sums during one run of a network on new rows.

    Args:
        cache: Holds the sums after the earlier rows; `finish` puts those after the new rows there.
        canvas: The places of the new rows' cells.
        num_layers: Masked convolutions L, which are run in their order.
        channels: Channels of a layer's pending sums, k // 2 times those of its outputs.
        last_rows: Where the new rows are a prefix, the places of the cells in its last rows.

    Raises:
        ValueError: The cache was filled with other sentences or by another model.
    """

    def __init__(
        self,
        cache: GridCache,
        canvas: Canvas,
        num_layers: int,
        channels: int,
        last_rows: Canvas | None = None,
    ) -> None:
        self.canvas = last_rows or canvas
        self.is_prefix = last_rows is not None
        self._all_rows = canvas
        self._selected: Tensor | None = None  # cells of the last rows of a prefix
        self._cache = cache
        self._after: list[Tensor] = []  # of each layer, [B, I, J, k // 2 * channels]
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

    def prepared(self, key: object, make: Callable[[], Any]) -> Any:
        """Memoise `make()` for this generation; `key` names the weights and the type."""
        if torch.compiler.is_compiling():
            return make()  # a program cannot hold what is there for one generation
        kept = _PREPARED.setdefault(self._cache, {})
        if key not in kept:
            kept[key] = make()
        return kept[key]

    def select(self, cells: Tensor) -> Tensor:
        """The cells on `canvas`, out of all new ones [R, channels]."""
        if not self.is_prefix:
            return cells
        if self._selected is None:
            self._selected = self._all_rows.last_rows(self.canvas.shape[1], cells.device)
        return cells.index_select(0, self._selected)

    def add(self, products: Tensor, channels: int) -> Tensor:
        """Add the contributions of the rows above to the outputs of the next layer.

        Args:
            products: [R, (k // 2 + 1) * channels], the contributions of the rows on `canvas` to
                themselves, to the next row and so on.
            channels: Channels of the layer's outputs.

        Returns:
            The outputs [R, channels]; those of a prefix lack the contributions of its upper rows.
        """
        sums = self.canvas.unpack(products)
        before = None
        if self._before is not None:
            before = self._before[:, len(self._after)].to(sums.dtype)
        if sums.shape[1] > 1:
            sums = _add_rows_above(sums, before, channels)
        elif before is not None:
            sums = sums + F.pad(before.unsqueeze(1), (0, channels))
        self._after.append(sums[..., channels:])
        return self.canvas.pack(sums[..., :channels])

    def finish(self) -> None:
        """Keep the sums for the rows below these."""
        skipped = self._all_rows.shape[1] - self.canvas.shape[1]
        self._cache.keep(torch.stack(self._after, dim=2), skipped)


def _add_rows_above(products: Tensor, before: Tensor | None, channels: int) -> Tensor:
    """Sum up the contributions of all rows so far to each of several rows and to those below it.

    Args:
        products: [B, I, J, (k // 2 + 1) * channels], the outputs first, then the pending sums.
        before: The sums [B, J, k // 2 * channels] after the row above them; None = there is none.
        channels: Channels of the outputs.

    Returns:
        The sums, laid out as `products`.
    """
    parts = list(products.split(channels, dim=-1))
    if before is None:
        before = torch.zeros_like(products[:, 0, :, channels:])
    above = before.unsqueeze(1).split(channels, dim=-1)
    for distance in reversed(range(len(parts) - 1)):
        from_above = torch.cat([above[distance], parts[distance + 1][:, :-1]], dim=1)
        parts[distance] = parts[distance] + from_above
    return torch.cat(parts, dim=-1)


def make_grid_cache() -> EncoderDecoderCache:
    """An empty cache; its cross-attention half stays empty."""
    return EncoderDecoderCache(GridCache(), DynamicCache())
