# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Scores of a suite's finished runs, and the significance of their differences."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from csan_hf.evaluation.metrics import CorpusMetric, load_metric
from csan_hf.evaluation.significance import (
    PairedTest,
    Resampled,
    SeedVariance,
    adjust_p_values,
    compare_resampled,
    confidence_interval,
    draw_scores,
    resample,
    seed_variance,
    sign_flip_test,
    unequal_seeds_p_value,
)

from .suite import Columns
from .suite_texts import SuiteTexts

Counts = dict[str, dict[int, np.ndarray]]
"""Column -> seed -> counts of the segments, [S, K]."""


@dataclass
class Score:
    """A system in one column of a table.

    Attributes:
        seeds: The score of each seed.
        score: Their mean.
        interval: Its 95% interval.
        test: The difference to the baseline.
        vote: Score of the hypotheses that most seeds have, for metrics on tokens and three seeds or
            more.
        adjusted: The test's p-value, adjusted for the systems tested in this column (Holm).
    """

    seeds: dict[int, float]
    score: float
    interval: tuple[float, float]
    test: PairedTest | None
    vote: float | None
    adjusted: float | None = None


@dataclass
class Row:
    """A system in one table.

    Attributes:
        columns: Its scores in the columns in which it has a finished run.
        mean: Their mean.
        pooled: The difference to the baseline over all columns' segments taken together.
        over_columns: The difference of the columns' means and the p-value of a sign-flip test in
            which a column counts once, with two columns or more.
        between_seeds: Standard deviation of the pooled score between the seeds, with two or more.
        adjusted: The pooled p-value, adjusted for the systems tested in the table (Holm).
    """

    columns: dict[str, Score]
    mean: float
    pooled: PairedTest | None
    over_columns: tuple[float, float] | None
    between_seeds: float | None
    adjusted: float | None = None


@dataclass(frozen=True)
class Table:
    """One table of a report.

    Attributes:
        title: Its title.
        columns: Names of its columns.
        rows: System -> its row, if it has a finished run.
        between_seeds: How much a seed changes the scores of all columns' segments taken together.
        unequal_seeds: The system whose seeds differ most there, and the p-value of its differing
            from the others.
        segments: Column -> its number of segments, if a system has a run in it.
    """

    title: str
    columns: list[str]
    rows: dict[str, Row]
    between_seeds: SeedVariance
    unequal_seeds: tuple[str, float] | None
    segments: dict[str, int]


def read_tables(texts: SuiteTexts) -> list[Table]:
    """Scores what is finished, or raises `RecipeError` if data have changed since runs were scored
    with them.
    """
    return [_table(texts, title, columns) for title, columns in texts.suite.tables.items()]


def _table(texts: SuiteTexts, title: str, columns: Columns) -> Table:
    suite = texts.suite
    counts: dict[str, Counts] = {name: {} for name in suite.rows}
    votes: dict[str, dict[str, float]] = defaultdict(dict)
    segments = {}
    # Sums of counts are scored alike, whatever the data set's tokenizer
    metric = load_metric(suite.metric)
    for column, (data, splits) in columns.items():
        hypotheses: dict[str, dict[int, list[str]]] = defaultdict(dict)
        for run in texts.runs:
            if run.data == data:
                hypotheses[run.system][run.seed] = texts.hypotheses(run, splits)
        if not hypotheses:
            continue
        references = texts.references(data, splits)
        segments[column] = len(references)
        count = texts.metric(data, references).segment_counts
        for name, runs in hypotheses.items():
            counts[name][column] = {seed: count(lines, references) for seed, lines in runs.items()}
            if len(runs) >= 3 and metric.needs == "tokens":
                # Of equally many, that of the earliest run
                most_frequent = list(map(statistics.mode, zip(*runs.values(), strict=True)))
                votes[name][column] = metric.score(count(most_frequent, references).sum(axis=0))

    trained_together = len({data for data, _ in columns.values()}) < len(columns)
    resampling = _Resampling(metric, tuple(columns), counts, suite.baseline, trained_together)
    rows = {name: _row(name, resampling, votes[name]) for name in counts if counts[name]}
    adjust_p_values([(row, row.pooled) for row in rows.values()])
    for column in columns:
        scores = [row.columns[column] for row in rows.values() if column in row.columns]
        adjust_p_values([(score, score.test) for score in scores])
    shared = resampling.shared_columns(rows)
    return Table(
        title,
        list(columns),
        rows,
        resampling.variance(shared),
        _unequal_seeds(resampling.scores(shared)),
        segments,
    )


