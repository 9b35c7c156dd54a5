# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Longer texts: neighbouring pairs of a corpus joined (Varis and Bojar, EMNLP 2021)."""

import itertools
import random
from collections.abc import Iterable, Iterator

from datasets import Dataset

from csan_hf_runtime.text_files import VARIANTS


def joined(rows: Dataset, counts: Iterable[int]) -> Dataset:
    """Joins neighbouring pairs by a space.

    Args:
        rows: Columns source and target.
        counts: How many pairs each text takes; those that are left at the end are too few for the
            next, and go.
    """
    rows = rows.select_columns(["source", "target"])
    ends = itertools.accumulate(counts, initial=0)
    places = list(itertools.pairwise(itertools.takewhile(lambda end: end <= len(rows), ends)))
    texts = {}
    for name, column in rows[:].items():
        texts[name] = [_join(column[start:end]) for start, end in places]
    return Dataset.from_dict(texts, features=rows.features)


def random_counts(most: int, seed: int) -> Iterator[int]:
    """Numbers of pairs from 1 to `most`, each equally often, without end."""
    generator = random.Random(seed)
    while True:
        yield generator.randint(1, most)


def _join(sentences: list[str]) -> str:
    """Joins texts, or the first references of several texts, the second..."""
    variants = zip(*(sentence.split(VARIANTS) for sentence in sentences), strict=True)
    return VARIANTS.join(" ".join(filter(None, map(str.strip, texts))) for texts in variants)
