# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Windows of positions and areas of heads: which (head, position) pairs a query sees (Yang et al., NAACL 2019).

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

MOST_TOKENS = 2**31 - 1
"""The longest distance, window or width in tokens: beyond any sentence, and a number that every tensor can hold."""
HEAD_BOUNDARIES = ("mask", "circular")


@dataclass(frozen=True)
class KeyArea:
    """The rectangle of keys around a query, (NAACL 2019, equations 4-6): the structure that backends compute by.

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
    check_tokens(window, name)


def check_tokens(count: float, name: str) -> None:
    """Raise `ValueError` for a number of tokens that no tensor can hold."""
    if count > MOST_TOKENS:
        raise ValueError(f"`{name}` must be at most {MOST_TOKENS} tokens, got {count!r}.")


def check_head_area(head_area: int, num_heads: int | None, boundary: str, name: str = "head_area") -> None:
    """Raise `ValueError` unless the area fits `num_heads` heads (None: any number) under the given boundary."""
    if boundary not in HEAD_BOUNDARIES:
        raise ValueError(f"`head_boundary` must be one of {list(HEAD_BOUNDARIES)}, got {boundary!r}.")
    if isinstance(head_area, bool) or not isinstance(head_area, int) or head_area < 1 or head_area % 2 == 0:
        most = "at least 1" if num_heads is None else f"1 to {2 * num_heads - 1} (2H - 1 for H = {num_heads} heads)"
        raise ValueError(f"`{name}` must be an odd number of heads, {most}, got {head_area!r}.")
    if num_heads is None:
        return
    largest = 2 * num_heads - 1
    if head_area > largest:
        raise ValueError(f"`{name}` must be at most {largest} (2H - 1 for H = {num_heads} heads), got {head_area}.")
    if boundary == "circular" and head_area > num_heads:
        raise ValueError(
            f"`{name}` must be at most the number of heads ({num_heads}) with head_boundary='circular', "
            f"else a head would be counted twice; got {head_area}."
        )


def within_window(distance: torch.Tensor, area: KeyArea) -> torch.Tensor:
    """Whether a key at `distance` (key position minus query position, any shape) is in the query's reach."""
    visible = torch.ones_like(distance, dtype=torch.bool)
    if area.half_window is not None:
        visible = distance.abs() <= area.half_window
    if area.causal:
        visible = visible & (distance <= 0)
    return visible


def visible_heads(num_heads: int, area: KeyArea, device: torch.device | None = None) -> torch.Tensor | None:
    """Which of the N neighbour slots of each head hold a head, [H, N]; `None` where all of them do."""
    if area.half_area == 0 or area.head_boundary == "circular":
        return None
    offsets = torch.arange(-area.half_area, area.half_area + 1, device=device)
    neighbours = torch.arange(num_heads, device=device)[:, None] + offsets[None, :]
    return (neighbours >= 0) & (neighbours < num_heads)


def pad_heads(states: torch.Tensor, area: KeyArea) -> torch.Tensor:
    """Put the heads beyond both boundaries in place: [B, H, J, D] -> [B, H + 2n, J, D], zeros or wrapped heads."""
    n = area.half_area
    if n == 0:
        return states
    if area.head_boundary == "circular":
        return torch.cat([states[:, -n:], states, states[:, :n]], dim=1)
    return F.pad(states, (0, 0, 0, 0, n, n))


def repeat_over_area(per_position: torch.Tensor, area: KeyArea) -> torch.Tensor:
    """[..., J] -> [..., N * J]: the same for every head of the area."""
    if area.head_area == 1:
        return per_position
    repeated = per_position.unsqueeze(-2)
    return repeated.expand(*repeated.shape[:-2], area.head_area, -1).flatten(-2)
