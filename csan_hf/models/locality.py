# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What is local in a layer: `LayerLocality`, and the interface and registry of the locality methods.

`CsanConfig.layer_locality(part, index)` returns the `LayerLocality` of one attention, None where it is full; nothing
else says what is local. It is made from a specification such as `{"window": 11, "head_area": 3}`: names of methods and
their settings (one value = the first setting).

A method is a frozen dataclass, a subclass of `LocalityMethod`; its fields are the settings, and it overrides what it
gives. Methods of one layer compose: windows intersect, visibility is the conjunction, energies and values add up.
Once per layer and forward, every method gives its `Term`, a formula over the cells (query, key) of a backend:

    class Neighbours(Term):
        def visible(self, cells):
            return (cells.distance.abs() <= 2) | (cells.head == 0)

Shapes: B batch, H heads, I queries, J keys, D head width, N heads in the area, R blocks of queries. Masks are boolean,
True = visible.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

PARTS = ("encoder", "decoder", "cross")
"""Self-attention of the encoder, self-attention of the decoder, attention of the decoder to the encoder."""

_NAMES = {
    "encoder": "the encoder's self-attention",
    "decoder": "the decoder's self-attention",
    "cross": "cross-attention",
}

# --- geometry: windows of positions, areas of heads (Yang et al., NAACL 2019, equations 4-6) ---------------------

MOST_TOKENS = 2**31 - 1
"""The longest distance, window or width in tokens: beyond any sentence, and a number that every tensor can hold."""
HEAD_BOUNDARIES = ("mask", "circular")


@dataclass(frozen=True)
class KeyArea:
    """The rectangle of keys around a query, by which backends compute.

    Attributes:
        window: Total width M in tokens, both edges included (odd); `None` is unrestricted. A query at position
            i sees keys at |j - i| <= (M - 1) / 2.
        head_area: Number N of neighbouring heads attended to jointly (odd, at most 2H - 1); 1 is the own head.
        head_boundary: `"mask"`, heads outside 0..H-1 are not visible, or `"circular"`, heads wrap modulo H.
        causal: Whether keys after the query are invisible.
    """

    window: int | None = None
    head_area: int = 1
    head_boundary: str = "mask"
    causal: bool = False

    @property
    def half_window(self) -> int | None:
        """Tokens m visible on each side of the query, (M - 1) / 2."""
        return None if self.window is None else (self.window - 1) // 2

    @property
    def half_area(self) -> int:
        """Heads n visible on each side of the query's own, (N - 1) / 2."""
        return (self.head_area - 1) // 2


def check_window(window: int | None, name: str = "window") -> None:
    """Raise `ValueError` unless `window` is `None` or an odd number of tokens of at least 1."""
    if window is not None:
        check_number(window, name, "None or an odd number of tokens (the total width, both edges included)")
        if window % 2 == 0:
            raise ValueError(f"`{name}` must be an odd number of tokens (both edges included), got {window}.")


def check_head_area(head_area: int, num_heads: int | None, boundary: str, name: str = "head_area") -> None:
    """Raise `ValueError` unless the area fits `num_heads` heads (None: any number) under the given boundary."""
    if boundary not in HEAD_BOUNDARIES:
        raise ValueError(f"`head_boundary` must be one of {list(HEAD_BOUNDARIES)}, got {boundary!r}.")
    if isinstance(head_area, bool) or not isinstance(head_area, int) or head_area < 1 or head_area % 2 == 0:
        raise ValueError(f"`{name}` must be an odd number of heads, at least 1, got {head_area!r}.")
    if num_heads is not None and head_area > 2 * num_heads - 1:
        most = f"{2 * num_heads - 1} (2H - 1 for H = {num_heads} heads)"
        raise ValueError(f"`{name}` must be at most {most}, got {head_area}.")
    if num_heads is not None and boundary == "circular" and head_area > num_heads:
        most = f"the number of heads ({num_heads}) with head_boundary='circular'"
        raise ValueError(f"`{name}` must be at most {most}, got {head_area}.")


