# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What a suite says of texts longer than those of training: its curves, what fails, and the scores
by place.

Columns of its table are numbers of sentences joined (`data.join_test`); that of 1 has the sentences
themselves, in the same order, from which the places are known."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rapidfuzz.distance import Levenshtein

from csan_hf.training.recipe import RecipeError

from .results import Texts
from .suite import Suite

FAILURES = {
    "ends early": "fewer than 80% of the reference's words",
    "runs on": "more than 125% of them",
    "repeats": "some four words stand there at least three times more often than in the reference",
    "skips": "a sentence has less than a fifth of its words, one after it more",
}


@dataclass(frozen=True)
class Lengths:
    """What the longest texts show; means over a system's seeds.

    Attributes:
        trained: Most sentences joined in training.
        longest: Most sentences joined in the table.
        failures: System -> kind of failure -> share of the longest texts.
        places: System -> score of the first sentence of the longest texts, of the second...
    """

    trained: int
    longest: int
    failures: dict[str, dict[str, float]]
    places: dict[str, list[float]]


def read_lengths(suite: Suite, output: Path) -> Lengths | None:
    """Counts what fails in the longest texts of a suite's finished runs; None for a suite without
    lengths.
    """
    if suite.lengths is None:
        return None
    (title, trained), texts = suite.lengths, Texts(suite, output)
    columns = suite.tables[title]
    longest = max(map(int, columns))
    (data, (split,)), (_, (single,)) = columns[str(longest)], columns["1"]
    references = texts.references(data, single)
    groups = [
        references[start : start + longest]
        for start in range(0, len(references) - longest + 1, longest)
    ]
    failures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    places: dict[str, list[list[float]]] = defaultdict(list)
    metric = texts.metrics[data]
    for cell in texts.cells:
        hypotheses = texts.records.hypotheses(cell, split)
        if len(hypotheses) != len(groups):
            raise RecipeError(
                f"{cell.name}: {len(hypotheses)} hypotheses of {split}, but {len(groups)} "
                "references."
            )
        cut = [sentences_of(text, group) for text, group in zip(hypotheses, groups, strict=True)]
        kinds = [failures_of(parts, group) for parts, group in zip(cut, groups, strict=True)]
        for kind in FAILURES:
            failures[cell.system][kind].append(float(np.mean([kind in own for own in kinds])))
        of_place = (zip(*rows, strict=True) for rows in (cut, groups))
        counts = [
            metric.segment_counts(list(own), list(other))
            for own, other in zip(*of_place, strict=True)
        ]
        places[cell.system].append([float(metric.score(own.sum(axis=0))) for own in counts])
    means = {
        name: {kind: float(np.mean(shares)) for kind, shares in own.items()}
        for name, own in failures.items()
    }
    by_place = {name: list(map(float, np.mean(rows, axis=0))) for name, rows in places.items()}
    order = [name for name in suite.systems if name in means]
    return Lengths(
        trained,
        longest,
        {name: means[name] for name in order},
        {name: by_place[name] for name in order},
    )


def sentences_of(text: str, references: Sequence[str]) -> list[str]:
    """Cuts a text where the ends of the reference's sentences lie when words are aligned by edit
    distance.

    As mwerSegmenter does (Matusov et al., IWSLT 2005).
    """
    words, expected = text.split(), " ".join(references).split()
    starts = np.cumsum([0, *(len(sentence.split()) for sentence in references)])
    place = np.zeros(len(expected) + 1, dtype=int)  # of each of the reference's words in the text
    for edit in Levenshtein.opcodes(expected, words):
        taken = np.arange(edit.src_end - edit.src_start)
        place[edit.src_start : edit.src_end] = np.minimum(edit.dest_start + taken, edit.dest_end)
    place[0], place[-1] = 0, len(words)
    return [
        " ".join(words[start:end])
        for start, end in zip(place[starts[:-1]], place[starts[1:]], strict=True)
    ]


def failures_of(sentences: Sequence[str], references: Sequence[str]) -> set[str]:
    """What is wrong with a text, given sentence by sentence: keys of `FAILURES`."""
    words, expected = (" ".join(parts).split() for parts in (sentences, references))
    grams, usual = (
        Counter(" ".join(text[at : at + 4]) for at in range(len(text) - 3))
        for text in (words, expected)
    )
    is_there = [
        5 * len(own.split()) >= len(other.split())
        for own, other in zip(sentences, references, strict=True)
    ]
    checks = {
        "ends early": len(words) < 0.8 * len(expected),
        "runs on": len(words) > 1.25 * len(expected),
        "repeats": any(count - usual[gram] >= 3 for gram, count in grams.items()),
        "skips": False in is_there and any(is_there[is_there.index(False) :]),
    }
    return {kind for kind, holds in checks.items() if holds}
