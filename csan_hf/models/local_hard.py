# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A predicted centre and a fixed window (Luong et al., EMNLP 2015; `LOCAL_HARD` of Yang et al., NAACL 2019)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from .gaussian import GaussianMethod, GaussianTerm, QueryPredictor
from .key_area import check_tokens
from .locality import AttentionSite
from .locality_terms import Cells, TermInputs, at_least_float32


@dataclass
class CutOffGaussianTerm(GaussianTerm):
    """The Gaussian of a window that nothing is seen beyond: |j - P| <= D. Centre and width: see `GaussianTerm`."""

    def visible(self, cells: Cells) -> torch.Tensor:
        """Whether the key lies within the window; the centre gets its gradient from the energies alone."""
        center, width = cells.of_query(self.center.detach()), cells.of_query(self.width)
        return (cells.key_position - at_least_float32(center)).abs() <= at_least_float32(width)


@dataclass(frozen=True)
class LocalHard(GaussianMethod):
    """Energies fall off around a position predicted from each query, over a window of fixed width.

    -(j - P_i)² / (2 σ²) with σ = D / 2, P_i = L · sigmoid(u_h · tanh(W q_i)), one for each head.

    Luong et al. (equations 9-10) have this centre, D = 10 and σ = D / 2, but multiply the weights after the softmax
    and see nothing beyond P ± D. Yang et al. add the Gaussian to the energies and cut nothing off (EMNLP 2018,
    "Fixed-Window", and their released code), as here. Sigmoid, not floor: rounding P would leave W without a gradient.

    Attributes:
        width: D, in tokens, at least 1.
        cut_off: Whether keys farther than D from P are invisible, as Luong et al. have it.
    """

    width: float = 10.0
    cut_off: bool = False

    key: ClassVar[str] = "local_hard"
    label: ClassVar[str] = "a Gaussian around a predicted position"
    paper: ClassVar[str] = "luong2015"
    presets: ClassVar = {"local_hard": {"encoder_locality": {"local_hard": {"width": 10.0}}}}

    def check(self, site: AttentionSite, name: str) -> None:
        """See `LocalityMethod`."""
        width = self.width
        if isinstance(width, bool) or not isinstance(width, int | float) or not 1 <= width < float("inf"):
            raise ValueError(f"`{name}` must be a width of at least 1 token, got {width!r}.")
        check_tokens(width, name)
        if not isinstance(self.cut_off, bool):
            raise ValueError(f"`{name}.cut_off` must be True or False, got {self.cut_off!r}.")

    def build(self, site: AttentionSite) -> QueryPredictor:
        """See `LocalityMethod`."""
        return QueryPredictor(site)

    def term(self, module: QueryPredictor, inputs: TermInputs) -> GaussianTerm:
        """See `LocalityMethod`."""
        return self._gaussian(module(inputs))

    def _gaussian(self, center: torch.Tensor) -> GaussianTerm:
        width = center.new_full((1, 1, 1), float(self.width))
        return (CutOffGaussianTerm if self.cut_off else GaussianTerm)(center, width)

    def describe(self, site: AttentionSite) -> str:
        """See `LocalityMethod`."""
        cut = f"; keys more than {self.width:g} tokens from it are not seen" if self.cut_off else ""
        return (
            f"a Gaussian around a position predicted from each query, with a window of {self.width:g} tokens, added "
            f"to the energies{cut}"
        )

    def caption(self, part: str = "encoder", length: int | None = None) -> str:
        """See `LocalityMethod`; the centre of the example."""
        cut = ", cut off at P ± D" if self.cut_off else ""
        return f"Gaussian (centre P predicted, width D = {self.width:g}{cut}; here P = {(length or 0) / 2:g})"

    def example(self, site: AttentionSite, length: int) -> GaussianTerm:
        """As an untrained predictor has it: the middle of the sentence, of the tokens so far in a decoder."""
        seen = torch.arange(1, length + 1) if site.is_causal else torch.full((1,), length)
        return self._gaussian(seen[None, None] / 2)
