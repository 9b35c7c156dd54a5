# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Loop oracle of local attention: one query at a time, one visible key after the other, in float64.

Written from the definition (Yang et al., NAACL 2019, equations 4-9, and the preprint's equations
4-8), not from the product. Only dot products and the softmax of one query are vectorised. Autograd
differentiates it."""

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor


def visible_heads(head: int, num_heads: int, head_area: int, head_boundary: str) -> list[int]:
    """Heads s that query head `head` looks at: |s - head| <= n, cut off at the edges or wrapped
    around.
    """
    n = (head_area - 1) // 2
    heads = []
    for offset in range(-n, n + 1):
        s = head + offset
        if head_boundary == "circular":
            heads.append(s % num_heads)
        elif 0 <= s < num_heads:
            heads.append(s)
    assert len(set(heads)) == len(heads), "a head may be seen once only"
    return heads


def visible_positions(
    position: int, key_length: int, window: int | None, real: list[bool] | None, causal: bool
) -> list[int]:
    """Keys j that a query at `position` looks at: |j - position| <= m, real, and j <= position if
    causal.
    """
    positions = []
    for j in range(key_length):
        if window is not None and abs(j - position) > (window - 1) // 2:
            continue
        if causal and j > position:
            continue
        if real is not None and not real[j]:
            continue
        positions.append(j)
    return positions


def local_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    window: int | None = None,
    head_area: int = 1,
    head_boundary: str = "mask",
    bias: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    rounding: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Attention of every query to a rectangle of heads and positions, under one softmax.

    query [B, H, I, D], key and value [B, H, J, D], bias broadcastable to [B, H, I, J] (H is the
    query's head), key_padding_mask [B, J] with True = real. In a causal call the queries are the
    last I of J positions. `rounding` is applied to energies, weights and outputs: it imitates a
    product that stores them in fewer bits. Returns [B, H, I, D] in float64."""
    B, H, I, D = query.shape  # noqa: E741
    J = key.shape[2]
    query = query.double()
    key = key.double()
    value = value.double()
    scale = 1 / math.sqrt(D) if scale is None else scale
    rounded = rounding if rounding is not None else (lambda tensor: tensor)
    energy_bias = None if bias is None else bias.double().expand(B, H, I, J)

    outputs = []
    for b in range(B):
        real = None if key_padding_mask is None else key_padding_mask[b].tolist()
        for h in range(H):
            heads = visible_heads(h, H, head_area, head_boundary)
            for i in range(I):
                position = J - I + i if causal else i
                positions = visible_positions(position, J, window, real, causal)
                visible = list(itertools.product(heads, positions))
                if not visible:
                    outputs.append(query.new_zeros(D))
                    continue
                s_of = [s for s, _ in visible]
                j_of = [j for _, j in visible]
                energy = rounded(
                    scale * (key[b, s_of, j_of] @ query[b, h, i])
                )  # [number of visible keys]
                if energy_bias is not None:
                    energy = energy + energy_bias[b, h, i, j_of]
                weight = rounded(torch.softmax(energy, dim=0))
                outputs.append(rounded(weight @ value[b, s_of, j_of]))
    return torch.stack(outputs).view(B, H, I, D)


def gaussian_energy(center: Tensor, width: Tensor, key_length: int) -> Tensor:
    """G[b,h,i,j] = -(j - P)^2 / (2 sigma^2) with sigma = D / 2 (Yang et al., EMNLP 2018, equation
    5).

    center P and width D [B, H, I]; returns [B, H, I, key_length] in float64.
    """
    B, H, I = center.shape  # noqa: E741
    j = torch.arange(key_length, dtype=torch.float64)
    energies = []
    for b in range(B):
        for h in range(H):
            for i in range(I):
                p = center[b, h, i].double()
                sigma = width[b, h, i].double() / 2
                energies.append(-((j - p) ** 2) / (2 * sigma**2))
    return torch.stack(energies).view(B, H, I, key_length)


class _RoundToBfloat16(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor: Tensor) -> Tensor:
        return tensor.bfloat16().to(tensor.dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient.bfloat16().to(gradient.dtype)


def round_to_bfloat16(tensor: Tensor) -> Tensor:
    """Rounds a tensor to bfloat16's 8 significant bits, and its gradient on the way back."""
    return _RoundToBfloat16.apply(tensor)
