# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Longer texts: neighbouring pairs of a corpus joined (Varis and Bojar, EMNLP 2021), and pieces of
documents.
"""

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from datasets import Dataset, IterableDataset

from csan_hf_runtime.text_files import VARIANTS, one_line

Rows = TypeVar("Rows", Dataset, IterableDataset)

LINE_FEED = "\n"
"""Stands between the lines of a text; a token of the vocabularies that know lines."""


def joined(rows: Dataset, counts: Iterable[int], separator: str) -> Dataset:
    """Joins neighbouring pairs.

    Args:
        rows: Columns source and target.
        counts: How many pairs each text takes; those that are left at the end are too few for the
            next, and go.
        separator: What stands between them; a line feed = they are lines, blank or not.
    """
    rows = rows.select_columns(["source", "target"])
    ends = itertools.accumulate(counts, initial=0)
    places = list(itertools.pairwise(itertools.takewhile(lambda end: end <= len(rows), ends)))
    texts = {}
    for name, column in rows[:].items():
        texts[name] = [_join(column[start:end], separator) for start, end in places]
    return Dataset.from_dict(texts, features=rows.features)


def random_counts(most: int, seed: int) -> Iterator[int]:
    """Numbers of pairs from 1 to `most`, each equally often, without end."""
    generator = random.Random(seed)
    while True:
        yield generator.randint(1, most)


def _join(texts: Sequence[str], separator: str) -> str:
    """Joins texts, or the first references of several texts, the second..."""
    variants = zip(*(text.split(VARIANTS) for text in texts), strict=True)
    return VARIANTS.join(_join_variant(variant, separator) for variant in variants)


def _join_variant(texts: Sequence[str], separator: str) -> str:
    stripped = [text.strip() for text in texts]
    if separator == LINE_FEED:
        return LINE_FEED.join(map(one_line, stripped))
    return separator.join(filter(None, stripped))


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


def lines_alone(rows: Dataset) -> Dataset:
    """The lines of documents, columns source and target, a pair in each row."""
    columns = {}
    for name in ("source", "target"):
        columns[name] = [line for text in rows[name] for line in text.split(LINE_FEED)]
    return Dataset.from_dict(columns, features=rows.features)


def lines_of_file(
    texts: Iterable[str], references: Iterable[str], *, documents: bool
) -> Iterator[str]:
    """Yields the lines of a file of texts: one of each, or of documents as many of each as its
    reference has.

    What a document has beyond goes into its last line; what it lacks is blank.
    """
    for text, reference in zip(texts, references, strict=True):
        if not documents:
            yield one_line(text)
            continue
        count = reference.count(LINE_FEED) + 1
        lines = text.split(LINE_FEED, count - 1)
        yield from map(one_line, lines)
        yield from itertools.repeat("", count - len(lines))


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
    whole = sum(sizes) if longest is None else min(sum(sizes), longest)
    line = min(sum(sizes) // len(sizes), whole)
    while True:
        limit = 2 ** generator.randint(line.bit_length() - 1, whole.bit_length())
        yield limit if longest is None else min(limit, longest)


def _spans(sizes: Sequence[int], limits: Iterator[int]) -> Iterator[tuple[int, int]]:
    """First and last places of pieces within their limits; a larger line is one alone."""
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