def within_window(distance: torch.Tensor, area: KeyArea) -> torch.Tensor:
    """Whether a key at `distance` (key position minus query position, any shape) is in the query's reach."""
    visible = torch.ones_like(distance, dtype=torch.bool)
    if area.half_window is not None:
        visible = distance.abs() <= area.half_window
    if area.causal:
        visible = visible & (distance <= 0)
    return visible


def visible_heads(num_heads: int, area: KeyArea, device: torch.device | None = None) -> torch.Tensor | None:
    """Which of the N neighbour slots of each head hold a head, [H, N]; `None` where all of them do."""
    if area.half_area == 0 or area.head_boundary == "circular":
        return None
    offsets = torch.arange(-area.half_area, area.half_area + 1, device=device)
    neighbours = torch.arange(num_heads, device=device)[:, None] + offsets[None, :]
    return (neighbours >= 0) & (neighbours < num_heads)


def pad_heads(states: torch.Tensor, area: KeyArea) -> torch.Tensor:
    """Put the heads beyond both boundaries in place: [B, H, J, D] -> [B, H + 2n, J, D], zeros or wrapped heads."""
    n = area.half_area
    if n == 0:
        return states
    if area.head_boundary == "circular":
        return torch.cat([states[:, -n:], states, states[:, :n]], dim=1)
    return F.pad(states, (0, 0, 0, 0, n, n))


def repeat_over_area(per_position: torch.Tensor, area: KeyArea) -> torch.Tensor:
    """[..., J] -> [..., N * J]: the same for every head of the area."""
    if area.head_area == 1:
        return per_position
    repeated = per_position.unsqueeze(-2)
    return repeated.expand(*repeated.shape[:-2], area.head_area, -1).flatten(-2)


