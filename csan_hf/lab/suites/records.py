# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The records of a suite's runs: in the folders of its runs, or in the two tables published.

`runs.parquet` has a row for each run, `hypotheses.parquet` a row for each translation;
`datasets.load_dataset` reads both, too.
"""

import io
import json
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from csan_hf.training.errors import RecipeError, refusing
from csan_hf.training.recipe import read_yaml
from csan_hf.training.record import FINISHED, RECIPE, RunRecord, fingerprint_of

from .suite import Run, Suite

RUNS = "runs.parquet"
HYPOTHESES = "hypotheses.parquet"
_KEY = ("data", "system", "seed")


class SuiteRecords:
    """The runs of a suite and its ensembles, and the records of those that are finished.

    A run's folder comes first: the published tables are read for runs that have no folder.

    Attributes:
        suite: The suite.
        output: Its folder.
        runs: Its runs and ensembles.
    """

    def __init__(self, suite: Suite, output: Path) -> None:
        self.suite = suite
        self.output = output
        self.runs = (*suite.runs, *suite.ensembles)
        self._records: dict[Run, RunRecord] = {}

    @cached_property
    def _table(self) -> pyarrow.Table:
        if (self.output / RUNS).is_file():
            return _read_table(self.output / RUNS)
        return pyarrow.table({})

    @cached_property
    def _published(self) -> dict[tuple[str, str, int], dict[str, Any]]:
        """Key of a run -> its row."""
        key_of = itemgetter(*_KEY)
        return {key_of(row): row for row in self._table.to_pylist()}

    @cached_property
    def _translations(self) -> dict[tuple[str, str, int, str], list[str]]:
        """Run and split -> its translations in the order of the segments."""
        rows = _read_table(self.output / HYPOTHESES).to_pandas()
        return rows.groupby([*_KEY, "split"])["text"].agg(list).to_dict()

    def about(self, subject: str) -> dict[str, Any]:
        """Facts published of the suite as a whole.

        Its `references` are digests of the references that the runs were scored with, data
        set/split -> SHA-256; its `speeds` those of training, system -> `Speed` and its recipe.
        """
        metadata = self._table.schema.metadata or {}
        return json.loads(metadata.get(subject.encode(), b"{}"))

    def recipe(self, run: Run) -> dict[str, Any] | None:
        """The recipe of a run that was begun here, or was published; None if it was not."""
        path = run.folder(self.output) / RECIPE
        if path.is_file():
            return read_yaml(path)
        if run.key in self._published:
            return json.loads(self._published[run.key]["recipe"])
        return None

    def is_finished(self, run: Run) -> bool:
        """Whether a run needs no more training."""
        folder = run.folder(self.output)
        if folder.is_dir():
            return (folder / FINISHED).is_file()
        return run.key in self._published

    @property
    def finished(self) -> list[Run]:
        """The runs and ensembles that are finished, in order."""
        return [run for run in self.runs if self.is_finished(run)]

    def record(self, run: Run) -> RunRecord:
        """The record of a finished run, read once."""
        if run not in self._records:
            self._records[run] = self._read(run)
        return self._records[run]

    def _read(self, run: Run) -> RunRecord:
        splits = self.suite.splits[run.data]
        if run.folder(self.output).is_dir():
            return RunRecord.from_folder(run.folder(self.output), splits)
        row = self._published[run.key]
        hypotheses = {}
        for split in splits:
            if (*run.key, split) not in self._translations:
                raise RecipeError(f"{self.output / HYPOTHESES} lacks {split} of {run.name}.")
            hypotheses[split] = self._translations[*run.key, split]
        return RunRecord(
            recipe=json.loads(row["recipe"]),
            results=json.loads(row["results"]),
            hypotheses=hypotheses,
            finished=row["finished"],
        )

    def check(self) -> None:
        """Raises `RecipeError` if a run, finished or not, has what another recipe trained, or
        teachers that are no longer there taught it.
        """
        for run in self.runs:
            recipe = self.recipe(run)
            if recipe is None:
                continue
            folder = run.folder(self.output)
            with refusing(str(folder)):
                fingerprint = fingerprint_of(recipe)
            if fingerprint != fingerprint_of(run.recipe):
                raise RecipeError(
                    f"{folder} was trained by another recipe than the suite now "
                    f"has for {run.name}: choose another folder, or delete that one."
                )
            unfinished = [teacher for teacher in run.teachers if not self.is_finished(teacher)]
            if unfinished and self.is_finished(run):
                raise RecipeError(
                    f"{folder} is finished, but not its teacher {unfinished[0].name}: delete "
                    "the student, too, which another one taught."
                )


def to_parquet(records: dict[Run, RunRecord], **about: dict[str, Any]) -> dict[str, bytes]:
    """The two tables of records, sorted and compressed.

    Args:
        records: The finished runs.
        about: What `SuiteRecords.about` reads again.

    Returns:
        Name of a file -> its Parquet.
    """
    runs = []
    translations = []
    for run, record in records.items():
        key = dict(zip(_KEY, run.key, strict=True))
        recipe = json.dumps(record.recipe, ensure_ascii=False)
        results = json.dumps(record.results, ensure_ascii=False)
        runs.append({**key, "finished": record.finished, "recipe": recipe, "results": results})
        for split, lines in record.hypotheses.items():
            for segment, text in enumerate(lines):
                translations.append((run.data, split, segment, run.system, run.seed, text))
    # Translations of one segment stand beside each other, and are alike
    translations.sort()
    names = ("data", "split", "segment", "system", "seed", "text")
    columns = dict(zip(names, zip(*translations, strict=True), strict=bool(translations)))
    metadata = {subject: json.dumps(value) for subject, value in about.items()}
    return {
        RUNS: _compressed(pyarrow.Table.from_pylist(runs, metadata=metadata)),
        HYPOTHESES: _compressed(pyarrow.table(columns)),
    }


def _compressed(table: pyarrow.Table) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file, compression="zstd", compression_level=19)
    return file.getvalue()


def _read_table(path: Path) -> pyarrow.Table:
    try:
        return pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise RecipeError(f"{path} cannot be read ({error}): publish the suite again.") from error
