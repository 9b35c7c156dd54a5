# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Local attention of blocks of queries to their keys and m on either side: linear memory, forward
and backward.

By torch's fused attention where it can compute the call on a CPU, by matrix products elsewhere.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention_call import AttentionCall, Cells, KeyArea, count_from
from .backend_dense import Masks, attend_by_products, make_masks, trains_faster_in_float32
from .layers import is_plain

# Queries per block: small enough to waste little on the edges, large enough for efficient matrix
# products.
_BLOCK_SIZE = 32
# Of the keys that one call of the fused kernel reads: 2 megabytes of float32, whose gradient is
# added from the cache
_VALUES_OF_A_RUN = 2**19


def blocked_attention(call: AttentionCall) -> Tensor:
    """The output [B, H, I, D] of a call, computed in blocks of queries."""
    blocks = _blocks_of(call)
    if fuses_blocks(call):
        output = _attend_fused(call, blocks)
    else:
        masks = call.share("blocks", lambda: _block_masks(call, blocks))
        everything = [(slice(None), slice(None))]
        [keys] = _keys_of_runs(call.key, call.area, blocks, everything)
        [values] = _keys_of_runs(call.value, call.area, blocks, everything)
        queries = blocks.of_queries(call.query)  # [B, H, R, size, D]
        output = attend_by_products(call, queries, keys, values, masks).flatten(2, 3)
    return output[:, :, : call.query.shape[2]]


def fuses_blocks(call: AttentionCall) -> bool:
    """Whether torch's fused kernel for CPUs can compute the call; not while tracing, as the runs
    depend on the padding.
    """
    return (
        is_plain(call.query)
        and call.query.shape[0] > 0
        and not (call.terms or call.dropout_p > 0.0)
    )


def span_of_a_block(call: AttentionCall) -> int:
    """Positions that a block of queries sees in a long sentence, where there is a window."""
    m = call.area.half_window or 0
    return _block_size(m, fuses_blocks(call)) + (m if call.area.causal else 2 * m)