# --- what a term sees, and what it says --------------------------------------------------------------------------


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
        """Whether the query sees the key; boolean, broadcastable to the cells (it may be the same for all keys)."""
        raise NotImplementedError

    def energy(self, cells: Cells) -> torch.Tensor:
        """Added to the energy before the softmax, float32 (or better)."""
        raise NotImplementedError

    def value(self, cells: Cells, weights: torch.Tensor) -> torch.Tensor:
        """Added to the output, [..., I, D]; `weights` [..., I, J] have seen dropout and are summed over the area."""
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
        if not all(isinstance(value, bool | int | float | str | None) for value in attributes.values()):
            return None
        return (type(self), *sorted((name, type(value), value) for name, value in attributes.items()))

    @property
    def focus(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Middle and width of where a query looks whatever the keys, in tokens [B, H, I]; None = not said."""
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
    """Raise `ValueError` unless a floating `tensor` broadcasts to the sizes `expected`, a prefix of [B, H, I, J].

    Messages call it `name`; with `any_rank` leading axes may be missing.
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


@dataclass(frozen=True)
class AttentionSite:
    """The attention that a method is asked about.

    Attributes:
        part: `"encoder"`, `"decoder"` or `"cross"`.
        index: Layer, counted from 0.
        num_heads: Heads H.
        d_model: Width d of the model.
        dropout: Dropout after the model's sub-layers, for layers of a method's own.
    """

    part: str
    index: int
    num_heads: int
    d_model: int
    dropout: float = 0.0

    @property
    def is_causal(self) -> bool:
        """Whether queries see earlier keys alone."""
        return self.part == "decoder"

    @property
    def head_dim(self) -> int:
        """Width D of a head."""
        return self.d_model // self.num_heads


class LocalityModule(nn.Module):
    """Parameters of a method in one layer.

    Linear layers, convolutions and embeddings inside are initialised as everywhere in the model. A module with
    parameters of its own must initialise them in `init_weights`.
    """

    def init_weights(self, config: Any) -> None:
        """Fill the module's own parameters, through `transformers.initialization` (which spares loaded ones)."""


@dataclass(frozen=True)
class LocalityMethod:
    """One locality method with its settings, the fields of the subclass. See the table at the head of the file.

    Attributes:
        key: Name in specifications.
        module_name: Name of its parameters in the attention module (state dict); `None` = the key.
        parts: Where it has a meaning.
        replaces_attention: Whether `attend` takes the place of the whole attention.
        presets: Names of `CsanConfig.preset` and the fields that they set. `encoder_locality` there is one
            specification, that of the lowest three encoder layers.
    """

    key: ClassVar[str]
    module_name: ClassVar[str | None] = None
    parts: ClassVar[tuple[str, ...]] = PARTS
    replaces_attention: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @property
    def window(self) -> int | None:
        """Window M of the layer in tokens, both edges included (odd); `None` = unrestricted."""
        return None

    @property
    def heads(self) -> tuple[int, str]:
        """Heads N attended to jointly (odd), and the boundary, `"mask"` or `"circular"`."""
        return 1, "mask"

    @property
    def has_effect(self) -> bool:
        """Whether these settings change anything; a method that does not is left out of the layer."""
        return True

    @property
    def needs_all_keys(self) -> bool:
        """Whether a decoding step needs the keys of all earlier positions, whatever the window."""
        return False

    def check(self, site: AttentionSite, name: str) -> None:
        """Raise `ValueError` where the settings, in messages `name` (`encoder_locality[2].window`), are impossible."""

    def check_beside(self, others: tuple[LocalityMethod, ...], name: str) -> None:
        """Raise `ValueError` where the method has no meaning beside others of the layer; `name` as in `check`."""

    def build(self, site: AttentionSite) -> LocalityModule | None:
        """The method's parameters in one layer."""
        return None

    def term(self, module: Any, inputs: TermInputs) -> Term | None:
        """What the method adds to one call; `module` is what `build` returned."""
        return None

    def before(self, module: Any, states: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """What comes before the sub-layer, residual connections of its own included: [B, T, d] -> [B, T, d].

        `padding` [B, T] is boolean, True = a real token; None = all real.
        """
        return states

    def attend(
        self, module: Any, states: torch.Tensor, padding: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The replacement of the attention: output [B, T, d], weights [B, H, T, T] or None = zeros; see `before`."""
        raise NotImplementedError

    @property
    def has_term(self) -> bool:
        """Whether the method adds a term."""
        return type(self).term is not LocalityMethod.term

    @property
    def has_before(self) -> bool:
        """Whether something comes before the sub-layer."""
        return type(self).before is not LocalityMethod.before


@dataclass(frozen=True)
class LayerLocality:
    """What is local in one attention; the other attributes follow from `part` and `methods`.

    Attributes:
        part: `"encoder"`, `"decoder"` or `"cross"`.
        methods: The methods, in the order of the registry.
        area: Window and area of heads of all methods together.
        past_tokens: Earlier keys that a decoding step needs: half the window, or None = all.
        has_terms: Whether any method adds a term.
        replacement: The method that takes the place of the attention, or None.
    """

    part: str
    methods: tuple[LocalityMethod, ...]
    area: KeyArea = dataclasses.field(init=False, compare=False, repr=False)
    past_tokens: int | None = dataclasses.field(init=False, compare=False, repr=False)
    has_terms: bool = dataclasses.field(init=False, compare=False, repr=False)
    replacement: LocalityMethod | None = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        windows = [method.window for method in self.methods if method.window is not None]
        heads, boundary = max((method.heads for method in self.methods), default=(1, "mask"))
        area = KeyArea(min(windows, default=None), heads, boundary, causal=self.part == "decoder")
        all_keys = any(method.needs_all_keys for method in self.methods)
        vars(self).update(
            area=area,
            past_tokens=None if all_keys else area.half_window,
            has_terms=any(method.has_term for method in self.methods),
            replacement=next((method for method in self.methods if method.replaces_attention), None),
        )


def layer_locality(specification: Mapping[str, Any], site: AttentionSite, name: str) -> LayerLocality | None:
    """The locality that a specification asks for, None where it asks for nothing; messages call it `name`.

    Raises:
        ValueError: A method is not registered, a setting is impossible, or the methods have no meaning together.
    """
    if not isinstance(specification, Mapping):
        raise ValueError(f"`{name}` must be None or map locality methods to their settings, got {specification!r}.")
    for key in specification:
        if key not in _REGISTRY:
            close = difflib.get_close_matches(str(key), _REGISTRY, n=1)
            own = f"register a method of your own first, with `register_locality` of {__name__}."
            raise ValueError(
                f"`{name}` names {key!r}, which is no registered locality method ({', '.join(_REGISTRY)}): "
                f"{f'did you mean {close[0]!r}?' if close else own}"
            )
    methods = []
    for key, method_class in _REGISTRY.items():
        if key in specification:
            method = _from_setting(method_class, specification[key], f"{name}.{key}")
            if site.part not in method.parts:
                where = " and ".join(_NAMES[part] for part in method.parts)
                raise ValueError(f"`{name}.{key}` has no meaning in {_NAMES[site.part]}; it applies to {where}.")
            method.check(site, f"{name}.{key}")
            methods += [method] if method.has_effect else []
    replacing = [method.key for method in methods if method.replaces_attention]
    if replacing and len(methods) > 1:
        beside = ", ".join(repr(method.key) for method in methods if method.key != replacing[0])
        raise ValueError(f"`{name}`: {replacing[0]!r} replaces the attention and cannot be combined with {beside}.")
    for method in methods:
        others = tuple(other for other in methods if other is not method)
        method.check_beside(others, f"{name}.{method.key}")
    return LayerLocality(site.part, tuple(methods)) if methods else None


def _from_setting(method_class: type[LocalityMethod], value: Any, name: str) -> LocalityMethod:
    """The method with the settings that `value` holds: a mapping, the first alone, or True for the defaults."""
    fields = {field.name: field for field in dataclasses.fields(method_class)}
    if isinstance(value, Mapping):
        settings = dict(value)
    elif value is True and all(field.default is not dataclasses.MISSING for field in fields.values()):
        settings = {}
    elif fields:
        settings = {next(iter(fields)): value}
    else:
        raise ValueError(f"`{name}` has no settings and must be True, got {value!r}.")
    for setting in settings:
        if setting not in fields:
            close = difflib.get_close_matches(str(setting), fields, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(fields) or 'none'}."
            raise ValueError(f"`{name}` has no setting {setting!r}: {hint}")
    missing = [key for key, field in fields.items() if key not in settings and field.default is dataclasses.MISSING]
    if missing:
        raise ValueError(f"`{name}` needs the setting {missing[0]!r}.")
    return method_class(**settings)


def check_number(
    value: Any, name: str, what: str, least: float = 1, most: float = MOST_TOKENS, kinds: Any = int
) -> None:
    """Raise `ValueError` unless a setting is a number from `least` to `most`; `what` is its unit in the message."""
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
        raise ValueError(f"`{name}` must be {what} from {least:g} to {most}, got {value!r}.")


# --- registry ----------------------------------------------------------------------------------------------------

_REGISTRY: dict[str, type[LocalityMethod]] = {}
_RESERVED = ("k_proj", "v_proj", "q_proj", "out_proj", "config", "locality", "training", "forward")

_Method = TypeVar("_Method", bound=type[LocalityMethod])


def register_locality(method_class: _Method) -> _Method:
    """Make a method known to specifications by its `key`. Usable as a decorator; later ones come later in a layer.

    Raises:
        ValueError: Its key or the name of its parameters is taken.
    """
    key, module_name = method_class.key, parameters_name(method_class)
    known = _REGISTRY.get(key)
    if known is not None and known is not method_class:
        raise ValueError(
            f"The locality method {key!r} is registered already: {known.__module__}.{known.__qualname__}."
        )
    taken = [other.key for other in _REGISTRY.values() if other.key != key and parameters_name(other) == module_name]
    if taken or module_name in _RESERVED or not module_name.isidentifier():
        by = f"taken by {taken[0]!r}" if taken else "not possible"
        raise ValueError(f"The locality method {key!r} calls its parameters {module_name!r}, which is {by}.")
    for field in dataclasses.fields(method_class):
        if hasattr(LocalityMethod, field.name):
            raise ValueError(f"The locality method {key!r} has a setting {field.name!r}, a name of the interface.")
    _REGISTRY[key] = method_class
    return method_class


def unregister_locality(key: str) -> None:
    """Forget a registered method."""
    del _REGISTRY[key]


def parameters_name(method: LocalityMethod | type[LocalityMethod]) -> str:
    """What the method's parameters are called in the attention module."""
    return method.module_name or method.key


def locality_presets() -> dict[str, Mapping[str, Any]]:
    """The presets of all registered methods."""
    return {name: fields for method in _REGISTRY.values() for name, fields in method.presets.items()}
