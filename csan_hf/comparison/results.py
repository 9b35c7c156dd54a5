# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Scores of a suite's finished cells, and the significance of their differences."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from csan_hf.data.corpora import load_translation_dataset
from csan_hf.evaluation.metrics import CorpusMetric, load_metric
from csan_hf.evaluation.significance import (
    BOOTSTRAP_SAMPLES,
    PairedTest,
    Resampled,
    SeedVariance,
    compare_resampled,
    confidence_interval,
    draw_scores,
    holm_adjusted,
    resample,
    seed_variance,
    sign_flip_test,
    unequal_seeds_p_value,
)
from csan_hf.text_files import digest_of_lines, one_line, read_lines, write_lines
from csan_hf.training.recipe import RecipeError

from .records import SuiteRecords
from .suite import Columns, Suite, splits_of

Counts = dict[str, dict[str, dict[int, np.ndarray]]]
"""System -> column -> seed -> counts of the segments, [S, K]."""


@dataclass
class Score:
    """A system in one column of a table: the score of each seed, their mean, and its 95% interval.

    `test` is the difference to the baseline, if there is one, and `adjusted` its p-value adjusted
    for the systems tested in this column (Holm). `vote` is the score of the hypothesis that most
    seeds have, for metrics on tokens and three seeds or more."""

    seeds: dict[int, float]
    score: float
    interval: tuple[float, float]
    test: PairedTest | None
    vote: float | None
    adjusted: float | None = None


@dataclass
class Row:
    """A system in one table: its scores in the columns in which it has a finished run, and their
    mean.

    `pooled` is the difference to the baseline over all columns' segments taken together, `adjusted`
    its p-value adjusted for the systems tested in the table (Holm). `over_columns` is the
    difference of the columns' means and the p-value of a sign-flip test in which a column counts
    once, with two columns or more; `between_seeds` the standard deviation of the pooled score
    between the system's seeds, with two or more."""

    columns: dict[str, Score]
    mean: float
    pooled: PairedTest | None
    over_columns: tuple[float, float] | None
    between_seeds: float | None
    adjusted: float | None = None


@dataclass(frozen=True)
class Table:
    """One table: its columns, and the rows of systems that have a finished run.

    `between_seeds` is how much a seed changes the scores of all columns' segments taken together,
    `unequal_seeds` the system whose seeds differ most there and the p-value of its differing from
    the others, `segments` the number of segments of each column in which a system has a run."""

    title: str
    columns: list[str]
    rows: dict[str, Row]
    between_seeds: SeedVariance
    unequal_seeds: tuple[str, float] | None
    segments: dict[str, int]


def read_tables(suite: Suite, output: Path, *, samples: int = BOOTSTRAP_SAMPLES) -> list[Table]:
    """Scores what is finished, or raises `RecipeError` if data have changed since runs were scored
    with them.
    """
    texts = Texts(suite, output)
    return [
        _table(suite, title, columns, texts, samples) for title, columns in suite.tables.items()
    ]


def check_references(suite: Suite, output: Path) -> None:
    """Raises `RecipeError` unless the data are still those that the finished runs were scored with."""
    texts = Texts(suite, output)
    for data in dict.fromkeys(cell.data for cell in texts.cells):
        for split in splits_of(texts.first[data].recipe):
            texts.read(data, split)


def digests_of_references(records: SuiteRecords) -> dict[str, str]:
    """Returns digests of the references that a suite's report was made with: data set/split ->
    SHA-256.
    """
    digests = records.references
    for path in sorted((records.output / "references").glob("*/*.txt")):
        digests[f"{path.parent.name}/{path.stem}"] = digest_of_lines(read_lines(path))
    return digests


