# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Local attention of all pairs: matrix products, torch's fused attention, or either in chunks of
queries.
"""

from __future__ import annotations

import functools
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from .attention_call import AttentionCall, Cells, at_least_float32
from .layers import drop

CHUNK_CELLS = 2**21
"""Cells of a chunk, over all sentences and heads: 8 megabytes of float32, about what a processor's
cache holds.
"""
GPU_CHUNK_CELLS = 2**28
"""The same on a GPU, which smaller chunks leave idle: a gigabyte."""
LEAST_CHUNK = 16
"""Queries of a chunk at least: fewer make matrix products inefficient."""
# Without cuDNN's, which plans for 90 ms at every new shape (H200, torch 2.11)
_GPU_KERNELS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def eager_attention(call: AttentionCall) -> Tensor:
    """The output [B, H, I, D] of a call, by matrix products."""
    keys, values = _keys_and_values_of_area(call)
    return attend_by_products(call, call.query, keys, values, _dense_masks(call))


def attention_with_weights(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """The output [B, H, I, D], and the weights that give it, [B, H, I, J], summed over the area's
    heads.
    """
    masks = _dense_masks(call)
    keys, values = _keys_and_values_of_area(call)
    joint = _softmax_weights(call, call.query, keys, masks)  # [B, H, I, J * N]
    joint = _zero_rows(joint, masks.fully_masked).unflatten(-1, (-1, call.area.head_area))
    sums = joint.sum(dim=-1)  # [B, H, I, J]
    position_weights = sums.to(values.dtype)
    weights = position_weights
    if call.area.head_area > 1:
        # The joint weights again: the returned weight of a position, which so has a gradient of the
        # output, times each head's share of it
        shares = joint / sums.clamp(min=torch.finfo(sums.dtype).tiny).unsqueeze(-1)
        weights = (position_weights.unsqueeze(-1) * shares).flatten(-2).to(values.dtype)
    weights = drop(weights, call.dropout_p)
    output = call.with_value_terms(torch.matmul(weights, values), masks.cells, weights)
    return output, position_weights


def sdpa_attention(call: AttentionCall) -> Tensor:
    """The output [B, H, I, D] of a call, by torch's fused attention."""
    area = call.area
    has_no_mask = (
        area.window is None
        and area.head_area == 1
        and call.key_padding_mask is None
        and not call.terms
    )
    if has_no_mask and (not area.causal or call.query.shape[2] == call.key.shape[2]):
        return F.scaled_dot_product_attention(
            call.query,
            call.key,
            call.value,
            dropout_p=call.dropout_p,
            is_causal=area.causal,
            scale=call.scale,
        )
    keys, values = _keys_and_values_of_area(call)
    return _attend_fused(call, call.query, keys, values, _dense_masks(call))


