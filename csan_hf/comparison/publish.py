# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What a suite has shown, for others: its report and what that rests on, without models, data and local paths."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import yaml

from csan_hf.hub.public_files import PrivateContentError, public_content
from csan_hf.text_files import write_bytes
from csan_hf.training.output_folder import lock_folder
from csan_hf.training.recipe import RecipeError

from .report import REPORT, files_of_report, heading
from .results import REFERENCES, digests_of_references
from .schedule import FINISHED, RECIPE, check_cell, is_finished, trained_keys
from .speed import SPEEDS
from .suite import Cell, Suite, splits_of

_LEFT_OUT = (".json", ".svg")  # of the report: the same again


def publish_suite(suite: Suite, output: Path, target: Path) -> list[Path]:
    """Copies a suite's report, its speeds, and of each finished run its recipe, its results and its hypotheses.

    That is a suite's folder without models: a copy of it as `output` continues the suite on another machine, and
    writes the report again. Of the references it holds digests, by which a copy knows whether its data are the same.

    Args:
        suite: The suite.
        output: Its folder, with a report.
        target: The folder to publish in; it may hold what was published of this suite before.

    Raises:
        RecipeError: There is no report; `check_target` refuses the target; another process works in a folder; or a
            run's recipe names a path that means nothing elsewhere.
        PrivateContentError: A file holds a credential, or is a link that leads out of its folder.
    """
    check_target(suite, output, target)
    with lock_folder(output):
        contents = _contents(suite, output)
        with lock_folder(target):
            for cell in suite.cells:  # runs that will change are not finished until all of them is there
                own = {name for name in contents if (target / name).is_relative_to(cell.folder(target))}
                if any(not (p := target / name).is_file() or p.read_bytes() != contents[name] for name in own):
                    (cell.folder(target) / FINISHED).unlink(missing_ok=True)
            for name, content in contents.items():
                write_bytes(target / name, content)
    return [target / name for name in contents]


def check_target(suite: Suite, output: Path, target: Path) -> None:
    """Raises `RecipeError` if a folder holds what is not of this suite, or finished runs that `output` lacks."""
    if target.exists() and not target.is_dir():
        raise RecipeError(f"{target} is a file: publish in a folder.")
    if target.resolve() == output.resolve() or target.resolve().is_relative_to((output / "runs").resolve()):
        raise RecipeError(f"{target} is the folder in which the suite trains, or lies in it: publish in another.")
    report = target / REPORT
    names = [name for name in [*files_of_report(suite), SPEEDS, REFERENCES] if (target / name).exists()]
    if names and (REPORT not in names or report.read_bytes().splitlines()[:1] != [heading(suite).encode()]):
        raise RecipeError(f"{target / names[0]} is not of a report of {suite.name}: publish in another folder.")
    for cell in suite.cells:
        try:
            check_cell(cell, target)
        except RecipeError as error:
            raise RecipeError(f"{cell.folder(target)} is not of this suite: publish in another folder.") from error
        if is_finished(cell, target) and not is_finished(cell, output):
            raise RecipeError(
                f"{cell.folder(target)} is finished, {cell.folder(output)} is not: copy that folder there first, so "
                "that the report knows of it."
            )


def _contents(suite: Suite, output: Path) -> dict[str, bytes]:
    """Names of the files -> what they hold; all are read before the first is written."""
    finished = [cell for cell in suite.cells if is_finished(cell, output)]
    contents = dict(entry for cell in finished for entry in _of_cell(cell, output))
    report = [name for name in files_of_report(suite) if not name.endswith(_LEFT_OUT) and (output / name).is_file()]
    if REPORT not in report:
        raise RecipeError(f"{output} holds no report of {suite.name}: write one first.")
    for name in [*report, SPEEDS]:
        if (output / name).is_file():
            contents[name] = _public(output, name)
    contents[REFERENCES] = (json.dumps(digests_of_references(output), indent=2) + "\n").encode()
    return contents


def _of_cell(cell: Cell, output: Path) -> Iterator[tuple[str, bytes]]:
    folder = cell.folder(output)
    own = folder.relative_to(output)
    yield str(own / RECIPE), _public_recipe(cell, folder)  # first: by it the folder is known as this run's
    for name in [*(f"hypotheses/{split}.txt" for split in splits_of(cell.recipe)), "results.json"]:
        yield str(own / name), _public(folder, name)
    yield str(own / FINISHED), _public(folder, FINISHED)  # last: it says that all is there


def _public(folder: Path, name: str, public_name: str | None = None) -> bytes:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise PrivateContentError(f"{path} leads out of the folder, and what it leads to would be published.")
    content = public_content(folder, public_name or name, path, folder / RECIPE)
    return path.read_bytes() if content is None else content


def _public_recipe(cell: Cell, folder: Path) -> bytes:
    content = _public(folder, RECIPE, "recipe.yaml")
    own, public = (trained_keys(yaml.safe_load(text)) for text in ((folder / RECIPE).read_bytes(), content))
    if changed := [key for key in own if own[key] != public.get(key)]:
        raise RecipeError(
            f"{folder / RECIPE}: {changed[0]} names a path that means nothing on another machine, so {cell.name} "
            "cannot be published. Let the suite name files within its data_dir (--data_dir), and models by name."
        )
    return content
