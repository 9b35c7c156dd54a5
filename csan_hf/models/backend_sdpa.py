# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Local attention through torch's fused attention with a mask: memory linear to quadratic (the mask)."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F

from .attention_call import AttentionCall, zero_fully_masked_rows
from .dense_parts import DenseMasks, dense_energies, dense_masks, keys_of_area


def sdpa_attention(call: AttentionCall) -> torch.Tensor:
    """The output [B, H, I, D] of a call, by torch's fused attention."""
    area, query, key, value = call.area, call.query, call.key, call.value
    unmasked = area.head_area == 1 and call.key_padding_mask is None and not call.terms
    if unmasked and area.window is None and (not area.causal or query.shape[2] == key.shape[2]):
        return F.scaled_dot_product_attention(
            query, key, value, dropout_p=call.dropout_p, is_causal=area.causal, scale=call.scale
        )
    masks = call.once("dense", lambda: dense_masks(call))
    seen = None
    if not call.energy_terms:
        dtype = torch.float32 if trains_faster_in_float32(query, call.dropout_p) else query.dtype
        seen = call.once(("additive", dtype), lambda: _additive_mask(masks, dtype))
    return attend_fused(call, query, keys_of_area(key, area), keys_of_area(value, area), masks, seen)


def attend_fused(
    call: AttentionCall,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    masks: DenseMasks,
    seen: torch.Tensor | None = None,
) -> torch.Tensor:
    """The output [B, H, I, D] of queries [B, H, I, D], all or a chunk, for keys and values [B, H, N * J, D].

    `seen` is what the masks say as a number to add, where it has been made.
    """
    dtype = query.dtype
    energies = dense_energies(call, masks.cells)
    if energies is not None or trains_faster_in_float32(query, call.dropout_p):
        # Energies and softmax are float32 or better whatever the model's precision.
        exact = torch.promote_types(dtype, torch.float32)
        query, keys, values = query.to(exact), keys.to(exact), values.to(exact)
    if energies is not None:
        seen = _additive_energies(masks, energies.to(query.dtype))
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


def sdpa_cannot_run(call: AttentionCall) -> str | None:
    """The reason why this backend cannot run the call, or None."""
    if call.value_terms:
        return "does not give the attention weights that a value term needs; use 'eager', or 'blocked' with a window."
    return None


def _additive_mask(masks: DenseMasks, dtype: torch.dtype) -> torch.Tensor | None:
    """0 for what is seen, -inf for what is not; torch's function would make it of a boolean mask in every layer."""
    if masks.hidden is None:
        return None
    return torch.zeros_like(masks.hidden, dtype=dtype).masked_fill_(masks.hidden, float("-inf"))


def _additive_energies(masks: DenseMasks, energies: torch.Tensor) -> torch.Tensor:
    return energies if masks.hidden is None else energies.masked_fill(masks.hidden, float("-inf"))
