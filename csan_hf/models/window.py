# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A window of positions, an area of heads (Yang et al., NAACL 2019), heads of the past and of the future."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from .locality import AttentionSite, Cells, LocalityMethod, Term, TermInputs, check_head_area, check_window


@dataclass(frozen=True)
class Window(LocalityMethod):
    """A query sees the keys at |j - i| <= (M - 1) / 2 (equation 4).

    Attributes:
        size: M in tokens, both edges included; odd.
    """

    size: int

    key: ClassVar[str] = "window"
    parts: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    presets: ClassVar = {"csan_1d": {"local_window": 11, "head_area": 1}}

    @property
    def window(self) -> int:
        """M."""
        return self.size

    def check(self, site: AttentionSite, name: str) -> None:
        """See `LocalityMethod`."""
        if self.size is None:
            raise ValueError(f"`{name}` must be an odd number of tokens, got None; leave the key out for no window.")
        check_window(self.size, name)


@dataclass(frozen=True)
class HeadArea(LocalityMethod):
    """A query of head h sees the keys of the heads |s - h| <= (N - 1) / 2, under one softmax (equations 5-6).

    Attributes:
        size: N heads, the query's own included; odd, at most 2H - 1.
        boundary: `"mask"` (heads outside 0..H-1 are not visible) or `"circular"` (wrap modulo H, N <= H).
    """

    size: int
    boundary: str = "mask"

    key: ClassVar[str] = "head_area"
    parts: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    presets: ClassVar = {"csan_2d": {"local_window": 11, "head_area": 3}}

    @property
    def heads(self) -> tuple[int, str]:
        """N and the boundary."""
        return self.size, self.boundary

    @property
    def has_effect(self) -> bool:
        """Whether there is more than the query's own head."""
        return self.size > 1

    def check(self, site: AttentionSite, name: str) -> None:
        """See `LocalityMethod`."""
        check_head_area(self.size, site.num_heads, self.boundary, name)


@dataclass
class DirectionTerm(Term):
    """j <= i in the first `past_heads` heads, j >= i in the others."""

    past_heads: int

    def visible(self, cells: Cells) -> torch.Tensor:
        """Whether the key stands on the head's side of the query, or at its own position."""
        past = cells.head < self.past_heads
        return (past & (cells.distance <= 0)) | (~past & (cells.distance >= 0))


@dataclass(frozen=True)
class BiDirectional(LocalityMethod):
    """The first half of the heads sees the past, the second half the future; no parameters.

    The query's own position is visible in both directions (DiSAN has a gate that brings it back). The released code
    alternates past and future heads; in halves, the heads of an area agree in direction.
    """

    key: ClassVar[str] = "bi_direct"
    parts: ClassVar[tuple[str, ...]] = ("encoder",)
    presets: ClassVar = {"bi_direct": {"encoder_locality": {"bi_direct": True}}}

    def check(self, site: AttentionSite, name: str) -> None:
        """See `LocalityMethod`."""
        if site.num_heads % 2:
            raise ValueError(
                f"`{name}` gives half of the heads each direction and needs an even number, got {site.num_heads}."
            )

    def term(self, module: None, inputs: TermInputs) -> DirectionTerm:
        """See `LocalityMethod`."""
        return DirectionTerm(inputs.query.shape[1] // 2)
