# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Local attention through torch's FlexAttention: one fused kernel that skips the blocks that no query sees."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from .locality import Positions, count_from, pad_heads, visible_heads, within_window

if TYPE_CHECKING:
    from .attention_call import AttentionCall

BLOCK = 128
"""Queries, and keys, of a block of the kernel's."""


@dataclass(frozen=True)
class _Layout:
    """Where queries and keys stand; keeps none of the call's tensors but the positions.

    Attributes:
        queries: I.
        keys: J.
        slot: Places of a head in the keys of an area, J rounded up to whole blocks: place p is key p % slot of the
            neighbour p // slot.
        positions: Those of the call.
    """

    queries: int
    keys: int
    slot: int
    positions: Positions


def _layout(call: AttentionCall) -> _Layout:
    keys = call.key.shape[2]
    slot = keys if call.area.head_area == 1 else -(-keys // BLOCK) * BLOCK
    return _Layout(call.query.shape[2], keys, slot, call.positions)


class _OneCell:
    """A single cell, as FlexAttention asks for it; what lies beyond the keys is masked anyway."""

    def __init__(self, layout: _Layout, b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, place: torch.Tensor):
        self.layout = layout
        self.index = (b, h, i, (place % layout.slot).clamp(max=layout.keys - 1))

    def _start(self, start: int | torch.Tensor) -> int | torch.Tensor:
        return start[self.index[0]] if isinstance(start, torch.Tensor) and start.dim() == 1 else start

    @property
    def query_position(self) -> torch.Tensor:
        return count_from(self._start(self.layout.positions.query_start), self.index[2])

    @property
    def key_position(self) -> torch.Tensor:
        return count_from(self._start(self.layout.positions.key_start), self.index[3])

    @property
    def distance(self) -> torch.Tensor:
        return self.index[3] - (self.index[2] + (self.layout.keys - self.layout.queries))

    @property
    def head(self) -> torch.Tensor:
        return self.index[1]

    def of_query(self, values: torch.Tensor) -> torch.Tensor:
        return values[self._within(values.shape)]

    def of_pair(self, values: torch.Tensor) -> torch.Tensor:
        return values[self._within((1,) * (4 - values.dim()) + values.shape)[4 - values.dim() :]]

    def look_up(self, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return table[(*self._within(table.shape[:3]), index)]

    def sum_by(self, weights: torch.Tensor, index: torch.Tensor, size: int) -> torch.Tensor:
        raise NotImplementedError  # the kernel gives no weights

    def _within(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """The cell's index into a tensor that broadcasts to [B, H, I, J] (or a prefix of it)."""
        return tuple(at if size != 1 else at * 0 for at, size in zip(self.index, shape, strict=False))


def flex_local_attention(call: AttentionCall) -> torch.Tensor:
    """The output [B, H, I, D] of a call, by FlexAttention."""
    layout = _layout(call)
    return _kernel(call.query.device.type)(
        call.query,
        _keys_of_area(call.key, call, layout),
        _keys_of_area(call.value, call, layout),
        score_mod=_score(call, layout),
        block_mask=call.once("flex_attention", lambda: flex_block_mask(call)),
        scale=call.scale,
    )


def _keys_of_area(states: torch.Tensor, call: AttentionCall, layout: _Layout) -> torch.Tensor:
    """[B, H, J, D] -> [B, H, N * slot, D]; slots without a head hold zeros."""
    padded = pad_heads(F.pad(states, (0, 0, 0, layout.slot - layout.keys)), call.area)
    return padded.unfold(1, call.area.head_area, 1).permute(0, 1, 4, 2, 3).flatten(2, 3).contiguous()


def flex_block_mask(call: AttentionCall) -> BlockMask:
    """Which blocks of keys each block of queries sees, from the area's geometry and the padding.

    In blocks that are visible as a whole the kernel checks no cell; in the others it checks each. torch's
    `create_block_mask` would write out all cells.
    """
    some, whole = _visible_blocks(call)
    layout = _layout(call)
    return BlockMask.from_kv_blocks(
        *_ordered(some & ~whole),
        *_ordered(whole),
        BLOCK_SIZE=BLOCK,
        mask_mod=_visibility(call, layout),
        seq_lengths=(layout.queries, layout.slot * call.area.head_area),
    )


def _visible_blocks(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether blocks may hold a visible cell, and whether all of theirs are: [B or 1, H or 1, blocks, N * blocks]."""
    area, device = call.area, call.query.device
    queries, keys = call.query.shape[2], call.key.shape[2]
    query_blocks = torch.arange(0, queries, BLOCK, device=device)[:, None]
    first_key = torch.arange(0, keys, BLOCK, device=device)
    last_key = (first_key + (BLOCK - 1)).clamp(max=keys - 1)
    first_query = query_blocks + (keys - queries)  # in places of keys
    last_query = (query_blocks + (BLOCK - 1)).clamp(max=queries - 1) + (keys - queries)
    nearest, farthest = first_key - last_query, last_key - first_query  # distances in a block lie between
    reach = max(queries, keys) if area.half_window is None else area.half_window
    most = 0 if area.causal else reach
    some = (farthest >= -reach) & (nearest <= most)
    whole = (nearest >= -reach) & (farthest <= most) & (first_key + BLOCK <= keys)
    some, whole = some[None, None, :, None], whole[None, None, :, None]  # [1, 1, query blocks, 1, key blocks]
    if call.key_padding_mask is not None:
        real = F.pad(call.key_padding_mask, (0, -keys % BLOCK)).unflatten(1, (-1, BLOCK))
        some = some & real.any(dim=-1)[:, None, None, None]
        whole = whole & real.all(dim=-1)[:, None, None, None]
    if call.visibility_terms:
        whole = torch.zeros_like(whole)
    heads = visible_heads(call.query.shape[1], area, device)
    if heads is None:
        heads = torch.ones(1, area.head_area, dtype=torch.bool, device=device)
    heads = heads[None, :, None, :, None]
    return (some & heads).flatten(-2), (whole & heads).flatten(-2)


def _ordered(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The number of blocks chosen in each row, and the blocks with these first, as `BlockMask` takes them."""
    numbers = blocks.int()
    order = torch.argsort(numbers, dim=-1, descending=True, stable=True)
    return numbers.sum(dim=-1, dtype=torch.int32), order.to(torch.int32).contiguous()


def flex_cannot_run(call: AttentionCall) -> str | None:
    """The reason why this backend cannot run the call, or None."""
    if call.dropout_p > 0:
        return "has no attention dropout; use 'sdpa', 'blocked' or 'eager', or set the dropout to 0."
    if call.value_terms:
        return "does not give the attention weights that a value term needs; use 'eager', or 'blocked' with a window."
    wants_grad = call.query.requires_grad or call.key.requires_grad or call.value.requires_grad
    if call.query.device.type == "cpu" and torch.is_grad_enabled() and (wants_grad or call.terms_require_grad):
        return "has no backward on CPU; use 'blocked', 'sdpa' or 'eager' for training there."
    return None


@functools.cache
def _kernel(device_type: str) -> Callable[..., torch.Tensor]:
    # Uncompiled, FlexAttention writes out all energies: right on a CPU without a compiler, wasteful on a GPU.
    kernel: Any = flex_attention if device_type == "cpu" else torch.compile(flex_attention, dynamic=True)
    return kernel


def _visibility(call: AttentionCall, layout: _Layout) -> Callable[..., torch.Tensor]:
    heads = visible_heads(call.query.shape[1], call.area, call.query.device)
    area, terms, padding = call.area, call.visibility_terms, call.key_padding_mask

    def visible(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        cell = _OneCell(layout, b, h, i, place)
        seen = within_window(cell.distance, area) & (place % layout.slot < layout.keys)
        for term in terms:
            seen = seen & term.visible(cell)
        if heads is not None:
            seen = seen & heads[h, place // layout.slot]
        if padding is not None:
            seen = seen & padding[b, cell.index[3]]
        return seen

    return visible


def _score(call: AttentionCall, layout: _Layout) -> Callable[..., torch.Tensor] | None:
    if not call.energy_terms:
        return None

    def added(energy, b, h, i, place):  # type: ignore[no-untyped-def]
        cell = _OneCell(layout, b, h, i, place)
        for term in call.energy_terms:
            energy = energy + term.energy(cell)
        return energy

    return added
