# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Scores of a suite's finished cells, and the significance of their differences."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from csan_hf.data.corpora import load_translation_dataset
from csan_hf.evaluation.metrics import CorpusMetric, load_metric
from csan_hf.evaluation.significance import (
    BOOTSTRAP_SAMPLES,
    PairedTest,
    bootstrap_scores,
    confidence_interval,
    holm_adjusted,
    mean_score,
    paired_test,
    sign_flip_test,
)
from csan_hf.files import read_lines, write_lines
from csan_hf.training.recipe import RecipeError

from .schedule import is_finished, load_cell
from .suite import Cell, Suite


@dataclass(frozen=True)
class Score:
    """A system in one column of a table.

    Attributes:
        seeds: Score of each seed.
        score: Their mean.
        interval: 95% interval of the mean, over segments and seeds, by bootstrap.
        test: The difference to the baseline; None for the baseline itself, and where seeds are missing.
        vote: Score of the hypothesis that most seeds have, for metrics on tokens and three seeds or more; else None.
        adjusted: The test's p-value, adjusted for the systems tested in this column (Holm); None without a test.
    """

    seeds: dict[int, float]
    score: float
    interval: tuple[float, float]
    test: PairedTest | None
    vote: float | None
    adjusted: float | None = None


@dataclass(frozen=True)
class Row:
    """A system in one table.

    Attributes:
        columns: Column -> its score there; columns in which it has no finished run are missing.
        mean: Mean of the columns' scores.
        pooled: Difference to the baseline over all columns' segments taken together; None without it.
        over_columns: Difference of the columns' means, and the p-value of a sign-flip test in which a column counts
            once; None with fewer than two columns.
        adjusted: The p-value of `pooled`, adjusted for the systems tested in the table (Holm); None without it.
    """

    columns: dict[str, Score]
    mean: float
    pooled: PairedTest | None
    over_columns: tuple[float, float] | None
    adjusted: float | None = None


@dataclass(frozen=True)
class Table:
    """One table: system -> row, systems without a finished run left out."""

    title: str
    columns: list[str]
    rows: dict[str, Row]


def read_tables(suite: Suite, output: Path, *, samples: int = BOOTSTRAP_SAMPLES) -> list[Table]:
    """Scores what is finished.

    Args:
        suite: The suite.
        output: Its folder.
        samples: Resamples of the bootstrap.
    """
    cells = [cell for cell in suite.cells if is_finished(cell, output)]
    texts = _Texts(suite, output)
    return [_table(suite, title, columns, cells, texts, samples) for title, columns in suite.tables.items()]


def read_results(cell: Cell, output: Path) -> dict[str, Any]:
    """What a finished cell measured.

    Raises:
        RecipeError: The file is missing or damaged, or is not a run's.
    """
    path = cell.folder(output) / "results.json"
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        training = results["training"]
        numbers = [results["parameters"], training["seconds"], training["updates"]]
        if all(type(number) in (int, float) for number in numbers):
            return results
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass
    raise _damaged(cell, output, path)


def _damaged(cell: Cell, output: Path, path: Path) -> RecipeError:
    return RecipeError(
        f"{path} is missing or damaged, though {cell.name} is finished: delete {cell.folder(output)}, and the suite "
        "trains that run again."
    )


class _Texts:
    """References, kept in the suite's folder, and hypotheses."""

    def __init__(self, suite: Suite, output: Path) -> None:
        self.output = output
        self.first = {cell.data: cell for cell in reversed(suite.cells)}
        self.metrics = {
            data: load_metric(suite.metric, tokenize=cell.recipe.get("bleu_tokenize"))
            for data, cell in self.first.items()
        }
        self.metric = self.metrics[suite.cells[0].data]  # sums of counts are scored alike, whatever the tokenizer

    def references(self, data: str, split: str) -> list[str]:
        path = self.output / "references" / data / f"{split}.txt"
        if not path.is_file():
            args = load_cell(self.first[data], self.output).data_arguments()
            write_lines(path, load_translation_dataset(args, [split])[0][split]["target"])
        return list(read_lines(path))

    def hypotheses(self, cell: Cell, split: str) -> list[str]:
        path = cell.folder(self.output) / "hypotheses" / f"{split}.txt"
        try:
            lines = list(read_lines(path))
        except (OSError, ValueError) as error:
            raise _damaged(cell, self.output, path) from error
        if len(lines) != (count := len(self.references(cell.data, split))):
            raise RecipeError(
                f"{path} has {len(lines)} lines for {count} references: either it is damaged (delete "
                f"{cell.folder(self.output)}), or the data have changed (choose another --output)."
            )
        return lines

    def counts(self, hypotheses: Sequence[Sequence[str]], data: str, splits: Sequence[str]) -> np.ndarray:
        """Counts of the splits' segments, one split after the other [S, K]."""
        parts = zip(hypotheses, splits, strict=True)
        statistics = self.metrics[data].statistics
        return np.concatenate([statistics(lines, self.references(data, split)) for lines, split in parts])


