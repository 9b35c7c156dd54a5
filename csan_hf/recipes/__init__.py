# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The recipes that come with the package: one commented YAML file for each experiment, found by name."""

from __future__ import annotations

import difflib
import itertools
from pathlib import Path

FOLDER = Path(__file__).parent


def list_recipes() -> list[str]:
    """Returns the names of all recipes, without `.yaml`."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find_recipe(name: str) -> Path:
    """Returns the file of a recipe.

    Args:
        name: As `list_recipes` has it.

    Raises:
        ValueError: There is no recipe of that name; the message suggests the nearest.
    """
    if name not in list_recipes():
        near = difflib.get_close_matches(name, list_recipes(), n=1)
        hint = f"did you mean {near[0]}?" if near else "`csan-hf recipes` lists them."
        raise ValueError(f"There is no recipe {name!r}: {hint}")
    return FOLDER / f"{name}.yaml"


def recipe_title(name: str) -> str:
    """Returns the first sentence of a recipe's comment, which says what the recipe is."""
    lines = [line.strip() for line in find_recipe(name).read_text(encoding="utf-8").splitlines()]
    comment = itertools.takewhile(lambda line: line.startswith("# "), lines)
    return " ".join(line.removeprefix("# ") for line in comment).partition(". ")[0].rstrip(".")
