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
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from torch import nn

from .attention_call import KeyArea

_SELF = "the {}'s self-attention"
PARTS = {"encoder": _SELF.format("encoder"), "decoder": _SELF.format("decoder"), "cross": "cross-attention"}
"""Where attention stands, and what messages call it; cross-attention is the decoder's to the encoder."""

MOST_TOKENS = 2**31 - 1
"""The longest distance, window or width in tokens: a number that every tensor can hold."""


def check_window(window: int | None, name: str = "window") -> None:
    """Raise `ValueError` unless `window` is `None` or an odd number of tokens."""
    if window is not None:
        check_number(window, name, "tokens (the total width, both edges included)", odd=True)


def check_head_area(head_area: int, num_heads: int | None, boundary: str, name: str = "head_area") -> None:
    """Raise `ValueError` unless the area fits `num_heads` heads (None: any number) under the given boundary."""
    check_choice(boundary, "head_boundary", ("mask", "circular"))
    most, unit = MOST_TOKENS, "heads"
    if num_heads is not None:
        most, limit = (num_heads, "H") if boundary == "circular" else (2 * num_heads - 1, "2H - 1")
        unit = f"heads (at most {limit} of H = {num_heads})"
    check_number(head_area, name, unit, most=most, odd=True)


def check_number(
    value: Any, name: str, unit: str, least: float = 1, most: float = MOST_TOKENS, kinds: Any = int, odd: bool = False
) -> None:
    """Raise `ValueError` unless a setting is a number from `least` to `most`."""
    if (
        isinstance(value, bool)
        or not isinstance(value, kinds)
        or not least <= value <= most
        or (odd and not value % 2)
    ):
        an_odd = "an odd" if odd else "a"
        raise ValueError(f"`{name}` must be {an_odd} number of {unit} from {least:g} to {most}, got {value!r}.")


def check_choice(value: Any, name: str, choices: Collection[Any]) -> None:
    """Raise `ValueError` unless a setting is one of the choices."""
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {list(choices)}, got {value!r}.")


# --- methods -----------------------------------------------------------------------------------------------------


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
    """A method's module with parameters of its own; layers inside are initialised as everywhere in the model."""

    def init_weights(self, config: Any) -> None:
        """Fill the module's own parameters, through `transformers.initialization` (which spares loaded ones)."""


@dataclass(frozen=True)
class LocalityMethod:
    """One locality method with its settings, the fields of the subclass. See the table at the head of the file.

    A subclass defines those of these that it needs; `module` is what its `build` returned, `padding` [B, T] is
    boolean, True = a real token, None = all real:

        term(module, call): The `Term` of one `AttentionCall`, which has everything but its terms.
        before(module, states, padding): What comes before the sub-layer, residual connections of its own included:
            [B, T, d] -> [B, T, d].
        attend(module, states, padding): What takes the place of the whole attention: output [B, T, d], and weights
            [B, H, T, T] or None = zeros.

    Attributes:
        key: Name in specifications.
        module_name: Name of its parameters in the attention module (state dict); `None` = the key.
        parts: Where it has a meaning.
        presets: Names of `CsanConfig.preset` and the fields that they set. `encoder_locality` there is one
            specification, that of the lowest three encoder layers.
    """

    key: ClassVar[str]
    module_name: ClassVar[str | None] = None
    parts: ClassVar[Collection[str]] = tuple(PARTS)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    term: ClassVar[Any] = None
    before: ClassVar[Any] = None
    attend: ClassVar[Any] = None

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

    def conflict(self, other: LocalityMethod) -> str | None:
        """Why the method has no meaning beside another one of the layer, or None."""
        return "nothing composes with what replaces the attention" if self.attend is not None else None

    def build(self, site: AttentionSite) -> nn.Module | None:
        """The method's parameters in one layer."""
        return None


