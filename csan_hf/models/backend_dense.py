# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Local attention of all pairs: matrix products, torch's fused attention, or either in chunks of queries."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from .locality import DenseCells, KeyArea, pad_heads, repeat_over_area, visible_heads, within_window
from .seq2seq_model import drop

if TYPE_CHECKING:
    from .attention_call import AttentionCall

CHUNK_CELLS = 2**21
"""Cells of a chunk, over all sentences and heads: 8 megabytes of float32, about what a processor's cache holds."""
LEAST_CHUNK = 16
"""Queries of a chunk at least: fewer make matrix products inefficient."""


def attention_with_weights(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """The output [B, H, I, D], and the weights it is computed from, [B, H, I, J], summed over the area's heads."""
    masks = call.once("dense", lambda: _dense_masks(call))
    keys, values = _keys_of_area(call.key, call.area), _keys_of_area(call.value, call.area)  # [B, H, N * J, D]
    weights = softmax_weights(call, call.query, keys, masks.hidden, _energies(call, masks.cells))  # [B, H, I, N * J]
    joint = zero_fully_masked_rows(weights, masks.fully_masked).unflatten(-1, (call.area.head_area, -1))
    sums = joint.sum(dim=-2)  # [B, H, I, J]
    of_positions = weights = sums.to(values.dtype)
    if call.area.head_area > 1:
        # The joint weights again, as a position's weight, which is returned, times each head's share of it
        shares = joint / sums.clamp(min=torch.finfo(sums.dtype).tiny).unsqueeze(-2)
        weights = (of_positions.unsqueeze(-2) * shares).flatten(-2).to(values.dtype)
    weights = drop(weights, call.dropout_p)
    return call.with_value_terms(torch.matmul(weights, values), masks.cells, weights), of_positions


def eager_attention(call: AttentionCall) -> torch.Tensor:
    """The output [B, H, I, D] of a call, by matrix products."""
    keys, values = _keys_of_area(call.key, call.area), _keys_of_area(call.value, call.area)
    return _attend_by_products(call, call.query, keys, values, call.once("dense", lambda: _dense_masks(call)))


def sdpa_attention(call: AttentionCall) -> torch.Tensor:
    """The output [B, H, I, D] of a call, by torch's fused attention."""
    area, query, key, value = call.area, call.query, call.key, call.value
    unmasked = area.head_area == 1 and call.key_padding_mask is None and not call.terms
    if unmasked and area.window is None and (not area.causal or query.shape[2] == key.shape[2]):
        return F.scaled_dot_product_attention(
            query, key, value, dropout_p=call.dropout_p, is_causal=area.causal, scale=call.scale
        )
    masks = call.once("dense", lambda: _dense_masks(call))
    seen = None
    if not call.energy_terms:
        dtype = torch.float32 if trains_faster_in_float32(query, call.dropout_p) else query.dtype
        seen = call.once(("additive", dtype), lambda: _additive_mask(masks, dtype))
    return _attend_fused(call, query, _keys_of_area(key, area), _keys_of_area(value, area), masks, seen)


def sdpa_cannot_run(call: AttentionCall) -> str | None:
    """See `Backend.cannot_run`."""
    if call.value_terms:
        return "does not give the attention weights that a value term needs; use 'eager', or 'blocked' with a window."
    return None


def chunked_attention(call: AttentionCall) -> torch.Tensor:
    """The output [B, H, I, D] of a call, computed in chunks of queries."""
    attend = _attend_fused if fused_is_faster(call) else _attend_by_products
    keys, values = _keys_of_area(call.key, call.area), _keys_of_area(call.value, call.area)
    size = max(LEAST_CHUNK, CHUNK_CELLS // max(1, call.query.shape[0] * call.query.shape[1] * keys.shape[2]))
    if call.query.shape[2] <= size:
        return attend(call, call.query, keys, values, call.once("dense", lambda: _dense_masks(call)))

    def attend_chunk(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, chunk: slice) -> torch.Tensor:
        return attend(call, query, keys, values, _dense_masks(call, chunk))

    # torch.func has a backward pass of its own, which cannot compute anything again.
    again = torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()
    outputs = []
    for index, query in enumerate(call.query.split(size, dim=2)):
        chunk = (query, keys, values, slice(index * size, index * size + query.shape[2]))
        if again:
            random = call.dropout_p > 0
            outputs.append(checkpoint(attend_chunk, *chunk, use_reentrant=False, preserve_rng_state=random))
        else:
            outputs.append(attend_chunk(*chunk))
    return torch.cat(outputs, dim=2)


# --- the two ways to compute all pairs ----------------------------------------------------------------------------


def _attend_by_products(
    call: AttentionCall, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, masks: Masks
) -> torch.Tensor:
    """The output [B, H, I, D] of queries [B, H, I, D], all or a chunk, for keys and values [B, H, N * J, D]."""
    weights = softmax_weights(call, query, keys, masks.hidden, _energies(call, masks.cells))
    weights = drop(weights.to(values.dtype), call.dropout_p)
    output = call.with_value_terms(torch.matmul(weights, values), masks.cells, weights)
    return zero_fully_masked_rows(output, masks.fully_masked)


def _attend_fused(
    call: AttentionCall,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    masks: Masks,
    seen: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `_attend_by_products`; `seen` is what the masks say as a number to add, where it has been made."""
    dtype = query.dtype
    energies = _energies(call, masks.cells)
    if energies is not None or trains_faster_in_float32(query, call.dropout_p):
        # Energies and softmax are float32 or better whatever the model's precision.
        exact = torch.promote_types(dtype, torch.float32)
        query, keys, values = query.to(exact), keys.to(exact), values.to(exact)
    if energies is not None:
        energies = energies.to(query.dtype)
        seen = energies if masks.hidden is None else energies.masked_fill(masks.hidden, float("-inf"))
    elif seen is None:
        seen = _additive_mask(masks, query.dtype)
    # Tensors without content have no autocast
    with nullcontext() if query.is_meta else torch.autocast(query.device.type, enabled=False):
        output = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=seen, dropout_p=call.dropout_p, scale=call.scale
        )
    return zero_fully_masked_rows(output.to(dtype), masks.fully_masked)


def fused_is_faster(call: AttentionCall) -> bool:
    """Whether torch's fused attention is the better way to compute all pairs.

    It takes no gradient for an energy and gives no weights; energies of terms make it compute in float32.
    """
    if call.value_terms or (call.energy_terms and call.dropout_p > 0.0):
        # With dropout the choice must not depend on gradients: reentrant checkpointing computes without and again with
        # them, and each way drops other weights.
        return False
    if torch.is_grad_enabled() and call.terms_require_grad:
        return False
    return not (call.energy_terms and call.query.dtype in (torch.float16, torch.bfloat16))


def trains_faster_in_float32(query: torch.Tensor, dropout_p: float) -> bool:
    """Whether torch's fused attention is to be computed in float32 for speed; with dropout, with gradients or without.

    On a CPU its backward pass in bfloat16 takes three to ten times as long as in float32 at the lengths of sentences
    and words (torch 2.13, with AMX).
    """
    return query.device.type == "cpu" and query.dtype == torch.bfloat16 and (query.requires_grad or dropout_p > 0.0)


# --- softmax: shared with the blocks ------------------------------------------------------------------------------


def dot_products_in_float32(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The products of queries [..., I, D] and keys [..., J, D] in float32 or better; finite for float16, too."""
    energies = torch.matmul(query, key.transpose(-1, -2))
    if energies.dtype == torch.float16:
        limits = torch.finfo(torch.float16)
        energies = energies.clamp(limits.min, limits.max)
    return energies.to(torch.promote_types(energies.dtype, torch.float32))


def softmax_weights(
    call: AttentionCall,
    query: torch.Tensor,
    key: torch.Tensor,
    hidden: torch.Tensor | None,
    added: torch.Tensor | None,
) -> torch.Tensor:
    """Weights [..., I, J] of keys [..., J, D] for queries [..., I, D], in float32 or better.

    `added` goes to the energies; what is `hidden` gets no weight.
    """
    energies = dot_products_in_float32(query * call.scale, key)
    if added is not None:
        energies = energies + added
    if hidden is not None:
        energies = energies.masked_fill_(hidden, float("-inf"))  # safe in place: no other reference
    return torch.softmax(energies, dim=-1)


def zero_fully_masked_rows(output: torch.Tensor, fully_masked: torch.Tensor | None) -> torch.Tensor:
    """`output` [..., I, D], zero for the queries that see no key (`fully_masked` [..., I, 1])."""
    return output if fully_masked is None else output.masked_fill(fully_masked, 0.0)


def open_fully_masked_rows(visible: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mask [..., I, J] with empty rows set to True (their softmax would be NaN), and which rows those are."""
    fully_masked = ~visible.any(dim=-1, keepdim=True)
    return visible | fully_masked, fully_masked


# --- masks, energies and keys, written out for all pairs ----------------------------------------------------------


class Masks(NamedTuple):
    """What layers share if their queries see the same keys; axes of cells as in the backend's cells.

    Attributes:
        cells: The cells of the call.
        hidden: Keys that a query does not see; None: it sees all. Rows of queries that see no key are opened, so that
            no softmax is of an empty row; their output is replaced by zeros.
        fully_masked: The queries that see no key, [..., I, 1]; None: there are none.
    """

    cells: Any
    hidden: torch.Tensor | None
    fully_masked: torch.Tensor | None


def _dense_masks(call: AttentionCall, chunk: slice | None = None) -> Masks:
    """Masks of the call, or of a chunk of its queries."""
    (_, num_heads, queries, _), keys, device = call.query.shape, call.key.shape[2], call.query.device
    cells = DenseCells(num_heads, queries, keys, call.positions, device, chunk)
    visible = fully_masked = None
    if call.area.window is not None or call.area.causal:
        visible = within_window(cells.distance, call.area)[None, None]
    visible = call.restricted(visible, cells)
    if call.key_padding_mask is not None:
        padding = call.key_padding_mask[:, None, None, :]
        visible = padding if visible is None else visible & padding
    if visible is not None and (call.key_padding_mask is not None or call.visibility_terms):
        visible, fully_masked = open_fully_masked_rows(_over_keys(visible, keys))
    heads = visible_heads(num_heads, call.area, device)
    if heads is not None:  # close the slots of the area in which there is no head
        heads = heads[None, :, None, :, None].expand(-1, -1, -1, -1, keys)
        visible = (heads if visible is None else visible.unsqueeze(-2) & heads).flatten(-2)
    elif visible is not None:
        visible = repeat_over_area(visible, call.area)
    return Masks(cells, None if visible is None else ~visible, fully_masked)


def _over_keys(per_cell: torch.Tensor, keys: int) -> torch.Tensor:
    """What a term says of its cells, [.., 1 or J] or with fewer axes, for every key: [.., .., .., J]."""
    return per_cell.expand(torch.broadcast_shapes(per_cell.shape, (1, 1, 1, keys)))


def _energies(call: AttentionCall, cells: DenseCells) -> torch.Tensor | None:
    """The terms' energies repeated over the heads of the area, [B or 1, H or 1, I or 1, N*J]."""
    energies = call.added_energies(cells)
    return None if energies is None else repeat_over_area(_over_keys(energies, call.key.shape[2]), call.area)


def _additive_mask(masks: Masks, dtype: torch.dtype) -> torch.Tensor | None:
    """0 for what is seen, -inf for what is not; torch's function would make it of a boolean mask in every layer."""
    if masks.hidden is None:
        return None
    return torch.zeros_like(masks.hidden, dtype=dtype).masked_fill_(masks.hidden, float("-inf"))


def _keys_of_area(states: torch.Tensor, area: KeyArea) -> torch.Tensor:
    """Each head's keys and its neighbours', one head after the other: [B, H, J, D] -> [B, H, N * J, D]."""
    if area.head_area == 1:
        return states
    padded = pad_heads(states, area)
    if torch.compiler.is_compiling():
        heads = states.shape[1]
        return torch.cat([padded[:, slot : slot + heads] for slot in range(area.head_area)], dim=2)
    return _OverlappingHeads.apply(padded, area.head_area)


class _OverlappingHeads(torch.autograd.Function):
    """A view in which the keys of a head and its neighbours follow one another; backward adds them up again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(padded: torch.Tensor, area: int) -> torch.Tensor:
        """[B, H + N - 1, J, D] -> [B, H, N * J, D], nothing copied: a head's keys overlap with its neighbour's."""
        padded = padded.contiguous()
        batch, padded_heads, length, width = padded.shape
        shape = (batch, padded_heads - area + 1, area * length, width)
        return padded.as_strided(shape, padded.stride(), padded.storage_offset())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, int], output: torch.Tensor) -> None:
        ctx.area = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        heads, slots = grad.shape[1], grad.unflatten(2, (ctx.area, -1)).unbind(2)
        total = F.pad(slots[0], (0, 0, 0, 0, 0, ctx.area - 1))
        for slot, part in enumerate(slots[1:], start=1):
            total[:, slot : slot + heads] += part
        return total, None
