# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Relative position representations (Shaw et al., NAACL 2018; `REL_POS` of Yang et al., NAACL 2019)."""

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import nn
from transformers import initialization as init

from .locality import (
    AttentionSite,
    Cells,
    LocalityMethod,
    LocalityModule,
    Term,
    TermInputs,
    at_least_float32,
    check_number,
)


@dataclass
class RelativePositionTerm(Term):
    """What the distance j - i, clipped to k on either side, adds to energies and outputs.

    Attributes:
        energies: λ q_i · a^K_r for each of the 2k + 1 distances r, [B, H, I, 2k + 1], float32 or better.
        values: a^V, [2k + 1, D] or one table per head [H, 2k + 1, D].
    """

    energies: torch.Tensor
    values: torch.Tensor

    def energy(self, cells: Cells) -> torch.Tensor:
        """The second summand of equation 5."""
        return cells.look_up(self.energies, self._clipped(cells))

    def value(self, cells: Cells, weights: torch.Tensor) -> torch.Tensor:
        """Σ_j α_ij a^V_clip(j - i), the second summand of equation 3."""
        size, values = self.values.shape[-2], self.values
        if values.dim() == 3:  # [H, 1.., 2k + 1, D], an axis for blocks of queries where there are some
            values = values.view(values.shape[0], *[1] * (weights.dim() - 4), *values.shape[1:])
        return cells.sum_by(weights, self._clipped(cells), size).to(values.dtype) @ values

    def _clipped(self, cells: Cells) -> torch.Tensor:
        """Row of the tables, 0 to 2k, for each cell."""
        k = (self.values.shape[-2] - 1) // 2
        return cells.distance.clamp(-k, k) + k


class RelativePositionTables(LocalityModule):
    """The embeddings a^K (`keys`) and a^V (`values`) of the distances -k to k: [2k + 1, D], or [H, 2k + 1, D]."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.keys, self.values = nn.Parameter(torch.zeros(shape)), nn.Parameter(torch.zeros(shape))

    def init_weights(self, config: Any) -> None:
        """Initialise the tables as the embeddings of words, for the width of a head."""
        std = config.init_std
        if config.initialization == "xavier":
            std = config.init_gain * self.keys.shape[-1] ** -0.5
        init.normal_(self.keys, mean=0.0, std=std)
        init.normal_(self.values, mean=0.0, std=std)

    def forward(self, inputs: TermInputs) -> RelativePositionTerm:
        """The term of one call: the keys' table multiplied with every query, and the values' table."""
        energies = torch.matmul(inputs.query * inputs.scale, self.keys.transpose(-1, -2))
        return RelativePositionTerm(at_least_float32(energies), self.values)


@dataclass(frozen=True)
class RelativePositions(LocalityMethod):
    """A learned vector of the distance j - i is added to every key and to every value.

    Distances beyond k count as k. The heads of an area must share the tables. Shaw's base model has k = 16
    and one table per head, the big model k = 8 and shared tables. Each layer has its own tables.

    Attributes:
        max_distance: k, in tokens.
        per_head: Whether every head has tables of its own.
    """

    max_distance: int = 16
    per_head: bool = False

    key: ClassVar[str] = "relative_positions"
    parts: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    presets: ClassVar = {
        "rel_pos": {"encoder_locality": {"relative_positions": {"max_distance": 16, "per_head": True}}}
    }

    def check(self, site: AttentionSite, name: str) -> None:
        """See `LocalityMethod`."""
        check_number(self.max_distance, name, "a distance in tokens", 0)
        if not isinstance(self.per_head, bool):
            raise ValueError(f"`{name}.per_head` must be True or False, got {self.per_head!r}.")

    def check_beside(self, others: tuple[LocalityMethod, ...], name: str) -> None:
        """See `LocalityMethod`."""
        if self.per_head and any(other.heads[0] > 1 for other in others):
            raise ValueError(
                f"`{name}.per_head` has no meaning in an area of heads: they share one softmax and tables."
            )

    def build(self, site: AttentionSite) -> RelativePositionTables:
        """See `LocalityMethod`."""
        shape = (2 * self.max_distance + 1, site.head_dim)
        return RelativePositionTables(*((site.num_heads, *shape) if self.per_head else shape))

    def term(self, module: RelativePositionTables, inputs: TermInputs) -> RelativePositionTerm:
        """See `LocalityMethod`."""
        return cast(RelativePositionTerm, module(inputs))
