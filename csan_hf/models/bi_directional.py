# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Heads of the past and heads of the future (Shen et al., AAAI 2018; `BI_DIRECT` of Yang et al., NAACL 2019)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from .locality import AttentionSite, LocalityMethod
from .locality_terms import Cells, Term, TermInputs


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

    Two choices. DiSAN hides the query's own position and lets a gate bring it back; a Transformer has no such gate,
    and the first token would see nothing, so it is visible in both directions (as in the released code of Yang et
    al.). That code alternates past and future heads; in halves, the heads of an area of heads agree in direction. In
    a causal layer a head of the future would see itself alone.
    """

    key: ClassVar[str] = "bi_direct"
    parts: ClassVar[tuple[str, ...]] = ("encoder",)
    label: ClassVar[str] = "heads of the past and of the future"
    paper: ClassVar[str] = "shen2018a"
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

    def describe(self, site: AttentionSite) -> str:
        """See `LocalityMethod`."""
        half = site.num_heads // 2
        return (
            f"heads 1 to {half} see the query and what stands before it, heads {half + 1} to {site.num_heads} the "
            f"query and what follows"
        )

    def caption(self, part: str = "encoder", length: int | None = None) -> str:
        """See `LocalityMethod`."""
        return "first half of the heads: no later tokens; second half, shown here: no earlier ones"

    def example(self, site: AttentionSite, length: int) -> DirectionTerm:
        """See `LocalityMethod`."""
        return DirectionTerm(site.num_heads // 2)
