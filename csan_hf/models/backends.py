# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Attention over a window of positions and an area of heads, in several backends that agree.

Query (h, i) attends jointly to the keys (s, j) with |s - h| <= n and |j - i| <= m (Yang et al., NAACL 2019, equations
4-6). `local_attention` is the way in; the models call `run` with the terms of their locality methods.

| backend | memory in the length | what it is | value terms |
| --- | --- | --- | --- |
| `eager` | quadratic | matrix products and a float32 softmax; the only one that gives attention weights | yes |
| `chunked` | linear | all pairs in chunks of queries, computed again in the backward pass | yes |
| `sdpa` | linear to quadratic (the mask) | torch's fused attention with a mask | no |
| `blocked` | linear, forward and backward | blocks of queries against their keys and m on either side | yes |
| `flex_attention` | linear | torch's FlexAttention; on CPU it has no backward | no |
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from .attention_call import AttentionCall, as_terms, make_call
from .backend_blocked import blocked_attention, blocked_cannot_run
from .backend_choice import fastest_backend
from .backend_chunked import chunked_attention
from .backend_eager import eager_attention
from .backend_flex import flex_cannot_run, flex_local_attention
from .backend_sdpa import sdpa_attention, sdpa_cannot_run
from .key_area import KeyArea
from .locality import Term


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
    _check_tensors(query, key, value, key_padding_mask)
    call = make_call(
        query,
        key,
        value,
        KeyArea(window, head_area, head_boundary, causal),
        terms=as_terms(bias),
        key_padding_mask=key_padding_mask,
        scale=scale,
        dropout_p=dropout_p,
    )
    return run(call, backend)


def _check_tensors(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, key_padding_mask: torch.Tensor | None
) -> None:
    """Raise `ValueError` for what some backends would compute with, and others fail on."""
    given = {"query": query, "key": key, "value": value, "key_padding_mask": key_padding_mask}
    for name, tensor in given.items():
        if tensor is None and name == "key_padding_mask":
            continue
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"`{name}` must be a tensor, got {type(tensor).__name__}.")
        if tensor.device != query.device:
            raise ValueError(f"`{name}` must be on the device of `query` ({query.device}), got {tensor.device}.")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not tensor.is_floating_point() or tensor.dtype != query.dtype:
            raise ValueError(
                f"`{name}` must be floating and of the type of `query` ({query.dtype}), got {tensor.dtype}."
            )
        if tensor.dim() == 4 and tensor.shape[2] == 0:
            raise ValueError(f"`{name}` must hold at least one position, got {list(tensor.shape)}.")


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
        return fastest_backend(call)
    if backend not in BACKENDS:
        raise ValueError(f"`backend` must be one of {list(BACKENDS)} or None, got {backend!r}.")
    reason = BACKENDS[backend].cannot_run(call)
    if reason is not None:
        raise ValueError(f"backend={backend!r} {reason}")
    return backend
