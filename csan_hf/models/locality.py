# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What is local in a layer: `LayerLocality`, and the interface and registry of the locality
methods.

`CsanConfig.layer_locality(part, index)` returns the `LayerLocality` of one attention, None where it
is full; nothing else says what is local. It is made from a specification such as `{"window": 11,
"head_area": 3}`: names of methods and their settings (one value = the first setting).

A method is a frozen dataclass, a subclass of `LocalityMethod`; its fields are the settings, and it
overrides what it gives. Methods of one layer compose: windows intersect, visibility is the
conjunction, energies and values add up. Once per layer and forward, every method gives its `Term`,
a formula over the cells (query, key) of a backend:

    class Neighbours(Term):
        def visible(self, cells):
            return (cells.distance.abs() <= 2) | (cells.head == 0)
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from torch import nn

from .attention_call import KeyArea
from .configuration_seq2seq import check_fields

PARTS = {part: f"the {part}'s self-attention" for part in ("encoder", "decoder")} | {
    "cross": "cross-attention"
}
"""Where attention stands, and what messages call it; cross-attention is the decoder's to the
encoder.
"""


def check_head_area(head_area: int, num_heads: int, boundary: str, name: str = "head_area") -> None:
    """Raise `ValueError` where the area is too large for `num_heads` heads under a boundary."""
    most, limit = (num_heads, "H") if boundary == "circular" else (2 * num_heads - 1, "2H - 1")
    if head_area > most:
        raise ValueError(
            f"`{name}` must be at most {limit} of H = {num_heads} heads, {most}, got {head_area}."
        )


# --- methods
# -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionSite:
    """The attention that a method is asked about: part, layer `index` from 0, heads H, width d.

    `dropout` is that after the model's sub-layers, for layers of a method's own.
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
    """A method's module with parameters of its own; layers inside are initialised as everywhere in
    the model.
    """

    def init_weights(self, config: Any) -> None:
        """Fill the module's own parameters, through `transformers.initialization` (which spares
        loaded ones).
        """


@dataclass(frozen=True)
class LocalityMethod:
    """One locality method with its settings, the fields of the subclass (their bounds are declared
    by `bounded`).

    With a true setting `shared`, layers of a part with equal settings have the same parameters. A
    subclass defines those of these that it needs; `module` is what its `build` returned, `padding`
    [B, T] boolean, True = a real token:

        term(module, call): The `Term` of one `AttentionCall`, which has everything but its terms.
        before(module, states, padding): What comes before the sub-layer, residual connections of
            its own included: [B, T, d] -> [B, T, d].
        attend(module, states, padding): What takes the place of the whole attention: output [B, T,
            d], and weights [B, H, T, T] or None = zeros.

    Attributes:
        key: Name in specifications.
        module_name: Name of its parameters in the attention module (state dict); `None` = the key.
        parts: Where it has a meaning.
        presets: Names of `CsanConfig.preset` and the fields that they set. `encoder_locality` there
            is one specification, that of the lowest three encoder layers; a list of one is for
            every layer of the part.
        window: Window M of the layer in tokens, both edges included (odd); `None` = unrestricted.
        heads: Heads N attended to jointly (odd), and the boundary, `"mask"` or `"circular"`.
        has_effect: Whether these settings change anything; a method that does not is left out of
            the layer.
        needs_all_keys: Whether a decoding step needs the keys of all earlier positions, whatever
            the window.
        keeps_a_sum: Whether it calls `AttentionCall.running_sum`, for which the decoder's cache has
            a place.
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
    keeps_a_sum: ClassVar[bool] = False

    def check(self, site: AttentionSite, name: str) -> None:
        """Raise `ValueError` where the settings, in messages `name` (`encoder_locality[2].window`),
        do not fit.
        """

    def conflict(self, other: LocalityMethod) -> str | None:
        """Why the method has no meaning beside another one of the layer, or None."""
        return (
            "nothing composes with what replaces the attention" if self.attend is not None else None
        )

    def build(self, site: AttentionSite) -> nn.Module | None:
        """The method's parameters in one layer."""
        return None


