# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Methods by distance: a window of positions, an area of heads, directions, relative
positions.

Window and area: Yang et al., NAACL 2019. `BI_DIRECT` and `REL_POS` of its Table 1: Shen et al.,
AAAI 2018 (DiSAN), and Shaw et al., NAACL 2018. Biases of distances: Raffel et al., JMLR 2020 (T5).
"""

import math
from dataclasses import MISSING, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .attention_call import AttentionCall, Cells, Term, at_least_float32
from .configuration_seq2seq import MOST_TOKENS, bounded
from .locality import AttentionSite, LocalityMethod, LocalityModule, ModuleTerm, check_head_area


@dataclass(frozen=True)
class Window(LocalityMethod):
    """A query sees the keys at |j - i| <= (M - 1) / 2 (equation 4).

    Attributes:
        size: M in tokens, both edges included; odd.
    """

    size: int = bounded(MISSING, 1, MOST_TOKENS, odd=True)

    key = "window"
    phrase = "a window of {0.size} tokens around the query's own"
    label = ""
    paper = "yang-etal-2019-convolutional"
    parts = ("encoder", "decoder")
    presets: ClassVar = {"csan_1d": {"local_window": 11, "head_area": 1}}

    @property
    def window(self) -> int:
        """M."""
        return self.size


@dataclass(frozen=True)
class HeadArea(LocalityMethod):
    """A query of head h sees the keys of the heads |s - h| <= (N - 1) / 2, under one softmax
    (equations 5-6).

    Attributes:
        size: N heads, the query's own included; odd, at most 2H - 1.
        boundary: `"mask"` (heads outside 0..H-1 are not visible) or `"circular"` (wrap modulo H, N
            <= H).
    """

    size: int = bounded(MISSING, 1, odd=True)
    boundary: Literal["mask", "circular"] = "mask"

    key = "head_area"
    phrase = (
        "an area of {0.size} heads (of {1.num_heads}) around the query's own (boundary "
        "{0.boundary}), under one softmax"
    )
    label = ""
    paper = "yang-etal-2019-convolutional"
    parts = ("encoder", "decoder")
    presets: ClassVar = {"csan_2d": {"local_window": 11, "head_area": 3}}

    @property
    def heads(self) -> tuple[int, str]:
        """N and the boundary."""
        return self.size, self.boundary

    @property
    def has_effect(self) -> bool:
        """Whether a query sees more than its own head."""
        return self.size > 1

    def check(self, site: AttentionSite, name: str) -> None:
        """See `LocalityMethod`."""
        check_head_area(self.size, site.num_heads, self.boundary, name)


@dataclass(frozen=True)
class DirectionTerm(Term):
    """j <= i in the first `past_heads` heads, j >= i in the others."""

    past_heads: int

    def visible(self, cells: Cells) -> Tensor:
        """Whether the key stands on the head's side of the query, or at its own position."""
        past = cells.head < self.past_heads
        return (past & (cells.distance <= 0)) | (~past & (cells.distance >= 0))


