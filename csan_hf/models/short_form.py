# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The short form of a CSAN's locality, the same settings for all local layers, and the presets.

A config keeps the long form, layer by layer: so checkpoints do not carry this file."""

import copy
import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from transformers.utils import logging

from .attention_call import KeyArea
from .configuration_csan import LONG_FIELDS, CsanConfig
from .configuration_seq2seq import MOST_TOKENS, bounded, check_fields, did_you_mean
from .gaussian import Gaussian
from .locality import PARTS, locality_presets

logger = logging.get_logger(__name__)


def install_short_form() -> None:
    """Let configs be made of the short form."""
    CsanConfig.keywords = frozenset({*SHORT_FIELDS, "sinusoids"})
    CsanConfig.long_form = staticmethod(long_form)
    CsanConfig.merge = staticmethod(merge)


@dataclass(frozen=True)
class ShortForm:
    """The short form of locality: the same settings for all local layers.

    The defaults are the paper's 2D-CSAN (Yang et al., NAACL 2019).

    Args:
        local_window: Window M of the local layers in tokens, both edges included. Odd; `None` =
            unrestricted.
        head_area: Neighbouring heads N that a local layer attends to jointly. Odd, at most 2H - 1;
            1 = own head.
        head_boundary: `"mask"` (heads outside 0..H-1 are not visible) or `"circular"` (wrap modulo
            H, N <= H).
        localness_window: Gaussian localness of the local layers: how its window D is set,
            `"fixed"`, `"layer"`, `"query"` or `"head"` (Yang et al., EMNLP 2018); `None` = no
            Gaussian.
        localness_window_size: D of the `"fixed"` strategy, in tokens.
        localness_layers: Encoder layers that are local, counted from 0; `None` = the lowest three.
        decoder_localness_layers: Decoder layers whose self-attention is local; `None` = none.
        cross_localness_layers: Decoder layers whose cross-attention has the Gaussian, without
            window and area; `None` = none.
    """

    local_window: int | None = bounded(11, 1, MOST_TOKENS, odd=True)
    head_area: int = bounded(3, 1, odd=True)
    head_boundary: Literal["mask", "circular"] = "mask"
    localness_window: Literal["fixed", "layer", "query", "head"] | None = None
    localness_window_size: float | int = bounded(10.0, above=0, most=MOST_TOKENS)
    localness_layers: list[int] | tuple[int, ...] | None = None
    decoder_localness_layers: list[int] | tuple[int, ...] | None = None
    cross_localness_layers: list[int] | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        check_fields(self)

    def specification(self, part: str) -> dict[str, Any]:
        """The specification of a local layer of a part."""
        specification: dict[str, Any] = {}
        if part != "cross" and self.local_window is not None:
            specification["window"] = self.local_window
        if part != "cross" and self.head_area > 1:
            specification["head_area"] = self.head_area
            if self.head_boundary != "mask":
                specification["head_area"] = {
                    "size": self.head_area,
                    "boundary": self.head_boundary,
                }
        if self.localness_window is not None:
            specification["gaussian"] = self.localness_window
            if self.localness_window == "fixed":
                specification["gaussian"] = {"width": "fixed", "size": self.localness_window_size}
        return specification

    def write_out(
        self, part: str, depth: int, preset: Mapping[str, Any] | list[Mapping[str, Any]]
    ) -> list[dict[str, Any] | None]:
        """One specification, or None, for each layer of a part: a preset's (see
        `LocalityMethod.presets`) together with the short form.
        """
        layers = getattr(self, LAYER_FIELDS[part])
        default_layers = _lowest_layers(depth) if part == "encoder" else range(0)
        if isinstance(preset, list):
            [preset] = preset
            default_layers = range(depth)
        specification = {**preset, **self.specification(part)}
        tables = specification.get("relative_positions")
        if "head_area" in specification and isinstance(tables, Mapping) and "per_head" in tables:
            # The heads of an area share one softmax, and so the tables
            specification["relative_positions"] = {**tables, "per_head": False}
        if layers is None:
            layers = default_layers
        else:
            self._check_layers(part, depth, specification)
        return [specification or None if index in layers else None for index in range(depth)]

    def _check_layers(self, part: str, depth: int, specification: Mapping[str, Any]) -> None:
        """Refuse layer numbers that a part has no place for; warn where nothing is said of them."""
        name = LAYER_FIELDS[part]
        layers = getattr(self, name)
        if len(set(layers)) != len(layers) or not set(layers) <= set(range(depth)):
            raise ValueError(
                f"`{name}` must hold layer numbers from 0 to {depth - 1}, each once, got {layers}."
            )
        if not layers or specification:
            return
        if part == "cross":
            raise ValueError(
                f"`{name}` ({layers}) has no effect without a `localness_window`: cross-attention "
                "has no other."
            )
        off = "`local_window`, `head_area` and `localness_window` are off"
        logger.warning_once(f"Layers {layers} are to be local, but {off}.")


LAYER_FIELDS = {
    "encoder": "localness_layers",
    "decoder": "decoder_localness_layers",
    "cross": "cross_localness_layers",
}
"""Fields of the short form that name the local layers of a part."""
SHORT_FIELDS = {field.name: field.default for field in dataclasses.fields(ShortForm)}
"""Fields of the short form with their defaults."""
_FULL_ATTENTION: dict[str, Any] = {"local_window": None, "head_area": 1}
_FORMER_POSITIONS = {"marian": "sinusoidal", "bart": "learned"}


def _lowest_layers(depth: int) -> range:
    """The encoder layers that are local where nothing else is said (NAACL 2019, section 4.2)."""
    return range(min(3, depth))


def _fields_of_preset(name: str | None) -> dict[str, Any]:
    if name is None:
        return {}
    presets = locality_presets()
    if name not in presets:
        hint = did_you_mean(name, presets)
        raise ValueError(f"There is no preset {name!r}, only {', '.join(presets)}.{hint}")
    return dict(presets[name])


def long_form(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a config with their locality written out layer by layer, in place of the short
    form, of a key `preset` and of fields' former names.

    Raises:
        ValueError: See `preset` and `ShortForm`; or the short form has no effect beside the
            long one.
    """
    values = dict(fields)
    if "sinusoids" in values:
        positions = values.pop("sinusoids")
        values["position_embeddings"] = _FORMER_POSITIONS.get(positions, positions)
    preset: dict[str, Any] = {}
    if "preset" in values:
        preset = {**_FULL_ATTENTION, **_fields_of_preset(values.pop("preset"))}
    specifications = {part: preset.pop(f"{part}_locality", {}) for part in PARTS}
    values = {**preset, **values}
    short = ShortForm(**{name: values.pop(name) for name in SHORT_FIELDS if name in values})
    unread: list[str] = []
    is_local = False
    for part, name in zip(PARTS, LONG_FIELDS, strict=True):
        if values.get(name) is not None:
            unread.append(LAYER_FIELDS[part])
            continue
        depth = values.get(LONG_FIELDS[name], getattr(CsanConfig, LONG_FIELDS[name]))
        values[name] = short.write_out(part, depth, specifications[part])
        is_local = is_local or any(values[name])
    if unread and not is_local:
        unread += ["local_window", "head_area", "localness_window"]
    for name in unread:
        value = getattr(short, name)
        if value and value not in (1, SHORT_FIELDS[name]):
            raise ValueError(
                f"`{name}` ({value}) has no effect beside "
                f"{', '.join(f'`{field}`' for field in LONG_FIELDS if fields.get(field))}, "
                "which says what is local: leave one out."
            )
    return values


