# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Local attention through torch's FlexAttention: a fused kernel that skips blocks without a visible
key.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from .attention_call import AttentionCall, Cells

BLOCK = 128
"""Queries and keys of a block of the kernel."""
_MOST_KERNELS = 64
"""Compiled in one process: one for each kind of area, terms, precision and pass; torch's limit of 8
is soon met.
"""


def flex_local_attention(call: AttentionCall) -> Tensor:
    """The output [B, H, I, D] of a call, by FlexAttention."""
    # A CPU may have no compiler
    is_uncompiled = call.query.device.type == "cpu" or torch.compiler.is_compiling()
    kernel: Any = flex_attention if is_uncompiled else compiled_kernel()
    return kernel(
        call.query,
        _keys_of_area(call.key, call),
        _keys_of_area(call.value, call),
        score_mod=_score(call),
        block_mask=call.share(
            ("flex_attention", torch.is_grad_enabled()), lambda: flex_block_mask(call)
        ),
        scale=call.scale,
    )


@functools.cache
def compiled_kernel(backend: str = "inductor") -> Callable[..., Tensor]:
    """FlexAttention compiled by a backend of `torch.compile`; an error where it cannot be, as
    uncompiled it writes out all energies.
    """
    # With `dynamic` a term's floats would become tensors, which FlexAttention cannot trace
    settings = torch._dynamo.config.patch(recompile_limit=_MOST_KERNELS, specialize_float=True)
    compiled = torch.compile(flex_attention, dynamic=True, fullgraph=True, backend=backend)
    return settings(compiled)


def _keys_of_area(states: Tensor, call: AttentionCall) -> Tensor:
    """[B, H, J, D] -> [B, H, N * slot, D]: place p is key p % slot of the neighbour p // slot, or
    zeros without such a key.
    """
    padded = call.area.pad_heads(F.pad(states, (0, 0, 0, _slot(call) - states.shape[2])))
    neighbours = padded.unfold(1, call.area.head_area, 1)  # [B, H, slot, D, N]
    return neighbours.permute(0, 1, 4, 2, 3).flatten(2, 3).contiguous()


