# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Local attention through torch's fused attention with a mask: memory linear to quadratic (the mask)."""

import torch
import torch.nn.functional as F

from .attention_call import AttentionCall, zero_blind_rows
from .dense_parts import dense_cells, dense_energies, dense_visibility, keys_of_area


def sdpa_attention(call: AttentionCall) -> torch.Tensor:
    """[B, H, I, D]."""
    area, query, key, value = call.area, call.query, call.key, call.value
    unmasked = area.head_area == 1 and call.key_padding_mask is None and not call.terms
    if unmasked and area.window is None and (not area.causal or query.shape[2] == key.shape[2]):
        return F.scaled_dot_product_attention(
            query, key, value, dropout_p=call.dropout_p, is_causal=area.causal, scale=call.scale
        )
    cells = dense_cells(call)
    visible, row_visible = dense_visibility(call, cells)
    dtype = query.dtype
    energies = dense_energies(call, cells)
    if energies is not None or trains_faster_in_float32(query):
        # Energies and softmax are float32 or better whatever the model's precision.
        exact = torch.promote_types(dtype, torch.float32)
        query, key, value = query.to(exact), key.to(exact), value.to(exact)
    mask = _additive_mask(visible, energies, query.dtype)
    keys, values = keys_of_area(key, area), keys_of_area(value, area)
    with torch.autocast(query.device.type, enabled=False):
        output = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, dropout_p=call.dropout_p, scale=call.scale
        )
    return zero_blind_rows(output.to(dtype), row_visible)


def trains_faster_in_float32(query: torch.Tensor) -> bool:
    """Whether torch's fused attention is to be computed in float32 for speed.

    On a CPU its backward pass in bfloat16 takes three to ten times as long as in float32 at the lengths of sentences
    and words (torch 2.13, with AMX).
    """
    return query.device.type == "cpu" and query.dtype == torch.bfloat16 and query.requires_grad


def sdpa_cannot_run(call: AttentionCall) -> str | None:
    """Why not, or None."""
    if call.value_terms:
        return "does not give the attention weights that a value term needs; use 'eager', or 'blocked' with a window."
    return None


def _additive_mask(
    visible: torch.Tensor | None, energies: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor | None:
    if energies is None:
        return visible
    energies = energies.to(dtype)
    return energies if visible is None else energies.masked_fill(~visible, float("-inf"))
