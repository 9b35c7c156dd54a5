# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Reading parallel text from files: every mistake is reported with the file, the line and the reason."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from csan_hf.text_files import read_lines

Pairs = tuple[list[str], list[str]]
"""Source sentences and target sentences, equally many."""

TABLE_FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")


def file_format(path: str | Path) -> str:
    """The extension that decides how a file is read: one of `TABLE_FORMATS`, or "" for plain text."""
    name = str(path).removesuffix(".gz")
    return next((extension for extension in TABLE_FORMATS if name.endswith(extension)), "")


def read_text_pair(source: Path, target: Path) -> Pairs:
    """Reads two files with one sentence per line; different numbers of lines are a `ValueError`."""
    sides = list(read_lines(source)), list(read_lines(target))
    if len(sides[0]) != len(sides[1]):
        short, long = (source, target) if len(sides[0]) < len(sides[1]) else (target, source)
        raise ValueError(
            f"{source} has {len(sides[0]):,} lines and {target} has {len(sides[1]):,}: "
            f"line {min(map(len, sides)) + 1:,} of {long} has no partner in {short}"
        )
    return sides


def read_table(path: Path, source_column: str, target_column: str) -> Pairs:
    """Reads both sides from one CSV, TSV, JSONL or parquet file.

    A column of JSONL or parquet may also be an entry of a column "translation", as on the Hub:
    `{"translation": {"en": "...", "de": "..."}}`. The first line of a CSV or TSV file names its columns, unless the
    columns are given as numbers ("0" is the first).

    Raises:
        ValueError: A column is missing, a value is no text, or a line is malformed.
    """
    rows = list(table_rows(path, (source_column, target_column)))
    return [left for left, _ in rows], [right for _, right in rows]


def table_rows(path: Path, columns: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the rows of a table as they are read; see `read_table`."""
    readers = {".csv": _separated_rows, ".tsv": _separated_rows, ".jsonl": _jsonl_rows, ".parquet": _parquet_rows}
    return readers[file_format(path)](path, columns)


def _separated_rows(path: Path, columns: tuple[str, str]) -> Iterator[tuple[str, str]]:
    if file_format(path) == ".csv":
        separated = "comma-separated"
        rows = _csv_rows(path)
    else:
        separated = "tab-separated"
        rows = ((number, line.split("\t")) for number, line in enumerate(read_lines(path), start=1))
    if all(column.isdecimal() for column in columns):
        places = [int(column) for column in columns]
    else:
        header = next(rows, (1, [""]))[1]
        places = [_place(path, header, column) for column in columns]
    for number, fields in rows:
        if len(fields) <= max(places):
            raise ValueError(
                f"{path}, line {number}: {len(fields)} {separated} fields, but field {max(places) + 1} is needed"
            )
        yield fields[places[0]], fields[places[1]]


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the fields of a row, which may hold quoted commas and line breaks, and the number of its last line."""
    reader = csv.reader((f"{line}\n" for line in read_lines(path)), strict=True)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: not CSV ({error})") from error


def _place(path: Path, header: list[str], column: str) -> int:
    if column not in header:
        raise ValueError(
            f"{path}, line 1: there is no column {column!r} among {', '.join(map(repr, header))}; "
            'set source_column and target_column (as numbers, "0" being the first, if the file has no header)'
        )
    return header.index(column)


def _jsonl_rows(path: Path, columns: tuple[str, str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(path), start=1):
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: a JSON object is needed, not {type(row).__name__}")
        source, target = (_value(f"{path}, line {number}", row, column) for column in columns)
        yield source, target


def _value(where: str, row: dict[str, Any], column: str) -> str:
    nested = row.get("translation")
    if column not in row and isinstance(nested, dict):
        row = nested
    if column not in row:
        raise ValueError(f"{where}: there is no {column!r} among {', '.join(map(repr, row))}")
    value = row[column]
    if not isinstance(value, str):
        raise ValueError(f"{where}: {column!r} is {value!r}; text is needed")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:  # JSON can hold half characters
        raise ValueError(f"{where}: {column!r} has a lone surrogate (U+{ord(value[error.start]):04X})") from error
    return value


def _parquet_rows(path: Path, columns: tuple[str, str]) -> Iterator[tuple[str, str]]:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:  # a damaged page counts as an error of the disk
        raise ValueError(f"{path}: not a parquet file, or damaged ({str(error).splitlines()[0]})") from error
    return zip(*pairs_of_table(str(path), table, columns), strict=True)


def pairs_of_table(where: str, table: pa.Table, columns: tuple[str, str]) -> Pairs:
    """Takes both sides from an arrow table, from columns of their own or from a column "translation".

    Args:
        where: What the table is, for messages, which count rows from 0, as `datasets` does.
        table: The table.
        columns: Names of the source and of the target column.
    """
    source, target = (_texts_of_column(where, table, column) for column in columns)
    return source, target


def _texts_of_column(where: str, table: pa.Table, column: str) -> list[str]:
    names = table.column_names
    if column not in names and "translation" in names and pa.types.is_struct(table.schema.field("translation").type):
        table = pa.Table.from_struct_array(table["translation"])
        where, names = f"{where}, translation", table.column_names
    if column not in names:
        raise ValueError(
            f"{where}: there is no column {column!r} among {', '.join(map(repr, names))}; "
            "set source_column and target_column"
        )
    values = table[column].to_pylist()
    for number, value in enumerate(values):
        if not isinstance(value, str):
            raise ValueError(f"{where}, row {number}: {column!r} is {value!r}; text is needed")
    return values
