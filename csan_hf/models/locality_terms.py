# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Terms: what a locality method adds to one call of attention, written once for all backends.

A backend shows a term the cells (query, key) that it is about to compute, as `Cells`: positions and heads in shapes
that broadcast together, whether these are all cells, blocks of them or a single one. So a term is a formula:

    class Neighbours(Term):
        def visible(self, cells):
            return (cells.distance.abs() <= 2) | (cells.head == 0)

Shapes: B batch, H heads, I queries, J keys, R blocks of queries, D head width.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class Positions:
    """Where queries and keys stand in their sentence: ranks among its real tokens, from 0.

    A sentence's tokens are neighbours (padding stands before or after them), so its positions follow from the first.

    Attributes:
        query_start: Position of the first query: a number, [] or one for each sentence [B] (negative where padding
            stands before the sentence).
        key_start: The same of the first key (above 0 where a cache has dropped earlier keys).
    """

    query_start: int | torch.Tensor = 0
    key_start: int | torch.Tensor = 0

    def queries(self, length: int, device: torch.device) -> torch.Tensor:
        """Positions of `length` queries, [B or 1, I]."""
        return count_from(self.query_start, torch.arange(length, device=device)[None])

    def keys(self, length: int, device: torch.device) -> torch.Tensor:
        """Positions of `length` keys, [B or 1, J]."""
        return count_from(self.key_start, torch.arange(length, device=device)[None])


