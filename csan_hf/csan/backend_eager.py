# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Local attention by matrix products and a float32 softmax: quadratic memory, and the attention weights.

In chunks of queries, whose weights the backward pass computes again, its memory is linear in the keys.
"""

import torch
from torch.utils.checkpoint import checkpoint

from .attention_call import AttentionCall, add_values, dropout, softmax_weights, zero_blind_rows
from .dense_parts import DenseMasks, dense_energies, dense_masks, keys_of_area

_CHUNK_CELLS = 2**21
"""Cells of a chunk, over all sentences and heads: 8 megabytes of float32, about what a processor's cache holds."""
_LEAST_CHUNK = 16
"""Queries of a chunk at least: fewer make matrix products inefficient."""


def attention_with_weights(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """The eager computation, with its weights.

    Returns:
        The output [B, H, I, D] and the weight of each key position [B, H, I, J], summed over the heads of the area.
        The output is made from these weights, so a gradient reaches them.
    """
    masks = call.once("dense", lambda: dense_masks(call))
    keys, values = keys_of_area(call.key, call.area), keys_of_area(call.value, call.area)
    weights = softmax_weights(call, call.query, keys, masks.hidden, dense_energies(call, masks.cells))
    joint = zero_blind_rows(weights, masks.blind).unflatten(-1, (call.area.head_area, -1))  # [B, H, I, N, J]
    sums = joint.sum(dim=-2)
    of_positions = weights = sums.to(values.dtype)
    if call.area.head_area > 1:
        # A position's weight times each head's share of it: the joint weights again, by way of what is returned
        shares = joint / sums.clamp(min=torch.finfo(sums.dtype).tiny).unsqueeze(-2)
        weights = (of_positions.unsqueeze(-2) * shares).flatten(-2).to(values.dtype)
    weights = dropout(weights, call)
    return add_values(torch.matmul(weights, values), call, masks.cells, weights), of_positions


def eager_attention(call: AttentionCall) -> torch.Tensor:
    """[B, H, I, D]."""
    keys, values = keys_of_area(call.key, call.area), keys_of_area(call.value, call.area)
    return _attend(call, call.query, keys, values, call.once("dense", lambda: dense_masks(call)))


def chunked_attention(call: AttentionCall) -> torch.Tensor:
    """[B, H, I, D]."""
    keys, values = keys_of_area(call.key, call.area), keys_of_area(call.value, call.area)
    size = max(_LEAST_CHUNK, _CHUNK_CELLS // (call.query.shape[0] * call.query.shape[1] * keys.shape[2]))
    if call.query.shape[2] <= size:
        return _attend(call, call.query, keys, values, call.once("dense", lambda: dense_masks(call)))
    outputs, start = [], 0
    for queries in call.query.split(size, dim=2):
        chunk = slice(start, start := start + queries.shape[2])
        outputs.append(_attend_again_in_backward(call, queries, keys, values, chunk))
    return torch.cat(outputs, dim=2)


def _attend_again_in_backward(
    call: AttentionCall, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, chunk: slice
) -> torch.Tensor:
    """The output [B, H, I, D] of a chunk of queries, of which the backward pass keeps the inputs alone."""

    def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return _attend(call, query, keys, values, dense_masks(call, chunk))

    # torch.func has a backward pass of its own, which cannot compute anything again.
    if not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return attend(query, keys, values)
    output: torch.Tensor = checkpoint(
        attend, query, keys, values, use_reentrant=False, preserve_rng_state=call.dropout_p > 0
    )
    return output


def _attend(
    call: AttentionCall, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, masks: DenseMasks
) -> torch.Tensor:
    """The output [B, H, I, D] of queries [B, H, I, D], all or a chunk, for keys and values [B, H, N * J, D]."""
    weights = softmax_weights(call, query, keys, masks.hidden, dense_energies(call, masks.cells))
    weights = dropout(weights.to(values.dtype), call)
    return zero_blind_rows(add_values(torch.matmul(weights, values), call, masks.cells, weights), masks.blind)
