# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""YAML of bounded size and depth: a small text with aliases can stand for any number of values."""

import math
from typing import Any

import yaml

_MOST_VALUES = 100_000


class BoundedLoader(yaml.SafeLoader):
    """Reads YAML that holds a bounded number of values, each alias counted as what it stands for.

    Raises:
        yaml.YAMLError: It holds more, or brackets nested too deep.
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


def load_yaml(text: str) -> Any:
    """Reads the values of a text; `ValueError` if it is no YAML or `BoundedLoader` refuses it."""
    try:
        return yaml.load(text, Loader=BoundedLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"not valid YAML: {getattr(error, 'problem', error)}") from None
    except (AttributeError, LookupError, ValueError) as error:  # of PyYAML, for `!!bool abc`
        raise ValueError(f"not valid YAML: a value is not of its type ({error})") from None
