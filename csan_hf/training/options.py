"""What a recipe may say: every key with its type, default and help, and the conversion of values to types."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import yaml


@dataclass(frozen=True)
class Option:
    """One key of a recipe.

    Args:
        section: section that it belongs to; "" for the top of the file.
        name: key.
        annotation: type, as in a function's signature.
        default: shown in the help.
        help: one or two sentences.
    """

    section: str
    name: str
    annotation: Any = Any
    default: Any = None
    help: str = ""

    @property
    def path(self) -> str:
        """The key as the command line writes it, for example ``training.learning_rate``."""
        return f"{self.section}.{self.name}" if self.section else self.name


class RecipeError(ValueError):
    """A recipe or a command line that cannot be run; the message says where and what to do."""


# ---- values


def describe_type(annotation: Any) -> str:
    """Names a type for people: ``int or null``, ``list of int``, ``true or false``."""
    if annotation is Any:
        return "any value"
    if annotation in (None, type(None)):
        return "null"
    plain = {bool: "true or false", int: "integer", float: "number", str: "text", dict: "mapping", list: "list"}
    if annotation in plain:
        return plain[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        names = [describe_type(member) for member in arguments]
        return " or ".join(dict.fromkeys(name for name in names if name))
    if origin is typing.Literal:
        return " or ".join(repr(value) for value in arguments)
    if origin in (list, tuple, set):
        return f"list of {describe_type(arguments[0])}" if arguments else "list"
    if origin is dict:
        return "mapping"
    if inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
        return " or ".join(str(member.value) for member in annotation)
    return getattr(annotation, "__name__", str(annotation))


def convert(value: Any, annotation: Any, where: str) -> Any:
    """Turns a YAML value into the type of its field.

    YAML reads ``1e-3`` as text and ``no`` as false; both are put right here by the field's type.

    Args:
        value: what YAML made of it.
        annotation: the field's type.
        where: what to call it in an error, for example ``training.learning_rate``.

    Raises:
        RecipeError: if the value does not fit.
    """
    for member in _members(annotation):
        converted = _convert_one(value, member, where)
        if converted is not _NO_FIT:
            return converted
    raise RecipeError(f"{where} must be {describe_type(annotation)}, got {value!r}.{_hint(value, annotation)}")


_NO_FIT = object()


def _members(annotation: Any) -> list[Any]:
    """Lists the types of a union, strictest first, so that '3' becomes a number where it may."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return [annotation]
    order = [type(None), bool, int, float]
    members = list(typing.get_args(annotation))
    return sorted(members, key=lambda member: order.index(member) if member in order else len(order))


def _convert_one(value: Any, annotation: Any, where: str) -> Any:
    if annotation is Any:
        return value
    if annotation in (None, type(None)):
        return None if value is None else _NO_FIT
    if annotation in _SCALARS:
        return _SCALARS[annotation](value)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return next((member for member in arguments if member == value and type(member) is type(value)), _NO_FIT)
    if origin in (list, tuple, set) or annotation in (list, tuple, set):
        return _sequence(value, origin or annotation, arguments, where)
    if origin is dict or annotation is dict:
        return dict(value) if isinstance(value, dict) else _NO_FIT
    if inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
        return value if value in [member.value for member in annotation] else _NO_FIT
    return value if inspect.isclass(annotation) and isinstance(value, annotation) else _NO_FIT


def _boolean(value: Any) -> Any:
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if isinstance(value, str):
        return words.get(value.lower(), _NO_FIT)
    return value if isinstance(value, bool) else _NO_FIT


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return _NO_FIT
    if isinstance(value, int):
        return value  # a whole number stays one: 400 rather than 400.0 in the saved recipe
    try:
        return float(value)
    except ValueError:
        return _NO_FIT


