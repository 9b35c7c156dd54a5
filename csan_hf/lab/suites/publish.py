# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Publication of a suite: its report and the records that it rests on, without models, data and
local paths.
"""

import dataclasses
import json
from pathlib import Path

import yaml

from csan_hf.hub.public_files import public_content
from csan_hf.training.errors import RecipeError
from csan_hf.training.output_folder import lock_folder
from csan_hf.training.recipe import affected_by
from csan_hf.training.record import RECIPE, RESULTS, RunRecord
from csan_hf_runtime.text_files import write_bytes

from .costs import read_speeds, speeds_as_json
from .records import HYPOTHESES, RUNS, SuiteRecords, to_parquet
from .suite import Run, Suite
from .suite_report import REPORT, SCORES, check_folder
from .suite_texts import digests_of_references


def publish_suite(suite: Suite, output: Path, target: Path) -> list[Path]:
    """Copies a suite's report and pictures, and the records of its finished runs as two tables.

    That is a suite's folder without models: a copy of it as `output` continues the suite on another
    machine, and writes the report again. Of the references it holds digests, by which a copy knows
    whether its data are the same.

    Args:
        suite: The suite.
        output: Its folder, with a report.
        target: The folder to publish in; it may hold what was published of this suite before.

    Returns:
        The files published.

    Raises:
        RecipeError: `check_target` refuses the target, another process works in a folder, or a
            run's recipe names a path that means nothing elsewhere.
        ValueError: A file holds a credential, or is a link that leads out of its folder.
        OSError: There is no report.
    """
    check_target(suite, output, target)
    with lock_folder(output), lock_folder(target):
        records = SuiteRecords(suite, output)
        tables = to_parquet(
            {run: _public_record(run, records) for run in records.finished},
            references=digests_of_references(records),
            speeds=speeds_as_json(suite, read_speeds(records)),
        )
        contents = {REPORT: _public(output, REPORT)}
        for name in (SCORES, *(f"{picture}.png" for picture in suite.pictures)):
            if (output / name).is_file():
                contents[name] = _public(output, name)
        # The table of runs is removed first and written last: both tables are of one publication
        contents |= {HYPOTHESES: tables[HYPOTHESES], RUNS: tables[RUNS]}
        (target / RUNS).unlink(missing_ok=True)
        for name, content in contents.items():
            write_bytes(target / name, content)
    return [target / name for name in contents]


def check_target(suite: Suite, output: Path, target: Path) -> None:
    """Raises `RecipeError` if a folder holds what is not of this suite, or finished runs that
    `output` lacks.
    """
    resolved = target.resolve()
    if resolved == output.resolve() or resolved.is_relative_to((output / "runs").resolve()):
        raise RecipeError(
            f"{target} is the folder in which the suite trains, or lies in it: publish in another."
        )
    records = SuiteRecords(suite, output)
    published = SuiteRecords(suite, target)
    check_folder(records)
    check_folder(published)
    for run in published.finished:
        if not records.is_finished(run):
            raise RecipeError(
                f"{target} has {run.name}, which is not finished in {output}: copy {RUNS} and "
                f"{HYPOTHESES} there first, so that the report knows of it."
            )


def _public_record(run: Run, records: SuiteRecords) -> RunRecord:
    """A record without local paths; a credential in one of its files is a `ValueError`."""
    record = records.record(run)
    folder = run.folder(records.output)
    if not folder.is_dir():
        return record  # published before
    for split in record.hypotheses:
        _public(folder, f"hypotheses/{split}.txt")
    public = dataclasses.replace(
        record,
        recipe=yaml.safe_load(_public(folder, RECIPE, "recipe.yaml")),
        results=json.loads(_public(folder, RESULTS)),
    )
    if public.fingerprint() == record.fingerprint():
        return public
    changed = next(
        key
        for key, value in record.recipe.items()
        if affected_by(key) and public.recipe.get(key) != value
    )
    raise RecipeError(
        f"{folder / RECIPE}: {changed} names a path that means nothing on another machine, "
        f"so {run.name} cannot be published. Let the suite name files within its data_dir "
        "(--data_dir), and models by name."
    )


def _public(folder: Path, name: str, public_name: str | None = None) -> bytes:
    content = public_content(folder, public_name or name, folder / name, folder / RECIPE)
    return (folder / name).read_bytes() if content is None else content
