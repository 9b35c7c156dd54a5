# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Documents: texts of several lines, in files with a blank line between documents."""

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from datasets import Dataset, IterableDataset

from csan_hf_runtime.text_files import check_parallel, one_line, read_lines

from .joining import LINE_FEED

Rows = TypeVar("Rows", Dataset, IterableDataset)

NumberedLines = list[tuple[int, str]]
"""The lines of a document, with their numbers in the file."""

# ---- files


def document_pairs(source: Path, target: Path) -> Iterator[dict[str, str]]:
    """Yields the documents of two files, lines with blank ones between documents.

    Raises:
        ValueError: A document has no partner, or another number of lines; the message names it.
    """
    documents: Iterator[tuple[NumberedLines, NumberedLines]] = itertools.zip_longest(
        _documents(source), _documents(target), fillvalue=[]
    )
    for number, (source_lines, target_lines) in enumerate(documents, 1):
        if len(source_lines) != len(target_lines):
            places = f"{_place_of(source, source_lines)} and {_place_of(target, target_lines)}"
            raise ValueError(f"document {number}: {places}; both need the same")
        yield {"source": _text_of(source_lines), "target": _text_of(target_lines)}


def read_documents(source: Path | str, reference: Path | str) -> tuple[list[str], list[str]]:
    """Reads the documents of two files; see `document_pairs`."""
    pairs = list(document_pairs(Path(source), Path(reference)))
    return [pair["source"] for pair in pairs], [pair["target"] for pair in pairs]


def read_translations(path: Path | str, source: Path | str) -> list[str]:
    """Reads translations of the documents of `source`, with its blank lines or without any.

    Raises:
        ValueError: The translations have another number of lines.
    """
    source_lines = list(read_lines(source))
    is_text = [bool(line.strip()) for line in source_lines]
    lines = list(read_lines(path))
    if len(lines) != sum(is_text):
        check_parallel((source, path), (source_lines, lines))
        lines = list(itertools.compress(lines, is_text))
    remaining = map(str.strip, lines)
    sizes = [len(list(run)) for has_text, run in itertools.groupby(is_text) if has_text]
    return [LINE_FEED.join(itertools.islice(remaining, size)) for size in sizes]


def document_lines(texts: Iterable[str], references: Iterable[str]) -> Iterator[str]:
    """Yields the lines of each text, as many as its reference has: further ones go into the last
    line, and what a text lacks is blank.
    """
    for text, reference in zip(texts, references, strict=True):
        count = reference.count(LINE_FEED) + 1
        lines = text.split(LINE_FEED, count - 1)
        yield from map(one_line, lines)
        yield from itertools.repeat("", count - len(lines))


def _place_of(path: Path, lines: NumberedLines) -> str:
    start = f" from line {lines[0][0]} on" if lines else ""
    return f"{path} has {len(lines)} lines{start}"


def _text_of(lines: NumberedLines) -> str:
    return LINE_FEED.join(line.strip() for _, line in lines)


def _documents(path: Path) -> Iterator[NumberedLines]:
    """Yields the numbered lines of each document."""
    numbered_lines = enumerate(read_lines(path), 1)
    for is_blank, lines in itertools.groupby(numbered_lines, lambda line: not line[1].strip()):
        if not is_blank:
            yield list(lines)


# ---- data sets


def lines_alone(rows: Dataset) -> Dataset:
    """The lines of documents, columns source and target, a pair in each row."""
    columns = {}
    for name in ("source", "target"):
        columns[name] = LINE_FEED.join(rows[name]).split(LINE_FEED)
    return Dataset.from_dict(columns, features=rows.features)


def pieces_of_documents(rows: Rows, *, longest: int | None, seed: int) -> Rows:
    """Cuts documents into pieces of neighbouring lines, from front to back.

    Each is as long as drawn anew: every doubling from a line to the whole document is equally
    likely, so that a model learns from single lines what translates what, and from documents how
    lines go together.

    Args:
        rows: Columns source and target, a document in each row.
        longest: Bytes of the longest piece of several lines; None = the whole document.
        seed: Seed of the lengths.
    """
    return rows.map(
        _cut_documents,
        with_indices=True,
        batched=True,
        remove_columns=["source", "target"],
        fn_kwargs={"longest": longest, "seed": seed},
    )


def _cut_documents(
    batch: dict[str, list[str]], numbers: list[int], *, longest: int | None, seed: int
) -> dict[str, list[str]]:
    pieces: dict[str, list[str]] = {"source": [], "target": []}
    for number, source, target in zip(numbers, batch["source"], batch["target"], strict=True):
        source_lines = source.split(LINE_FEED)
        target_lines = target.split(LINE_FEED)
        sizes = list(map(_size_of_pair, source_lines, target_lines))
        limits = _random_limits(sizes, longest, random.Random(f"{seed} {number}"))
        for start, end in _spans(sizes, limits):
            pieces["source"].append(LINE_FEED.join(source_lines[start:end]))
            pieces["target"].append(LINE_FEED.join(target_lines[start:end]))
    return pieces


def _size_of_pair(source: str, target: str) -> int:
    """Bytes of the longer side."""
    return max(len(source.encode()), len(target.encode()))


def _random_limits(
    sizes: Sequence[int], longest: int | None, generator: random.Random
) -> Iterator[int]:
    """Powers of two, from the size of a line to that of all, or the longest allowed."""
    largest = sum(sizes) if longest is None else min(sum(sizes), longest)
    mean = min(sum(sizes) // len(sizes), largest)
    while True:
        limit = 2 ** generator.randint(mean.bit_length() - 1, largest.bit_length())
        yield limit if longest is None else min(limit, longest)


def _spans(sizes: Sequence[int], limits: Iterator[int]) -> Iterator[tuple[int, int]]:
    """Start and end of each piece within its limit; a larger line stands alone."""
    start = 0
    total = 0
    limit = next(limits)
    for place, size in enumerate(sizes):
        if place > start and total + size > limit:
            yield start, place
            start = place
            total = 0
            limit = next(limits)
        total += size
    yield start, len(sizes)
