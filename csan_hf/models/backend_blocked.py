# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Local attention of blocks of queries to their keys and m on either side: linear memory, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention_call import AttentionCall, Cells, KeyArea, count_from
from .backend_dense import Masks, attend_by_products, make_masks

# Queries per block: small enough to waste little on the edges, large enough for efficient matrix products.
_BLOCK_SIZE = 32


def blocked_attention(call: AttentionCall) -> Tensor:
    """The output [B, H, I, D] of a call, computed in blocks of queries."""
    blocks, queries = _blocks_of(call), call.query.shape[2]
    masks = call.once("blocks", lambda: _block_masks(call, blocks))
    query = F.pad(call.query, (0, 0, 0, blocks.count * blocks.size - queries))
    query = query.unflatten(2, (blocks.count, blocks.size))  # [B, H, R, size, D]
    keys, values = _key_blocks(call.key, call.area, blocks), _key_blocks(call.value, call.area, blocks)
    output = attend_by_products(call, query, keys, values, masks)  # [B, H, R, size, D]
    return output.flatten(2, 3)[:, :, :queries]


def span_of_a_block(area: KeyArea) -> int:
    """Positions that a block of queries sees in a long sentence, where there is a window."""
    m = area.half_window or 0
    return _block_size(m) + (m if area.causal else 2 * m)


def _block_size(half_window: int) -> int:
    return _BLOCK_SIZE if 4 * half_window <= 3 * _BLOCK_SIZE else half_window


@dataclass(frozen=True)
class _Blocks:
    """How R = `count` blocks of `size` queries meet their keys: block r sees `span` keys from r * size - before on.

    Places count from the first key that a query sees, of which `unreached` come before (in a decoding step); there are
    places `before` the first key and `after` the last.
    """

    count: int
    size: int
    span: int
    unreached: int
    before: int
    after: int

    def of_keys(self, states: Tensor, axis: int) -> Tensor:
        """`states` [.., J, ..] on the places that the blocks see, (R - 1) * size + span of them; 0 without a key."""
        if self.unreached:
            states = states.narrow(axis, self.unreached, states.shape[axis] - self.unreached)
        return F.pad(states, (*(0, 0) * (states.dim() - 1 - axis), self.before, self.after))


def _blocks_of(call: AttentionCall) -> _Blocks:
    queries, keys = call.query.shape[2], call.key.shape[2]
    assert call.area.half_window is not None  # see `cannot_run`
    unreached = max(0, keys - queries - call.area.half_window)
    keys -= unreached
    m = min(call.area.half_window, keys - 1)
    size = _block_size(m)
    if not torch.compiler.is_compiling() or queries == 1:
        size = min(size, queries)  # compiled, one size serves sentences of all lengths
    count, span = -(-queries // size), size + (m if call.area.causal else 2 * m)
    before = m - (keys - queries)
    return _Blocks(count, size, span, unreached, before, (count - 1) * size + span - before - keys)


class _BlockCells(Cells):
    """The cells of all blocks: [B or 1, H or 1, R or 1, size, span]; what lies beyond the ends is masked anyway.

    `key_place` [R, span] is among all keys of the call, and at the ends below 0 or beyond the last.
    """

    def __init__(self, blocks: _Blocks, call: AttentionCall) -> None:
        device = call.query.device
        _, num_heads, self.query_length, _ = call.query.shape
        self.blocks, self.key_length = blocks, call.key.shape[2]
        starts = (torch.arange(blocks.count, device=device) * blocks.size)[:, None]  # [R, 1]
        in_block, in_span = torch.arange(blocks.size, device=device), torch.arange(blocks.span, device=device)
        first = blocks.unreached - blocks.before  # place of the first block's first key
        self.query_place, self.key_place = starts + in_block, starts + first + in_span
        self.query_position = count_from(call.query_start, self.query_place[None, None, :, :, None])
        self.key_position = count_from(call.key_start, self.key_place[None, None, :, None, :])
        self.distance = in_span[None, :] - (in_block + (self.key_length - self.query_length - first))[:, None]
        self.head = torch.arange(num_heads, device=device)[:, None, None, None]

    def rows(self, values: Tensor) -> Tensor:
        """[B, H, I or 1, K] -> [B, H, R or 1, size or 1, K]; the added queries repeat the value 1, always safe."""
        if values.shape[2] == 1 and self.query_length != 1:
            return values.unsqueeze(2)
        padded = F.pad(values, (0, 0, 0, self.blocks.count * self.blocks.size - values.shape[2]), value=1.0)
        return padded.unflatten(2, (self.blocks.count, self.blocks.size))

    def of_pair(self, values: Tensor) -> Tensor:
        """[.., R, size, span]."""
        values = values.expand(*values.shape[:-2], self.query_length, self.key_length)
        rows = self.query_place.clamp(max=self.query_length - 1)[:, :, None]
        return values[..., rows, self.key_place.clamp(0, self.key_length - 1)[:, None, :]]


def _block_masks(call: AttentionCall, blocks: _Blocks) -> Masks:
    padding = call.key_padding_mask
    real = torch.ones(1, call.key.shape[2], dtype=torch.bool, device=call.query.device) if padding is None else padding
    real = blocks.of_keys(real, axis=1).unfold(1, blocks.span, blocks.size)  # [B or 1, R, span]
    masks = make_masks(call, _BlockCells(blocks, call), real[:, None, :, None, :])
    if padding is None and not call.visibility_terms:
        masks.fully_masked = None  # only queries past the last one, which are cut off, see no key
    return masks


def _key_blocks(states: Tensor, area: KeyArea, blocks: _Blocks) -> Tensor:
    """The keys of each block: [B, H, J, D] -> [B, H, R, N * span, D]."""
    return _OverlappingBlocks.apply(area.pad_heads(blocks.of_keys(states, axis=2)), area.head_area, blocks)


class _OverlappingBlocks(torch.autograd.Function):
    """Copies overlapping windows of heads and positions; backward adds them up again.

    torch's own backward of `unfold` scatters element by element, which costs more than the attention itself.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(padded: Tensor, area: int, blocks: _Blocks) -> Tensor:
        """[B, H + N - 1, (R - 1) * size + span, D] -> [B, H, R, N * span, D]."""
        windows = padded.unfold(1, area, 1).unfold(2, blocks.span, blocks.size)  # [B, H, R, D, N, span]
        return windows.permute(0, 1, 2, 4, 5, 3).contiguous().flatten(3, 4)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, _Blocks], output: Tensor) -> None:
        padded, ctx.area, ctx.blocks = inputs
        ctx.shape = padded.shape

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        area, blocks = ctx.area, ctx.blocks
        batch, padded_heads, length, width = ctx.shape
        heads = padded_heads - area + 1
        reach = -(-blocks.span // blocks.size)
        total = grad.new_zeros(batch, padded_heads, blocks.count + reach - 1, blocks.size, width)
        grad = grad.unflatten(3, (area, blocks.span))
        for slot in range(area):
            for block in range(reach):
                start = block * blocks.size
                part = grad[:, :, :, slot, start : start + blocks.size]
                total[:, slot : slot + heads, block : block + blocks.count, : part.shape[3]] += part
        return total.flatten(2, 3)[:, :, :length], None, None