def _table(
    suite: Suite,
    title: str,
    columns: dict[str, tuple[str, tuple[str, ...]]],
    cells: Sequence[Cell],
    texts: _Texts,
    samples: int,
) -> Table:
    counts: dict[str, dict[str, dict[int, np.ndarray]]] = {name: {} for name in suite.systems}
    votes: dict[str, dict[str, float]] = {name: {} for name in suite.systems}
    for column, (data, splits) in columns.items():
        for name in suite.systems:
            of_seeds = {
                cell.seed: [texts.hypotheses(cell, split) for split in splits]
                for cell in cells
                if cell.data == data and cell.system == name
            }
            if of_seeds:
                counts[name][column] = {seed: texts.counts(own, data, splits) for seed, own in of_seeds.items()}
            if len(of_seeds) >= 3 and texts.metric.needs == "tokens":
                chosen = [most_frequent(runs) for runs in zip(*of_seeds.values(), strict=True)]
                votes[name][column] = texts.metric.score(texts.counts(chosen, data, splits).sum(axis=0))
    rows = {
        name: _row(texts.metric, own, counts[suite.baseline] if name != suite.baseline else {}, votes[name], samples)
        for name, own in counts.items()
        if own
    }
    return Table(title, list(columns), _adjust(rows, list(columns)))


def _adjust(rows: dict[str, Row], columns: Sequence[str]) -> dict[str, Row]:
    """The rows with p-values adjusted for how many systems are tested, within each column and pooled."""
    of_rows = _holm({name: row.pooled for name, row in rows.items()})
    of_columns = {
        column: _holm({name: row.columns[column].test for name, row in rows.items() if column in row.columns})
        for column in columns
    }
    return {
        name: replace(
            row,
            columns={
                column: replace(score, adjusted=of_columns[column].get(name)) for column, score in row.columns.items()
            },
            adjusted=of_rows.get(name),
        )
        for name, row in rows.items()
    }


def _holm(tests: dict[str, PairedTest | None]) -> dict[str, float]:
    p_values = {name: test.p_value for name, test in tests.items() if test is not None}
    return dict(zip(p_values, holm_adjusted(list(p_values.values())), strict=True))


def most_frequent(runs: Sequence[Sequence[str]]) -> list[str]:
    """The hypothesis that most runs have for each segment; of equally many, that of the earliest run."""
    return [Counter(of_segment).most_common(1)[0][0] for of_segment in zip(*runs, strict=True)]


def _row(
    metric: CorpusMetric,
    own: dict[str, dict[int, np.ndarray]],
    baseline: dict[str, dict[int, np.ndarray]],
    votes: dict[str, float],
    samples: int,
) -> Row:
    shared = {column: sorted(own[column].keys() & baseline[column].keys()) for column in own if column in baseline}
    shared = {column: seeds for column, seeds in shared.items() if seeds}
    scores = {}
    for column, runs in own.items():
        seeds = shared.get(column, [])
        test = _test(metric, *_pair(own, baseline, column, seeds), samples) if seeds else None
        drawn = bootstrap_scores(metric, list(runs.values()), samples=samples)
        scores[column] = Score(
            seeds={seed: metric.score(run.sum(axis=0)) for seed, run in sorted(runs.items())},
            score=mean_score(metric, list(runs.values())),
            interval=confidence_interval(drawn),
            test=test,
            vote=votes.get(column),
        )
    differences = [score.test.difference for score in scores.values() if score.test is not None]
    return Row(
        columns=scores,
        mean=float(np.mean([score.score for score in scores.values()])),
        pooled=_pooled(metric, own, baseline, shared, samples),
        over_columns=(float(np.mean(differences)), sign_flip_test(differences)) if len(differences) > 1 else None,
    )


def _pair(own: Any, baseline: Any, column: str, seeds: Sequence[int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return [own[column][seed] for seed in seeds], [baseline[column][seed] for seed in seeds]


def _pooled(metric: CorpusMetric, own: Any, baseline: Any, shared: dict[str, list[int]], samples: int) -> Any:
    """Tests over the segments of all columns, with the seeds that all of them have."""
    if not shared:
        return None
    seeds = sorted(set.intersection(*(set(found) for found in shared.values())))
    if not seeds:
        return None
    pairs = [_pair(own, baseline, column, seeds) for column in shared]
    ours, theirs = ([np.concatenate(runs) for runs in zip(*side, strict=True)] for side in zip(*pairs, strict=True))
    return _test(metric, ours, theirs, samples)


def _test(metric: CorpusMetric, own: list[np.ndarray], baseline: list[np.ndarray], samples: int) -> PairedTest:
    return paired_test(metric, own, baseline, test="two_sided_bootstrap", samples=samples)