def merge(fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a saved config with overrides, of which those in the short form change that of
    the saved locality.

    Raises:
        ValueError: It has none.
    """
    changed = overrides.keys() & {*SHORT_FIELDS, *LONG_FIELDS.values()}
    short = short_form(CsanConfig(**fields)) if changed else {}
    if short:
        fields = {name: fields[name] for name in fields.keys() - {*LONG_FIELDS, *SHORT_FIELDS}}
    elif names := changed & SHORT_FIELDS.keys():
        raise ValueError(
            f"`{min(names)}` cannot change this locality, which only the long form says: give "
            f"{', '.join(LONG_FIELDS)}."
        )
    return {**fields, **short, **overrides}


def short_form(config: CsanConfig) -> dict[str, Any]:
    """The fields of `ShortForm` that say this locality; none where they cannot."""
    localities = config.localities()
    short: dict[str, Any] = {name: config.local_layers(p) for p, name in LAYER_FIELDS.items()}
    if short["localness_layers"] == [*_lowest_layers(config.encoder_layers)] or not localities:
        short["localness_layers"] = None
    areas = [locality.area for locality in localities if locality.part != "cross"]
    area = areas[0] if areas else KeyArea()
    short["local_window"] = area.window
    short["head_area"] = area.head_area
    short["head_boundary"] = area.head_boundary
    for method in itertools.chain(*(locality.methods for locality in localities)):
        if isinstance(method, Gaussian):
            short["localness_window"] = method.width
            short["localness_window_size"] = method.size
    form = ShortForm(**short)
    written = copy.copy(config)
    try:
        for part, name in zip(PARTS, LONG_FIELDS, strict=True):
            setattr(written, name, form.write_out(part, len(getattr(config, name)), {}))
    except ValueError:  # local cross-attention without a Gaussian
        return {}
    return short if written.localities() == localities else {}
