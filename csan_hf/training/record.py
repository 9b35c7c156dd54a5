# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The record of a run: its recipe, its results and its hypotheses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from csan_hf_runtime.text_files import path_inside, read_lines, write_json, write_lines, write_text

from .errors import RecipeError
from .recipe import Affects, parse_recipe, read_yaml

RECIPE = "run.yaml"
"""File in the folder of a suite's run with the recipe that the suite trains there."""
RESULTS = "results.json"
FINISHED = "finished.json"
"""File that marks the folder of a suite's run as finished."""

SAME_SCORES = Affects.TRAINING | Affects.SCORES


@dataclass(frozen=True)
class RunRecord:
    """A finished run of a suite, of one model or of several as an ensemble.

    Attributes:
        recipe: What was trained; of an ensemble `data` and `members`, the recipes of its members.
        results: Parameters, seconds, scores, digests of the data, environment.
        hypotheses: Split -> its translations.
        finished: When the run ended.
    """

    recipe: Mapping[str, Any]
    results: Mapping[str, Any]
    hypotheses: Mapping[str, Sequence[str]]
    finished: str

    def fingerprint(self, affecting: Affects = SAME_SCORES) -> str:
        """A digest of the recipe's keys that affect something of `affecting`."""
        return fingerprint_of(self.recipe, affecting)

    @classmethod
    def from_folder(cls, folder: Path, splits: Sequence[str]) -> RunRecord:
        """Reads the record of a finished run.

        Raises:
            RecipeError: A file is missing or damaged, or lacks what every report asks for.
        """
        hypotheses = {}
        try:
            results = json.loads((folder / RESULTS).read_bytes())
            results["parameters"], results["training"]["seconds"]
            mark = json.loads((folder / FINISHED).read_bytes())
            for split in splits:
                path = path_inside(folder, "hypotheses", f"{split}.txt")
                hypotheses[split] = list(read_lines(path))
        except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
            raise RecipeError(
                f"{folder} does not hold a whole run of this version ({error!r}): delete it, and "
                "the suite trains it again."
            ) from error
        return cls(read_yaml(folder / RECIPE), results, hypotheses, mark.get("finished", ""))

    def write(self, folder: Path) -> None:
        """Writes the record into a folder, the mark of a finished run last."""
        for split, lines in self.hypotheses.items():
            write_lines(folder / f"hypotheses/{split}.txt", lines)
        write_json(folder / RESULTS, self.results)
        write_text(folder / RECIPE, recipe_text(self.recipe))
        write_json(folder / FINISHED, {"finished": self.finished})


def recipe_text(recipe: Mapping[str, Any]) -> str:
    """A recipe's keys and values as a file."""
    return yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True)


def fingerprint_of(recipe: Mapping[str, Any], affecting: Affects = SAME_SCORES) -> str:
    """A digest of the keys of a recipe, or of those of an ensemble's members, that affect
    something of `affecting`.
    """
    if "members" not in recipe:
        return parse_recipe(dict(recipe), "a run's recipe").fingerprint(affecting)
    fingerprints = [
        fingerprint_of({**member, "data": recipe["data"]}, affecting)
        for member in recipe["members"]
    ]
    return hashlib.sha256(" ".join(fingerprints).encode()).hexdigest()[:16]
