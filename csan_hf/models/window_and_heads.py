# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The methods of Yang et al., NAACL 2019: a window of positions (1D) and an area of heads (2D)."""

from dataclasses import dataclass
from typing import ClassVar

from .key_area import KeyArea, check_head_area, check_window
from .locality import AttentionSite, LocalityMethod


@dataclass(frozen=True)
class Window(LocalityMethod):
    """A query sees the keys at |j - i| <= (M - 1) / 2 (equation 4).

    Attributes:
        size: M in tokens, both edges included; odd.
    """

    size: int

    key: ClassVar[str] = "window"
    parts: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    paper: ClassVar[str] = "yang2019"
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

    def describe(self, site: AttentionSite) -> str:
        """See `LocalityMethod`."""
        return f"a window of {self.size} tokens, the query's own and {(self.size - 1) // 2} on either side"

    def model_name(self, area: KeyArea) -> str:
        """See `LocalityMethod`."""
        return f"1D-CSAN ({area.window})"

    def caption(self, part: str = "encoder", length: int | None = None) -> str:
        """See `LocalityMethod`."""
        return f"window of {self.size} tokens"


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
    paper: ClassVar[str] = "yang2019"
    presets: ClassVar = {"csan_2d": {"local_window": 11, "head_area": 3}}

    @property
    def heads(self) -> tuple[int, str]:
        """N and the boundary."""
        return self.size, self.boundary

    def check(self, site: AttentionSite, name: str) -> None:
        """See `LocalityMethod`."""
        check_head_area(self.size, site.num_heads, self.boundary, name)

    def describe(self, site: AttentionSite) -> str:
        """See `LocalityMethod`."""
        wrap = ", the first and last head being neighbours" if self.boundary == "circular" else ""
        return (
            f"an area of {self.size} heads (of {site.num_heads}), the query's own and {(self.size - 1) // 2} on "
            f"either side{wrap}, under one softmax"
        )

    def model_name(self, area: KeyArea) -> str | None:
        """See `LocalityMethod`."""
        return f"2D-CSAN ({self.size}×{area.window or 'sentence'})" if self.size > 1 else None

    def caption(self, part: str = "encoder", length: int | None = None) -> str:
        """See `LocalityMethod`."""
        return f"area of {self.size} heads{', wrapped' if self.boundary == 'circular' else ''}"
