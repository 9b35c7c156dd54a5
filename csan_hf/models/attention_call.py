# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Attention over a window of positions and an area of heads: one validated call, and the backends that compute it.

Query (h, i) attends jointly to the keys (s, j) with |s - h| <= n and |j - i| <= m (Yang et al., NAACL 2019, equations
4-6), as far as padding and the terms let it. `local_attention` is the way in; the models make an `AttentionCall` with
the terms of their locality methods and `run` it.

| backend | memory in the length | what it is | value terms |
| --- | --- | --- | --- |
| `eager` | quadratic | matrix products and a float32 softmax; the only one that gives attention weights | yes |
| `chunked` | linear | all pairs in chunks of queries, computed again in the backward pass | yes |
| `sdpa` | linear to quadratic (the mask) | torch's fused attention with a mask | no |
| `blocked` | linear, forward and backward | blocks of queries against their keys and m on either side | yes |
| `flex_attention` | linear | torch's FlexAttention; on CPU it has no backward | no |
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch

from .backend_blocked import blocked_attention, blocked_cannot_run, span_of_a_block
from .backend_dense import chunked_attention, eager_attention, fused_is_faster, sdpa_attention, sdpa_cannot_run
from .backend_flex import flex_cannot_run, flex_local_attention
from .locality import Cells, DenseBias, KeyArea, Positions, Term, check_head_area, check_window

_Made = TypeVar("_Made")


class SharedMasks:
    """Masks and block structures that the layers of one forward have in common; see `AttentionCall.once`."""

    def __init__(self) -> None:
        self.made: dict[Hashable, Any] = {}