def _row(name: str, resampling: _Resampling, votes: dict[str, float]) -> Row:
    scores = {}
    for column, runs in resampling.counts[name].items():
        resampled = resampling.scores((column,))[name]
        scores[column] = Score(
            seeds=dict(zip(sorted(runs), map(float, resampled.scores), strict=True)),
            score=resampled.mean,
            interval=confidence_interval(draw_scores(resampled, resampling.variance((column,)))),
            test=resampling.test(name, (column,)),
            vote=votes.get(column),
        )
    shared = resampling.shared_columns([name, resampling.baseline])
    pooled = resampling.scores(tuple(scores)).get(name)
    return Row(
        columns=scores,
        mean=float(np.mean([score.score for score in scores.values()])),
        pooled=resampling.test(name, shared),
        over_columns=resampling.test_over(name, shared),
        between_seeds=_deviation(pooled) if pooled and len(pooled.scores) > 1 else None,
    )


def _deviation(system: Resampled) -> float:
    """Standard deviation between the seeds of a system that has several."""
    return float(system.scores.std(ddof=1))


def _unequal_seeds(scores: dict[str, Resampled]) -> tuple[str, float] | None:
    """The system whose seeds differ most, and the p-value of its differing from the others."""
    deviations = {
        name: _deviation(system) for name, system in scores.items() if len(system.scores) > 1
    }
    if not deviations:
        return None
    most = max(deviations, key=lambda name: deviations[name])
    return most, unequal_seeds_p_value(list(scores.values()))


@dataclass
class _Resampling:
    """Resampled scores of all systems in columns, alone or taken together.

    Attributes:
        metric: The metric.
        columns: Names of the table's columns.
        counts: System -> its counts.
        baseline: The system that all others are compared with.
        trained_together: Whether columns share a training: another seed moves them together.
    """

    metric: CorpusMetric
    columns: tuple[str, ...]
    counts: dict[str, Counts]
    baseline: str
    trained_together: bool
    _scores: dict[tuple[str, ...], dict[str, Resampled]] = field(default_factory=dict)

    def shared_columns(self, systems: Iterable[str]) -> tuple[str, ...]:
        """Columns in which all these systems have runs."""
        filled = [self.counts[name] for name in systems]
        return tuple(
            column for column in self.columns if all(column in counts for counts in filled)
        )

    def scores(self, columns: tuple[str, ...]) -> dict[str, Resampled]:
        """System -> scores on the columns' segments, of the seeds that it has in all of them."""
        if columns not in self._scores:
            scores = {}
            for name, counts in self.counts.items():
                if runs := _joined(counts, columns):
                    scores[name] = resample(self.metric, runs)
            self._scores[columns] = scores
        return self._scores[columns]

    def variance(self, columns: tuple[str, ...]) -> SeedVariance:
        """How much a seed changes these scores."""
        return seed_variance(list(self.scores(columns).values()))

    def test(self, system: str, columns: tuple[str, ...]) -> PairedTest | None:
        """The difference to the baseline, or None where one of the two has no run."""
        scores = self.scores(columns)
        if system == self.baseline or not {system, self.baseline} <= scores.keys():
            return None
        return compare_resampled(scores[system], scores[self.baseline], self.variance(columns))

    def test_over(self, system: str, columns: tuple[str, ...]) -> tuple[float, float] | None:
        """The mean of the columns' differences and its p-value, a column counted once; None with
        fewer than two.
        """
        if system == self.baseline or len(columns) < 2:
            return None
        differences = []
        per_run = 0.0
        for column in columns:
            scores = self.scores((column,))[system]
            baseline = self.scores((column,))[self.baseline]
            differences.append(scores.mean - baseline.mean)
            per_run = max(per_run, 1 / len(scores.scores) + 1 / len(baseline.scores))
        variance = self.variance(columns) if self.trained_together else None
        p_value = sign_flip_test(differences, variance=variance, per_run=per_run)
        return float(np.mean(differences)), p_value


def _joined(counts: Counts, columns: tuple[str, ...]) -> list[np.ndarray]:
    """Counts of all the columns' segments, for each seed that has a run in all of them."""
    if not columns or not counts.keys() >= set(columns):
        return []
    seeds = set.intersection(*(set(counts[column]) for column in columns))
    runs = []
    for seed in sorted(seeds):
        runs.append(np.concatenate([counts[column][seed] for column in columns]))
    return runs
