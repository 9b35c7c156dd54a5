# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The locality of a layer, `LayerLocality`, and the interface and registry of the locality methods.

`CsanConfig.layer_locality(part, index)`, the only rule of what is local where, returns the
`LayerLocality` of an attention, None for full attention. It follows from a specification such as
`{"window": 11, "head_area": 3}`: names of methods and their settings (a value = the first setting).

A method is a frozen dataclass, a subclass of `LocalityMethod`; its fields are the settings. Methods
of one layer compose: windows intersect, visibility is the conjunction, energies and values add up.
Once per layer and forward pass, every method gives its `Term`, a formula over the cells (query,
key) of a backend:

    class Neighbours(Term):
        def visible(self, cells):
            return (cells.distance.abs() <= 2) | (cells.head == 0)

`LOCALITY_METHODS` in locality_methods.py lists the methods of the package.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from torch import nn

from .attention_call import AttentionCall, KeyArea
from .configuration_seq2seq import check_fields, did_you_mean

PARTS = {
    "encoder": "the encoder's self-attention",
    "decoder": "the decoder's self-attention",
    "cross": "cross-attention",
}
"""The kinds of attention, and their names in messages; cross-attention is the decoder's to the
encoder.
"""


def check_head_area(head_area: int, num_heads: int, boundary: str, name: str = "head_area") -> None:
    """Raise `ValueError` where the area is too large for `num_heads` heads under a boundary."""
    if boundary == "circular":
        limit = "H"
        most = num_heads
    else:
        limit = "2H - 1"
        most = 2 * num_heads - 1
    if head_area > most:
        raise ValueError(
            f"`{name}` must be at most {limit} of H = {num_heads} heads, {most}, got {head_area}."
        )


# --- methods


@dataclass(frozen=True)
class AttentionSite:
    """The place and sizes of an attention: part, layer `index` from 0, heads H, width d.

    `dropout` is the model's dropout after sub-layers, for a method's own layers.
    """

    part: str
    index: int
    num_heads: int
    d_model: int
    dropout: float = 0.0

    @property
    def is_causal(self) -> bool:
        """Whether queries see no later keys."""
        return self.part == "decoder"

    @property
    def head_dim(self) -> int:
        """Width D of a head."""
        return self.d_model // self.num_heads


class LocalityModule(nn.Module):
    """A method's module with parameters; `nn.Linear` and other layers inside are initialised as in
    the model.
    """

    def init_weights(self, config: Any) -> None:
        """Fill the module's own parameters, through `transformers.initialization` (which spares
        loaded ones).
        """


@dataclass(frozen=True)
class LocalityMethod:
    """A locality method with its settings, the fields of the subclass (with bounds: `bounded`).

    With a true setting `shared`, layers of a part with equal settings have the same parameters.

    A subclass overrides any of these; `module` is the result of `build`, `padding` [B, T] boolean,
    True = a real token:

        term(module, call): The `Term` of an `AttentionCall`, which has everything but its terms.
        before(module, states, padding): Computed before the sub-layer, with its own residual
            connections: [B, T, d] -> [B, T, d].
        attend(module, states, padding): Replaces the whole attention: output [B, T, d], and weights
            [B, H, T, T] or None = zeros.

    Attributes:
        key: Name in specifications.
        module_name: Name of its parameters in the attention module (state dict); `None` = the key.
        parts: Parts of the model that can use it. With `before` or `attend` that is the encoder
            alone, as neither is passed a cache, a causal mask or the source.
        presets: Names of `CsanConfig.preset` and the fields that they set. `encoder_locality` is
            the specification of the lowest three encoder layers; a list with one specification
            is for every layer of the part.
        window: Window M of the layer in tokens, both edges included (odd); `None` = unrestricted.
        heads: Heads N attended to jointly (odd), and the boundary, `"mask"` or `"circular"`.
        has_effect: Whether the settings change anything; a method without effect is left out.
        needs_all_keys: Whether a decoding step needs the keys of all earlier positions, whatever
            the window.
        phrase: Its description in cards, a format of the method and its `AttentionSite`; None = key
            and settings.
        label: Its part of a model's name; None = the key, "" = none.
        paper: Its paper's key in the bibliography of cards.
        takes_any_length: Whether a model with it is for texts longer than those of training.
        carries_value: Whether it calls `AttentionCall.carried`, for which the decoder's cache has a
            place.
        needs_lines: Whether it calls `AttentionCall.lines`.
    """

    key: ClassVar[str]
    module_name: ClassVar[str | None] = None
    parts: ClassVar[Collection[str]] = tuple(PARTS)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    term: ClassVar[Any] = None
    before: ClassVar[Any] = None
    attend: ClassVar[Any] = None
    window: ClassVar[Any] = None
    heads: ClassVar[Any] = 1, "mask"
    has_effect: ClassVar[Any] = True
    needs_all_keys: ClassVar[Any] = False
    phrase: ClassVar[str | None] = None
    label: ClassVar[str | None] = None
    paper: ClassVar[str | None] = None
    takes_any_length: ClassVar[bool] = False
    carries_value: ClassVar[bool] = False
    needs_lines: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.before is not None or cls.attend is not None:
            cls.parts = ("encoder",)

    def check(self, site: AttentionSite, name: str) -> None:
        """Raise `ValueError` where the settings, in messages `name` (`encoder_locality[2].window`),
        do not fit.
        """

    def conflict(self, other: LocalityMethod) -> str | None:
        """Why the method has no meaning beside another method of the layer, or None."""
        if self.attend is not None:
            return "nothing composes with what replaces the attention"
        return None

    def build(self, site: AttentionSite) -> nn.Module | None:
        """Make the module with the method's parameters in a layer."""
        return None


