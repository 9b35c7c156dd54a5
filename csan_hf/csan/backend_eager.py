# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Local attention by matrix products and a float32 softmax: quadratic memory, and the attention weights."""

import torch

from .attention_call import AttentionCall, add_values, dropout, softmax_weights, zero_fully_masked_rows
from .dense_parts import dense_cells, dense_energies, dense_visibility, keys_of_area


def attention_with_weights(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """The eager computation, with its weights.

    Returns:
        The output [B, H, I, D] and the weight of each key position [B, H, I, J], summed over the heads of the area.
        The output is made from these weights, so a gradient reaches them.
    """
    cells = dense_cells(call)
    visible, row_visible = dense_visibility(call, cells)
    keys, values = keys_of_area(call.key, call.area), keys_of_area(call.value, call.area)
    weights = softmax_weights(call, call.query, keys, visible, dense_energies(call, cells))
    joint = zero_fully_masked_rows(weights, row_visible).unflatten(-1, (call.area.head_area, -1))  # [B, H, I, N, J]
    sums = joint.sum(dim=-2)
    of_positions = weights = sums.to(values.dtype)
    if call.area.head_area > 1:
        # A position's weight times each head's share of it: the joint weights again, by way of what is returned
        shares = joint / sums.clamp(min=torch.finfo(sums.dtype).tiny).unsqueeze(-2)
        weights = (of_positions.unsqueeze(-2) * shares).flatten(-2).to(values.dtype)
    weights = dropout(weights, call)
    return add_values(torch.matmul(weights, values), call, cells, weights), of_positions


def eager_attention(call: AttentionCall) -> torch.Tensor:
    """[B, H, I, D]."""
    return attention_with_weights(call)[0]
