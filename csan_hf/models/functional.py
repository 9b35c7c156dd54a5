# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The attention of the models as a function of queries, keys and values."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .attention_call import AttentionCall, Cells, KeyArea, Term
from .backends import run
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
    """Scaled dot-product attention in which a query sees a window of positions and an area of
    heads.

    Args:
        query: [B, H, I, D].
        key, value: [B, H, J, D]. In a causal call with I < J the queries are the last I positions
            (a decoding step).
        window: Total width M in tokens, both edges included; odd, `None` = unrestricted.
        head_area: Number N of neighbouring heads attended to jointly; odd, 1 to 2H - 1.
        head_boundary: `"mask"` (heads outside 0..H-1 are not visible) or `"circular"` (wrap modulo
            H, N <= H).
        bias: Added to the energies, [B, H, I, J] or broadcastable to it, or a `Term`. It applies to
            the key at its position, whatever the key's head.
        key_padding_mask: [B, J] boolean, True = a real token.
        causal: Whether keys after the query are invisible.
        scale: Factor of the dot products, default 1/sqrt(D).
        dropout_p: Probability of dropping an attention weight.
        backend: One of `BACKENDS` (see the table in `csan_hf/models/README.md`), or `None` for the
            fastest; with a `key_padding_mask` never `"flash"`.

    Returns:
        [B, H, I, D]. A query that sees no key yields zeros; by `"flash"`, which takes queries at
        padding for padding, these yield anything.

    Raises:
        ValueError: An argument is out of range or has another shape, or the backend cannot do what
            is asked.
    """
    batch, heads, queries, width = query.shape
    keys = key.shape[-2]
    _check_tensor("key", key, (batch, heads, keys, width), query.dtype)
    _check_tensor("value", value, (batch, heads, keys, value.shape[-1]), query.dtype)
    if key_padding_mask is not None:
        _check_tensor("key_padding_mask", key_padding_mask, (batch, keys), torch.bool)
    area = KeyArea(window, head_area, head_boundary, causal)
    check_fields(area)
    check_head_area(head_area, heads, head_boundary)
    fits = queries <= keys if causal else queries == keys or window is None
    if not fits:
        raise ValueError(
            f"{queries} queries and {keys} keys do not fit: with `causal` the queries are the last "
            "positions, with a `window` alone there are as many of both."
        )
    if isinstance(bias, Tensor):
        if not bias.is_floating_point():
            raise ValueError(
                "`bias` is added to the energies: give 0 and -inf, not True and False."
            )
        bias.expand(batch, heads, queries, keys)  # torch refuses other shapes
        bias = DenseBias(torch.atleast_1d(bias))
    call = AttentionCall(
        query,
        key,
        value,
        area,
        scale=width**-0.5 if scale is None else scale,
        key_padding_mask=key_padding_mask,
        query_start=keys - queries if causal else 0,
        dropout_p=dropout_p,
        terms=() if bias is None else (bias,),
    )
    return run(call, backend)


def _check_tensor(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tensor.shape != shape or tensor.dtype != dtype:
        raise ValueError(
            f"`{name}` must be {dtype} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}."
        )


@dataclass
class DenseBias(Term):
    """An energy for every pair, broadcastable to [B, H, I, J]; -inf hides the key."""

    bias: Tensor

    def __post_init__(self) -> None:
        # FlexAttention's masks take no tensor that wants a gradient
        self.hidden = torch.isneginf(self.bias.detach())

    def visible(self, cells: Cells) -> Tensor:
        """Whether the pair's entry is above -inf, so that a row of them gives zeros and not NaN."""
        return ~cells.of_pair(self.hidden)

    def energy(self, cells: Cells) -> Tensor:
        """The pair's entry; finite where the pair is hidden anyway."""
        return cells.of_pair(self.bias).masked_fill(cells.of_pair(self.hidden), 0.0)
