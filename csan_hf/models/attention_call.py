# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""One validated call of local attention, and what its backends share.

Query (h, i) attends jointly to the keys (s, j) of its `KeyArea`, as far as padding and the terms let it.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from .key_area import KeyArea, check_head_area, check_window
from .locality import Cells, DenseBias, Positions, Term

_Made = TypeVar("_Made")


class SharedMasks:
    """Masks, positions and block structures that the layers of one forward have in common.

    The calls of one forward that hold it must agree in padding and positions wherever they have as many queries and
    keys; see `AttentionCall.once`.
    """

    def __init__(self) -> None:
        self.made: dict[Hashable, Any] = {}


@dataclass(frozen=True)
class AttentionCall:
    """One validated call.

    Attributes:
        query: [B, H, I, D].
        key: [B, H, J, D].
        value: [B, H, J, D].
        area: Window, heads and direction.
        terms: What the locality methods add.
        key_padding_mask: [B, J] boolean, True = a real token; None = all real.
        positions: Where queries and keys stand in their sentences.
        scale: Factor λ of the dot products.
        dropout_p: Probability of dropping an attention weight.
        shared: What other layers of the forward have made already.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    area: KeyArea
    terms: tuple[Term, ...]
    key_padding_mask: torch.Tensor | None
    positions: Positions
    scale: float
    dropout_p: float
    shared: SharedMasks = field(default_factory=SharedMasks)

    def once(self, name: Hashable, make: Callable[[], _Made]) -> _Made:
        """Return `make()`, computed once for all layers of a forward pass in which queries see the same keys.

        Args:
            name: Name of what is made. The result may depend on nothing but this, the sizes, the area and the
                visibility terms. Where a visibility term holds tensors of its own layer, nothing is shared.
            make: Computes the result, which must take no part in gradients.
        """
        visibility = tuple(term.shared_visibility for term in self.visibility_terms)
        # A compiled program finds equal computations by itself.
        if torch.compiler.is_compiling() or None in visibility:
            return make()
        sizes = (*self.query.shape[:3], self.key.shape[2], self.query.device)
        key = (name, self.area, sizes, visibility)
        if key not in self.shared.made:
            self.shared.made[key] = make()
        made: _Made = self.shared.made[key]
        return made

    @property
    def energy_terms(self) -> list[Term]:
        """The terms that add an energy."""
        return [term for term in self.terms if term.has_energy]

    @property
    def visibility_terms(self) -> list[Term]:
        """The terms that restrict who is seen."""
        return [term for term in self.terms if term.has_visibility]

    @property
    def value_terms(self) -> list[Term]:
        """The terms that add to the output."""
        return [term for term in self.terms if term.has_value]

    @property
    def terms_require_grad(self) -> bool:
        """Whether gradients flow into a term."""
        return any(term.requires_grad for term in self.terms)


def make_call(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    area: KeyArea,
    *,
    terms: Sequence[Term] = (),
    key_padding_mask: torch.Tensor | None = None,
    positions: Positions | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    shared: SharedMasks | None = None,
) -> AttentionCall:
    """A validated call; see `AttentionCall` and `local_attention`.

    Raises:
        ValueError: An argument is out of range or has another shape; the message names it.
    """
    _check_shapes(query, key, value)
    batch, num_heads, query_length, head_dim = query.shape
    key_length = key.shape[2]
    check_window(area.window)
    check_head_area(area.head_area, num_heads, area.head_boundary)
    if area.causal and query_length > key_length:
        raise ValueError(
            f"`causal` attention needs at least as many keys as queries (the queries are the last positions), "
            f"got {query_length} queries and {key_length} keys."
        )
    if area.window is not None and not area.causal and query_length != key_length:
        raise ValueError(
            f"`window` without `causal` needs as many keys as queries (self-attention), got {query_length} "
            f"queries and {key_length} keys."
        )
    if key_padding_mask is not None:
        _check_padding_mask(key_padding_mask, key)
    for term in terms:
        term.check(batch, num_heads, query_length, key_length)
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"`dropout_p` must be between 0 and 1, got {dropout_p}.")
    if positions is None:
        positions = Positions(key_length - query_length if area.causal else 0)
    if scale is None:
        scale = head_dim**-0.5
    return AttentionCall(
        query,
        key,
        value,
        area,
        tuple(terms),
        key_padding_mask,
        positions,
        scale,
        dropout_p,
        SharedMasks() if shared is None else shared,
    )


def as_terms(bias: torch.Tensor | Term | None) -> tuple[Term, ...]:
    """The terms that a `bias` argument stands for: none, a given term, or a `DenseBias` of a tensor."""
    if bias is None:
        return ()
    return (bias,) if isinstance(bias, Term) else (DenseBias(torch.atleast_1d(bias)),)


def _check_shapes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise ValueError(
                f"`{name}` must have 4 dimensions [batch, heads, length, width], got {list(tensor.shape)}."
            )
    if key.shape[:3] != value.shape[:3] or query.shape[:2] != key.shape[:2] or query.shape[3] != key.shape[3]:
        raise ValueError(
            f"`query` {list(query.shape)}, `key` {list(key.shape)} and `value` {list(value.shape)} must agree in "
            f"batch, heads and width, and key and value in length."
        )


def _check_padding_mask(mask: torch.Tensor, key: torch.Tensor) -> None:
    expected = (key.shape[0], key.shape[2])
    if mask.dtype != torch.bool:
        raise ValueError(f"`key_padding_mask` must be boolean (True = a real token), got {mask.dtype}.")
    if tuple(mask.shape) != expected:
        raise ValueError(
            f"`key_padding_mask` must have shape [batch, keys] = {list(expected)}, got {list(mask.shape)}."
        )


# --- what the backends share -------------------------------------------------------------------------------------


def dot_products_in_float32(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The products of queries [..., I, D] and keys [..., J, D] in float32 or better; finite for float16, too."""
    energies = torch.matmul(query, key.transpose(-1, -2))
    if energies.dtype == torch.float16:
        limits = torch.finfo(torch.float16)
        energies = energies.clamp(limits.min, limits.max)
    return energies.to(torch.promote_types(energies.dtype, torch.float32))