def _integer(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = _number(value)
    return int(number) if number is not _NO_FIT and float(number).is_integer() else _NO_FIT


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else _NO_FIT


_SCALARS: dict[Any, Callable[[Any], Any]] = {bool: _boolean, int: _integer, float: _number, str: _text}


def _sequence(value: Any, kind: Any, arguments: tuple[Any, ...], where: str) -> Any:
    if not isinstance(value, (list, tuple)):
        return _NO_FIT
    element = arguments[0] if arguments else Any
    items = [convert(item, element, f"{where}[{number}]") for number, item in enumerate(value)]
    return kind(items)


def _hint(value: Any, annotation: Any) -> str:
    if isinstance(value, bool) and str in _members(annotation):
        return " YAML reads no, off, yes and on as true or false: put the text in quotes."
    return ""


def parse_text(text: str, option: Option) -> Any:
    """Reads one value from the command line.

    Raises:
        RecipeError: if it is not YAML or not of the option's type.
    """
    if _members(option.annotation) == [str]:
        return text
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise RecipeError(f"--{option.path}: {text[:80]!r} is not valid YAML: {reason}") from error
    if isinstance(value, bool) and str in _members(option.annotation) and bool not in _members(option.annotation):
        value = text
    if isinstance(value, str) and _takes_list(option.annotation) and str not in _members(option.annotation):
        value = [part.strip() for part in value.split(",")]
    return convert(value, option.annotation, f"--{option.path}")


def _takes_list(annotation: Any) -> bool:
    return any((typing.get_origin(member) or member) in (list, tuple) for member in _members(annotation))


# ---- keys


def nearest(name: str, options: Iterable[Option]) -> str:
    """Suggests the options whose names are nearest to a misspelt one.

    Returns:
        A sentence such as `` Did you mean training.learning_rate?``, or "" if nothing is near.
    """
    options = list(options)
    wanted = name.rsplit(".", 1)[-1]
    found: list[str] = []
    for close in difflib.get_close_matches(wanted, sorted({option.name for option in options}), n=3, cutoff=0.6):
        found += [option.path for option in options if option.name == close]
    if not found:
        return ""
    return f" Did you mean {' or '.join(found[:3])}?"


# ---- where options come from


def docstring_help(cls: type) -> dict[str, str]:
    """Collects the help of arguments from the docstrings of a class and its parents.

    Understands ``name: text`` and ``name (type): text``, in a section ``Args:`` or without one.
    """
    found: dict[str, str] = {}
    for parent in reversed(cls.__mro__[:-1]):
        current: str | None = None
        indent = 0
        for line in inspect.cleandoc(parent.__doc__ or "").splitlines():
            match = re.match(r"^(\s*)`{0,2}(\w+)`{0,2}(?: \([^:]*\))?:(?:\s+(.*))?$", line)
            width = len(line) - len(line.lstrip())
            if match and match[2] not in ("Args", "Returns", "Raises", "Example", "Examples", "Note"):
                current, indent = match[2], width
                found[current] = match[3] or ""
            elif current is not None and line.strip() and width > indent:
                found[current] = f"{found[current]} {line.strip()}".strip()
            else:
                current = None
    return found


def dataclass_options(section: str, cls: type, *, without: Iterable[str] = ()) -> list[Option]:
    """Lists the fields of a dataclass (a transformers config is one) as options.

    Args:
        section: section of the recipe.
        cls: the dataclass.
        without: fields that a recipe may not set.
    """
    excluded = set(without)
    help_texts = docstring_help(cls)
    hints = _type_hints(cls)
    options = []
    for field in dataclasses.fields(cls):
        if field.name in excluded or field.name.startswith("_") or not field.init:
            continue
        default = field.default
        if default is dataclasses.MISSING:
            factory = field.default_factory
            default = None if factory is dataclasses.MISSING else factory()
        text = field.metadata.get("help") or help_texts.get(field.name, "")
        options.append(Option(section, field.name, hints.get(field.name, Any), default, _first_sentences(text)))
    return options


def _type_hints(cls: type) -> dict[str, Any]:
    """Resolves annotations class by class; a name that cannot be resolved becomes Any."""
    hints: dict[str, Any] = {}
    for parent in reversed(cls.__mro__[:-1]):
        namespace = vars(sys.modules.get(parent.__module__, types.ModuleType("none")))
        for name, annotation in inspect.get_annotations(parent).items():
            if isinstance(annotation, str):
                try:
                    annotation = eval(annotation, dict(namespace))
                except Exception:  # a name imported for type checkers only
                    annotation = Any
            hints[name] = annotation
    return hints


def signature_options(section: str, function: Callable[..., Any], *, without: Iterable[str] = ()) -> list[Option]:
    """Lists the keyword arguments of a function as options."""
    excluded = set(without)
    holder = type("Documented", (), {"__doc__": function.__doc__})
    help_texts = docstring_help(holder)
    try:
        hints = typing.get_type_hints(function)
    except NameError:
        hints = {}
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [
        Option(
            section,
            name,
            hints.get(name, Any),
            None if parameter.default is inspect.Parameter.empty else parameter.default,
            _first_sentences(help_texts.get(name, "")),
        )
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in kinds and name not in excluded
    ]


def _first_sentences(text: str, limit: int = 240) -> str:
    text = " ".join(text.split())
    if len(text) <= limit:
        return text
    shortened = text[:limit].rsplit(". ", 1)[0] if ". " in text[:limit] else text[:limit].rsplit(" ", 1)[0] + "..."
    return shortened if shortened.endswith((".", "...")) else f"{shortened}."
