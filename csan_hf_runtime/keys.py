# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Keys of recipes: dataclass fields that declare their bounds and what they affect."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


class Affects(enum.Flag):
    """Effects of a recipe's key; they combine.

    From it follow whether a run may be resumed (the same `TRAINING`), whether a suite has trained a
    run already (the same `TRAINING` and `SCORES`), and which keys of the data decide what systems
    are scored on (`SCORES`).
    """

    NOTHING = 0
    SPEED = enum.auto()
    TRAINING = enum.auto()
    SCORES = enum.auto()


@dataclass(frozen=True)
class Bounds:
    """Values of a key besides null.

    Args:
        words: The bounds, after "must be".
        hold: Whether a value is within them; NaN is not.
    """

    words: str
    hold: Callable[[Any], bool]


def at_least(least: int) -> Bounds:
    """Returns the bounds of a number that is not below `least`."""
    return Bounds(f"at least {least}", lambda value: value >= least)


FROM_0 = Bounds("at least 0 and finite", lambda value: 0 <= value < math.inf)
ABOVE_0 = Bounds("above 0 and finite", lambda value: 0 < value < math.inf)
BELOW_1 = Bounds("in [0, 1)", lambda value: 0 <= value < 1)


Fact = Bounds | Affects | str
"""Declared of a key: its bounds, its effects, or why a recipe cannot set it."""


@dataclass(frozen=True)
class Key:
    """Declaration of a key, besides type, default and help.

    Args:
        bounds: Its bounds; None: those of its type.
        affects: Its effects; None: those of its section.
        refusal: Why a recipe cannot set it; "": it can.
    """

    bounds: Bounds | None = None
    affects: Affects | None = None
    refusal: str = ""

    @classmethod
    def of(cls, facts: Iterable[Fact]) -> Key:
        """Returns a declaration of some facts."""
        names = {Bounds: "bounds", Affects: "affects", str: "refusal"}
        declared: dict[str, Any] = {names[type(fact)]: fact for fact in facts}
        return cls(**declared)


def declare(default: object, *facts: Fact) -> Any:
    """Declares a key as the field of a dataclass."""
    metadata = {"key": Key.of(facts)}
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def section_names(recipe: type) -> list[str]:
    """Lists the sections of a recipe's dataclass: the fields that are a dict unless a recipe says
    more.
    """
    return [field.name for field in dataclasses.fields(recipe) if field.default_factory is dict]


def declare_all(rows: Mapping[str, Fact]) -> dict[str, Key]:
    """Declares keys that are no fields of ours: names, separated by spaces -> a fact."""
    facts: dict[str, list[Fact]] = {}
    for names, fact in rows.items():
        for name in names.split():
            facts.setdefault(name, []).append(fact)
    return {name: Key.of(facts[name]) for name in facts}


def declared_keys(section: type, further: Mapping[str, Key] | None = None) -> dict[str, Key]:
    """Returns the declarations of a dataclass's fields, over `further` ones."""
    declared = dict(further or {})
    for field in dataclasses.fields(section):
        if "key" in field.metadata:
            declared[field.name] = field.metadata["key"]
    return declared


def check_bounds(keys: Mapping[str, Key], values: Mapping[str, Any], place: str = "") -> None:
    """Raises a `ValueError` that names the first value out of its bounds, after `place`."""
    for name, key in keys.items():
        value = values.get(name)
        if key.bounds is not None and value is not None and not key.bounds.hold(value):
            raise ValueError(f"{place}{name} must be {key.bounds.words}, got {value}.")