def softmax_weights(
    call: AttentionCall,
    query: torch.Tensor,
    key: torch.Tensor,
    hidden: torch.Tensor | None,
    added: torch.Tensor | None,
) -> torch.Tensor:
    """Weights [..., I, J] of keys [..., J, D] for queries [..., I, D], in float32 or better.

    `added` goes to the energies; what is `hidden` gets no weight.
    """
    energies = dot_products_in_float32(query * call.scale, key)
    if added is not None:
        energies = energies + added
    if hidden is not None:
        energies = energies.masked_fill_(hidden, float("-inf"))  # in place: nobody else holds the energies
    return torch.softmax(energies, dim=-1)


def sum_energies(call: AttentionCall, cells: Cells) -> torch.Tensor | None:
    """The energies of all terms for these cells, broadcastable to the cells' shape."""
    total = None
    for term in call.energy_terms:
        energy = term.energy(cells)
        total = energy if total is None else total + energy
    return total


def restrict(visible: torch.Tensor | None, call: AttentionCall, cells: Cells) -> torch.Tensor | None:
    """`visible`, narrowed to what every visibility term allows; None = all cells are visible."""
    for term in call.visibility_terms:
        seen = term.visible(cells)
        visible = seen if visible is None else visible & seen
    return visible


def add_values(output: torch.Tensor, call: AttentionCall, cells: Cells, weights: torch.Tensor) -> torch.Tensor:
    """`output` [..., I, D] with the value terms of `weights` [..., I, N * J]."""
    if not call.value_terms:
        return output
    if call.area.head_area > 1:
        weights = weights.unflatten(-1, (call.area.head_area, -1)).sum(dim=-2)
    for term in call.value_terms:
        output = output + term.value(cells, weights)
    return output


def zero_fully_masked_rows(output: torch.Tensor, fully_masked: torch.Tensor | None) -> torch.Tensor:
    """`output` [..., I, D], zero for the queries that see no key (`fully_masked` [..., I, 1])."""
    return output if fully_masked is None else output.masked_fill(fully_masked, 0.0)


def open_fully_masked_rows(visible: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mask [..., I, J] with empty rows set to True (their softmax would be NaN), and which rows those are."""
    fully_masked = ~visible.any(dim=-1, keepdim=True)
    return visible | fully_masked, fully_masked