def _slot(call: AttentionCall) -> int:
    """Places of a head in the keys of an area: J rounded up to whole blocks."""
    keys = call.key.shape[2]
    return keys if call.area.head_area == 1 else -(-keys // BLOCK) * BLOCK


# --- single cells, as FlexAttention asks for them


class _OneCell(Cells):
    """The cell of sentence b, query i of head h and key j, of a neighbouring head; not every place
    `is_key`.
    """

    neighbour: Tensor
    is_key: Tensor

    def __init__(
        self,
        query_start: int | Tensor,
        key_start: int | Tensor,
        offset: int,
        index: tuple[Tensor, Tensor, Tensor, Tensor],
    ) -> None:
        self.index = index
        b, self.head, i, j = index
        self.distance = j - (i + offset)
        self.query_position = i + _start_of(b, query_start)
        self.key_position = j + _start_of(b, key_start)

    def of_query(self, values: Tensor) -> Tensor:
        """[]."""
        return values[self._within(values.shape)]

    def of_pair(self, values: Tensor) -> Tensor:
        """[]."""
        missing = 4 - values.dim()
        return values[self._within((1,) * missing + values.shape)[missing:]]

    def look_up(self, table: Tensor, index: Tensor) -> Tensor:
        """[]."""
        return table[(*self._within(table.shape[:3]), index)]

    def _within(self, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        """The cell's index into a tensor that broadcasts to [B, H, I, J] (or a prefix of it)."""
        return tuple(
            place if size != 1 else place * 0
            for place, size in zip(self.index, shape, strict=False)
        )


def _start_of(b: Tensor, start: int | Tensor) -> int | Tensor:
    return start[b] if isinstance(start, Tensor) and start.dim() == 1 else start


def _cell_at(call: AttentionCall) -> Callable[..., _OneCell]:
    """The cell of (b, h, i, place); keeps none of the call's tensors but the first positions."""
    query_start = call.query_start
    key_start = call.key_start
    keys = call.key.shape[2]
    offset = keys - call.query.shape[2]
    slot = _slot(call)
    heads = call.area.head_area

    def cell(b: Tensor, h: Tensor, i: Tensor, place: Tensor) -> _OneCell:
        neighbour = torch.zeros_like(place)  # place // slot, but kernels divide slowly
        for number in range(1, heads):
            neighbour = neighbour + (place >= number * slot)
        key = place - slot * neighbour
        cell = _OneCell(query_start, key_start, offset, (b, h, i, key.clamp(max=keys - 1)))
        cell.neighbour = neighbour
        cell.is_key = key < keys
        return cell

    return cell


def _visibility(call: AttentionCall) -> Callable[..., Tensor]:
    area = call.area
    terms = call.visibility_terms
    padding = call.key_padding_mask
    cell_at = _cell_at(call)
    heads = area.visible_heads(call.query.shape[1], call.query.device)

    def visible(b: Tensor, h: Tensor, i: Tensor, place: Tensor) -> Tensor:
        cell = cell_at(b, h, i, place)
        sees = area.within_window(cell.distance) & cell.is_key
        for term in terms:
            sees = sees & term.visible(cell)
        if heads is not None:
            sees = sees & heads[h, cell.neighbour]
        if padding is not None:
            sees = sees & padding[b, cell.index[3]]
        return sees

    return visible


def _score(call: AttentionCall) -> Callable[..., Tensor] | None:
    if not call.energy_terms:
        return None
    cell_at = _cell_at(call)

    def score(energy: Tensor, b: Tensor, h: Tensor, i: Tensor, place: Tensor) -> Tensor:
        cell = cell_at(b, h, i, place)
        for term in call.energy_terms:
            energy = energy + term.energy(cell)
        return energy

    return score


# --- blocks of cells


def flex_block_mask(call: AttentionCall) -> BlockMask:
    """Which blocks of keys each block of queries sees; torch's `create_block_mask` writes out all
    cells.
    """
    some, whole = _visible_blocks(call)
    return BlockMask.from_kv_blocks(
        *_ordered(some & ~whole),
        *_ordered(whole),
        BLOCK_SIZE=BLOCK,
        compute_q_blocks=torch.is_grad_enabled(),  # of the backward pass
        mask_mod=_visibility(call),
        seq_lengths=(call.query.shape[2], _slot(call) * call.area.head_area),
    )


def _visible_blocks(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Whether a block may hold a visible cell, and whether all its cells are visible: two tensors
    [B or 1, H or 1, query blocks, N * key blocks].
    """
    area = call.area
    device = call.query.device
    queries = call.query.shape[2]
    keys = call.key.shape[2]
    query_blocks = torch.arange(0, queries, BLOCK, device=device)[:, None]
    first_key = torch.arange(0, keys, BLOCK, device=device)
    last_key = (first_key + (BLOCK - 1)).clamp(max=keys - 1)
    first_query = query_blocks + (keys - queries)  # in places of keys
    last_query = (query_blocks + (BLOCK - 1)).clamp(max=queries - 1) + (keys - queries)
    least_distance = first_key - last_query
    greatest_distance = last_key - first_query
    # Visible distances are an interval that holds 0: the one nearest to 0 is visible if any is
    nearest_distance = least_distance.clamp(min=0) + greatest_distance.clamp(max=0)
    some = area.within_window(nearest_distance)
    whole = area.within_window(least_distance) & area.within_window(greatest_distance)
    whole = whole & (first_key + BLOCK <= keys)
    some = some[None, None, :, None]  # [1, 1, query blocks, 1, key blocks]
    whole = whole[None, None, :, None]
    if call.key_padding_mask is not None:
        real = F.pad(call.key_padding_mask, (0, -keys % BLOCK)).unflatten(1, (-1, BLOCK))
        some = some & real.any(dim=-1)[:, None, None, None]
        whole = whole & real.all(dim=-1)[:, None, None, None]
    if call.visibility_terms:
        whole = torch.zeros_like(whole)
    heads = area.visible_heads(call.query.shape[1], device)
    if heads is None:
        heads = torch.ones(1, area.head_area, dtype=torch.bool, device=device)
    heads = heads[None, :, None, :, None]
    return (some & heads).flatten(-2), (whole & heads).flatten(-2)


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """For `BlockMask`: the number of visible blocks in each row, and all blocks, these first."""
    order = torch.argsort(blocks.int(), dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1, dtype=torch.int32), order.to(torch.int32).contiguous()
