# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Attention over a window of positions and an area of heads: the backends that compute it.

Query (h, i) attends jointly to the keys (s, j) with |s - h| <= n and |j - i| <= m (Yang et al.,
NAACL 2019, equations 4-6), as far as padding and the terms allow. `csan_hf/models/README.md` has a
table of the backends.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .attention_call import AttentionCall
from .backend_blocked import blocked_attention, fuses_blocks, span_of_a_block
from .backend_dense import chunked_attention, eager_attention, fused_is_faster, sdpa_attention
from .backend_flex import flex_local_attention
from .layers import is_traced

BACKENDS: dict[str, Callable[[AttentionCall], Tensor]] = {
    "eager": eager_attention,
    "chunked": chunked_attention,
    "sdpa": sdpa_attention,
    "blocked": blocked_attention,
    "flex_attention": flex_local_attention,
}
LIMITS: dict[str, Callable[[AttentionCall], str | None]] = {}
"""Backends that csan_hf adds and no checkpoint carries (`flash`): functions that return the reason
why one cannot run a call, or None.
"""


def run(call: AttentionCall, backend: str | None = None) -> Tensor:
    """Compute the output [B, H, I, D] by a backend, `None` = the fastest for the call.

    Raises:
        ValueError: The backend cannot do what the call asks for.
    """
    if backend is None:
        backend = fastest_backend(call)
    elif reason := cannot_run(call, backend):
        raise ValueError(f"backend={backend!r} {reason}")
    if call.query.shape[2] == 0:
        backend = "eager"  # an empty output; blocks and kernels need a query
    return BACKENDS[backend](call)


def cannot_run(call: AttentionCall, backend: str) -> str | None:
    """The reason why a backend cannot run the call, or None."""
    if backend not in BACKENDS:
        return f"is unknown; `backend` is None or one of {list(BACKENDS)}."
    if backend in ("sdpa", "flex_attention") and call.value_terms:
        return (
            "does not give the attention weights that a value term needs; use 'eager', or "
            "'blocked' with a window."
        )
    if backend == "blocked" and call.area.window is None:
        return "needs a window; use 'sdpa' or 'eager' without one."
    if backend in LIMITS:
        return LIMITS[backend](call)
    if backend == "flex_attention" and call.dropout_p > 0:
        return (
            "has no attention dropout; use 'sdpa', 'blocked' or 'eager', or set the dropout to 0."
        )
    if backend == "flex_attention" and call.query.device.type == "cpu" and call.has_backward:
        return "has no backward on CPU; use 'blocked', 'sdpa' or 'eager' for training there."
    return None


# --- the fastest backend, by measured lengths
#
# Measured by `scripts/benchmark.py backends` in November 2026: torch 2.13.0+cpu, AVX-512 without
# AMX, one thread, float32. From the length constant + factor × block span on, `blocked` is faster
# than all pairs; the constant is in tokens.

# By the fused kernel; key: whether there is an area of heads
_CROSSINGS_FUSED = {False: (85, 1.1), True: (50, 1.1)}
_CROSSING_BY_PRODUCTS = (70, 2.0)
# With energies or values of terms, which make all pairs slower; key: the backend of all pairs
_CROSSINGS_WITH_TERMS = {"sdpa": (50, 1.4), "eager": (15, 1.4)}
# On a GPU (`scripts/gpu.py`: H100, torch 2.11, bf16, 16,384 tokens in all) few large kernels are
# faster than many small ones up to these lengths, in tokens; key: whether there are such terms
_GPU_BLOCKS_FROM = {False: 2048, True: 512}
GPU_FLASH_FROM = 1024
# From so many keys on, chunks of queries are as fast as all pairs at once
_CHUNKED_FROM_KEYS = 1024
# With relative positions alone and a backward pass, chunks are slower, and up to so many pairs
# (1/3 GB) are held at once
_PAIRS_WITH_VALUES = 2**24


def fastest_backend(call: AttentionCall) -> str:
    """The backend of a call that names none."""
    batch, heads, queries, _ = call.query.shape
    keys = call.key.shape[2]
    area = call.area
    dense = "sdpa" if fused_is_faster(call) else "eager"
    if torch.compiler.is_exporting():
        return dense  # an exported program takes one path for all lengths
    if _takes_flash_attention(call):
        return "flash"
    writes_pairs = bool(call.energy_terms or call.value_terms)
    if area.window is not None:
        if call.query.is_cuda:
            constant, factor = _GPU_BLOCKS_FROM[writes_pairs], 0.0
        elif writes_pairs:
            constant, factor = _CROSSINGS_WITH_TERMS[dense]
        elif fuses_blocks(call):
            constant, factor = _CROSSINGS_FUSED[area.head_area > 1]
        else:
            constant, factor = _CROSSING_BY_PRODUCTS
        if queries >= constant + factor * span_of_a_block(call):
            return "blocked"
    # One query, as in decoding, is a chunk; a compiled program would fix the number of chunks
    if not writes_pairs or min(queries, keys) < _CHUNKED_FROM_KEYS or torch.compiler.is_compiling():
        return dense
    all_have_values = all(term.value is not None for term in call.energy_terms)
    are_few = batch * heads * queries * keys <= _PAIRS_WITH_VALUES
    return dense if all_have_values and are_few and call.has_backward else "chunked"


def _takes_flash_attention(call: AttentionCall) -> bool:
    # A compiled program cannot ask where padding is, and torch.func has a backward pass of its own
    if is_traced():
        return False
    batch, _, queries, _ = call.query.shape
    is_long = batch > 0 and queries >= GPU_FLASH_FROM
    if call.key_padding_mask is not None and not call.is_self_attention:
        return False  # a query at a hidden key's place is then no padding, and sees other keys
    return is_long and "flash" in LIMITS and LIMITS["flash"](call) is None