@dataclass(frozen=True)
class LayerLocality:
    """What is local in one attention of a part, by methods in the order of the registry.

    `area` is that of all together, `past_tokens` the earlier keys that a decoding step needs (None
    = all), `replacement` the method that takes the place of the attention."""

    part: str
    methods: tuple[LocalityMethod, ...]
    area: KeyArea = dataclasses.field(init=False, compare=False, repr=False)
    past_tokens: int | None = dataclasses.field(init=False, compare=False, repr=False)
    replacement: LocalityMethod | None = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        windows = [method.window for method in self.methods if method.window is not None]
        heads: tuple[int, Any] = max((method.heads for method in self.methods), default=(1, "mask"))
        area = KeyArea(min(windows, default=None), *heads, self.part == "decoder")
        all_keys = any(method.needs_all_keys for method in self.methods)
        replacement = next((method for method in self.methods if method.attend is not None), None)
        vars(self).update(
            area=area, past_tokens=None if all_keys else area.half_window, replacement=replacement
        )


def layer_locality(
    specification: Mapping[str, Any], site: AttentionSite, name: str
) -> LayerLocality | None:
    """The locality that a specification asks for, None where it asks for nothing; messages call it
    `name`.

    Raises:
        ValueError: A method is not registered, a setting is impossible, or the methods have no
            meaning together.
    """
    is_mapping = isinstance(specification, Mapping)
    unknown = (
        [key for key in specification if key not in _REGISTRY] if is_mapping else [specification]
    )
    if unknown:
        close = difflib.get_close_matches(str(unknown[0]), _REGISTRY, n=1)
        own = f"a method of your own is registered first: `register_locality` of {__name__}, `csan-hf --import FILE`."
        raise ValueError(
            f"`{name}` must be None or map locality methods ({', '.join(_REGISTRY)}) to their "
            f"settings, got {unknown[0]!r}: {f'did you mean {close[0]!r}?' if close else own}"
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
            methods += [method] if method.has_effect else []
    for method in methods:
        for other in methods:
            if other is not method and (reason := method.conflict(other)):
                raise ValueError(
                    f"`{name}.{method.key}` has no meaning beside {other.key!r}: {reason}."
                )
    return LayerLocality(site.part, tuple(methods)) if methods else None


def _from_setting(method_class: type[LocalityMethod], value: Any, name: str) -> LocalityMethod:
    """The method with the settings that `value` holds: a mapping, the first alone, or True for the
    defaults.
    """
    try:
        if isinstance(value, Mapping):
            return method_class(**value)
        return method_class() if value is True else method_class(value)  # type: ignore[call-arg]
    except TypeError as error:  # of the dataclass: a setting is unknown, missing, or one too many
        settings = (
            ", ".join(field.name for field in dataclasses.fields(method_class))
            or "none: it is True"
        )
        raise ValueError(
            f"`{name}` is {value!r}, but its settings are {settings} ({error})."
        ) from None


# --- registry
# ----------------------------------------------------------------------------------------------------

_REGISTRY: dict[str, type[LocalityMethod]] = {}
_RESERVED = ("k_proj", "v_proj", "q_proj", "out_proj")

_Method = TypeVar("_Method", bound=type[LocalityMethod])


def register_locality(method_class: _Method) -> _Method:
    """Make a method known by its `key`, after those before it; a decorator. `ValueError` where a
    name is taken.
    """
    key, module_name = method_class.key, parameters_name(method_class)
    others = [other for other in _REGISTRY.values() if other is not method_class]
    taken = [
        other.__qualname__
        for other in others
        if key == other.key or module_name == parameters_name(other)
    ]
    if taken or module_name in _RESERVED:
        by = taken[0] if taken else "the attention"
        raise ValueError(
            f"The locality method {key!r}, parameters {module_name!r}: the name is taken by {by}."
        )
    _REGISTRY[key] = method_class
    return method_class


def parameters_name(method: LocalityMethod | type[LocalityMethod]) -> str:
    """What the method's parameters are called in the attention module."""
    return method.module_name or method.key


def locality_presets() -> dict[str, Mapping[str, Any]]:
    """The presets of all registered methods."""
    return {
        name: fields for method in _REGISTRY.values() for name, fields in method.presets.items()
    }
