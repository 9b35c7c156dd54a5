# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Attention over a window of positions and an area of heads: one validated call, and the backends that compute it.

Query (h, i) attends jointly to the keys (s, j) with |s - h| <= n and |j - i| <= m (Yang et al., NAACL 2019, equations
4-6), as far as padding and the terms let it. `local_attention` is the way in; the models `run` an `AttentionCall`.

| backend | memory in the length | what it is |
| --- | --- | --- |
| `eager` | quadratic | matrix products and a float32 softmax; the only one that gives attention weights |
| `chunked` | linear | all pairs in chunks of queries, computed again in the backward pass |
| `sdpa` | linear to quadratic (the mask) | torch's fused attention with a mask |
| `blocked` | linear, forward and backward | blocks of queries against their keys and m on either side |
| `flex_attention` | linear | torch's FlexAttention; on CPU it has no backward |
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .attention_call import AttentionCall, Cells, KeyArea, Term
from .backend_blocked import blocked_attention, span_of_a_block
from .backend_dense import chunked_attention, eager_attention, fused_is_faster, sdpa_attention
from .backend_flex import flex_local_attention
from .configuration_seq2seq import check_fields
from .locality import check_head_area


def local_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    window: int | None = None,
    head_area: int = 1,
    head_boundary: Literal["mask", "circular"] = "mask",
    bias: Tensor | Term | None = None,
    key_padding_mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    backend: str | None = None,
) -> Tensor:
    """Scaled dot-product attention in which a query sees a window of positions and an area of heads.

    Args:
        query: [B, H, I, D].
        key, value: [B, H, J, D]. In a causal call with I < J the queries are the last I positions (a decoding step).
        window: Total width M in tokens, both edges included; odd, `None` = unrestricted.
        head_area: Number N of neighbouring heads attended to jointly; odd, 1 to 2H - 1.
        head_boundary: `"mask"` (heads outside 0..H-1 are not visible) or `"circular"` (wrap modulo H, N <= H).
        bias: Added to the energies, [B, H, I, J] or broadcastable to it, or a `Term`. It applies to the
            key at its position, whatever the key's head.
        key_padding_mask: [B, J] boolean, True = a real token.
        causal: Whether keys after the query are invisible.
        scale: Factor of the dot products, default 1/sqrt(D).
        dropout_p: Probability of dropping an attention weight.
        backend: One of `BACKENDS`, as in the table above, or `None` for the fastest that can run.

    Returns:
        [B, H, I, D]. A query that sees no key yields zeros.

    Raises:
        ValueError: An argument is out of range or has another shape, or the backend cannot do what is asked.
    """
    (batch, heads, queries, width), keys = query.shape, key.shape[-2]
    for name, given, sizes, dtype in (
        ("key", key, (batch, heads, keys, width), query.dtype),
        ("value", value, (batch, heads, keys, value.shape[-1]), query.dtype),
        ("key_padding_mask", key_padding_mask, (batch, keys), torch.bool),  # integers would invert into nonsense
    ):
        if given is not None and (given.shape != sizes or given.dtype != dtype):
            raise ValueError(f"`{name}` must be {dtype} {list(sizes)}, got {given.dtype} {list(given.shape)}.")
    area, scale = KeyArea(window, head_area, head_boundary, causal), width**-0.5 if scale is None else scale
    check_fields(area)
    check_head_area(head_area, heads, head_boundary)
    if isinstance(bias, Tensor):
        bias.expand(batch, heads, queries, keys)  # torch refuses other shapes
        bias = DenseBias(torch.atleast_1d(bias))
    first, terms = keys - queries if causal else 0, () if bias is None else (bias,)
    call = AttentionCall(query, key, value, area, scale, key_padding_mask, first, dropout_p=dropout_p, terms=terms)
    return run(call, backend)


@dataclass
class DenseBias(Term):
    """An energy given for every pair, broadcastable to [B, H, I, J]; -inf = the query does not see the key."""

    bias: Tensor

    def visible(self, cells: Cells) -> Tensor:
        """Whether the pair's entry is above -inf, so that a row of them gives zeros and not NaN."""
        return ~torch.isneginf(cells.of_pair(self.bias.detach()))

    def energy(self, cells: Cells) -> Tensor:
        """The pair's entry; finite where the pair is hidden anyway."""
        entries = cells.of_pair(self.bias)
        return entries.masked_fill(torch.isneginf(entries), 0.0)


BACKENDS: dict[str, Callable[[AttentionCall], Tensor]] = {
    "eager": eager_attention,
    "chunked": chunked_attention,
    "sdpa": sdpa_attention,
    "blocked": blocked_attention,
    "flex_attention": flex_local_attention,
}


def run(call: AttentionCall, backend: str | None = None) -> Tensor:
    """The output [B, H, I, D] by a backend, or by the fastest that can (`None`); `ValueError` where it cannot."""
    if backend is not None and (reason := cannot_run(call, backend)) is not None:
        raise ValueError(f"backend={backend!r} {reason}")
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
        return "has no attention dropout; use 'sdpa', 'blocked' or 'eager', or set the dropout to 0."
    if backend == "flex_attention" and call.query.device.type == "cpu" and call.has_backward:
        return "has no backward on CPU; use 'blocked', 'sdpa' or 'eager' for training there."
    return None


# --- the fastest backend, by measured lengths ---------------------------------------------------------------------
#
# Measured by `scripts/benchmark.py --backends` on 2026-11-22: torch 2.13.0+cpu, an Intel Xeon (AVX-512, AMX), one
# thread, float32; on no GPU. Blocks are faster than all pairs from this length on: tokens (the fixed cost of blocks),
# plus so many times what a block sees. Key: whether there is an area of heads, and whether a backward pass
_CROSSINGS = {(False, False): (100, 2.0), (False, True): (70, 2.0), (True, False): (60, 2.0), (True, True): (10, 2.0)}
# With energies or values of terms, which make all pairs more expensive; key: the backend that would compute them
_CROSSINGS_WITH_TERMS = {"sdpa": (50, 1.4), "eager": (15, 1.4)}
_CHUNKED_FROM_KEYS = 1024  # from so many keys on, chunks of queries are as fast as all pairs at once
# With relative positions alone and a backward pass chunks are slower: up to so many pairs (1/3 GB) all are held
_PAIRS_WITH_VALUES = 2**24


def fastest_backend(call: AttentionCall) -> str:
    """The backend of a call that names none."""
    (batch, heads, queries, _), keys, area = call.query.shape, call.key.shape[2], call.area
    dense = "sdpa" if fused_is_faster(call) else "eager"
    if torch.compiler.is_exporting():
        return dense  # an exported program takes one path for all lengths
    writes_pairs = bool(call.energy_terms or call.value_terms)
    if area.window is not None:
        plain = _CROSSINGS[area.head_area > 1, call.has_backward]
        tokens, spans = _CROSSINGS_WITH_TERMS[dense] if writes_pairs else plain
        if queries >= tokens + spans * span_of_a_block(area):
            return "blocked"
    # One query, as in decoding, is a chunk; a compiled program would fix the number of chunks to that of one length
    if not writes_pairs or min(queries, keys) < _CHUNKED_FROM_KEYS or torch.compiler.is_compiling():
        return dense
    have_values = all(term.value is not None for term in call.energy_terms)
    few = batch * heads * queries * keys <= _PAIRS_WITH_VALUES
    return dense if have_values and few and call.has_backward else "chunked"
