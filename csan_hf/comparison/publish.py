# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What a suite has shown, for others: its report and what that rests on, without models, data and
local paths.
"""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from csan_hf.hub.public_files import public_content
from csan_hf.text_files import write_bytes
from csan_hf.training.output_folder import lock_folder
from csan_hf.training.recipe import RecipeError

from .report import REPORT, check_folder
from .results import REFERENCES, digests_of_references
from .schedule import FINISHED, RECIPE, is_finished, trained_keys
from .speed import SPEEDS
from .suite import Cell, Suite, splits_of


def publish_suite(suite: Suite, output: Path, target: Path) -> list[Path]:
    """Copies a suite's report, its speeds, and of each finished run its recipe, its results and its
    hypotheses.

    That is a suite's folder without models: a copy of it as `output` continues the suite on another
    machine, and writes the report again. Of the references it holds digests, by which a copy knows
    whether its data are the same.

    Args:
        suite: The suite.
        output: Its folder, with a report.
        target: The folder to publish in; it may hold what was published of this suite before.

    Raises:
        RecipeError: `check_target` refuses the target, another process works in a folder, or a
            run's recipe names a path that means nothing elsewhere.
        ValueError: A file holds a credential, or is a link that leads out of its folder.
        OSError: There is no report.
    """
    check_target(suite, output, target)
    with lock_folder(output), lock_folder(target):
        contents: dict[str, bytes] = {}  # all are read before the first is written
        for cell in (*suite.cells, *suite.ensembles):
            if is_finished(cell, output):
                contents |= _files_of_run(cell, output)
        pictures = [f"{name}.png" for name in suite.pictures]
        names = [name for name in ("scores.csv", *pictures, SPEEDS) if (output / name).is_file()]
        contents |= {name: _public(output, name) for name in (REPORT, *names)}
        contents[REFERENCES] = (json.dumps(digests_of_references(output), indent=2) + "\n").encode()
        for cell in (
            *suite.cells,
            *suite.ensembles,
        ):  # a run published again is finished when all of it is there
            (cell.folder(target) / FINISHED).unlink(missing_ok=True)
        for name, content in contents.items():
            write_bytes(target / name, content)
    return [target / name for name in contents]


def check_target(suite: Suite, output: Path, target: Path) -> None:
    """Raises `RecipeError` if a folder holds what is not of this suite, or finished runs that
    `output` lacks.
    """
    if target.resolve() == output.resolve() or target.resolve().is_relative_to(
        (output / "runs").resolve()
    ):
        raise RecipeError(
            f"{target} is the folder in which the suite trains, or lies in it: publish in another."
        )
    check_folder(suite, output)
    check_folder(suite, target)
    for cell in (*suite.cells, *suite.ensembles):
        if is_finished(cell, target) and not is_finished(cell, output):
            raise RecipeError(
                f"{cell.folder(target)} is finished, {cell.folder(output)} is not: copy that "
                "folder there first, so that the report knows of it."
            )


def _files_of_run(cell: Cell, output: Path) -> dict[str, bytes]:
    """Names of a run's files -> what they hold, the recipe, by which a folder is known, first, the
    mark last.
    """
    folder = cell.folder(output)
    recipe = _public(folder, RECIPE, "recipe.yaml")
    own, public = (
        trained_keys(yaml.safe_load(text)) for text in ((folder / RECIPE).read_bytes(), recipe)
    )
    if changed := [key for key in own if own[key] != public.get(key)]:
        raise RecipeError(
            f"{folder / RECIPE}: {changed[0]} names a path that means nothing on another machine, "
            f"so {cell.name} cannot be published. Let the suite name files within its data_dir "
            "(--data_dir), and models by name."
        )
    names = [
        *(f"hypotheses/{split}.txt" for split in splits_of(cell.recipe)),
        "results.json",
        FINISHED,
    ]
    contents = {RECIPE: recipe, **{name: _public(folder, name) for name in names}}
    return {str(folder.relative_to(output) / name): content for name, content in contents.items()}


def _public(folder: Path, name: str, public_name: str | None = None) -> bytes:
    content = public_content(folder, public_name or name, folder / name, folder / RECIPE)
    return (folder / name).read_bytes() if content is None else content