class Texts:
    """References, kept in the suite's folder, and the finished runs' hypotheses.

    Attributes:
        cells: The finished runs.
        metrics: Data set -> the metric of its language.
    """

    def __init__(self, suite: Suite, output: Path) -> None:
        self.output = output
        self.records = SuiteRecords((*suite.cells, *suite.ensembles), output)
        self.cells = self.records.finished
        self.first = {cell.data: cell for cell in reversed(suite.cells)}
        self.found: dict[str, list[str]] = {}
        self.metrics = {
            data: load_metric(suite.metric, tokenize=cell.recipe.get("bleu_tokenize"))
            for data, cell in self.first.items()
        }
        self.metric = self.metrics[
            suite.cells[0].data
        ]  # sums of counts are scored alike, whatever the tokenizer
        # Digests of references and training sets, and who was scored with or trained on them
        self.expected: dict[str, tuple[str, str]] = {}
        for cell in self.cells:
            data = self.records.results(cell).get("data") or {}
            for split, digest in (data.get("references") or {}).items():
                self.expect(f"{cell.data}/{split}", digest, cell.name)
            if data:
                tokens = json.dumps(data.get("training_set"), sort_keys=True)
                self.expect(f"the training set of {cell.data}, {cell.system}", tokens, cell.name)
        for key, digest in self.records.references.items():
            self.expected.setdefault(key, (digest, "the published runs"))

    def expect(self, key: str, digest: str, user: str) -> None:
        """Notes which data a run used; all runs must use the same."""
        before, other = self.expected.setdefault(key, (digest, user))
        if before != digest:
            raise RecipeError(
                f"{key}: {user} and {other} in {self.output} have other data, or another "
                "tokenizer. Use the same data, prepared in the same way; or delete the folders of "
                "the runs with the old ones, and the suite trains these again."
            )

    def references(self, data: str, split: str) -> list[str]:
        """The references: those in the suite's folder if the runs were scored with them, else the
        data's.
        """
        key = f"{data}/{split}"
        if key not in self.found:
            path = self.output / "references" / data / f"{split}.txt"
            lines = list(read_lines(path)) if path.is_file() else None
            digest, _ = self.expected.get(key, (None, None))
            if lines is None or digest not in (None, digest_of_lines(lines)):
                lines = self.read(data, split)
                write_lines(path, lines)
            self.found[key] = lines
        return self.found[key]

    def read(self, data: str, split: str) -> list[str]:
        """The references in the data, which must be those that the runs were scored with."""
        args = self.first[data].recipe_in(self.output).data_arguments()
        lines = [
            one_line(line) for line in load_translation_dataset(args, [split])[0][split]["target"]
        ]
        self.expect(f"{data}/{split}", digest_of_lines(lines), str(args.data_dir or args.dataset))
        return lines

    def counts(
        self, hypotheses: Sequence[Sequence[str]], data: str, splits: Sequence[str]
    ) -> np.ndarray:
        """Counts of the splits' segments, one split after the other [S, K]."""
        parts = zip(hypotheses, splits, strict=True)
        count = self.metrics[data].segment_counts
        return np.concatenate(
            [count(lines, self.references(data, split)) for lines, split in parts]
        )


def _table(suite: Suite, title: str, columns: Columns, texts: Texts, samples: int) -> Table:
    counts: Counts = {name: {} for name in suite.rows}
    votes: dict[tuple[str, str], float] = {}
    for column, (data, splits) in columns.items():
        for name in suite.rows:
            of_seeds = {
                cell.seed: [texts.records.hypotheses(cell, split) for split in splits]
                for cell in texts.cells
                if cell.data == data and cell.system == name
            }
            if of_seeds:
                counts[name][column] = {
                    seed: texts.counts(own, data, splits) for seed, own in of_seeds.items()
                }
            if len(of_seeds) >= 3 and texts.metric.needs == "tokens":
                chosen = [most_frequent(runs) for runs in zip(*of_seeds.values(), strict=True)]
                votes[name, column] = texts.metric.score(
                    texts.counts(chosen, data, splits).sum(axis=0)
                )
    counts = {name: own for name, own in counts.items() if own}
    resampling = _Resampling(texts.metric, counts, samples)
    one_training = len({data for data, _ in columns.values()}) < len(columns)
    rows = {name: _row(name, suite.baseline, resampling, votes, one_training) for name in counts}
    _adjust(rows, list(columns))
    shared = resampling.columns(*rows)
    scores = resampling.scores(shared)
    deviations = {
        name: own.scores.std(ddof=1) for name, own in scores.items() if len(own.scores) > 1
    }
    most = max(deviations, key=lambda name: deviations[name], default=None)
    return Table(
        title,
        list(columns),
        rows,
        resampling.variance(shared),
        None if most is None else (most, unequal_seeds_p_value(list(scores.values()))),
        {
            column: len(run)
            for own in counts.values()
            for column, runs in own.items()
            for run in runs.values()
        },
    )


