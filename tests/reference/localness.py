# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Loop oracle of the Gaussian localness bias (Yang et al., EMNLP 2018, equations 5-9), in float64.

One batch row, one query, one head at a time. p and z come from the whole d-wide query (its heads concatenated);
every head has its own row of U_p and U_d. L is the number of keys visible to a query, never the padded length.
"""

from __future__ import annotations

import torch
from torch import Tensor

HEAD_WINDOW_LIMIT = 50.0  # tokens: the "head" strategy's D is 50 * sigmoid(z_h)


def gaussian_energy(center: Tensor, width: Tensor, key_length: int, key_offset: int = 0) -> Tensor:
    """G[b,h,i,j] = -(j - P)^2 / (2 sigma^2) with sigma = D / 2; the key at index j stands at j + key_offset.

    center P and width D [B, H, I]; returns [B, H, I, key_length] in float64.
    """
    B, H, I = center.shape  # noqa: E741
    j = torch.arange(key_offset, key_offset + key_length, dtype=torch.float64)
    energies = []
    for b in range(B):
        for h in range(H):
            for i in range(I):
                p, sigma = center[b, h, i].double(), width[b, h, i].double() / 2
                energies.append(-((j - p) ** 2) / (2 * sigma**2))
    return torch.stack(energies).view(B, H, I, key_length)


def localness(
    query: Tensor,
    key: Tensor,
    *,
    strategy: str,
    causal: bool,
    w_p: Tensor,
    u_p: Tensor,
    u_d: Tensor | None = None,
    w_d: Tensor | None = None,
    z_head: Tensor | None = None,
    window_size: float = 10.0,
    minimum_window: float = 0.0,
    key_padding_mask: Tensor | None = None,
    query_offset: int = 0,
) -> tuple[Tensor, Tensor]:
    """Centers P and widths D, [B, H, I] each, of every query's Gaussian.

    query [B, H, I, D], key [B, H, J, D]; w_p, w_d [d, d] and u_p, u_d [H, d] multiply column vectors; z_head
    [H]; key_padding_mask [B, J], True = real. In a causal layer query i stands at position query_offset + i and
    sees the keys 0 .. query_offset + i. A predicted D counts as max(D, minimum_window + D / 10).
    """
    query, key = query.double(), key.double()
    B, H, I, _ = query.shape  # noqa: E741
    J = key.shape[2]
    centers, widths = [], []
    for b in range(B):
        real = [True] * J if key_padding_mask is None else key_padding_mask[b].tolist()
        for i in range(I):
            if causal:
                length = query_offset + i + 1
                seen = [j for j in range(J) if j <= query_offset + i and real[j]]
            else:
                seen = [j for j in range(J) if real[j]]
                length = len(seen)
            q = torch.cat([query[b, h, i] for h in range(H)])  # [d]
            hidden = torch.tanh(w_p.double() @ q)
            if strategy == "layer":
                k_mean = torch.zeros_like(q)
                for j in seen:
                    k_mean = k_mean + torch.cat([key[b, h, j] for h in range(H)]) / len(seen)
                layer_hidden = torch.tanh(w_d.double() @ k_mean)
            for h in range(H):
                centers.append(length * torch.sigmoid(u_p[h].double() @ hidden))
                if strategy == "fixed":
                    d = q.new_tensor(window_size)
                elif strategy == "layer":
                    d = length * torch.sigmoid(u_d[h].double() @ layer_hidden)
                elif strategy == "query":
                    d = length * torch.sigmoid(u_d[h].double() @ hidden)
                elif strategy == "head":
                    d = HEAD_WINDOW_LIMIT * torch.sigmoid(z_head[h].double())
                else:
                    raise KeyError(strategy)
                if strategy != "fixed":
                    d = torch.maximum(
                        d, minimum_window + d / 10
                    )  # the floor rises with D: there is a gradient below it
                widths.append(d)
    shape = (B, I, H)
    return (torch.stack(centers).view(shape).transpose(1, 2), torch.stack(widths).view(shape).transpose(1, 2))
