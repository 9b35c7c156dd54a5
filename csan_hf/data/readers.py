# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Reading parallel text from files: every mistake is reported with the file, the line and the
reason.
"""

import csv
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from csan_hf_runtime.text_files import check_parallel, read_lines, uncompressed_name

from .documents import document_pairs

Rows = Iterable[tuple[str, Any]]
"""Rows of a table: where each stands, such as "line 3", and its values by column."""

Part = tuple[Path, ...]
"""Files that are read together: a table, or the plain text of both languages."""

Pair = dict[str, str]
"""A source and its target, by these names."""


def read_pairs(
    parts: Iterable[Part], columns: tuple[str, str], *, documents: bool = False
) -> Iterator[Pair]:
    """Yields the pairs of one part after the other; see `text_pairs`, `table_pairs` and
    `document_pairs`.
    """
    read_text = document_pairs if documents else text_pairs
    for part in parts:
        if documents and len(part) == 1:
            raise ValueError(
                f"{part[0]}: documents are read from plain text, a file for each language, with "
                "{lang} in its name"
            )
        yield from table_pairs(*part, columns) if len(part) == 1 else read_text(*part)


def text_pairs(source: Path, target: Path) -> Iterator[Pair]:
    """Yields the pairs of two files with one sentence per line, as they are read; different numbers
    of lines are a `ValueError`.
    """
    for pair in itertools.zip_longest(read_lines(source), read_lines(target)):
        if None in pair:
            paths = (source, target)
            check_parallel(paths, [range(sum(1 for _ in read_lines(path))) for path in paths])
        yield {"source": pair[0], "target": pair[1]}


def file_format(path: str | Path) -> str:
    """The extension that decides how a file is read: one of `TABLES`, or "" for plain text."""
    extension = os.path.splitext(uncompressed_name(path))[1].lower()
    return extension if extension in TABLES else ""


def table_pairs(path: Path, columns: tuple[str, str]) -> Iterator[Pair]:
    """Yields the pairs of a table, one of the `TABLES`, as they are read.

    A column of JSONL or parquet may also be an entry of a column "translation", as on the Hub:
    `{"translation": {"en": "...", "de": "..."}}`. The first line of a CSV or TSV file names its
    columns, unless the columns are given as numbers ("0" is the first).

    Raises:
        ValueError: A column is missing, a value is no text, or a line is malformed; the message
            names file and line.
    """
    kind = file_format(path)
    place = "the beginning"
    try:
        for place, row in TABLES[kind](path, columns):
            yield pair_of(row, f"{path}, {place}", columns)
    except (csv.Error, json.JSONDecodeError, RecursionError, pa.ArrowException, OSError) as error:
        # OSError is a damaged page of parquet, too
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{path}, after {place}: not {kind.removeprefix('.')}, or damaged ({reason})"
        ) from error


def pair_of(row: object, where: str, columns: tuple[str, str]) -> Pair:
    """Takes both sides from a row, from columns of their own or from a column "translation".

    Args:
        row: Its values by column.
        where: What the row is, for messages.
        columns: Names of the source and of the target column.
    """
    pair = {}
    for side, column in zip(("source", "target"), columns, strict=True):
        values = row if isinstance(row, dict) else {}
        if column not in values and isinstance(values.get("translation"), dict):
            values = values["translation"]
        if column not in values:
            raise ValueError(
                f"{where}: there is no column {column!r} among {', '.join(map(repr, values))}; set "
                "source_column and "
                'target_column (as numbers, "0" being the first, if a .csv or .tsv has no header)'
            )
        try:
            values[column].encode()  # JSON can hold half characters
        except (AttributeError, UnicodeEncodeError) as error:
            raise ValueError(
                f"{where}: {column!r} is {values[column]!r}; text is needed"
            ) from error
        pair[side] = values[column]
    return pair


def table_rows(batches: Iterable[pa.RecordBatch | pa.Table]) -> Rows:
    """Yields the rows of an arrow table, counted from 0 as `datasets` does."""
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            yield f"row {number}", row
            number += 1


def _csv_rows(path: Path, columns: tuple[str, str]) -> Rows:
    reader = csv.reader((f"{line}\n" for line in read_lines(path)), strict=True)
    return _named_fields(((reader.line_num, fields) for fields in reader if fields), columns)


def _tsv_rows(path: Path, columns: tuple[str, str]) -> Rows:
    lines = ((number, line.split("\t")) for number, line in enumerate(read_lines(path), 1) if line)
    return _named_fields(lines, columns)


def _named_fields(lines: Iterator[tuple[int, list[str]]], columns: tuple[str, str]) -> Rows:
    names: list[str] = []
    for number, fields in lines:
        if not names:
            names = fields
            if all(column.isdecimal() for column in columns):
                names = [str(place) for place in range(len(fields))]
            else:
                continue
        # A comma of a sentence without quotes, a tab too many or none
        if len(fields) > len(names) or not set(columns).isdisjoint(names[len(fields) :]):
            raise csv.Error(f"line {number} has {len(fields)} fields instead of {len(names)}")
        row = [*zip(names, fields, strict=False)]
        yield f"line {number}", dict(row) | dict(row[::-1])  # of equal names the first


# A pronunciation that is not a word's first: "read(2)"
_VARIANT = re.compile(r"\(\d+\)$")
_PROBABILITY = re.compile(r"[\d.]+")


def _dictionary_rows(path: Path, columns: tuple[str, str]) -> Rows:
    """Words as column "0" and phones as column "1" of CMU's and of MFA's pronouncing dictionaries.

    Comments are left out, as are MFA's probabilities, numbers between the word and its phones."""
    for number, line in enumerate(read_lines(path), 1):
        entry, _, _ = line.partition(" #")
        fields = entry.split()
        if not fields or line.startswith(";;;"):
            continue
        phones = list(itertools.dropwhile(_PROBABILITY.fullmatch, fields[1:]))
        if not phones:
            raise csv.Error(f"line {number} has a word without phones: {line.strip()[:60]!r}")
        yield f"line {number}", {"0": _VARIANT.sub("", fields[0]), "1": " ".join(phones)}


def _jsonl_rows(path: Path, columns: tuple[str, str]) -> Rows:
    lines = enumerate(read_lines(path), 1)
    return ((f"line {number}", json.loads(line)) for number, line in lines if line.strip())


def _parquet_rows(path: Path, columns: tuple[str, str]) -> Rows:
    return table_rows(pq.ParquetFile(path).iter_batches(1_000))


TABLES: dict[str, Callable[[Path, tuple[str, str]], Rows]] = {
    ".csv": _csv_rows,
    ".tsv": _tsv_rows,
    ".dict": _dictionary_rows,
    ".jsonl": _jsonl_rows,
    ".parquet": _parquet_rows,
}
"""The formats of files that hold both sides, by extension."""
