# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Attention over a window of positions and an area of heads: the backends that compute it.

Query (h, i) attends jointly to the keys (s, j) with |s - h| <= n and |j - i| <= m (Yang et al.,
NAACL 2019, equations 4-6), as far as padding and the terms let it. The models `run` an
`AttentionCall`.

| backend | memory in the length | what it is |
| --- | --- | --- |
| `eager` | quadratic | matrix products and a float32 softmax; the only one that gives attention weights |
| `chunked` | linear | all pairs in chunks of queries, computed again in the backward pass |
| `sdpa` | linear to quadratic (the mask) | torch's fused attention with a mask |
| `blocked` | linear, forward and backward | blocks of queries against their keys and m on either side |
| `flex_attention` | linear | torch's FlexAttention; on CPU it has no backward |
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .attention_call import AttentionCall
from .backend_blocked import blocked_attention, fuses_blocks, span_of_a_block
from .backend_dense import chunked_attention, eager_attention, fused_is_faster, sdpa_attention
from .backend_flex import flex_local_attention

BACKENDS: dict[str, Callable[[AttentionCall], Tensor]] = {
    "eager": eager_attention,
    "chunked": chunked_attention,
    "sdpa": sdpa_attention,
    "blocked": blocked_attention,
    "flex_attention": flex_local_attention,
}


def run(call: AttentionCall, backend: str | None = None) -> Tensor:
    """The output [B, H, I, D] by a backend, or by the fastest that can (`None`); `ValueError` where
    it cannot.
    """
    if backend is not None and (reason := cannot_run(call, backend)) is not None:
        raise ValueError(f"backend={backend!r} {reason}")
    if call.query.shape[2] == 0:
        return eager_attention(call)  # an empty output; blocks and kernels need a query
    return BACKENDS[backend or fastest_backend(call)](call)


def cannot_run(call: AttentionCall, backend: str) -> str | None:
    """The reason why a backend cannot run the call, or None."""
    if backend not in BACKENDS:
        return f"is unknown; `backend` is None or one of {list(BACKENDS)}."
    if backend in ("sdpa", "flex_attention") and call.value_terms:
        return "does not give the attention weights that a value term needs; use 'eager', or 'blocked' with a window."
    if backend == "blocked" and call.area.window is None:
        return "needs a window; use 'sdpa' or 'eager' without one."
    if backend == "flex_attention" and call.dropout_p > 0:
        return (
            "has no attention dropout; use 'sdpa', 'blocked' or 'eager', or set the dropout to 0."
        )
    if backend == "flex_attention" and call.query.device.type == "cpu" and call.has_backward:
        return "has no backward on CPU; use 'blocked', 'sdpa' or 'eager' for training there."
    return None


# --- the fastest backend, by measured lengths
# ---------------------------------------------------------------------  Measured by
# `scripts/benchmark.py --backends` in November 2026: torch 2.13.0+cpu, AVX-512 without AMX, one
# thread, float32; on no GPU. Blocks are faster than all pairs from this length on: tokens (the
# fixed cost of blocks), plus so many times what a block sees. By the fused kernel; key: whether
# there is an area of heads
_CROSSINGS_FUSED = {False: (85, 1.1), True: (50, 1.1)}
_CROSSING_BY_PRODUCTS = (70, 2.0)
# With energies or values of terms, which make all pairs more expensive; key: the backend that would
# compute them
_CROSSINGS_WITH_TERMS = {"sdpa": (50, 1.4), "eager": (15, 1.4)}
_CHUNKED_FROM_KEYS = (
    1024  # from so many keys on, chunks of queries are as fast as all pairs at once
)
# With relative positions alone and a backward pass chunks are slower: up to so many pairs (1/3 GB)
# all are held
_PAIRS_WITH_VALUES = 2**24


def fastest_backend(call: AttentionCall) -> str:
    """The backend of a call that names none."""
    (batch, heads, queries, _), keys, area = call.query.shape, call.key.shape[2], call.area
    dense = "sdpa" if fused_is_faster(call) else "eager"
    if torch.compiler.is_exporting():
        return dense  # an exported program takes one path for all lengths
    writes_pairs = bool(call.energy_terms or call.value_terms)
    if area.window is not None:
        plain = (
            _CROSSINGS_FUSED[area.head_area > 1] if fuses_blocks(call) else _CROSSING_BY_PRODUCTS
        )
        tokens, spans = _CROSSINGS_WITH_TERMS[dense] if writes_pairs else plain
        if queries >= tokens + spans * span_of_a_block(call):
            return "blocked"
    # One query, as in decoding, is a chunk; a compiled program would fix the number of chunks to
    # that of one length
    if not writes_pairs or min(queries, keys) < _CHUNKED_FROM_KEYS or torch.compiler.is_compiling():
        return dense
    have_values = all(term.value is not None for term in call.energy_terms)
    few = batch * heads * queries * keys <= _PAIRS_WITH_VALUES
    return dense if have_values and few and call.has_backward else "chunked"
