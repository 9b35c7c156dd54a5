# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The finished runs of a suite: of its folder, and of the two tables that were published.

`runs.parquet` has a row for each run, `hypotheses.parquet` one for each translation; both are read
by `datasets.load_dataset`, too.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from csan_hf.text_files import path_inside, read_lines
from csan_hf.training.output_folder import entries_of_run
from csan_hf.training.recipe import RecipeError, read_yaml
from csan_hf.training.record import FINISHED, RECIPE, RESULTS, RunRecord, fingerprint_of

from .suite import Cell, splits_of

RUNS = "runs.parquet"
HYPOTHESES = "hypotheses.parquet"
_ROW = ("data", "system", "seed")
# Metadata of the table of runs
_REFERENCES = b"references"
_SPEEDS = b"speeds"


class SuiteRecords:
    """The records of cells that are finished, in a suite's folder or in the tables there.

    A run's own folder comes first: a cell whose folder is there is not looked for in the tables.
    """

    def __init__(self, cells: Iterable[Cell], output: Path) -> None:
        self.cells = tuple(cells)
        self.output = output

    @cached_property
    def _table(self) -> pyarrow.Table | None:
        path = self.output / RUNS
        return _read_table(path) if path.is_file() else None

    @cached_property
    def _published(self) -> dict[tuple[str, str, int], dict[str, Any]]:
        rows = self._table.to_pylist() if self._table is not None else []
        return {tuple(row[key] for key in _ROW): row for row in rows}

    def _about(self, what: bytes) -> dict[str, Any]:
        """What the published table says of the suite as a whole."""
        metadata = (self._table.schema.metadata or {}) if self._table is not None else {}
        about: dict[str, Any] = json.loads(metadata.get(what, b"{}"))
        return about

    @property
    def references(self) -> dict[str, str]:
        """Digests of the references that published runs were scored with: data set/split ->
        SHA-256.
        """
        return self._about(_REFERENCES)

    @property
    def speeds(self) -> dict[str, dict[str, Any]]:
        """Speeds of training of systems, published with the runs."""
        return self._about(_SPEEDS)

    @cached_property
    def _translations(self) -> dict[tuple[str, str, int], dict[str, list[str]]]:
        """Run -> split -> its translations in the order of the segments."""
        translations: dict[tuple[str, str, int], dict[str, list[str]]] = {}
        for row in _read_table(self.output / HYPOTHESES).to_pylist():
            splits = translations.setdefault(tuple(row[key] for key in _ROW), {})
            splits.setdefault(row["split"], []).append(row["text"])
        return translations

    def is_known(self, cell: Cell) -> bool:
        """Whether a run was begun in a cell's folder, or was published."""
        return (cell.folder(self.output) / RECIPE).is_file() or cell.key in self._published

    def is_finished(self, cell: Cell) -> bool:
        """Whether a cell needs no more training."""
        folder = cell.folder(self.output)
        return (folder / FINISHED).is_file() or (
            not folder.is_dir() and cell.key in self._published
        )

    @property
    def finished(self) -> list[Cell]:
        """The cells that are finished, in order."""
        return [cell for cell in self.cells if self.is_finished(cell)]

    def results(self, cell: Cell) -> dict[str, Any]:
        """What a finished cell measured."""
        path = cell.folder(self.output) / RESULTS
        text = path.read_text(encoding="utf-8") if path.is_file() else self._row(cell)["results"]
        try:
            results: dict[str, Any] = json.loads(text)
            results["parameters"], results["training"]["seconds"]  # what every report asks for
        except (ValueError, KeyError, TypeError) as error:
            raise RecipeError(
                f"{path} is not what a run of this version wrote ({error!r}): delete its folder, "
                "and the suite trains it again."
            ) from error
        return results

    def hypotheses(self, cell: Cell, split: str) -> list[str]:
        """The translations of a finished cell."""
        folder = cell.folder(self.output)
        if folder.is_dir():
            return list(read_lines(path_inside(folder, "hypotheses", f"{split}.txt")))
        lines = self._translations.get(cell.key, {}).get(split)
        if lines is None:
            raise RecipeError(f"{self.output / HYPOTHESES} lacks {split} of {cell.name}.")
        return lines

    def _row(self, cell: Cell) -> dict[str, Any]:
        if cell.key not in self._published:
            folder = cell.folder(self.output)
            raise RecipeError(f"{folder} is not the folder of a whole run: delete it.")
        return self._published[cell.key]

    def record(self, cell: Cell) -> RunRecord:
        """The record of a finished cell."""
        splits = splits_of(cell.recipe)
        if cell.folder(self.output).is_dir():
            return RunRecord.from_folder(cell.folder(self.output), splits)
        row = self._row(cell)
        return RunRecord(
            recipe=json.loads(row["recipe"]),
            results=json.loads(row["results"]),
            hypotheses={split: self.hypotheses(cell, split) for split in splits},
            finished=row["finished"],
        )

    def check(self, cell: Cell) -> None:
        """Raises `RecipeError` if a cell, finished or not, has what another recipe trained."""
        folder = cell.folder(self.output)
        if (folder / RECIPE).is_file():
            recipe = read_yaml(folder / RECIPE)
        elif entries := entries_of_run(folder):
            raise RecipeError(
                f"{folder} holds {entries[0].name}, but no {RECIPE}, so no suite made that: move "
                "it elsewhere."
            )
        elif cell.key in self._published:
            recipe = json.loads(self._published[cell.key]["recipe"])
        else:
            return
        if fingerprint_of(recipe) != fingerprint_of(cell.recipe):
            raise RecipeError(
                f"{folder} was trained by another recipe than the suite now has for {cell.name}: "
                "choose another folder, or delete that one."
            )


def tables_of(
    records: dict[Cell, RunRecord],
    references: dict[str, str],
    speeds: dict[str, dict[str, Any]],
) -> dict[str, bytes]:
    """The two tables of records, sorted and compressed; that of runs keeps digests and speeds, too.

    Args:
        records: The finished runs.
        references: Data set/split -> digest of its references.
        speeds: System -> its speed of training.

    Returns:
        Name of a file -> its Parquet.
    """
    runs = []
    translations = []
    for cell, record in records.items():
        run = dict(zip(_ROW, cell.key, strict=True))
        runs.append(
            {
                **run,
                "finished": record.finished,
                "recipe": json.dumps(record.recipe, ensure_ascii=False),
                "results": json.dumps(record.results, ensure_ascii=False),
            }
        )
        for split, lines in record.hypotheses.items():
            for segment, text in enumerate(lines):
                translations.append({**run, "split": split, "segment": segment, "text": text})
    # Translations of one segment stand beside each other, and are alike
    order = ("data", "split", "segment", "system", "seed")
    translations.sort(key=lambda row: tuple(row[key] for key in order))
    rows = [{key: row[key] for key in (*order, "text")} for row in translations]
    about = {_REFERENCES: json.dumps(references), _SPEEDS: json.dumps(speeds)}
    return {RUNS: _parquet(runs, about), HYPOTHESES: _parquet(rows, {})}


def _parquet(rows: list[dict[str, Any]], about: dict[bytes, str]) -> bytes:
    file = io.BytesIO()
    table = pyarrow.Table.from_pylist(rows).replace_schema_metadata(about)
    pyarrow.parquet.write_table(table, file, compression="zstd", compression_level=19)
    return file.getvalue()


def _read_table(path: Path) -> pyarrow.Table:
    """A table; a `RecipeError` names a file that is none."""
    try:
        return pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise RecipeError(f"{path} cannot be read ({error}): publish the suite again.") from error
