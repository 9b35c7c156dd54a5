# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Settings as dataclasses that check their values against the types of their fields, and are read
from JSON.
"""

from __future__ import annotations

import dataclasses
import json
import numbers
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    Self,
    TypeAlias,
    TypeGuard,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

LARGEST = 2**31 - 1
"""Of the numbers that have no bound of their own."""

_TYPES_OF_FIELDS: dict[type, dict[str, Any]] = {}
_KINDS: dict[object, tuple[type, str]] = {
    bool: (bool, "true or false"),
    int: (numbers.Integral, "an integer"),
    float: (numbers.Real, "a number"),
    str: (str, "a text"),
    NoneType: (NoneType, "null"),
}


@dataclass(frozen=True)
class Range:
    """The bounds of a number, both included; NaN is within none."""

    least: float
    most: float = LARGEST

    def __contains__(self, value: float) -> bool:
        return bool(self.least <= value <= self.most)

    def __str__(self) -> str:
        words = f"from {self.least}"
        return words if self.most == LARGEST else f"{words} to {self.most}"


NonNegative: TypeAlias = Annotated[int, Range(0)]
Positive: TypeAlias = Annotated[int, Range(1)]
BeamCount: TypeAlias = Annotated[int, Range(1, 1000)]


@dataclass(frozen=True)
class Settings:
    """Base of settings. Fields have the types of JSON, a `Range` in `Annotated`, or are settings.

    Raises:
        ValueError: A value is not of its field's type; the message names the field, the value and
            what is allowed.
    """

    def __post_init__(self) -> None:
        self._check(vars(self))

    def _check(self, values: Mapping[str, Any]) -> None:
        kinds = _kinds_of(type(self))
        for name, value in values.items():
            if not _fits(value, kinds[name]):
                raise ValueError(f"{name} must be {_words_for(kinds[name])}, got {value!r:.80}.")

    def changed(self) -> list[str]:
        """Lists the fields that are not at their defaults."""
        values = vars(self)
        return [
            field.name for field in dataclasses.fields(self) if values[field.name] != field.default
        ]

    def replaced(self, **values: Any) -> Self:
        """Returns a copy with other values of some fields, which alone are checked."""
        self._check(values)
        settings = copy(self)
        for name, value in values.items():
            object.__setattr__(settings, name, value)
        return settings

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], place: str = "") -> Self:
        """Reads what a JSON object holds; where a field cannot be null, null is its default.

        Args:
            values: The object; names that are no fields are left out.
            place: Where it stands, for messages.

        Raises:
            ValueError: A value is wrong, see the class, or one without a default is missing.
        """
        chosen = {}
        if not isinstance(values, Mapping):
            raise ValueError(f"{place}{_words_for(cls)} is expected, got {values!r:.80}.")
        try:
            kinds = _kinds_of(cls)
            for field in dataclasses.fields(cls):
                kind = kinds[field.name]
                value = _read(values.get(field.name), kind, f"{field.name}: ")
                is_null = value is None and field.name in values and _fits(None, kind)
                if value is not None or is_null:
                    chosen[field.name] = value
                elif field.default is dataclasses.MISSING:
                    raise ValueError(f"{field.name} is missing: it is {_words_for(kind)}.")
            return cls(**chosen)
        except ValueError as error:
            raise ValueError(f"{place}{error}") from error

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a file of a JSON object, see `from_dict`.

        Raises:
            OSError: It is missing or no JSON.
        """
        try:
            values = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise OSError(f"{path} is damaged ({error}): export the model again.") from error
        return cls.from_dict(values, f"{path}: ")


def _kinds_of(settings: type[Settings]) -> dict[str, Any]:
    if settings not in _TYPES_OF_FIELDS:
        _TYPES_OF_FIELDS[settings] = get_type_hints(settings, include_extras=True)
    return _TYPES_OF_FIELDS[settings]


def _read(value: object, kind: object, place: str) -> Any:
    """A value of a JSON object; an object is read as the settings that its field may be."""
    if isinstance(value, Mapping):
        for member in (kind, *get_args(kind)):
            if _is_settings(member):
                return member.from_dict(value, place)
    return value


def _is_settings(kind: object) -> TypeGuard[type[Settings]]:
    return isinstance(kind, type) and issubclass(kind, Settings)


def _fits(value: object, kind: object) -> bool:
    """Whether a value is of a type; no truth value is a number."""
    origin = get_origin(kind)
    members = get_args(kind)
    if origin is Annotated:
        return _fits(value, members[0]) and value in members[1]
    if origin in (Union, UnionType):
        return any(_fits(value, member) for member in members)
    if origin is Literal:
        return isinstance(value, str) and value in members
    if origin is Sequence:
        if not isinstance(value, Sequence) or isinstance(value, str):
            return False
        return all(_fits(member, members[0]) for member in value)
    if _is_settings(kind):
        return isinstance(value, kind)
    is_of_kind = isinstance(value, _KINDS[kind][0])
    return is_of_kind and (kind is bool or not isinstance(value, bool))


def _words_for(kind: object) -> str:
    """Name of the values of a type, for people."""
    origin = get_origin(kind)
    members = get_args(kind)
    if origin is Annotated:
        return f"{_words_for(members[0])} {members[1]}"
    if origin in (Union, UnionType):
        return " or ".join(map(_words_for, members))
    if origin is Literal:
        return " or ".join(map(json.dumps, members))
    if origin is Sequence:
        return f"a list, each {_words_for(members[0])}"
    if _is_settings(kind):
        return f"an object of {', '.join(_kinds_of(kind))}"
    return _KINDS[kind][1]
