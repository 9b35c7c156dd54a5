# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The computation of all backends: an `AttentionCall` over a `KeyArea`, with the `Term`s of the
locality methods.

Shapes: B batch, H heads, I queries, J keys, D head width, N heads in the area, R blocks of queries.
Masks are boolean, True = visible.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import DynamicSlidingWindowLayer, StaticSlidingWindowLayer

from .configuration_seq2seq import MOST_TOKENS, bounded

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class KeyArea:
    """The rectangle of keys around a query (Yang et al., NAACL 2019, equations 4-6).

    Attributes:
        window: Total width M in tokens (odd), |j - i| <= (M - 1) / 2; `None` is unrestricted.
        head_area: Number N of neighbouring heads attended to jointly (odd); 1 is the own head.
        head_boundary: `"mask"`, heads outside 0..H-1 are not visible, or `"circular"`, heads wrap
            modulo H.
        causal: Whether keys after the query are invisible.
    """

    window: int | None = bounded(None, 1, MOST_TOKENS, odd=True)
    head_area: int = bounded(1, 1, odd=True)
    head_boundary: Literal["mask", "circular"] = "mask"
    causal: bool = False

    @property
    def half_window(self) -> int | None:
        """Tokens m visible on each side of the query, (M - 1) / 2."""
        return None if self.window is None else (self.window - 1) // 2

    @property
    def half_area(self) -> int:
        """Heads n visible on each side of the query's own, (N - 1) / 2."""
        return (self.head_area - 1) // 2

    def within_window(self, distance: Tensor) -> Tensor:
        """Whether a key at `distance` (key position minus query position, any shape) is within the
        window and not in a causal layer's future.
        """
        m = self.half_window
        visible = torch.ones_like(distance, dtype=torch.bool) if m is None else distance.abs() <= m
        return visible & (distance <= 0) if self.causal else visible

    def visible_heads(self, num_heads: int, device: torch.device | None = None) -> Tensor | None:
        """Which of the N neighbours of each head exist, [H, N]; `None` where all do."""
        n = self.half_area
        if n == 0 or self.head_boundary == "circular":
            return None
        offsets = torch.arange(-n, n + 1, device=device)
        neighbours = torch.arange(num_heads, device=device)[:, None] + offsets
        return (neighbours >= 0) & (neighbours < num_heads)

    def pad_heads(self, states: Tensor) -> Tensor:
        """Add the n heads beyond either boundary, zeros or wrapped: [B, H, J, D] ->
        [B, H + 2n, J, D].
        """
        n = self.half_area
        if n == 0:
            return states
        if self.head_boundary == "circular":
            return torch.cat([states[:, -n:], states, states[:, :n]], dim=1)
        return F.pad(states, (0, 0, 0, 0, n, n))

    def with_neighbours(self, states: Tensor) -> Tensor:
        """The keys of each head's area, position by position: [B, H, J, D] -> [B, H, J * N, D]."""
        if self.head_area == 1:
            return states
        padded = self.pad_heads(states)
        heads = states.shape[1]
        neighbours = [padded[:, first : first + heads] for first in range(self.head_area)]
        return torch.stack(neighbours, dim=3).flatten(2, 3)

    def repeat(self, per_position: Tensor) -> Tensor:
        """[..., J] -> [..., J * N]: the same for every head of the area."""
        if self.head_area == 1:
            return per_position
        return per_position.unsqueeze(-1).expand(*per_position.shape, self.head_area).flatten(-2)


def at_least_float32(values: Tensor) -> Tensor:
    """`values` in float32, or float64 where they are."""
    return values if values.dtype == torch.float64 else values.float()


def count_from(start: int | Tensor, places: Tensor) -> Tensor:
    """`start` plus places [1, ...]: [1, ...], or [B, ...] where `start` is [B]."""
    if isinstance(start, Tensor) and start.dim() == 1:
        start = start.view(-1, *[1] * (places.dim() - 1))
    return places + start