def chunked_attention(call: AttentionCall) -> Tensor:
    """The output [B, H, I, D] of a call, computed in chunks of queries."""
    attend = _attend_fused if fused_is_faster(call) else attend_by_products
    keys, values = _keys_and_values_of_area(call)
    batch, heads = call.query.shape[:2]
    cells = GPU_CHUNK_CELLS if call.query.is_cuda else CHUNK_CELLS
    size = max(LEAST_CHUNK, cells // max(1, batch * heads * keys.shape[2]))
    if call.query.shape[2] <= size:
        return attend(call, call.query, keys, values, _dense_masks(call))

    def attend_chunk(query: Tensor, keys: Tensor, values: Tensor, chunk: slice) -> Tensor:
        return attend(call, query, keys, values, _dense_masks(call, chunk))

    compute = attend_chunk
    # torch.func has a backward pass of its own, which cannot compute anything again
    if torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active():
        compute = functools.partial(
            checkpoint,
            attend_chunk,
            use_reentrant=False,
            preserve_rng_state=call.dropout_p > 0,
        )
    outputs = []
    queries = call.query.shape[2]
    for start in range(0, queries, size):
        chunk = slice(start, min(start + size, queries))
        outputs.append(compute(call.query[:, :, chunk], keys, values, chunk))
    return torch.cat(outputs, dim=2)


def _keys_and_values_of_area(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """The keys and values of each head's area, [B, H, J * N, D]."""
    return call.area.with_neighbours(call.key), call.area.with_neighbours(call.value)


# --- queries with their keys, all or a chunk: by products (blocks, too) or by the fused kernel


def attend_by_products(
    call: AttentionCall, query: Tensor, keys: Tensor, values: Tensor, masks: Masks
) -> Tensor:
    """The output [..., I, D] of queries [..., I, D] for keys and values [..., J * N, D]."""
    weights = _softmax_weights(call, query, keys, masks).to(values.dtype)  # [..., I, J * N]
    weights = drop(weights, call.dropout_p)
    output = call.with_value_terms(torch.matmul(weights, values), masks.cells, weights)
    return _zero_rows(output, masks.fully_masked)


def _softmax_weights(call: AttentionCall, query: Tensor, keys: Tensor, masks: Masks) -> Tensor:
    """Weights [..., I, J * N] in float32 or better."""
    energies = dot_products_in_float32(query * call.scale, keys)
    added = call.added_energies(masks.cells)
    if added is not None:
        energies = energies + added
    if masks.hidden is not None:
        # In place: nothing else refers to the energies
        energies = energies.masked_fill_(masks.hidden, float("-inf"))
    return torch.softmax(energies, dim=-1)


def dot_products_in_float32(query: Tensor, key: Tensor) -> Tensor:
    """The products of queries [..., I, D] and keys [..., J, D] in float32 or better; finite for
    float16, too.
    """
    energies = torch.matmul(query, key.transpose(-1, -2))
    if energies.dtype == torch.float16:
        limits = torch.finfo(torch.float16)
        energies = energies.clamp(limits.min, limits.max)
    return at_least_float32(energies)


def _attend_fused(
    call: AttentionCall, query: Tensor, keys: Tensor, values: Tensor, masks: Masks
) -> Tensor:
    """As `attend_by_products`, by torch's fused attention."""
    dtype = query.dtype
    energies = call.added_energies(masks.cells)
    if energies is not None or trains_faster_in_float32(query, call.dropout_p):
        # Energies and softmax are float32 or better whatever the model's precision
        query = at_least_float32(query)
        keys = at_least_float32(keys)
        values = at_least_float32(values)
    if energies is None:
        mask = masks.additive(query.dtype)
    else:
        mask = energies.to(query.dtype)
        if masks.hidden is not None:
            mask = mask.masked_fill(masks.hidden, float("-inf"))
    # Tensors without content have no autocast
    in_float = nullcontext() if query.is_meta else torch.autocast(query.device.type, enabled=False)
    kernels = sdpa_kernel(_GPU_KERNELS) if query.is_cuda else nullcontext()
    with in_float, kernels:
        output = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, dropout_p=call.dropout_p, scale=call.scale
        )
    return _zero_rows(output.to(dtype), masks.fully_masked)


def fused_is_faster(call: AttentionCall) -> bool:
    """Whether torch's fused attention is faster than products; it gives no weights and no gradient
    for energies.
    """
    if call.value_terms or (call.energy_terms and call.dropout_p > 0.0):
        # With dropout the choice must not depend on gradients: reentrant checkpointing computes
        # without and again with them, and each way drops other weights.
        return False
    if torch.is_grad_enabled() and any(term.requires_grad for term in call.terms):
        return False
    return not (call.energy_terms and call.query.dtype in (torch.float16, torch.bfloat16))


def trains_faster_in_float32(query: Tensor, dropout_p: float) -> bool:
    """Whether fused attention should train in float32: its backward is slow in bfloat16 on CPUs."""
    return (
        query.device.type == "cpu"
        and query.dtype == torch.bfloat16
        and (query.requires_grad or dropout_p > 0.0)
    )


# --- masks of all pairs and of blocks


@dataclass
class Masks:
    """Masks of a set of cells, shared by layers whose queries see the same keys.

    Attributes:
        cells: The cells.
        hidden: [..., I, J * N], keys that a query does not see; none for a query that sees no key.
            None = every query sees all.
        fully_masked: [..., I, 1], queries that see no key, whose output is zero; None = no query.
    """

    cells: Cells
    hidden: Tensor | None
    fully_masked: Tensor | None
    _additive: Tensor | None = None

    def additive(self, dtype: torch.dtype) -> Tensor | None:
        """0 for visible keys, -inf for hidden ones; kept, as torch converts a boolean mask in every
        call.
        """
        if self.hidden is not None and (self._additive is None or self._additive.dtype != dtype):
            zeros = torch.zeros_like(self.hidden, dtype=dtype)
            self._additive = zeros.masked_fill_(self.hidden, float("-inf"))
        return self._additive


def make_masks(call: AttentionCall, cells: Cells, real: Tensor | None) -> Masks:
    """The masks of `cells`; `real` says which keys are real tokens, broadcastable to the cells."""
    area = call.area
    conditions = [term.visible(cells) for term in call.visibility_terms]
    if real is not None:
        conditions.append(real)
    may_hide_all = bool(conditions)
    if area.window is not None or area.causal:
        conditions.insert(0, area.within_window(cells.distance))
    visible = fully_masked = None
    if conditions:
        visible = cells.over_keys(functools.reduce(Tensor.__and__, conditions))
    if visible is not None and may_hide_all:
        fully_masked = ~visible.any(dim=-1, keepdim=True)
        visible = visible | fully_masked
    heads = area.visible_heads(call.query.shape[1], call.query.device)
    if heads is not None:  # hide the slots of the area in which there is no head
        heads = heads.view(1, -1, *[1] * (cells.key_position.dim() - 2), area.head_area)
        heads = heads.expand(*heads.shape[:-2], cells.key_position.shape[-1], -1)
        visible = (heads if visible is None else visible.unsqueeze(-1) & heads).flatten(-2)
    elif visible is not None:
        visible = area.repeat(visible)
    return Masks(cells, None if visible is None else ~visible, fully_masked)


def _zero_rows(output: Tensor, fully_masked: Tensor | None) -> Tensor:
    """`output` [..., I, D], zero for the queries that see no key (`fully_masked` [..., I, 1])."""
    return output if fully_masked is None else output.masked_fill(fully_masked, 0.0)


# --- all pairs


class DenseCells(Cells):
    """All cells of a call, or of a chunk of its queries: [B or 1, H or 1, I, J], I queries in the
    chunk.
    """

    def __init__(self, call: AttentionCall, chunk: slice | None = None) -> None:
        _, heads, queries, _ = call.query.shape
        keys = call.key.shape[2]
        device = call.query.device
        self.chunk = chunk
        self.query_position = self.rows(call.query_positions[:, None, :, None])  # [B or 1, 1, I, 1]
        self.key_position = call.key_positions[:, None, None, :]
        places = torch.arange(keys, device=device)
        query_places = torch.arange(keys - queries, keys, device=device)
        self.distance = places[None, :] - self.rows(query_places[:, None])
        self.head = torch.arange(heads, device=device)[:, None, None]

    def rows(self, values: Tensor) -> Tensor:
        """See `Cells`: the chunk's queries, [B or 1, H or 1, I or 1, K]."""
        if self.chunk is None or values.shape[-2] == 1:
            return values
        return values.narrow(-2, self.chunk.start, self.chunk.stop - self.chunk.start)

    def of_pair(self, values: Tensor) -> Tensor:
        """[..., I or 1, J or 1]."""
        return self.rows(values) if values.dim() > 1 else values


def _dense_masks(call: AttentionCall, chunk: slice | None = None) -> Masks:
    """Masks of the call, or of a chunk of its queries."""

    def make() -> Masks:
        real = call.key_padding_mask
        if real is not None:
            real = real[:, None, None, :]
        return make_masks(call, DenseCells(call, chunk), real)

    return call.share("dense", make) if chunk is None else make()
