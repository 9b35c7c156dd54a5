# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What Pervasive Attention keeps of earlier grid rows while it generates.

The masked convolution of a target row reads k // 2 rows above it. A new row is multiplied at once with all rows of the
kernel, which gives its part of its own output and of the k // 2 rows below. For each of these rows the parts of all
rows so far are summed up. These pending sums are all that is kept, so a step costs one row whatever the length of the
sentence.

They are kept in a sliding-window layer of the library. One layer holds the sums of all dense layers, so that beam
search reorders one tensor: its keys are [B, 1, rows, L · J · k // 2 · channels], the sums after each of the last rows
(after the last one alone, unless the library records the past to crop it), and its values have no width. Within a
sentence the sums of one layer lie together, as they are read together.

Shapes: B sentences, I new target rows, J source columns, R cells of the new rows, L dense layers.
"""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer, EncoderDecoderCache

from .canvas import Canvas

# New rows alone have neither the statistics of a batch nor a gradient for the rows before them
ONLY_IN_EVALUATION = (
    "The cache keeps grid rows of an evaluation without gradients; call model.eval() and use torch.no_grad(), or pass "
    "use_cache=False."
)


class Prepared:
    """What the first step of a generation prepares for the later ones.

    It can be derived from the model and the source mask, so it is not part of the cache's state. Nor is it an
    attribute of the cache, as the library's exporters take all attributes for state.
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


class GridCache(DynamicCache):
    """The pending sums of all dense layers after the last row."""

    def __init__(self) -> None:
        super().__init__()
        self._start_anew()

    def _start_anew(self) -> None:
        self.layers = [_LastRows()]
        _PREPARED.pop(self, None)

    @property
    def prepared(self) -> Prepared:
        """What earlier steps of the generation prepared."""
        return _PREPARED.setdefault(self, Prepared())

    def reset(self) -> None:
        """Forget all rows, and what was prepared for their source and weights."""
        self._start_anew()

    def last(self) -> torch.Tensor | None:
        """The sums after the last row, [B, L · J · channels]; None before the first row and for k = 1."""
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
    """The pending sums during one run of the dense block on new rows.

    Args:
        cache: Holds the sums after the earlier rows; `finish` puts those after the new rows there.
        canvas: The places of the new rows' cells.
        num_layers: Dense layers L, which are run in their order.
        channels: Channels of a layer's pending sums, k // 2 times those of its outputs.

    Raises:
        ValueError: The cache was filled with other sentences or by another model.
    """

    def __init__(self, cache: GridCache, canvas: Canvas, num_layers: int, channels: int) -> None:
        self._cache, self._canvas = cache, canvas
        # One row of each sentence needs no grid: its cells are those of the sums
        self._is_packed = canvas.is_one_row_each
        self._after: list[torch.Tensor] = []  # of each layer, [R or B, I, J; k // 2 * channels]
        before = cache.last()
        if before is not None:
            sentences, _, columns = canvas.shape
            expected = [sentences, num_layers * columns * channels]
            if list(before.shape) != expected:
                raise ValueError(
                    f"`past_key_values` must hold [sentences, features] = {expected} for sources [{sentences}, "
                    f"{columns}], got {list(before.shape)}: use a cache with the source and the model that filled it."
                )
            before = before.view(sentences, num_layers, columns, channels)
            before = canvas.pack_layers(before) if self._is_packed else before.transpose(0, 1)
        self._before = before  # [L; R or B, J; k // 2 * channels]

    def add(self, products: torch.Tensor, channels: int) -> torch.Tensor:
        """Add the contributions of the rows above to the outputs of the next layer.

        Args:
            products: [R, (k // 2 + 1) * channels], the new rows' contributions to themselves, to the next row and so
                on; overwritten.
            channels: Channels of the layer's outputs.

        Returns:
            The outputs [R, channels].
        """
        before = None if self._before is None else self._before[len(self._after)].to(products.dtype)
        if self._is_packed:
            if before is not None:
                products.view(*before.shape[:-1], -1)[..., : before.shape[-1]] += before
            self._after.append(products[:, channels:])
            return products[:, :channels]
        sums = _add_rows_above(self._canvas.unpack(products), before, channels)
        self._after.append(sums[..., channels:])
        return self._canvas.pack(sums[..., :channels])

    def finish(self) -> None:
        """Keep the sums for the rows below these."""
        if self._is_packed:
            after = self._canvas.unpack_layers(torch.stack(self._after)).unsqueeze(1)
        else:
            after = torch.stack(self._after, dim=2)
        self._cache.keep(after)


def _add_rows_above(products: torch.Tensor, before: torch.Tensor | None, channels: int) -> torch.Tensor:
    """The contributions of all rows so far to each of several rows and to those below it: as `products`, summed up.

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
