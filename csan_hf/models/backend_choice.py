# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The backend of a call that names none: the fastest one, by measured lengths.

`scripts/benchmark.py --backends` prints every backend's time beside the one chosen here. Measured on 2026-11-22 with
torch 2.13.0+cpu on an Intel Xeon (AVX-512, AMX), one thread, float32, 4 heads of width 64, about 1,024 tokens a call:
lengths 25 to 8,192, windows of 11 and 129 tokens (areas of 1 and 3 heads) and none (area 1, to 2,048), with and
without a Gaussian and relative positions, forward and with backward. Other data types and devices use the same
table, which was measured on no GPU.
"""

from typing import NamedTuple

import torch

from .attention_call import AttentionCall
from .backend_blocked import span_of_a_block
from .backend_sdpa import fused_is_faster


class _Crossing(NamedTuple):
    """The length from which blocks are faster than all pairs: `tokens`, and `spans` times what a block sees.

    The cost of all pairs grows with the length of the sentence, that of blocks with their span; `tokens` stands for
    the fixed cost of blocks.
    """

    tokens: int
    spans: float


# Keys: the backend that would compute all pairs, whether there is an area of heads, whether there is a backward pass
_CROSSINGS = {
    ("sdpa", False, False): _Crossing(100, 2.0),
    ("sdpa", False, True): _Crossing(70, 2.0),
    ("sdpa", True, False): _Crossing(60, 2.0),
    ("sdpa", True, True): _Crossing(10, 2.0),
}
# With energies or values of terms, which make all pairs more expensive
_CROSSINGS_WITH_TERMS = {"sdpa": _Crossing(50, 1.4), "eager": _Crossing(15, 1.4)}

# From this number of keys on, chunks of queries, whose memory is linear in the keys, are as fast as all pairs at once
_CHUNKED_FROM_KEYS = 1024
# With relative positions alone and a backward pass, chunks take up to 1.3 times as long: up to this number of pairs of
# tokens, over all sentences and heads, all pairs are held instead (a third of a gigabyte)
_PAIRS_WITH_VALUES = 2**24


def fastest_backend(call: AttentionCall) -> str:
    """The backend that runs the call fastest, of those that can.

    Args:
        call: The call.
    """
    length, area = call.query.shape[2], call.area
    dense = "sdpa" if fused_is_faster(call) else "eager"
    if torch.compiler.is_exporting():
        return dense  # an exported program takes one path for all lengths
    if area.window is not None:
        if call.energy_terms or call.value_terms:
            crossing = _CROSSINGS_WITH_TERMS[dense]
        else:
            crossing = _CROSSINGS["sdpa", area.head_area > 1, _has_backward(call)]
        if length >= crossing.tokens + crossing.spans * span_of_a_block(area):
            return "blocked"
    # A compiled program would fix the number of chunks to that of one length
    return "chunked" if _is_long(call) and not torch.compiler.is_compiling() else dense


def _is_long(call: AttentionCall) -> bool:
    """Whether all pairs, which terms write out, should be computed in chunks."""
    if not (call.energy_terms or call.value_terms):
        return False
    batch, heads, queries = call.query.shape[:3]
    keys = call.key.shape[2]
    have_values = all(term.has_value for term in call.energy_terms)
    if have_values and _has_backward(call) and batch * heads * queries * keys <= _PAIRS_WITH_VALUES:
        return False
    return min(queries, keys) >= _CHUNKED_FROM_KEYS  # one query, as in decoding, is a chunk


def _has_backward(call: AttentionCall) -> bool:
    tensors = (call.query, call.key, call.value)
    if call.dropout_p > 0.0:  # in training, also where checkpointing computes without gradients first
        return True
    return torch.is_grad_enabled() and (any(tensor.requires_grad for tensor in tensors) or call.terms_require_grad)
