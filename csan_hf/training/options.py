# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Sections of a recipe: the keyword arguments of a class or a function, read and converted by jsonargparse."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
import logging
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser, Namespace


class RecipeError(ValueError):
    """A recipe or a command line that cannot be run; the message says where and what to do."""


@dataclass(frozen=True)
class Option:
    """One key of a recipe.

    Args:
        section: Section that it belongs to; "" for the top of the file.
        name: key.
        annotation: Type, as in a function's signature.
        default: The value where a recipe does not name the key.
        help: One or two sentences.
    """

    section: str
    name: str
    annotation: Any
    default: Any
    help: str

    @property
    def path(self) -> str:
        """The key as the command line writes it, for example `training.learning_rate`."""
        return key_path(self.section, self.name)


def key_path(section: str, name: str) -> str:
    """Joins a section and a key, as in `training.learning_rate`; the top of the file has the section ""."""
    return f"{section}.{name}" if section else name


class Section:
    """The keys of one section. The parser, which takes half a second for the longest, is made when it is needed.

    Args:
        name: The section's name in a recipe; "" for the top of the file.
        source: Dataclass, configuration or function whose arguments with defaults are the keys.
        without: Arguments that a recipe may not set.
    """

    def __init__(self, name: str, source: Callable[..., Any], without: Iterable[str] = ()) -> None:
        self.name = name
        self.source = source
        self.without = frozenset(without)
        self.keys = tuple(
            key
            for key, parameter in inspect.signature(source).parameters.items()
            if parameter.default is not inspect.Parameter.empty and key not in self.without
        )

    def path(self, key: str) -> str:
        """Returns the key with the name of the section."""
        return key_path(self.name, key)

    @functools.cached_property
    def _parser(self) -> ArgumentParser:
        parser = ArgumentParser(exit_on_error=False, add_help=False, logger=_silent())
        add = parser.add_class_arguments if inspect.isclass(self.source) else parser.add_function_arguments
        excluded = {*inspect.signature(self.source).parameters} - {*self.keys}
        add(self.source, None, skip={*excluded}, fail_untyped=False)
        return parser

    @functools.cached_property
    def options(self) -> dict[str, Option]:
        """The keys with their types, defaults and help."""
        described: dict[str, str] = {}
        if dataclasses.is_dataclass(self.source):
            described = {field.name: field.metadata.get("help", "") for field in dataclasses.fields(self.source)}
        actions = {action.dest: action for action in self._parser._actions}
        return {
            key: Option(
                section=self.name,
                name=key,
                annotation=getattr(actions[key], "_typehint", actions[key].type),
                default=getattr(actions[key].default, "value", actions[key].default),
                help=_first_sentences(described.get(key) or actions[key].help or ""),
            )
            for key in self.keys
        }

    def convert(self, key: str, value: Any, where: str) -> Any:
        """Turns a value into the type of its key.

        YAML reads `1e3` as text, and a name that looks like a number as a number; the key's type corrects both.

        Args:
            key: One of the section.
            value: What YAML made of it, or text of the command line.
            where: How an error names it, for example `recipe.yaml: training.learning_rate`.

        Raises:
            RecipeError: If the value does not fit.
        """
        option = self.options[key]
        if value is not None or _takes(option.annotation, type(None)):
            for candidate in _readings(value):
                with contextlib.suppress(ArgumentError, RecursionError):
                    found = self._parser.parse_object({key: candidate}, defaults=False)[key]
                    return found.as_dict() if isinstance(found, Namespace) else found
        raise RecipeError(
            f"{where} must be {describe_type(option.annotation)}, got {_shown(value)}.{_hint(option, value)}"
        )

    def convert_text(self, key: str, text: str) -> Any:
        """Converts a value of the command line; a list may also be written with commas alone.

        Raises:
            RecipeError: If the value does not fit.
        """
        where = f"--{self.path(key)}"
        annotation = self.options[key].annotation
        if "," in text and not text.startswith("[") and _takes(annotation, list) and not _takes(annotation, str):
            return self.convert(key, [part.strip() for part in text.split(",")], where)
        return self.convert(key, text, where)


def _readings(value: Any) -> Iterator[Any]:
    """Yields a value, and what else it may have meant: a number, a whole number, text."""
    yield value
    if isinstance(value, list):
        yield [_number(item) for item in value]
    elif not isinstance(value, bool | None):
        yield _number(value)
        if isinstance(value, int | float):
            yield str(value)


def _number(value: Any) -> Any:
    """Reads text such as `1e3` or `nan` as a number, and a number without a fraction as a whole one."""
    if isinstance(value, bool):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return value
    return int(number) if math.isfinite(number) and number.is_integer() else number


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _hint(option: Option, value: Any) -> str:
    if isinstance(value, bool) and _takes(option.annotation, str):
        return " YAML reads no, off, yes and on as true or false: put the text in quotes."
    return ""


def _takes(annotation: Any, kind: type) -> bool:
    """Says whether a type is `kind`, or a union that contains it."""
    members = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    return any(member is Any or (typing.get_origin(member) or member) is kind for member in members)


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


_TYPE_NAMES = {
    **{bool: "true or false", int: "integer", float: "number", str: "text", dict: "mapping", list: "list"},
    **{type(None): "null", Any: "any value"},
}


def describe_type(annotation: Any) -> str:
    """Names a type for people: `integer or null`, `list of integer`, `true or false`."""
    if annotation in _TYPE_NAMES:
        return _TYPE_NAMES[annotation]
    arguments = typing.get_args(annotation)
    if _is_union(annotation):
        return " or ".join(dict.fromkeys(describe_type(member) for member in arguments))
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return " or ".join(map(repr, arguments))
    if origin is list and arguments:
        return f"list of {describe_type(arguments[0])}"
    return str(_TYPE_NAMES.get(origin) or getattr(annotation, "__name__", annotation))


def nearest(key: str, sections: Iterable[Section]) -> str:
    """Suggests the keys whose names are nearest to a misspelt one.

    Returns:
        A sentence such as ` Did you mean training.learning_rate?`, or "" if nothing is near.
    """
    known = [(name, section.path(name)) for section in sections for name in section.keys]
    names = sorted({name for name, _ in known})
    close = difflib.get_close_matches(key.rsplit(".", 1)[-1], names, n=3, cutoff=0.6)
    found = [path for wanted in close for name, path in known if name == wanted]
    return f" Did you mean {' or '.join(found[:3])}?" if found else ""


def _first_sentences(text: str, limit: int = 240) -> str:
    text = " ".join(text.split())
    if len(text) <= limit:
        return text
    whole = text[:limit].rpartition(". ")[0]
    return f"{whole}." if whole else f"{text[:limit].rpartition(' ')[0]}..."


def _silent() -> logging.Logger:
    """A logger for what jsonargparse says of defaults that it cannot check, such as bf16's."""
    logger = logging.getLogger(f"{__name__}.silent")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    return logger
