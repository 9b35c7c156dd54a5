# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Locality as pure functions: which (head, position) pairs a query sees, and how a Gaussian weighs them.

Shapes use B batch, H heads, I queries, J keys, D head width, N heads in the area. Masks are boolean and
`True` means *visible*.

    window 3, I = J = 5            the same, causal
    0  ■ ■ ⬚ ⬚ ⬚                   0  ■ ⬚ ⬚ ⬚ ⬚
    1  ■ ■ ■ ⬚ ⬚                   1  ■ ■ ⬚ ⬚ ⬚
    2  ⬚ ■ ■ ■ ⬚                   2  ⬚ ■ ■ ⬚ ⬚
    3  ⬚ ⬚ ■ ■ ■                   3  ⬚ ⬚ ■ ■ ⬚
    4  ⬚ ⬚ ⬚ ■ ■                   4  ⬚ ⬚ ⬚ ■ ■
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

MINIMUM_WINDOW = 0.1
"""Floor of the Gaussian's window D, in tokens: keeps σ = D/2 away from zero."""

HEAD_BOUNDARIES = ("mask", "circular")


@dataclass(frozen=True)
class Locality:
    """What a query may see besides the padding mask (Yang et al., NAACL 2019, equations 4-6).

    Attributes:
        window: Total width M in tokens, both edges included (odd); `None` is unrestricted. A query at position
            i sees keys at |j - i| <= (M - 1) / 2.
        head_area: Number N of neighbouring heads attended to jointly (odd, at most 2H - 1); 1 is the own head.
        head_boundary: `"mask"`, heads outside 0..H-1 are not visible, or `"circular"`, heads wrap modulo H.
        causal: Whether keys after the query are invisible.
    """

    window: int | None = None
    head_area: int = 1
    head_boundary: str = "mask"
    causal: bool = False

    @property
    def half_window(self) -> int | None:
        """Tokens m visible on each side of the query, (M - 1) / 2."""
        return None if self.window is None else (self.window - 1) // 2

    @property
    def half_area(self) -> int:
        """Heads n visible on each side of the query's own, (N - 1) / 2."""
        return (self.head_area - 1) // 2


def check_window(window: int | None, name: str = "window") -> None:
    """Raise `ValueError` unless `window` is `None` or an odd number of tokens of at least 1."""
    if window is None:
        return
    if isinstance(window, bool) or not isinstance(window, int) or window < 1 or window % 2 == 0:
        raise ValueError(
            f"`{name}` must be None or an odd number of tokens of at least 1 (the total width, both edges "
            f"included), got {window!r}."
        )


def check_head_area(head_area: int, num_heads: int, boundary: str, name: str = "head_area") -> None:
    """Raise `ValueError` unless the area fits `num_heads` heads under the given boundary."""
    if boundary not in HEAD_BOUNDARIES:
        raise ValueError(f"`head_boundary` must be one of {list(HEAD_BOUNDARIES)}, got {boundary!r}.")
    largest = 2 * num_heads - 1
    if isinstance(head_area, bool) or not isinstance(head_area, int) or head_area < 1 or head_area % 2 == 0:
        raise ValueError(
            f"`{name}` must be an odd number of heads between 1 and {largest} (2H - 1 for H = {num_heads} "
            f"heads), got {head_area!r}."
        )
    if head_area > largest:
        raise ValueError(f"`{name}` must be at most {largest} (2H - 1 for H = {num_heads} heads), got {head_area}.")
    if boundary == "circular" and head_area > num_heads:
        raise ValueError(
            f"`{name}` must be at most the number of heads ({num_heads}) with head_boundary='circular', "
            f"else a head would be counted twice; got {head_area}."
        )


def relative_positions(query_length: int, key_length: int, device: torch.device | None = None) -> torch.Tensor:
    """Key position minus query position, [I, J]; the queries are the last I of the J positions."""
    queries = torch.arange(query_length, device=device) + (key_length - query_length)
    return torch.arange(key_length, device=device)[None, :] - queries[:, None]


def within_locality(distance: torch.Tensor, locality: Locality) -> torch.Tensor:
    """Whether a key at `distance` (key position minus query position, any shape) is in the query's reach."""
    visible = torch.ones_like(distance, dtype=torch.bool)
    if locality.half_window is not None:
        visible = distance.abs() <= locality.half_window
    if locality.causal:
        visible = visible & (distance <= 0)
    return visible


def visible_heads(num_heads: int, locality: Locality, device: torch.device | None = None) -> torch.Tensor | None:
    """Which of the N neighbour slots of each head hold a head, [H, N]; `None` where all of them do."""
    if locality.half_area == 0 or locality.head_boundary == "circular":
        return None
    offsets = torch.arange(-locality.half_area, locality.half_area + 1, device=device)
    neighbours = torch.arange(num_heads, device=device)[:, None] + offsets[None, :]
    return (neighbours >= 0) & (neighbours < num_heads)


def gather_head_area(states: torch.Tensor, locality: Locality) -> torch.Tensor:
    """Lay each head's neighbours beside it: [B, H, J, D] -> [B, H, N, J, D] (a view where memory allows).

    Slots without a head (boundary `"mask"`) hold zeros and must be masked by `visible_heads`.
    """
    if locality.half_area == 0:
        return states.unsqueeze(2)
    # Overlapping windows along the heads: neighbours lie next to each other in memory, nothing is copied.
    return pad_heads(states, locality).unfold(1, locality.head_area, 1).permute(0, 1, 4, 2, 3)


def pad_heads(states: torch.Tensor, locality: Locality) -> torch.Tensor:
    """Put the heads beyond both boundaries in place: [B, H, J, D] -> [B, H + 2n, J, D], zeros or wrapped heads."""
    n = locality.half_area
    if n == 0:
        return states
    if locality.head_boundary == "circular":
        return torch.cat([states[:, -n:], states, states[:, :n]], dim=1)
    return F.pad(states, (0, 0, 0, 0, n, n))


@dataclass
class GaussianBias:
    """The Gaussian energies G of every query, kept as centre and width until a backend needs them.

    G[i, j] = -(j - P_i)² / (2 σ_i²) with σ_i = D_i / 2 (Yang et al., EMNLP 2018, equation 5), in units of key
    positions. A key's own position counts, whatever its head.

    Attributes:
        center: P, [B, H, I] or broadcastable to it, float32.
        width: D in tokens, [B, H, I] or broadcastable to it, float32; values under `MINIMUM_WINDOW` are raised.
        key_offset: Position of the first key at hand (above 0 where a cache has dropped earlier keys; a tensor []
            where a static cache counts).
    """

    center: torch.Tensor
    width: torch.Tensor
    key_offset: int | torch.Tensor = 0

    def energies(self, key_positions: torch.Tensor, center: torch.Tensor, width: torch.Tensor) -> torch.Tensor:
        """G for keys at `key_positions`, all arguments broadcast together; float32."""
        sigma = width.float().clamp(min=MINIMUM_WINDOW) / 2
        return -0.5 * ((key_positions + self.key_offset - center.float()) / sigma) ** 2

    def dense(self, key_length: int) -> torch.Tensor:
        """G for all keys, [B, H, I, J] (or broadcastable), float32."""
        positions = torch.arange(key_length, device=self.center.device, dtype=torch.float32)
        return self.energies(positions, self.center.unsqueeze(-1), self.width.unsqueeze(-1))

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient is wanted for the centre or the width."""
        return self.center.requires_grad or self.width.requires_grad