@dataclass(frozen=True)
class BiDirectional(LocalityMethod):
    """The first half of the heads sees the past, the second half the future; no parameters.

    The query's own position is visible in both directions (DiSAN has a gate that brings it back).
    The released code alternates past and future heads; in halves, the heads of an area agree in
    direction."""

    key = "bi_direct"
    phrase = (
        "half of the {1.num_heads} heads see the query and what stands before it, half the query "
        "and what follows"
    )
    label = "heads of the past and of the future"
    paper = "shen-etal-2018-disan"
    parts = ("encoder",)
    presets: ClassVar = {"bi_direct": {"encoder_locality": {"bi_direct": True}}}

    def check(self, site: AttentionSite, name: str) -> None:
        """See `LocalityMethod`."""
        if site.num_heads % 2:
            raise ValueError(
                f"`{name}` divides the heads and needs an even number of them, got "
                f"{site.num_heads}."
            )

    def term(self, module: None, call: AttentionCall) -> DirectionTerm:
        """See `LocalityMethod`."""
        return DirectionTerm(call.query.shape[1] // 2)


@dataclass
class RelativePositionTerm(Term):
    """Energies and values of the distance j - i, clipped to k on either side.

    Attributes:
        energies: λ q_i · a^K_r for each distance r, [B, H, I, 2k + 1], float32 or better.
        values: a^V, [2k + 1, D] or a table for each head, [H, 2k + 1, D].
    """

    energies: Tensor
    values: Tensor

    def energy(self, cells: Cells) -> Tensor:
        """The second summand of equation 5."""
        return cells.look_up(self.energies, self._clipped(cells))

    def value(self, cells: Cells, weights: Tensor) -> Tensor:
        """Σ_j α_ij a^V_clip(j - i), the second summand of equation 3."""
        values = self.values
        if values.dim() == 3:  # [H, 1, 2k + 1, D] for blocks of queries
            values = values.view(values.shape[0], *[1] * (weights.dim() - 4), *values.shape[1:])
        sums = weights.new_zeros(*weights.shape[:-1], values.shape[-2])
        sums = sums.scatter_add(-1, self._clipped(cells).expand_as(weights), weights)
        return sums.to(values.dtype) @ values

    def _clipped(self, cells: Cells) -> Tensor:
        """Row of the tables, 0 to 2k, for each cell."""
        k = (self.values.shape[-2] - 1) // 2
        return cells.distance.clamp(-k, k) + k


class RelativePositionTables(LocalityModule):
    """The embeddings a^K (`keys`) and a^V (`values`) of the distances -k to k: [2k + 1, D], or [H,
    2k + 1, D].
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.zeros(shape))
        self.values = nn.Parameter(torch.zeros(shape))

    def init_weights(self, config: Any) -> None:
        """Initialise the tables as the embeddings of words, for the width of a head."""
        std = config.init_std
        if config.initialization == "xavier":
            std = config.init_gain * self.keys.shape[-1] ** -0.5
        init.normal_(self.keys, mean=0.0, std=std)
        init.normal_(self.values, mean=0.0, std=std)

    def forward(self, call: AttentionCall) -> RelativePositionTerm:
        """The term of a call: the queries' products with the keys' table, and the values' table."""
        energies = torch.matmul(call.query * call.scale, self.keys.transpose(-1, -2))
        return RelativePositionTerm(at_least_float32(energies), self.values)


@dataclass(frozen=True)
class RelativePositions(ModuleTerm):
    """A learned vector of the distance j - i is added to every key and to every value.

    Distances beyond k count as k. The heads of an area must share the tables. Shaw's base model has
    k = 16 and one table per head, the big model k = 8 and shared tables, every layer its own.

    Attributes:
        max_distance: k, in tokens.
        per_head: Whether every head has tables of its own.
        shared: Whether the part's layers with these settings have the same tables.
    """

    max_distance: int = bounded(16, 0, MOST_TOKENS)
    per_head: bool = False
    shared: bool = False

    key = "relative_positions"
    phrase = (
        "relative positions: a learned vector for each distance up to {0.max_distance} tokens, "
        "added to keys and values"
    )
    label = "relative positions"
    paper = "shaw-etal-2018-self"
    parts = ("encoder", "decoder")
    presets: ClassVar = {
        "rel_pos": {
            "encoder_locality": {"relative_positions": {"max_distance": 16, "per_head": True}}
        }
    }

    def conflict(self, other: LocalityMethod) -> str | None:
        """See `LocalityMethod`."""
        if self.per_head and other.heads[0] > 1:
            return "the heads of an area share one softmax and so the tables: leave `per_head` out"
        return None

    def build(self, site: AttentionSite) -> RelativePositionTables:
        """See `LocalityMethod`."""
        distances = 2 * self.max_distance + 1
        if self.per_head:
            return RelativePositionTables(site.num_heads, distances, site.head_dim)
        return RelativePositionTables(distances, site.head_dim)


@dataclass
class RelativeBiasTerm(Term):
    """The energy of the distance j - i by its bucket; buckets are those of transformers' T5.

    `table` is [H, K], float32 or better.
    """

    table: Tensor
    max_distance: int
    causal: bool

    def energy(self, cells: Cells) -> Tensor:
        """The head's entry for the bucket."""
        return cells.look_up(self.table[None, :, None], self._bucket(cells.distance))

    def _bucket(self, distance: Tensor) -> Tensor:
        """The bucket of each distance: half of a side's buckets hold one distance each, the next
        ones ever more, the last all beyond.
        """
        buckets = self.table.shape[-1] if self.causal else self.table.shape[-1] // 2
        exact = buckets // 2
        far = distance.abs()
        # In T5's order of operations: another order rounds some edges into the next bucket
        share = torch.log(far.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        wide = exact + (share * (buckets - exact)).long()
        place = torch.where(far < exact, far, wide.clamp(max=buckets - 1))
        return place if self.causal else place + buckets * (distance > 0)


class RelativeBiasTable(LocalityModule):
    """The biases [K, H] of all buckets."""

    def __init__(self, buckets: int, max_distance: int, site: AttentionSite) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.weight = nn.Parameter(torch.zeros(buckets, site.num_heads))

    def init_weights(self, config: Any) -> None:
        """As T5 does."""
        init.normal_(self.weight, mean=0.0, std=config.d_model**-0.5)

    def forward(self, call: AttentionCall) -> RelativeBiasTerm:
        """The term of a call."""
        table = at_least_float32(self.weight).T
        return RelativeBiasTerm(table, self.max_distance, call.area.causal)


@dataclass(frozen=True)
class RelativeBias(ModuleTerm):
    """A learned number for each head and bucket of distances is added to the energy, as in T5;
    cheaper than vectors.

    Attributes:
        buckets: K, of both sides together; a decoder uses all for the past.
        max_distance: Tokens from which on all distances are one bucket.
        shared: Whether the part's layers with these settings have the same table, as in T5.
    """

    buckets: int = bounded(32, 4, MOST_TOKENS)
    max_distance: int = bounded(128, 1, MOST_TOKENS)
    shared: bool = True

    key = "relative_bias"
    phrase = "a learned bias for each head and each of {0.buckets} buckets of distances"
    label = "biases of distances"
    paper = "raffel-etal-2020-exploring"
    parts = ("encoder", "decoder")

    def check(self, site: AttentionSite, name: str) -> None:
        """See `LocalityMethod`."""
        if self.max_distance <= self.buckets // 2:
            raise ValueError(
                f"`{name}.max_distance` must be more than half of {self.buckets} buckets."
            )

    def build(self, site: AttentionSite) -> RelativeBiasTable:
        """See `LocalityMethod`."""
        return RelativeBiasTable(self.buckets, self.max_distance, site)