@dataclass
class AttentionCall:
    """One call; `local_attention` checks what users hand over.

    Attributes:
        query: [B, H, I, D].
        key: [B, H, J, D]. In a causal call with I < J the queries are the last I positions (a decoding step).
        value: [B, H, J, D].
        area: Window, heads and direction.
        terms: What the locality methods add.
        key_padding_mask: [B, J] boolean, True = a real token; None = all real.
        positions: Where queries and keys stand in their sentences; by default the keys from 0 on.
        scale: Factor λ of the dot products, by default 1/sqrt(D).
        dropout_p: Probability of dropping an attention weight.
        shared: What other layers of the forward have made already. All calls that hold it agree in padding and
            positions wherever they have as many queries and keys.

    Raises:
        ValueError: An argument is out of range or has another shape; the message names it.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    area: KeyArea
    terms: Sequence[Term] = ()
    key_padding_mask: torch.Tensor | None = None
    positions: Positions = None  # type: ignore[assignment]  # filled in below
    scale: float = None  # type: ignore[assignment]  # filled in below
    dropout_p: float = 0.0
    shared: SharedMasks = field(default_factory=SharedMasks)

    def __post_init__(self) -> None:
        (batch, heads, queries, width), keys = self.query.shape, self.key.shape[2]
        if self.area.causal and queries > keys:
            raise ValueError(
                f"`causal` attention needs at least as many keys as queries (the queries are the last positions), "
                f"got {queries} queries and {keys} keys."
            )
        if self.area.window is not None and not self.area.causal and queries != keys:
            raise ValueError(
                f"`window` without `causal` needs as many keys as queries, got {queries} queries and {keys} keys."
            )
        for term in self.terms:
            term.check(batch, heads, queries, keys)
        if self.positions is None:
            self.positions = Positions(keys - queries if self.area.causal else 0)
        if self.scale is None:
            self.scale = width**-0.5

    def once(self, name: Hashable, make: Callable[[], _Made]) -> _Made:
        """Return `make()`, computed once for all layers of a forward pass in which queries see the same keys.

        Args:
            name: Name of what is made. The result may depend on nothing but this, the sizes, the area and the
                visibility terms. Where a visibility term holds tensors of its own layer, nothing is shared.
            make: Computes the result, which must take no part in gradients.
        """
        visibility = tuple(term.shared_visibility for term in self.visibility_terms)
        # A compiled program finds equal computations by itself.
        if torch.compiler.is_compiling() or None in visibility:
            return make()
        key = (name, self.area, (*self.query.shape[:3], self.key.shape[2], self.query.device), visibility)
        if key not in self.shared.made:
            self.shared.made[key] = make()
        made: _Made = self.shared.made[key]
        return made

    @property
    def energy_terms(self) -> list[Term]:
        """The terms that add an energy."""
        return [term for term in self.terms if term.has_energy]

    @property
    def visibility_terms(self) -> list[Term]:
        """The terms that restrict who is seen."""
        return [term for term in self.terms if term.has_visibility]

    @property
    def value_terms(self) -> list[Term]:
        """The terms that add to the output."""
        return [term for term in self.terms if term.has_value]

    @property
    def terms_require_grad(self) -> bool:
        """Whether gradients flow into a term."""
        return any(term.requires_grad for term in self.terms)

    @property
    def has_backward(self) -> bool:
        """Whether a backward pass is to be expected: with dropout, also where checkpointing computes without first."""
        if self.dropout_p > 0.0 or not torch.is_grad_enabled():
            return self.dropout_p > 0.0
        return any(tensor.requires_grad for tensor in (self.query, self.key, self.value)) or self.terms_require_grad

    def added_energies(self, cells: Cells) -> torch.Tensor | None:
        """The sum of the terms' energies, broadcastable to the cells' shape; None without such terms."""
        total = None
        for term in self.energy_terms:
            energy = term.energy(cells)
            total = energy if total is None else total + energy
        return total

    def restricted(self, visible: torch.Tensor | None, cells: Cells) -> torch.Tensor | None:
        """`visible`, narrowed to what every visibility term allows; None = all cells are visible."""
        for term in self.visibility_terms:
            seen = term.visible(cells)
            visible = seen if visible is None else visible & seen
        return visible

    def with_value_terms(self, output: torch.Tensor, cells: Cells, weights: torch.Tensor) -> torch.Tensor:
        """`output` [..., I, D] with the value terms of `weights` [..., I, N * J]."""
        if not self.value_terms:
            return output
        if self.area.head_area > 1:
            weights = weights.unflatten(-1, (self.area.head_area, -1)).sum(dim=-2)
        for term in self.value_terms:
            output = output + term.value(cells, weights)
        return output


class Backend(NamedTuple):
    """A way to compute a call.

    Attributes:
        attend: The output [B, H, I, D].
        cannot_run: The reason why the backend cannot run the call, or None.
    """

    attend: Callable[[AttentionCall], torch.Tensor]
    cannot_run: Callable[[AttentionCall], str | None]


BACKENDS = {
    "eager": Backend(eager_attention, lambda call: None),
    "chunked": Backend(chunked_attention, lambda call: None),
    "sdpa": Backend(sdpa_attention, sdpa_cannot_run),
    "blocked": Backend(blocked_attention, blocked_cannot_run),
    "flex_attention": Backend(flex_local_attention, flex_cannot_run),
}


def local_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    window: int | None = None,
    head_area: int = 1,
    head_boundary: str = "mask",
    bias: torch.Tensor | Term | None = None,
    key_padding_mask: torch.Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    backend: str | None = None,
) -> torch.Tensor:
    """Scaled dot-product attention in which a query sees a window of positions and an area of heads.

    Args:
        query: [B, H, I, D].
        key: [B, H, J, D]. In a causal call with I < J the queries are the last I positions (a decoding step).
        value: [B, H, J, D].
        window: Total width M in tokens, both edges included; odd, `None` = unrestricted.
        head_area: Number N of neighbouring heads attended to jointly; odd, 1 to 2H - 1.
        head_boundary: `"mask"` (heads outside 0..H-1 are not visible) or `"circular"` (wrap modulo H, N <= H).
        bias: Added to the energies, [B, H, I, J] or broadcastable to it, or a `Term`. It applies to the
            key at its position, whatever the key's head.
        key_padding_mask: [B, J] boolean, True = a real token.
        causal: Whether keys after the query are invisible.
        scale: Factor of the dot products, default 1/sqrt(D).
        dropout_p: Probability of dropping an attention weight.
        backend: `"eager"`, `"chunked"`, `"sdpa"`, `"blocked"`, `"flex_attention"`, or `None` for the fastest that can
            run.

    Returns:
        [B, H, I, D]. A query that sees no key yields zeros.

    Raises:
        ValueError: An argument is out of range, or the backend cannot do what is asked (it says why).
    """
    tensors = {"query": query, "key": key, "value": value}
    if key_padding_mask is not None:
        tensors["key_padding_mask"] = key_padding_mask
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"`{name}` must be a tensor, got {type(tensor).__name__}.")
        if tensor.device != query.device:
            raise ValueError(f"`{name}` must be on the device of `query` ({query.device}), got {tensor.device}.")
        if tensor is key_padding_mask:
            continue
        if tensor.dim() != 4 or tensor.shape[2] == 0:
            shape = list(tensor.shape)
            raise ValueError(f"`{name}` must have 4 dimensions [batch, heads, length > 0, width], got {shape}.")
        if not tensor.is_floating_point() or tensor.dtype != query.dtype:
            raise ValueError(
                f"`{name}` must be floating and of the type of `query` ({query.dtype}), got {tensor.dtype}."
            )
    (batch, heads, _, width), keys = query.shape, key.shape[2]
    if key.shape != (batch, heads, keys, width) or value.shape[:3] != key.shape[:3]:
        given = ", ".join(f"`{name}` {list(tensors[name].shape)}" for name in ("query", "key", "value"))
        raise ValueError(f"{given} must agree in batch, heads and width, and key and value in length.")
    mask = key_padding_mask
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (batch, keys)):
        raise ValueError(
            f"`key_padding_mask` must be boolean (True = a real token) and have the shape [batch, keys] = "
            f"{[batch, keys]}, got {mask.dtype} {list(mask.shape)}."
        )
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"`dropout_p` must be between 0 and 1, got {dropout_p}.")
    check_window(window)
    check_head_area(head_area, heads, head_boundary)
    terms = () if bias is None else (bias if isinstance(bias, Term) else DenseBias(torch.atleast_1d(bias)),)
    area = KeyArea(window, head_area, head_boundary, causal)
    call = AttentionCall(query, key, value, area, terms, key_padding_mask, dropout_p=dropout_p)
    if scale is not None:
        call.scale = scale
    return run(call, backend)


def run(call: AttentionCall, backend: str | None = None) -> torch.Tensor:
    """The output [B, H, I, D] of a call by the backend asked for, or by the fastest that can (`None`).

    Raises:
        ValueError: The backend is unknown or cannot run the call.
    """
    return BACKENDS[choose_backend(call, backend)].attend(call)


def choose_backend(call: AttentionCall, backend: str | None) -> str:
    """The backend to run: the one asked for, where it can, or the fastest that can where it is `None`.

    Raises:
        ValueError: Unknown backend, or one that cannot do what is asked.
    """
    if backend is None:
        return _fastest_backend(call)
    if backend not in BACKENDS:
        raise ValueError(f"`backend` must be one of {list(BACKENDS)} or None, got {backend!r}.")
    reason = BACKENDS[backend].cannot_run(call)
    if reason is not None:
        raise ValueError(f"backend={backend!r} {reason}")
    return backend


# --- the fastest backend, by measured lengths ---------------------------------------------------------------------
#
# `scripts/benchmark.py --backends` prints every backend's time beside the one chosen here. Measured on 2026-11-22 with
# torch 2.13.0+cpu on an Intel Xeon (AVX-512, AMX), one thread, float32, 4 heads of width 64, some 1,024 tokens a call:
# lengths 25 to 8,192, windows of 11 and 129 tokens (areas of 1 and 3 heads) and none (area 1, to 2,048), with and
# without a Gaussian and relative positions, forward and with backward. Other data types and devices use the same
# table, which was measured on no GPU.

# Blocks are faster than all pairs from this length on: tokens (the fixed cost of blocks), plus so many times what a
# block sees. Keys: whether there is an area of heads, whether there is a backward pass; sdpa computes all pairs
_CROSSINGS = {(False, False): (100, 2.0), (False, True): (70, 2.0), (True, False): (60, 2.0), (True, True): (10, 2.0)}
# With energies or values of terms, which make all pairs more expensive; key: the backend that would compute them
_CROSSINGS_WITH_TERMS = {"sdpa": (50, 1.4), "eager": (15, 1.4)}

# From this number of keys on, chunks of queries, whose memory is linear in the keys, are as fast as all pairs at once
_CHUNKED_FROM_KEYS = 1024
# With relative positions alone and a backward pass, chunks take up to 1.3 times as long: up to this number of pairs of
# tokens, over all sentences and heads, all pairs are held instead (a third of a gigabyte)
_PAIRS_WITH_VALUES = 2**24


def _fastest_backend(call: AttentionCall) -> str:
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
    have_values = all(term.has_value for term in call.energy_terms)
    few = batch * heads * queries * keys <= _PAIRS_WITH_VALUES
    return dense if have_values and few and call.has_backward else "chunked"