def _block_size(half_window: int, fused: bool) -> int:
    if fused:
        return max(_BLOCK_SIZE, min(half_window // 2, 4 * _BLOCK_SIZE))
    return _BLOCK_SIZE if 4 * half_window <= 3 * _BLOCK_SIZE else half_window


@dataclass(frozen=True)
class _Blocks:
    """R = `count` blocks of `size` queries and their keys: block r sees `span` keys from place
    r * size - before on.

    Places count from the first key that a query sees; in a decoding step `unreached` keys lie
    before it. `before` and `after` are the places before the first key and after the last."""

    count: int
    size: int
    span: int
    unreached: int
    before: int
    after: int

    def of_keys(self, states: Tensor, axis: int) -> Tensor:
        """`states` [.., J, ..] at the (R - 1) * size + span places that the blocks see; 0 without a
        key.
        """
        if self.unreached:
            states = states.narrow(axis, self.unreached, states.shape[axis] - self.unreached)
        return F.pad(states, (*(0, 0) * (states.dim() - 1 - axis), self.before, self.after))

    def of_queries(self, states: Tensor, value: float = 0.0) -> Tensor:
        """[B, H, I, D] -> [B, H, R, size, D]; the queries past the last one are filled with
        `value`.
        """
        padded = F.pad(states, (0, 0, 0, self.count * self.size - states.shape[2]), value=value)
        return padded.unflatten(2, (self.count, self.size))


def _blocks_of(call: AttentionCall) -> _Blocks:
    queries, keys = call.query.shape[2], call.key.shape[2]
    assert call.area.half_window is not None  # see `cannot_run`
    unreached = max(0, keys - queries - call.area.half_window)
    keys -= unreached
    m = min(call.area.half_window, keys - 1)
    size = _block_size(m, fuses_blocks(call))
    if not torch.compiler.is_compiling() or queries == 1:
        size = min(size, queries)  # compiled, one size serves sentences of all lengths
    count = -(-queries // size)
    span = size + (m if call.area.causal else 2 * m)
    before = m - (keys - queries)
    after = (count - 1) * size + span - before - keys
    return _Blocks(count, size, span, unreached, before, after)


class _BlockCells(Cells):
    """The cells of all blocks: [B or 1, H or 1, R or 1, size, span]; those beyond the ends are
    masked.

    `key_place` [R, span] counts all keys of the call; beyond the ends it is below 0 or J and more.
    """

    def __init__(self, blocks: _Blocks, call: AttentionCall) -> None:
        device = call.query.device
        _, num_heads, self.query_length, _ = call.query.shape
        self.key_length = call.key.shape[2]
        self.blocks = blocks
        starts = (torch.arange(blocks.count, device=device) * blocks.size)[:, None]  # [R, 1]
        in_block = torch.arange(blocks.size, device=device)
        in_span = torch.arange(blocks.span, device=device)
        first = blocks.unreached - blocks.before  # place of the first block's first key
        self.query_place = starts + in_block
        self.key_place = starts + first + in_span
        self.query_position = count_from(call.query_start, self.query_place[None, None, :, :, None])
        self.key_position = count_from(call.key_start, self.key_place[None, None, :, None, :])
        query_in_span = in_block + (self.key_length - self.query_length - first)
        self.distance = in_span[None, :] - query_in_span[:, None]
        self.head = torch.arange(num_heads, device=device)[:, None, None, None]

    def rows(self, values: Tensor) -> Tensor:
        """[B, H, I or 1, K] -> [B, H, R or 1, size or 1, K]; 1, which is always finite, for queries
        past the last.
        """
        if values.shape[2] == 1 and self.query_length != 1:
            return values.unsqueeze(2)
        return self.blocks.of_queries(values, 1.0)

    def of_pair(self, values: Tensor) -> Tensor:
        """[.., R, size, span]."""
        values = values.expand(*values.shape[:-2], self.query_length, self.key_length)
        rows = self.query_place.clamp(max=self.query_length - 1)
        columns = self.key_place.clamp(0, self.key_length - 1)
        return values[..., rows[:, :, None], columns[:, None, :]]


def _block_masks(call: AttentionCall, blocks: _Blocks) -> Masks:
    masks = make_masks(call, _BlockCells(blocks, call), _real_keys(call, blocks))
    if call.key_padding_mask is None and not call.visibility_terms:
        masks.fully_masked = None  # only queries past the last, which are cut off, see no key
    return masks


def _real_keys(call: AttentionCall, blocks: _Blocks) -> Tensor:
    """Which keys of each block are real tokens, [B or 1, 1, R, 1, span]."""
    real = call.key_padding_mask
    if real is None:
        real = torch.ones(1, call.key.shape[2], dtype=torch.bool, device=call.query.device)
    return blocks.of_keys(real, axis=1).unfold(1, blocks.span, blocks.size)[:, None, :, None, :]


_Runs = list[tuple[slice, slice]]
"""Sentences and blocks, neighbours each, that are computed together."""


def _keys_of_runs(
    states: Tensor, area: KeyArea, blocks: _Blocks, runs: _Runs
) -> tuple[Tensor, ...]:
    """The keys of each run's b sentences and r blocks: [B, H, J, D] -> [b, H, r, span * N, D]."""
    keys = area.with_neighbours(blocks.of_keys(states, axis=2))
    heads = area.head_area
    return _OverlappingKeys.apply(keys, blocks.span * heads, blocks.size * heads, runs)


class _OverlappingKeys(torch.autograd.Function):
    """Views of overlapping windows of keys; backward adds their gradients up.

    torch's own backward of `unfold` scatters single elements, slower than the attention itself.
    It has no batching rule (`is_grads_batched`); `torch.func.vmap` works."""

    generate_vmap_rule = True

    @staticmethod
    def forward(keys: Tensor, span: int, size: int, runs: _Runs) -> tuple[Tensor, ...]:
        """[B, H, (R - 1) * size + span, D] -> [b, H, r, span, D] for each run."""
        windows = keys.unfold(2, span, size).transpose(-1, -2)  # [B, H, R, span, D]
        return tuple(windows[sentences, :, places] for sentences, places in runs)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, int, int, _Runs], output: tuple[Tensor, ...]
    ) -> None:
        keys, ctx.span, ctx.size, ctx.runs = inputs
        ctx.shape = keys.shape

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        batch, heads, length, width = ctx.shape
        size = ctx.size
        reach = -(-ctx.span // size)
        count = (length - ctx.span) // size + 1
        total = grads[0].new_zeros(batch, heads, count + reach - 1, size, width)
        for (sentences, places), grad in zip(ctx.runs, grads, strict=True):
            start = places.start or 0
            for block in range(reach):
                part = grad[:, :, :, block * size : (block + 1) * size]
                first = start + block
                total[sentences, :, first : first + part.shape[2], : part.shape[3]] += part
        return total.flatten(2, 3)[:, :, :length], None, None, None


# --- by torch's fused attention


def _attend_fused(call: AttentionCall, blocks: _Blocks) -> Tensor:
    """The output [B, H, R * size, D]; the kernel reads views of the keys, not copies."""
    dtype = call.query.dtype
    exact = torch.float32 if trains_faster_in_float32(call.query, 0.0) else dtype
    runs, masks = call.share(("fused blocks", exact), lambda: _runs_and_masks(call, blocks, exact))
    queries = blocks.of_queries(call.query.to(exact)).transpose(1, 2).flatten(0, 1)
    queries = queries.split([places.stop - places.start for _, places in runs])  # [r, H, size, D]
    keys = _keys_of_runs(call.key.to(exact), call.area, blocks, runs)
    values = _keys_of_runs(call.value.to(exact), call.area, blocks, runs)
    outputs = []
    for query, key, value, (mask, empty) in zip(queries, keys, values, masks, strict=True):
        with torch.autocast("cpu", enabled=False):
            output = F.scaled_dot_product_attention(
                query,
                key.squeeze(0).transpose(0, 1),  # [r, H, span * N, D]
                value.squeeze(0).transpose(0, 1),
                attn_mask=mask,
                scale=call.scale,
            )
        if empty is not None:
            output = output.masked_fill(empty, 0.0)
        outputs.append(output.transpose(1, 2))  # as the kernel writes it, [r, size, H, D]
    output = torch.cat(outputs).unflatten(0, (-1, blocks.count)).flatten(1, 2)
    return output.transpose(1, 2).to(dtype)


def _runs_and_masks(
    call: AttentionCall, blocks: _Blocks, dtype: torch.dtype
) -> tuple[_Runs, list[tuple[Tensor, Tensor | None]]]:
    """Runs of each sentence's blocks, in order, and their masks; blocks without padding share one
    mask.

    A mask is a tensor added to the energies, [r or 1, H or 1, size, span * N], and the queries that
    see no key, [r, 1, size, 1] (None = no query)."""
    cells = _BlockCells(blocks, call)

    def masks_of(real: Tensor | None) -> tuple[Tensor, Tensor | None]:
        masks = make_masks(call, cells, real)
        added = masks.additive(dtype)
        assert added is not None  # there is a window
        if added.dim() == 5:
            added = added[0].transpose(0, 1)
        empty = masks.fully_masked
        return added, None if empty is None else empty[0].transpose(0, 1)

    batch, heads, _, width = call.key.shape
    shared = masks_of(None)
    most = max(1, _VALUES_OF_A_RUN // (heads * shared[0].shape[-1] * width))
    real = _real_keys(call, blocks).expand(batch, -1, -1, -1, -1)
    runs = []
    masks = []
    for index, whole in enumerate(real.all(dim=-1).flatten(1).tolist()):
        sentence = slice(index, index + 1)
        start = 0
        for is_whole, stretch in itertools.groupby(whole):
            stop = start + len(list(stretch))
            for place in range(start, stop, most):
                places = slice(place, min(place + most, stop))
                runs.append((sentence, places))
                masks.append(shared if is_whole else masks_of(real[sentence, :, places]))
            start = stop
    return runs, masks
