# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What a suite has shown, for others: its report and what that rests on, without models, data and local paths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from csan_hf.files import open_for_writing
from csan_hf.hub.public_files import PrivateContentError, public_content
from csan_hf.training.output_folder import lock_folder
from csan_hf.training.recipe import RecipeError

from .report import files_of_report
from .schedule import FINISHED, RECIPE, check_cell, is_finished, trained_keys
from .speed import SPEEDS
from .suite import Cell, Suite

_LEFT_OUT = (".json", ".svg")  # of the report: the same again


def publish_suite(suite: Suite, output: Path, target: Path) -> list[Path]:
    """Copies a suite's report, its speeds, and of each finished run its recipe, its results and its hypotheses.

    That is a suite's folder without models: a copy of it as `output` continues the suite on another machine, and
    writes the report again.

    Args:
        suite: The suite.
        output: Its folder, with a report.
        target: The folder to publish in; it may hold what was published of this suite before.

    Returns:
        The files.

    Raises:
        RecipeError: There is no report; the target holds what another suite or no suite made, or finished runs that
            `output` lacks; or a run's recipe names a path that means nothing elsewhere.
        PrivateContentError: A file holds a credential, or is a link that leads out of its folder.
    """
    if target.resolve() == output.resolve():
        raise RecipeError(f"{target} is the suite's own folder: publish in another.")
    with lock_folder(output):
        contents = _contents(suite, output)
        _check_target(suite, output, target, contents)
        for name, content in contents.items():
            with open_for_writing(target / name, binary=True) as file:
                file.write(content)
    return [target / name for name in contents]


def _contents(suite: Suite, output: Path) -> dict[str, bytes]:
    """Names of the files -> what they hold; all are read before the first is written, the report stands last."""
    contents: dict[str, bytes] = {}
    for cell in suite.cells:
        if is_finished(cell, output):
            contents.update(_of_cell(suite, cell, output))
    report = [name for name in files_of_report(suite) if not name.endswith(_LEFT_OUT) and (output / name).is_file()]
    if "report.md" not in report:
        raise RecipeError(f"{output} holds no report of {suite.name}: write one first.")
    for name in [SPEEDS, *report]:
        if (output / name).is_file():
            contents[name] = _public(output, name, output / name)
    return contents


def _of_cell(suite: Suite, cell: Cell, output: Path) -> Iterator[tuple[str, bytes]]:
    folder = cell.folder(output)
    own = folder.relative_to(output)
    columns = [column for table in suite.tables.values() for column in table.values()]
    splits = sorted({split for data, names in columns for split in names if data == cell.data})
    for name in [*(f"hypotheses/{split}.txt" for split in splits), "results.json"]:
        yield str(own / name), _public(folder, name, folder / name)
    yield str(own / RECIPE), _public_recipe(cell, folder)
    yield str(own / FINISHED), _public(folder, FINISHED, folder / FINISHED)  # last: it says that all is there


def _public(folder: Path, name: str, path: Path) -> bytes:
    if not path.resolve().is_relative_to(folder.resolve()):
        raise PrivateContentError(f"{path} leads out of the folder, and what it leads to would be published.")
    content = public_content(folder, name, path, folder / RECIPE)
    return path.read_bytes() if content is None else content


def _public_recipe(cell: Cell, folder: Path) -> bytes:
    content = _public(folder, "recipe.yaml", folder / RECIPE)
    if trained_keys(yaml.safe_load(content)) != trained_keys(yaml.safe_load((folder / RECIPE).read_bytes())):
        raise RecipeError(
            f"{folder / RECIPE} names a path that means nothing on another machine: let the suite's recipe name files "
            f"within its data_dir (--data_dir), and train {cell.name} again."
        )
    return content


def _check_target(suite: Suite, output: Path, target: Path, contents: dict[str, bytes]) -> None:
    for cell in suite.cells:
        check_cell(cell, target)
        if is_finished(cell, target) and not is_finished(cell, output):
            raise RecipeError(
                f"{cell.folder(target)} is finished, {cell.folder(output)} is not: copy what was published to "
                f"{output} first, so that the report knows of it."
            )
    foreign = [name for name in contents if (target / name).exists()]
    if foreign and not (target / "runs").is_dir():
        raise RecipeError(f"{target} holds {foreign[0]}, and no runs of a suite: publish in another folder.")