class Cells:
    """The cells (query, key) that a backend computes. All results broadcast together.

    All int64: positions among the real tokens, `distance` = key position - query position, the
    query's `head`. The key's head is not known."""

    query_position: Tensor
    key_position: Tensor
    distance: Tensor
    head: Tensor

    def rows(self, values: Tensor) -> Tensor:
        """The backend's queries of `values` [B or 1, H or 1, I or 1, K]."""
        raise NotImplementedError

    def of_query(self, values: Tensor) -> Tensor:
        """Each cell's entry of `values` [B or 1, H or 1, I or 1]."""
        return self.rows(values.unsqueeze(-1))

    def of_pair(self, values: Tensor) -> Tensor:
        """Each cell's entry of `values`, broadcastable to [B, H, I, J]."""
        raise NotImplementedError

    def over_keys(self, values: Tensor) -> Tensor:
        """Broadcast a term's result, [.., 1 or J] or with fewer axes, over all keys."""
        keys = self.key_position.shape[-1]
        return values.expand(torch.broadcast_shapes(values.shape, (1, 1, 1, keys)))

    def look_up(self, table: Tensor, index: Tensor) -> Tensor:
        """Each cell's entry `index` of its query's row of `table` [B or 1, H or 1, I or 1, K]."""
        rows = self.rows(table)
        shape = torch.broadcast_shapes(rows.shape[:-1], index.shape[:-1])
        return rows.expand(*shape, -1).gather(-1, index.expand(*shape, -1))


class Term:
    """A locality method's contribution to one call; its tensors are attributes.

    The query's weights are softmax(λ q·k + Σ energies) over the visible keys; its output is Σ
    weight · value, plus the value terms. In a layer with an area of heads a term treats keys of one
    position alike, whatever their head. A subclass overrides any of:

        visible(cells): Whether the query sees the key; boolean, broadcastable to the cells (it may
            be the same for all keys). Layers whose terms are equal share the mask, if the term is a
            frozen dataclass.
        energy(cells): Added to the energy before the softmax, float32 (or better).
        value(cells, weights): Added to the output, [..., I, D]; `weights` [..., I, J] have seen
            dropout and are summed over the area. Fused kernels do not give them.
        tokens_left: [B, I], what of the source is left beyond the end of which a target may end.
    """

    visible: ClassVar[Any] = None
    energy: ClassVar[Any] = None
    value: ClassVar[Any] = None
    tokens_left: Any = None
    __hash__ = None  # type: ignore[assignment]  # the hash of a frozen dataclass replaces it

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient is wanted for one of the term's tensors."""
        return any(
            isinstance(value, Tensor) and value.requires_grad for value in vars(self).values()
        )


class ForwardPass:
    """Shared by all layers of one forward pass.

    Attributes:
        masks: See `AttentionCall.share`.
        tokens_left: `Term.tokens_left` of the last term that knows it.
    """

    def __init__(self) -> None:
        self.masks: dict[Hashable, Any] = {}
        self.tokens_left: Tensor | None = None


@dataclass
class CarriedValue:
    """A number of each head, or of all together, that goes on from query to query of a target;
    0 before the first. C of them.

    Attributes:
        real_queries: [B, past + I] boolean, False = padding, which adds nothing; None = all real.
        cache: The decoder's cache of keys and values, None = none is kept.
        layer: Its layer, after the keys of all layers, that keeps the number.
    """

    real_queries: Tensor | None = None
    cache: Any = None
    layer: int = 0

    @property
    def previous(self) -> Any:
        """The number after all earlier decoding steps, [B, C, 1] (C = H or 1) or 0.0."""
        layers = [] if self.cache is None else self.cache.layers
        keys = layers[self.layer].keys if self.layer < len(layers) else None
        if keys is None or not keys.shape[2]:
            return 0.0
        return keys[:, :, -1:, 0]

    def mask_padding(self, values: Tensor) -> Tensor:
        """`values` [B, C, I] with 0 where the query is padding."""
        if self.real_queries is None:
            return values
        return values * self.real_queries[:, None, -values.shape[-1] :]

    def keep(self, values: Tensor) -> None:
        """Keep the number after each query, [B, C, I], for later decoding steps."""
        if self.cache is None:
            return
        if self.layer == len(self.cache.layers):
            if self.cache.is_compileable:
                self.cache.layers.append(StaticSlidingWindowLayer(1, sliding_window=1))
            elif self.cache.layer_class_to_replicate is None:
                self.cache.layers.append(DynamicSlidingWindowLayer(2))
        states = values.unsqueeze(-1)
        self.cache.update(states, states, self.layer)


