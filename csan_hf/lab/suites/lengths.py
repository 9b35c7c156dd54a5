# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Texts longer than those of training: their failures, and scores by a sentence's place.

Columns of a suite's table of lengths are numbers of sentences joined (`data.join_test`); that of 1
has the sentences themselves, in the same order, from which the places are known."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from csan_hf.evaluation.metrics import CorpusMetric
from csan_hf.evaluation.pieces import cut_like
from csan_hf_runtime.text_files import VARIANTS

from .suite_texts import SuiteTexts

FAILURES = {
    "ends early": "fewer than 80% of the reference's words",
    "runs on": "more than 125% of them",
    "repeats": "some four words stand there at least three times more often than in the reference",
    "skips": "a sentence has less than a fifth of its words, one after it more",
}


@dataclass(frozen=True)
class Lengths:
    """Failures and scores of the longest texts; means over a system's seeds.

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


def read_lengths(texts: SuiteTexts) -> Lengths | None:
    """Counts what fails in the longest texts of a suite's finished runs; None for a suite without
    lengths.
    """
    suite = texts.suite
    if suite.lengths is None:
        return None
    title, trained = suite.lengths
    columns = suite.tables[title]
    longest = max(map(int, columns))
    data, splits = columns[str(longest)]
    _, single = columns["1"]
    references = [text.partition(VARIANTS)[0] for text in texts.references(data, single)]
    metric = texts.metric(data, references)
    groups = [
        references[start : start + longest]
        for start in range(0, len(references) - longest + 1, longest)
    ]

    failures = {}
    places = {}
    for system in suite.systems:
        shares = []
        scores = []
        for run in texts.runs:
            if run.system == system and run.data == data:
                pairs = zip(texts.hypotheses(run, splits), groups, strict=True)
                sentences = [cut_like(text, group) for text, group in pairs]
                shares.append(_failure_shares(sentences, groups))
                scores.append(_scores_by_place(sentences, groups, metric))
        if shares:
            failures[system] = dict(zip(FAILURES, np.mean(shares, axis=0).tolist(), strict=True))
            places[system] = np.mean(scores, axis=0).tolist()
    return Lengths(trained, longest, failures, places)


def _failure_shares(sentences: list[list[str]], groups: list[list[str]]) -> list[float]:
    """Share of texts with each kind of failure."""
    counts = Counter(chain.from_iterable(map(failures_of, sentences, groups)))
    return [counts[kind] / len(groups) for kind in FAILURES]


def _scores_by_place(
    sentences: list[list[str]], groups: list[list[str]], metric: CorpusMetric
) -> list[float]:
    """Score of all texts' first sentences, of their second..."""
    scores = []
    places = zip(zip(*sentences, strict=True), zip(*groups, strict=True), strict=True)
    for hypotheses, references in places:
        counts = metric.segment_counts(hypotheses, references)
        scores.append(metric.score(counts.sum(axis=0)))
    return scores


def failures_of(sentences: Sequence[str], references: Sequence[str]) -> set[str]:
    """The failures of a text, cut into sentences: keys of `FAILURES`."""
    words = " ".join(sentences).split()
    expected = " ".join(references).split()
    repeated = _four_grams(words) - _four_grams(expected)
    is_there = [
        5 * len(sentence.split()) >= len(reference.split())
        for sentence, reference in zip(sentences, references, strict=True)
    ]
    checks = {
        "ends early": len(words) < 0.8 * len(expected),
        "runs on": len(words) > 1.25 * len(expected),
        "repeats": any(count >= 3 for count in repeated.values()),
        "skips": False in is_there and any(is_there[is_there.index(False) :]),
    }
    return {kind for kind, holds in checks.items() if holds}


def _four_grams(words: list[str]) -> Counter[str]:
    return Counter(" ".join(words[start : start + 4]) for start in range(len(words) - 3))