class ModuleTerm(LocalityMethod):
    """Base of a method whose module computes its term from a call."""

    def term(self, module: Any, call: AttentionCall) -> Any:
        """See `LocalityMethod`."""
        return module(call)


@dataclass(frozen=True)
class LayerLocality:
    """The locality of an attention of a part, by methods in the order of the registry."""

    part: str
    methods: tuple[LocalityMethod, ...]

    @property
    def area(self) -> KeyArea:
        """The keys that all methods together leave visible."""
        windows = [method.window for method in self.methods if method.window is not None]
        head_area, boundary = max(
            (method.heads for method in self.methods), default=LocalityMethod.heads
        )
        return KeyArea(
            window=min(windows, default=None),
            head_area=head_area,
            head_boundary=boundary,
            causal=self.part == "decoder",
        )

    @property
    def past_tokens(self) -> int | None:
        """Earlier keys that a decoding step needs; None = all."""
        needs_all_keys = any(method.needs_all_keys for method in self.methods)
        return None if needs_all_keys else self.area.half_window

    @property
    def replacement(self) -> LocalityMethod | None:
        """The method that replaces the attention."""
        return next((method for method in self.methods if method.attend is not None), None)


def layer_locality(
    specification: Mapping[str, Any], site: AttentionSite, name: str
) -> LayerLocality | None:
    """The locality by a specification, None where it changes nothing; messages call it `name`.

    Raises:
        ValueError: A method is not registered, a setting is impossible, or the methods have no
            meaning together.
    """
    unknown: list[Any] = [specification]
    if isinstance(specification, Mapping):
        unknown = [key for key in specification if key not in _REGISTRY]
    if unknown:
        hint = did_you_mean(unknown[0], _REGISTRY) or (
            " Import your own first: `import FILE`, `csan-hf --import FILE`."
        )
        raise ValueError(
            f"`{name}` must be None or map locality methods ({', '.join(_REGISTRY)}) to their "
            f"settings, got {unknown[0]!r}.{hint}"
        )
    methods = []
    for key, method_class in _REGISTRY.items():
        if key in specification:
            method = _from_setting(method_class, specification[key], f"{name}.{key}")
            if site.part not in method.parts:
                where = " and ".join(PARTS[part] for part in method.parts)
                raise ValueError(
                    f"`{name}.{key}` has no meaning in {PARTS[site.part]}; it applies to {where}."
                )
            check_fields(method, f"{name}.{key}.")
            method.check(site, f"{name}.{key}")
            if method.has_effect:
                methods.append(method)
    for method, neighbour in itertools.permutations(methods, 2):
        reason = method.conflict(neighbour)
        if reason:
            raise ValueError(
                f"`{name}.{method.key}` has no meaning beside {neighbour.key!r}: {reason}."
            )
    return LayerLocality(site.part, tuple(methods)) if methods else None


def _from_setting(method_class: type[LocalityMethod], value: object, name: str) -> LocalityMethod:
    """The method with settings `value`: a mapping, the first setting, or True = the defaults."""
    try:
        if isinstance(value, Mapping):
            return method_class(**value)
        return method_class() if value is True else method_class(value)  # type: ignore[call-arg]
    except TypeError as error:  # of the dataclass: an unknown, missing or superfluous setting
        settings = ", ".join(field.name for field in dataclasses.fields(method_class))
        raise ValueError(
            f"`{name}` is {value!r}, but its settings are {settings or 'none: it is True'} "
            f"({error})."
        ) from None


# --- registry

_REGISTRY: dict[str, type[LocalityMethod]] = {}

_Method = TypeVar("_Method", bound=type[LocalityMethod])


def register_locality(method_class: _Method) -> _Method:
    """Decorator that makes a method known by its `key`, after those before it.

    Raises:
        ValueError: The key is taken.
    """
    key = method_class.key
    registered = _REGISTRY.setdefault(key, method_class)
    if registered is not method_class:
        raise ValueError(
            f"The locality method {key!r}: the key is taken by {registered.__qualname__}."
        )
    return method_class


def parameters_name(method: LocalityMethod | type[LocalityMethod]) -> str:
    """The name of the method's parameters in the attention module."""
    return method.module_name or method.key


def method_classes() -> list[type[LocalityMethod]]:
    """The registered methods, in the order in which a layer applies them."""
    return list(_REGISTRY.values())


def locality_presets() -> dict[str, Mapping[str, Any]]:
    """The presets of all registered methods."""
    presets: dict[str, Mapping[str, Any]] = {}
    for method in _REGISTRY.values():
        presets |= method.presets
    return presets
