# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""All pairs in chunks of queries, whose weights the backward pass computes again: memory is linear in the keys."""

import torch
from torch.utils.checkpoint import checkpoint

from .attention_call import AttentionCall
from .backend_eager import attend_all_pairs
from .backend_sdpa import attend_fused, fused_is_faster
from .dense_parts import dense_masks, keys_of_area

_CHUNK_CELLS = 2**21
"""Cells of a chunk, over all sentences and heads: 8 megabytes of float32, about what a processor's cache holds."""
_LEAST_CHUNK = 16
"""Queries of a chunk at least: fewer make matrix products inefficient."""


def chunked_attention(call: AttentionCall) -> torch.Tensor:
    """The output [B, H, I, D] of a call, computed in chunks of queries."""
    attend = attend_fused if fused_is_faster(call) else attend_all_pairs
    keys, values = keys_of_area(call.key, call.area), keys_of_area(call.value, call.area)
    size = max(_LEAST_CHUNK, _CHUNK_CELLS // max(1, call.query.shape[0] * call.query.shape[1] * keys.shape[2]))
    if call.query.shape[2] <= size:
        return attend(call, call.query, keys, values, call.once("dense", lambda: dense_masks(call)))

    def attend_chunk(
        query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, stop: int
    ) -> torch.Tensor:
        return attend(call, query, keys, values, dense_masks(call, slice(start, stop)))

    # torch.func has a backward pass of its own, which cannot compute anything again.
    again = torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()
    outputs = []
    for index, query in enumerate(call.query.split(size, dim=2)):
        chunk = (query, keys, values, index * size, index * size + query.shape[2])
        if again:
            random = call.dropout_p > 0
            outputs.append(checkpoint(attend_chunk, *chunk, use_reentrant=False, preserve_rng_state=random))
        else:
            outputs.append(attend_chunk(*chunk))
    return torch.cat(outputs, dim=2)
