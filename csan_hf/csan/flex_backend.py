# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Local attention through torch's FlexAttention: one fused kernel that skips the blocks nobody sees."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .locality import GaussianBias, Locality, gather_head_area, visible_heads, within_locality


def flex_local_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    locality: Locality,
    bias: torch.Tensor | GaussianBias | None,
    key_padding_mask: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """Attention as in `local_attention`, without dropout.

    The neighbouring heads' keys are laid behind each other, so that the key at place p is the one of slot p // J at
    position p % J.

    Args:
        query: [B, H, I, D].
        key: [B, H, J, D].
        value: [B, H, J, D].
        locality: Who is visible.
        bias: Broadcastable to [B, H, I, J], or a Gaussian.
        key_padding_mask: [B, J] boolean, True = real.
        scale: Factor of the dot products.

    Returns:
        [B, H, I, D]; zeros for a query that sees no key.
    """
    batch, num_heads, query_length, _ = query.shape
    key_length = key.shape[2]
    keys = gather_head_area(key, locality).flatten(2, 3).contiguous()
    values = gather_head_area(value, locality).flatten(2, 3).contiguous()
    visible = _visibility(query, key_length, locality, key_padding_mask)
    block_mask = create_block_mask(visible, batch, num_heads, query_length, keys.shape[2], device=str(query.device))
    output = _kernel(query.device.type)(
        query,
        keys,
        values,
        score_mod=_score(bias, query, key_length),
        block_mask=block_mask,
        scale=scale,
    )
    return output


@functools.cache
def _kernel(device_type: str) -> Callable[..., torch.Tensor]:
    # Uncompiled, FlexAttention writes out all energies: right on a CPU without a compiler, wasteful on a GPU.
    kernel: Any = flex_attention if device_type == "cpu" else torch.compile(flex_attention, dynamic=True)
    return kernel


def _visibility(
    query: torch.Tensor, key_length: int, locality: Locality, key_padding_mask: torch.Tensor | None
) -> Callable[..., torch.Tensor]:
    shift = key_length - query.shape[2]
    heads = visible_heads(query.shape[1], locality, query.device)

    def visible(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        position = place % key_length
        seen = within_locality(position - (i + shift), locality)
        if heads is not None:
            seen = seen & heads[h, place // key_length]
        if key_padding_mask is not None:
            seen = seen & key_padding_mask[b, position]
        return seen

    return visible


def _score(
    bias: torch.Tensor | GaussianBias | None, query: torch.Tensor, key_length: int
) -> Callable[..., torch.Tensor] | None:
    shape = query.shape[:3]
    if bias is None:
        return None
    if isinstance(bias, GaussianBias):
        center, width = bias.center.expand(shape).contiguous(), bias.width.expand(shape).contiguous()

        def gaussian(energy, b, h, i, place):  # type: ignore[no-untyped-def]
            return energy + bias.energies(place % key_length, center[b, h, i], width[b, h, i])

        return gaussian
    dense = bias.expand(*shape, key_length)

    def added(energy, b, h, i, place):  # type: ignore[no-untyped-def]
        return energy + dense[b, h, i, place % key_length]

    return added