@dataclass(frozen=True)
class LayerLocality:
    """What is local in one attention of a part, by methods in the order of the registry.

    Attributes:
        area: Window and area of heads of all methods together.
        past_tokens: Earlier keys that a decoding step needs: half the window, or None = all.
        replacement: The method that takes the place of the attention, or None.
    """

    part: str
    methods: tuple[LocalityMethod, ...]
    area: KeyArea = dataclasses.field(init=False, compare=False, repr=False)
    past_tokens: int | None = dataclasses.field(init=False, compare=False, repr=False)
    replacement: LocalityMethod | None = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        windows = [method.window for method in self.methods if method.window is not None]
        heads, boundary = max((method.heads for method in self.methods), default=(1, "mask"))
        area = KeyArea(min(windows, default=None), heads, boundary, causal=self.part == "decoder")
        all_keys = any(method.needs_all_keys for method in self.methods)
        replacement = next((method for method in self.methods if method.attend is not None), None)
        vars(self).update(area=area, past_tokens=None if all_keys else area.half_window, replacement=replacement)


def layer_locality(specification: Mapping[str, Any], site: AttentionSite, name: str) -> LayerLocality | None:
    """The locality that a specification asks for, None where it asks for nothing; messages call it `name`.

    Raises:
        ValueError: A method is not registered, a setting is impossible, or the methods have no meaning together.
    """
    is_mapping = isinstance(specification, Mapping)
    unknown = [key for key in specification if key not in _REGISTRY] if is_mapping else [specification]
    if unknown:
        close = difflib.get_close_matches(str(unknown[0]), _REGISTRY, n=1)
        own = f"a method of your own is registered first, with `register_locality` of {__name__}."
        raise ValueError(
            f"`{name}` must be None or map locality methods ({', '.join(_REGISTRY)}) to their settings, got "
            f"{unknown[0]!r}: {f'did you mean {close[0]!r}?' if close else own}"
        )
    methods = []
    for key, method_class in _REGISTRY.items():
        if key in specification:
            method = _from_setting(method_class, specification[key], f"{name}.{key}")
            if site.part not in method.parts:
                where = " and ".join(PARTS[part] for part in method.parts)
                raise ValueError(f"`{name}.{key}` has no meaning in {PARTS[site.part]}; it applies to {where}.")
            method.check(site, f"{name}.{key}")
            methods += [method] if method.has_effect else []
    for method in methods:
        for other in methods:
            if other is not method and (reason := method.conflict(other)):
                raise ValueError(f"`{name}.{method.key}` has no meaning beside {other.key!r}: {reason}.")
    return LayerLocality(site.part, tuple(methods)) if methods else None


def _from_setting(method_class: type[LocalityMethod], value: Any, name: str) -> LocalityMethod:
    """The method with the settings that `value` holds: a mapping, the first alone, or True for the defaults."""
    try:
        if isinstance(value, Mapping):
            return method_class(**value)
        return method_class() if value is True else method_class(value)  # type: ignore[call-arg]
    except TypeError as error:  # of the dataclass: a setting is unknown, missing, or one too many
        settings = ", ".join(field.name for field in dataclasses.fields(method_class)) or "none: it is True"
        raise ValueError(f"`{name}` is {value!r}, but its settings are {settings} ({error}).") from None


# --- registry ----------------------------------------------------------------------------------------------------

_REGISTRY: dict[str, type[LocalityMethod]] = {}
_RESERVED = ("k_proj", "v_proj", "q_proj", "out_proj")

_Method = TypeVar("_Method", bound=type[LocalityMethod])


def register_locality(method_class: _Method) -> _Method:
    """Make a method known by its `key`, after those before it; a decorator. `ValueError` where a name is taken."""
    key, module_name = method_class.key, parameters_name(method_class)
    others = [other for other in _REGISTRY.values() if other is not method_class]
    taken = [other.__qualname__ for other in others if key == other.key or module_name == parameters_name(other)]
    if taken or module_name in _RESERVED:
        by = taken[0] if taken else "the attention"
        raise ValueError(f"The locality method {key!r}, parameters {module_name!r}: the name is taken by {by}.")
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