def _adjust(rows: dict[str, Row], columns: Sequence[str]) -> None:
    """Adds p-values that are adjusted for how many systems are tested, within each column and
    pooled.
    """
    families: list[list[tuple[Score | Row, PairedTest | None]]] = [
        [(row, row.pooled) for row in rows.values()]
    ]
    for column in columns:
        scores = [row.columns[column] for row in rows.values() if column in row.columns]
        families.append([(score, score.test) for score in scores])
    for family in families:
        tested = [(own, test.p_value) for own, test in family if test is not None]
        for (own, _), adjusted in zip(
            tested, holm_adjusted([p_value for _, p_value in tested]), strict=True
        ):
            own.adjusted = adjusted


def most_frequent(runs: Sequence[Sequence[str]]) -> list[str]:
    """The hypothesis that most runs have for each segment; of equally many, that of the earliest
    run.
    """
    return [Counter(of_segment).most_common(1)[0][0] for of_segment in zip(*runs, strict=True)]


class _Resampling:
    """Resampled scores of all systems in columns, alone or taken together."""

    def __init__(self, metric: CorpusMetric, counts: Counts, samples: int) -> None:
        self.metric, self.counts, self.samples = metric, counts, samples
        self.found: dict[tuple[str, ...], dict[str, Resampled]] = {}

    def columns(self, *systems: str) -> tuple[str, ...]:
        """Columns in which all these systems have runs."""
        first, *others = (self.counts.get(name, {}) for name in systems) if systems else ({},)
        return tuple(column for column in first if all(column in other for other in others))

    def scores(self, columns: tuple[str, ...]) -> dict[str, Resampled]:
        """System -> its scores on the columns' segments, for the seeds that it has in all of them."""
        if columns not in self.found:
            runs = {
                name: [
                    np.concatenate([own[column][seed] for column in columns])
                    for seed in sorted(set.intersection(*(set(own[column]) for column in columns)))
                ]
                for name, own in self.counts.items()
                if columns and own.keys() >= set(columns)
            }
            self.found[columns] = {
                name: resample(self.metric, own, samples=self.samples)
                for name, own in runs.items()
                if own
            }
        return self.found[columns]

    def variance(self, columns: tuple[str, ...]) -> SeedVariance:
        """How much a seed changes these scores."""
        return seed_variance(list(self.scores(columns).values()))

    def test(self, system: str, baseline: str, columns: tuple[str, ...]) -> PairedTest | None:
        """The difference of the two systems, or None where one of them has no run."""
        scores = self.scores(columns)
        if system == baseline or system not in scores or baseline not in scores:
            return None
        return compare_resampled(scores[system], scores[baseline], self.variance(columns))

    def test_over(
        self, columns: tuple[str, ...], system: str, baseline: str, one_training: bool
    ) -> tuple[float, float] | None:
        """The mean of the columns' differences and its p-value, a column counted once; None with
        fewer than two.
        """
        if system == baseline or len(columns) < 2:
            return None
        pairs = [
            (scores[system], scores[baseline])
            for scores in (self.scores((column,)) for column in columns)
        ]
        differences = [own.mean - other.mean for own, other in pairs]
        per_run = max(1 / len(own.scores) + 1 / len(other.scores) for own, other in pairs)
        variance = self.variance(columns) if one_training else None
        return float(np.mean(differences)), sign_flip_test(
            differences, variance=variance, per_run=per_run
        )


def _row(
    name: str,
    baseline: str,
    resampling: _Resampling,
    votes: dict[tuple[str, str], float],
    one_training: bool,
) -> Row:
    """A system's row; with one training for several columns, another seed moves these together."""
    scores = {}
    for column, runs in resampling.counts[name].items():
        own = resampling.scores((column,))[name]
        scores[column] = Score(
            seeds=dict(zip(sorted(runs), map(float, own.scores), strict=True)),
            score=own.mean,
            interval=confidence_interval(draw_scores(own, resampling.variance((column,)))),
            test=resampling.test(name, baseline, (column,)),
            vote=votes.get((name, column)),
        )
    shared = resampling.columns(name, baseline)
    pooled = resampling.scores(tuple(scores)).get(name)
    return Row(
        columns=scores,
        mean=float(np.mean([score.score for score in scores.values()])),
        pooled=resampling.test(name, baseline, shared),
        over_columns=resampling.test_over(shared, name, baseline, one_training),
        between_seeds=float(pooled.scores.std(ddof=1))
        if pooled is not None and len(pooled.scores) > 1
        else None,
    )