def count_from(start: int | torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """`start` plus places [1, ...]: [1, ...], or [B, ...] where every sentence has a start of its own."""
    if isinstance(start, torch.Tensor) and start.dim() == 1:
        start = start.view(-1, *[1] * (places.dim() - 1))
    return places + start


def first_real_token(padding: torch.Tensor | None) -> torch.Tensor | None:
    """Place [B] of each row's first real token (0 where there is none) in a mask [B, T]; None without a mask."""
    return None if padding is None else padding.to(torch.int32).argmax(dim=-1)


class Cells(Protocol):
    """The cells that a backend computes. All results broadcast together; no key's head is known to a term."""

    @property
    def query_position(self) -> torch.Tensor:
        """Position of each cell's query among the real tokens, int64."""

    @property
    def key_position(self) -> torch.Tensor:
        """Position of each cell's key among the real tokens, int64."""

    @property
    def distance(self) -> torch.Tensor:
        """Key position minus query position in self-attention, int64; the same for all sentences, so the cheapest."""

    @property
    def head(self) -> torch.Tensor:
        """The query's head, int64."""

    def of_query(self, values: torch.Tensor) -> torch.Tensor:
        """Each cell's entry of `values` [B or 1, H or 1, I or 1]."""

    def of_pair(self, values: torch.Tensor) -> torch.Tensor:
        """Each cell's entry of `values`, broadcastable to [B, H, I, J]."""

    def look_up(self, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Entry `index` (one per cell) of each query's row of `table` [B or 1, H or 1, I or 1, K]."""

    def sum_by(self, weights: torch.Tensor, index: torch.Tensor, size: int) -> torch.Tensor:
        """Each query's weights [..., J], summed over the keys of equal `index`: [..., K], K = `size`."""


class Term:
    """What a method adds to one call. Subclasses override what they contribute and keep their tensors as attributes.

    The query's weights are softmax(λ q·k + Σ energies) over the visible keys; its output is Σ weight · value, plus the
    value terms. In a layer with an area of heads a term treats keys of one position alike, whatever their head.
    """

    def visible(self, cells: Cells) -> torch.Tensor:
        """Whether the query sees the key; boolean."""
        raise NotImplementedError

    def energy(self, cells: Cells) -> torch.Tensor:
        """Added to the energy before the softmax, float32 (or better)."""
        raise NotImplementedError

    def value(self, cells: Cells, weights: torch.Tensor) -> torch.Tensor:
        """Added to the output, [..., I, D].

        Args:
            cells: Where the weights are.
            weights: [..., I, J], after the dropout, summed over the heads of the area.
        """
        raise NotImplementedError

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        """Raise `ValueError` unless the term's tensors fit a call of these sizes."""

    @property
    def has_visibility(self) -> bool:
        """Whether the term restricts who is seen."""
        return type(self).visible is not Term.visible

    @property
    def has_energy(self) -> bool:
        """Whether the term adds an energy."""
        return type(self).energy is not Term.energy

    @property
    def has_value(self) -> bool:
        """Whether the term adds to the output; it then needs the weights, which fused kernels do not give."""
        return type(self).value is not Term.value

    @property
    def shared_visibility(self) -> Hashable | None:
        """What `visible` depends on beside the cells, for layers to share a mask; None = it is this layer's own.

        Shared are terms whose attributes are all plain values; whatever else one holds may hold tensors, or change.
        """
        attributes = self._attributes
        if not all(isinstance(value, _PLAIN_VALUES) for value in attributes.values()):
            return None
        return (type(self), *sorted((name, type(value), value) for name, value in attributes.items()))

    @property
    def focus(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Where a query looks by itself, and how widely, whatever the keys; None where the term does not say.

        Returns:
            Position of the middle and width, in tokens, [B, H, I] or broadcastable to it.
        """
        return None

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient is wanted for one of the term's tensors."""
        return any(isinstance(value, torch.Tensor) and value.requires_grad for value in self._attributes.values())

    @property
    def _attributes(self) -> dict[str, Any]:
        """What the term holds, in slots, too."""
        slots = [name for base in type(self).__mro__ for name in base.__dict__.get("__slots__", ())]
        return {name: getattr(self, name) for name in (*self.__dict__, *slots) if hasattr(self, name)}


_PLAIN_VALUES = (bool, int, float, str, type(None))


@dataclass
class DenseBias(Term):
    """An energy given for every pair; -inf = the query does not see the key.

    Attributes:
        bias: Broadcastable to [B, H, I, J].
    """

    bias: torch.Tensor

    def visible(self, cells: Cells) -> torch.Tensor:
        """Whether the pair's entry is above -inf, so that a row of them gives zeros and not NaN."""
        return ~torch.isneginf(cells.of_pair(self.bias.detach()))

    def energy(self, cells: Cells) -> torch.Tensor:
        """The pair's entry; finite where the pair is hidden anyway."""
        entries = cells.of_pair(self.bias)
        return entries.masked_fill(torch.isneginf(entries), 0.0)

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        """See `Term`."""
        check_broadcast(self.bias, (batch, heads, queries, keys), "bias", any_rank=True)


@dataclass(frozen=True)
class TermInputs:
    """What a term is computed from, once per layer and forward.

    Attributes:
        query: [B, H, I, D], not scaled.
        key: [B, H, J, D]: the keys that there are. Those that a cache has dropped are missing, unless the method
            `needs_all_keys`.
        key_padding_mask: [B, J] boolean, True = a real token; None = all real.
        positions: Where queries and keys stand.
        causal: Whether queries see earlier keys alone; they are then the last I of the J positions.
        scale: Factor λ of the dot products.
    """

    query: torch.Tensor
    key: torch.Tensor
    key_padding_mask: torch.Tensor | None
    positions: Positions
    causal: bool
    scale: float

    @property
    def query_positions(self) -> torch.Tensor:
        """[B or 1, I]."""
        return self.positions.queries(self.query.shape[2], self.query.device)

    @property
    def key_positions(self) -> torch.Tensor:
        """[B or 1, J]."""
        return self.positions.keys(self.key.shape[2], self.key.device)

    @property
    def visible_length(self) -> torch.Tensor:
        """Number L of real tokens that a query may see, [B or 1, 1, I or 1] float32: a prefix in a causal layer."""
        if self.causal:
            return (self.query_positions + 1).float()[:, None, :]
        if self.key_padding_mask is None:
            return torch.full((1, 1, 1), float(self.key.shape[2]), device=self.query.device)
        return self.key_padding_mask.sum(dim=-1).float()[:, None, None]


def check_broadcast(tensor: torch.Tensor, expected: tuple[int, ...], name: str, any_rank: bool = False) -> None:
    """Raise `ValueError` unless a floating `tensor` broadcasts to `expected`, a prefix of [B, H, I, J].

    Args:
        tensor: The tensor.
        expected: The sizes.
        name: What the message calls it.
        any_rank: Whether leading axes may be missing.
    """
    if not tensor.is_floating_point():
        raise ValueError(f"`{name}` is added to the energies and must be a floating tensor, got {tensor.dtype}.")
    fits = tensor.dim() == len(expected) or (any_rank and tensor.dim() < len(expected))
    sizes = zip(reversed(tensor.shape), reversed(expected), strict=False)
    if not fits or any(size not in (1, wanted) for size, wanted in sizes):
        axes = ", ".join(("batch", "heads", "queries", "keys")[: len(expected)])
        raise ValueError(f"`{name}` must broadcast to [{axes}] = {list(expected)}, got {list(tensor.shape)}.")


def at_least_float32(values: torch.Tensor) -> torch.Tensor:
    """`values` in float32, or float64 where they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def gather_rows(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Entries `index` [..., I, J] of rows [..., I, K], leading axes broadcast: [..., I, J]."""
    shape = torch.broadcast_shapes(rows.shape[:-1], index.shape[:-1])
    return rows.expand(*shape, -1).gather(-1, index.expand(*shape, -1))


def sum_rows(weights: torch.Tensor, index: torch.Tensor, size: int) -> torch.Tensor:
    """Sums of `weights` [..., I, J] over equal `index`, broadcastable to it: [..., I, size]."""
    sums = weights.new_zeros(*weights.shape[:-1], size)
    return sums.scatter_add(-1, index.expand_as(weights), weights)


class DenseCells:
    """All cells of a call, or those of a chunk of its queries: [B or 1, H or 1, I, J], I the queries of the chunk.

    Attributes:
        query_position: [B or 1, 1, I, 1].
        key_position: [B or 1, 1, 1, J].
        distance: [I, J]; the queries are the last of the J positions.
        head: [H, 1, 1].
    """

    def __init__(
        self,
        num_heads: int,
        query_length: int,
        key_length: int,
        positions: Positions,
        device: Any = None,
        chunk: slice | None = None,
    ) -> None:
        self.chunk = chunk
        self.query_position = self._rows(positions.queries(query_length, device)[:, None, :], -1).unsqueeze(-1)
        self.key_position = positions.keys(key_length, device)[:, None, None, :]
        queries = torch.arange(key_length - query_length, key_length, device=device)
        self.distance = torch.arange(key_length, device=device)[None, :] - self._rows(queries, 0)[:, None]
        self.head = torch.arange(num_heads, device=device)[:, None, None]

    def of_query(self, values: torch.Tensor) -> torch.Tensor:
        """[B or 1, H or 1, I or 1, 1]."""
        return self._rows(values, -1).unsqueeze(-1)

    def of_pair(self, values: torch.Tensor) -> torch.Tensor:
        """[..., I or 1, J or 1]."""
        return self._rows(values, -2) if values.dim() > 1 else values

    def look_up(self, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """[B, H, I, J]."""
        return gather_rows(self._rows(table, -2), index)

    def _rows(self, values: torch.Tensor, axis: int) -> torch.Tensor:
        """The chunk's entries on the axis of the queries, which may be 1."""
        if self.chunk is None or values.shape[axis] == 1:
            return values
        return values.narrow(axis, self.chunk.start, self.chunk.stop - self.chunk.start)

    def sum_by(self, weights: torch.Tensor, index: torch.Tensor, size: int) -> torch.Tensor:
        """[B, H, I, K]."""
        return sum_rows(weights, index, size)
