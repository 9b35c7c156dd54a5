# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What is local in a layer, said once: `LayerLocality`, and the interface and registry of the locality methods.

**One rule.** `CsanConfig.layer_locality(part, index)` returns the `LayerLocality` of one attention, or None where it
is full. Modules, masks, caches, pictures, cards and conversion read nothing else. It is made from a
specification such as `{"window": 11, "head_area": 3}` or `{"relative_positions": {"max_distance": 16}, "window": 5}`:
keys are names of registered methods, values their settings (one value = the first setting).

**A method** is a frozen dataclass, a subclass of `LocalityMethod`, in one file, and one line in the registry
(`locality_methods.py`, or `register_locality` from outside the package). Its fields are the settings. It may give

| contribution | how | read by |
| --- | --- | --- |
| a window of tokens, an area of heads | `window`, `heads`: the structure, `KeyArea` | backends, caches, pictures |
| visibility, an energy, a value term | `term(module, inputs)` returns a `Term` (locality_terms.py) | backends |
| where a query looks by itself, and how widely | `Term.focus` | statistics and reports of a model's attention |
| parameters | `build(site)` returns a `LocalityModule`, kept as `attention.<module_name>` | model, conversion |
| something before the sub-layer | `before(module, states, padding)` | the layer |
| a replacement of the sub-layer | `replaces_attention`, `attend(module, states, padding)` | the attention module |
| what a decoder's cache must keep | `window` (tokens), or `needs_all_keys` | decoder_cache.py, static caches |
| where it may stand, and beside what | `parts`, `check(site, name)`, `check_beside(others, name)` | the config |
| how it is said and drawn | `describe`, `caption`, `model_name`, `label`, `paper`, `example` | cards and pictures |
| presets | `presets`: names and fields of `CsanConfig` | `CsanConfig.preset` |

Everything that is not overridden means "nothing". Methods of one layer compose: windows intersect, visibility is the
conjunction, energies and value terms add up. What has no meaning together is refused by name: a replacement beside
anything else, a method in a part that it does not know.

**One forward.** The attention module projects queries and keys, asks every method for its term (`TermInputs` in,
`Term` out, once per layer and forward) and hands `AttentionCall(query, key, value, area, terms, …)` to a backend. The
backend evaluates the terms on its cells; it says in its `cannot_run` why it refuses a call, and knows no method. What
layers see alike, masks and blocks, is made once per forward (`AttentionCall.once`); a term whose visibility depends on
tensors of its layer has it made for that layer alone. Terms see positions as ranks among the real tokens of the
sentence (`Positions`), so that padding on either side changes nothing; `Cells.distance` needs no ranks and costs the
same whatever the padding.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from .key_area import KeyArea
from .locality_terms import Positions, Term, TermInputs

PARTS = ("encoder", "decoder", "cross")
"""Self-attention of the encoder, self-attention of the decoder, attention of the decoder to the encoder."""

_NAMES = {
    "encoder": "the encoder's self-attention",
    "decoder": "the decoder's self-attention",
    "cross": "cross-attention",
}


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
        """Fill the module's own parameters, through `transformers.initialization` (which spares loaded ones).

        Args:
            config: The `CsanConfig`.
        """


