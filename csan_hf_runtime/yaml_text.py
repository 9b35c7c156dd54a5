# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""YAML of bounded size and depth: a small text with aliases can stand for any number of values."""

import math
from typing import Any

import yaml

_MOST_VALUES = 100_000


class BoundedLoader(yaml.SafeLoader):
    """Reads YAML that holds a bounded number of values, each alias counted as what it stands for.

    Raises:
        yaml.YAMLError: It holds more, brackets nested too deep, or a value that is not of its tag.
    """

    def get_single_node(self) -> yaml.Node | None:
        """Composes the document, and counts its values before any of them is made."""
        try:
            node = super().get_single_node()
            count = 0 if node is None else _count_values(node, {})
        except RecursionError:
            raise yaml.YAMLError("its values are nested too deep") from None
        if count > _MOST_VALUES:
            raise yaml.YAMLError(
                f"it stands for more than {_MOST_VALUES:,} values: write fewer aliases (*name)"
            )
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Makes a value; PyYAML's own errors for one such as `!!bool abc` are no `YAMLError`."""
        try:
            return super().construct_object(node, deep)
        except (AttributeError, LookupError, ValueError):
            problem = "a value is not of its type"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _count_values(node: yaml.Node, counts: dict[int, float]) -> float:
    """The values in a node; infinitely many where it holds itself."""
    if id(node) not in counts:
        counts[id(node)] = math.inf  # until all of it is counted
        count = 1.0
        for part in node.value if isinstance(node, yaml.CollectionNode) else ():
            for inner in part if isinstance(part, tuple) else (part,):
                count += _count_values(inner, counts)
        counts[id(node)] = count
    return counts[id(node)]


def load_yaml(text: str, loader: type[BoundedLoader] = BoundedLoader) -> Any:
    """Reads the values of a text.

    Raises:
        ValueError: It is no YAML, or `loader` refuses it. The message says where and nothing of the
            text, which may hold a credential.
    """
    try:
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        reason = getattr(error, "problem", None) or getattr(error, "reason", error)
        mark = getattr(error, "problem_mark", None)
    place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    # Not while the original error is handled, which a traceback would show with the text
    raise ValueError(f"not valid YAML: {place}{reason}")
