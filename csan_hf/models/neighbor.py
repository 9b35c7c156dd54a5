# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A Gaussian around the query (Sperber et al., Interspeech 2018; `NEIGHBOR` of Yang et al., NAACL 2019)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from .gaussian import GaussianMethod, GaussianTerm, QueryPredictor, raise_to_floor
from .locality import AttentionSite
from .locality_terms import Positions, TermInputs


@dataclass(frozen=True)
class Neighbor(GaussianMethod):
    """Energies fall off with the distance to the query, the faster the narrower the window predicted from it.

    -(j - i)² / (2 σ_i²) with σ_i = D_i / 2, D_i = L · sigmoid(u_h · tanh(W q_i)), one for each head.

    Sperber et al. learn one variance for each head, H numbers in a layer. Yang et al. predict it: their +0.4M
    parameters (NAACL 2019, Table 1) show that, and their preprint says "predicting a window size". This does the same,
    without biases. It does not apply to cross-attention, where the query has no place among the keys.
    """

    key: ClassVar[str] = "neighbor"
    parts: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    label: ClassVar[str] = "a Gaussian around each query"
    paper: ClassVar[str] = "sperber2018"
    presets: ClassVar = {"neighbor": {"encoder_locality": {"neighbor": True}}}

    def build(self, site: AttentionSite) -> QueryPredictor:
        """See `LocalityMethod`."""
        return QueryPredictor(site)

    def term(self, module: QueryPredictor, inputs: TermInputs) -> GaussianTerm:
        """See `LocalityMethod`."""
        return GaussianTerm(inputs.query_positions.float()[:, None], raise_to_floor(module(inputs)))

    def describe(self, site: AttentionSite) -> str:
        """See `LocalityMethod`."""
        return "a Gaussian around each query, with a window predicted from the query, added to the energies"

    def caption(self, part: str = "encoder", length: int | None = None) -> str:
        """See `LocalityMethod`; the width of the example."""
        return f"Gaussian (around the query, width D predicted; here D = {(length or 0) / 2:g})"

    def example(self, site: AttentionSite, length: int) -> GaussianTerm:
        """As an untrained predictor has it: half of the sentence."""
        center = Positions().queries(length, torch.device("cpu")).float()
        return GaussianTerm(center[:, None], torch.full((1, 1, 1), length / 2))