@dataclass(frozen=True)
class LocalityMethod:
    """One locality method with its settings, the fields of the subclass. See the table at the head of the file.

    Attributes:
        key: Name in specifications.
        module_name: Name of its parameters in the attention module (state dict); `None` = the key.
        parts: Where it has a meaning.
        replaces_attention: Whether `attend` takes the place of the whole attention.
        label: What a model's name says of it, as in "Transformer with Gaussian localness"; `None` = nothing.
        paper: The paper to cite in a card, a key of the card's bibliography; `None` = none.
        presets: Names of `CsanConfig.preset` and the fields that they set. `encoder_locality` there is one
            specification, that of the lowest three encoder layers.
    """

    key: ClassVar[str]
    module_name: ClassVar[str | None] = None
    parts: ClassVar[tuple[str, ...]] = PARTS
    replaces_attention: ClassVar[bool] = False
    label: ClassVar[str | None] = None
    paper: ClassVar[str | None] = None
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
    def needs_all_keys(self) -> bool:
        """Whether a decoding step needs the keys of all earlier positions, whatever the window."""
        return False

    def check(self, site: AttentionSite, name: str) -> None:
        """Raise `ValueError` where the settings are impossible.

        Args:
            site: Where the method is asked for.
            name: What a message calls the setting, as `encoder_locality[2].window`.
        """

    def check_beside(self, others: tuple[LocalityMethod, ...], name: str) -> None:
        """Raise `ValueError` where the method has no meaning beside others of the layer.

        Args:
            others: The other methods.
            name: As in `check`.
        """

    def build(self, site: AttentionSite) -> LocalityModule | None:
        """The method's parameters in one layer."""
        return None

    def term(self, module: Any, inputs: TermInputs) -> Term | None:
        """What the method adds to one call.

        Args:
            module: What `build` returned.
            inputs: Queries, keys, padding, positions.
        """
        return None

    def before(self, module: Any, states: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """What comes before the sub-layer, residual connections of its own included: [B, T, d] -> [B, T, d].

        Args:
            module: What `build` returned.
            states: [B, T, d].
            padding: [B, T] boolean, True = a real token; None = all real.
        """
        return states

    def attend(
        self, module: Any, states: torch.Tensor, padding: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The replacement of the attention: output [B, T, d] and weights [B, H, T, T], or None for zeros.

        Args:
            module: What `build` returned.
            states: [B, T, d].
            padding: [B, T] boolean, True = a real token; None = all real.
        """
        raise NotImplementedError

    def describe(self, site: AttentionSite) -> str:
        """The method in a model card: a noun phrase in Markdown."""
        return self.caption()

    def model_name(self, area: KeyArea) -> str | None:
        """What the papers call a Transformer with this method, in place of "Transformer"; None = no name of its own.

        Args:
            area: Window and area of heads of all methods of the layer.
        """
        return None

    def caption(self, part: str = "encoder", length: int | None = None) -> str:
        """The method above a picture, in a few words.

        Args:
            part: The part drawn.
            length: Tokens of the sentence drawn.
        """
        settings = [f"{field.name} {getattr(self, field.name)}" for field in dataclasses.fields(self)]
        return " ".join([self.key.replace("_", " "), *([f"({', '.join(settings)})"] if settings else [])])

    def example(self, site: AttentionSite, length: int) -> Term | None:
        """A term as a trained model might have it, for a sentence of `length` tokens; None where nothing is to see."""
        return None

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
    """What is local in one attention. All attributes but the first two are derived from these.

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
        """Derive the attributes that a forward pass reads."""
        windows = [method.window for method in self.methods if method.window is not None]
        heads, boundary = max((method.heads for method in self.methods), default=(1, "mask"))
        area = KeyArea(min(windows, default=None), heads, boundary, causal=self.part == "decoder")
        all_keys = any(method.needs_all_keys for method in self.methods)
        resolved = {
            "area": area,
            "past_tokens": None if all_keys else area.half_window,
            "has_terms": any(method.has_term for method in self.methods),
            "replacement": next((method for method in self.methods if method.replaces_attention), None),
        }
        for name, value in resolved.items():
            object.__setattr__(self, name, value)


def layer_locality(specification: Mapping[str, Any], site: AttentionSite, name: str) -> LayerLocality | None:
    """The locality that a specification asks for; None where it asks for nothing.

    Args:
        specification: Settings by the names of methods.
        site: The attention.
        name: What messages call the specification, as `encoder_locality[2]`.

    Raises:
        ValueError: A method is not registered, a setting is impossible, or the methods have no meaning together.
    """
    if not isinstance(specification, Mapping):
        raise ValueError(f"`{name}` must be None or map locality methods to their settings, got {specification!r}.")
    for key in specification:
        if key not in _REGISTRY:
            raise ValueError(_unregistered(key, name))
    methods = []
    for key, method_class in _REGISTRY.items():
        if key in specification:
            method = _from_setting(method_class, specification[key], f"{name}.{key}")
            if site.part not in method.parts:
                raise ValueError(
                    f"`{name}.{key}` has no meaning in {_NAMES[site.part]}; it applies to {_where(method)}."
                )
            method.check(site, f"{name}.{key}")
            methods.append(method)
    replacing = [method.key for method in methods if method.replaces_attention]
    if replacing and len(methods) > 1:
        beside = ", ".join(repr(method.key) for method in methods if method.key != replacing[0])
        raise ValueError(f"`{name}`: {replacing[0]!r} replaces the attention and cannot be combined with {beside}.")
    for method in methods:
        others = tuple(other for other in methods if other is not method)
        method.check_beside(others, f"{name}.{method.key}")
    return LayerLocality(site.part, tuple(methods)) if methods else None


def _where(method: LocalityMethod) -> str:
    return " and ".join(_NAMES[part] for part in method.parts)


def _unregistered(key: object, name: str) -> str:
    close = difflib.get_close_matches(str(key), _REGISTRY, n=1)
    hint = f"register a method of your own first, with `register_locality` of {__name__}."
    if close:
        hint = f"did you mean {close[0]!r}?"
    return f"`{name}` names {key!r}, which is no registered locality method ({', '.join(_REGISTRY)}): {hint}"


def _from_setting(method_class: type[LocalityMethod], value: Any, name: str) -> LocalityMethod:
    """The method with the settings that `value` holds: a mapping of all, or the first alone (True where none is)."""
    fields = {field.name: field for field in dataclasses.fields(method_class)}
    if isinstance(value, Mapping):
        settings = dict(value)
    elif fields:
        settings = {next(iter(fields)): value}
    elif value is True:
        settings = {}
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


__all__ = [
    "AttentionSite",
    "LayerLocality",
    "LocalityMethod",
    "LocalityModule",
    "Positions",
    "Term",
    "TermInputs",
    "register_locality",
]