@dataclass
class AttentionCall:
    """One attention of one layer. A position is counted from the first real token.

    Not causal and with a window, I = J.

    Attributes:
        query: [B, H, I, D].
        key, value: [B, H, J, D], without those that a cache has dropped. In a causal call with I <
            J the queries are the last I positions (a decoding step).
        scale: Factor λ of the dot products.
        key_padding_mask: [B, J] boolean, True = a real token; None = all real.
        query_start: Position of the first query: a number, [] or [B] (negative where padding stands
            before it).
        key_start: The same of the first key (above 0 where a cache has dropped earlier keys).
        dropout_p: Probability of dropping an attention weight.
        is_self_attention: Whether padding among the keys is padding among the queries, too, whose
            output may be anything.
        shared: What other layers of the forward pass have computed; all calls with it agree in
            padding and positions.
        terms: Terms of the layer's locality methods, which these compute from a call without any.
        carried: What a method carries from query to query, earlier decoding steps included.
        lines: The `Lines` (lines.py) of queries and keys, where a method needs them.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    area: KeyArea
    scale: float
    key_padding_mask: Tensor | None = None
    query_start: int | Tensor = 0
    key_start: int | Tensor = 0
    dropout_p: float = 0.0
    is_self_attention: bool = False
    shared: ForwardPass = field(default_factory=ForwardPass)
    terms: Sequence[Term] = ()
    carried: CarriedValue = field(default_factory=CarriedValue)
    lines: Any = None

    def __post_init__(self) -> None:
        self.energy_terms = [term for term in self.terms if term.energy is not None]
        self.visibility_terms = [term for term in self.terms if term.visible is not None]
        self.value_terms = [term for term in self.terms if term.value is not None]

    @property
    def query_positions(self) -> Tensor:
        """[B or 1, I]."""
        places = torch.arange(self.query.shape[2], device=self.query.device)
        return count_from(self.query_start, places[None])

    @property
    def key_positions(self) -> Tensor:
        """[B or 1, J]."""
        places = torch.arange(self.key.shape[2], device=self.key.device)
        return count_from(self.key_start, places[None])

    @property
    def visible_length(self) -> Tensor:
        """Number L of real tokens that a query may see, [B or 1, 1, I or 1] float32: a prefix in a
        causal layer.
        """
        if self.area.causal:
            return (self.query_positions + 1).float()[:, None, :]
        if self.lines is not None:
            return self.lines.length.float()[:, None]
        if self.key_padding_mask is None:
            return torch.full((1, 1, 1), float(self.key.shape[2]), device=self.query.device)
        return self.key_padding_mask.sum(dim=-1).float()[:, None, None]

    def sums_over_queries(
        self, values: Tensor, before: Tensor | float, start: Tensor | float
    ) -> Tensor:
        """Running sums of values [B, C, I] from `before` on; in each line that begins, from `start`
        on.
        """
        if self.lines is None:
            return before + values.cumsum(-1)
        return self.lines.sums(values, before, start)

    @property
    def first_visible(self) -> Tensor | float:
        """Position of the first key that a query may see, [B, 1, I] float32 or 0."""
        return 0.0 if self.lines is None else self.lines.first.float()[:, None]

    def share(self, name: Hashable, make: Callable[[], _Result]) -> _Result:
        """Return `make()`, computed once for all layers of a forward pass that see the same keys.

        The result may depend on `name`, sizes, area and visibility terms alone, and takes no part
        in gradients."""
        if torch.compiler.is_compiling():
            return make()  # a compiled program finds equal computations by itself
        sizes = (self.query.shape[:3], self.key.shape[2], self.query.device)
        key = (name, self.area, sizes, *self.visibility_terms)
        masks = self.shared.masks
        try:
            is_known = key in masks
        except TypeError:  # not hashable: a term that may hold tensors of its layer
            return make()
        if not is_known:
            masks[key] = make()
        return masks[key]

    @property
    def has_backward(self) -> bool:
        """Whether to expect a backward pass; with dropout also without gradients, as reentrant
        checkpointing computes so first.
        """
        if self.dropout_p > 0.0:
            return True
        parts: tuple[Tensor | Term, ...] = (self.query, self.key, self.value, *self.terms)
        return torch.is_grad_enabled() and any(part.requires_grad for part in parts)

    def added_energies(self, cells: Cells) -> Tensor | None:
        """The sum of the terms' energies for all heads of the area, [..., 1 or I, J * N]; None
        without such terms.
        """
        if not self.energy_terms:
            return None
        total = self.energy_terms[0].energy(cells)
        for term in self.energy_terms[1:]:
            total = total + term.energy(cells)
        return self.area.repeat(cells.over_keys(total))

    def with_value_terms(self, output: Tensor, cells: Cells, weights: Tensor) -> Tensor:
        """`output` [..., I, D] with the value terms of `weights` [..., I, J * N]."""
        if self.value_terms and self.area.head_area > 1:
            weights = weights.unflatten(-1, (-1, self.area.head_area)).sum(dim=-1)
        for term in self.value_terms:
            output = output + term.value(cells, weights)
        return output
