# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Longer texts: neighbouring pairs of a corpus joined (Varis and Bojar, EMNLP 2021)."""

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence

from datasets import Dataset

from csan_hf_runtime.text_files import VARIANTS, one_line

LINE_FEED = "\n"
"""Stands between the lines of a text; a token of the vocabularies that know lines."""


def joined(rows: Dataset, counts: Iterable[int], separator: str) -> Dataset:
    """Joins neighbouring pairs.

    Args:
        rows: Columns source and target.
        counts: Pairs in each text; a last, incomplete text is left out.
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
    """Joins texts, reference by reference."""
    variants = zip(*(text.split(VARIANTS) for text in texts), strict=True)
    return VARIANTS.join(_join_variant(variant, separator) for variant in variants)


def _join_variant(texts: Sequence[str], separator: str) -> str:
    stripped = [text.strip() for text in texts]
    if separator == LINE_FEED:
        return LINE_FEED.join(map(one_line, stripped))
    return separator.join(filter(None, stripped))
