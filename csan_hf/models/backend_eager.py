# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Local attention by matrix products and a float32 softmax: quadratic memory, and the attention weights."""

import torch

from .attention_call import AttentionCall, add_values, softmax_weights, zero_fully_masked_rows
from .dense_parts import DenseMasks, dense_energies, dense_masks, keys_of_area
from .dropout import drop


def attention_with_weights(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """The eager computation, with its weights.

    Returns:
        The output [B, H, I, D] and the weight of each key position [B, H, I, J], summed over the heads of the area.
        The output is computed from these weights, so gradients flow through them.
    """
    masks = call.once("dense", lambda: dense_masks(call))
    keys, values = keys_of_area(call.key, call.area), keys_of_area(call.value, call.area)
    weights = softmax_weights(call, call.query, keys, masks.hidden, dense_energies(call, masks.cells))
    joint = zero_fully_masked_rows(weights, masks.fully_masked).unflatten(-1, (call.area.head_area, -1))
    sums = joint.sum(dim=-2)
    of_positions = weights = sums.to(values.dtype)
    if call.area.head_area > 1:
        # The joint weights again, as a position's weight, which is returned, times each head's share of it
        shares = joint / sums.clamp(min=torch.finfo(sums.dtype).tiny).unsqueeze(-2)
        weights = (of_positions.unsqueeze(-2) * shares).flatten(-2).to(values.dtype)
    weights = drop(weights, call.dropout_p)
    return add_values(torch.matmul(weights, values), call, masks.cells, weights), of_positions


def eager_attention(call: AttentionCall) -> torch.Tensor:
    """The output [B, H, I, D] of a call, by matrix products."""
    keys, values = keys_of_area(call.key, call.area), keys_of_area(call.value, call.area)
    return attend_all_pairs(call, call.query, keys, values, call.once("dense", lambda: dense_masks(call)))


def attend_all_pairs(
    call: AttentionCall, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, masks: DenseMasks
) -> torch.Tensor:
    """The output [B, H, I, D] of queries [B, H, I, D], all or a chunk, for keys and values [B, H, N * J, D]."""
    weights = softmax_weights(call, query, keys, masks.hidden, dense_energies(call, masks.cells))
    weights = drop(weights.to(values.dtype), call.dropout_p)
    return zero_fully_masked_rows(
        add_values(torch.matmul(weights, values), call, masks.cells, weights), masks.fully_masked
    )
