# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Scoring of systems, and comparison of the first with each of the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count, islice
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from csan_hf.analysis.figures import plot_ngram_accuracy, plot_ngram_gap, plot_scores_by_length
from csan_hf.evaluation.metrics import DEFAULT_METRICS, CorpusMetric, load_metrics
from csan_hf.evaluation.scores import count_words, group_by_length, score_by_ngram
from csan_hf.evaluation.significance import (
    BOOTSTRAP_SAMPLES,
    Test,
    check_test,
    compare_resampled,
    confidence_interval,
    draw_scores,
    paired_test,
    resample,
    seed_variance,
)

from .page import Report, ReportPlot, ScoreCell
from .plots import alignment_plots, attention_plots, word_alignments
from .systems import System, check_names

MOST_LISTED = 100_000
"""Most sentences that a page lists, so that browsers open it without hanging; scores and plots are of all."""
_MEASURED = 500  # sentences, for what the attention does


def check_settings(
    runs: Sequence[int],
    *,
    metrics: Iterable[str] = DEFAULT_METRICS,
    tokenize: str | None = None,
    test: Test = "bootstrap",
    samples: int = BOOTSTRAP_SAMPLES,
    aligned: int = 1000,
) -> None:
    """Checks settings of `compare_systems`, with the number of runs of each system, before any system translates."""
    for metric in load_metrics(metrics, tokenize=tokenize):
        metric.check_requirements()
        if metric.needs == "alignments":
            raise ValueError(f"metrics: {metric.name!r} scores alignments and not translations; leave it out.")
    for others in runs[1:]:
        check_test(test, runs[0], others)
    for name, value, least in (("samples", samples, 1), ("aligned", aligned, 0)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}.")


def compare_systems(
    systems: Sequence[System],
    sources: Collection[str],
    references: Collection[str],
    *,
    title: str = "Translations compared",
    metrics: Iterable[str] = DEFAULT_METRICS,
    tokenize: str | None = None,
    test: Test = "bootstrap",
    samples: int = BOOTSTRAP_SAMPLES,
    aligned: int = 1000,
    progress: bool = False,
) -> Report:
    """Scores systems and compares the first with each of the others.

    Args:
        systems: The systems.
        sources: The source sentences: a list or, like the references, a `csan_hf.text_files.TextFile`.
        references: A reference each.
        title: Heading of the report.
        metrics: Names in the table of metrics; the first is plotted.
        tokenize: sacreBLEU's tokenizer; None picks 13a.
        test: The test of significance.
        samples: Resamples of intervals and of the bootstrap.
        aligned: Number of sentences, from the first, for which checkpoints show word alignments.
        progress: Shows bars on standard error.

    Raises:
        ValueError: If there is no system, two have one name, the numbers of sentences differ or are zero, or a setting
            cannot be.
    """
    names = [system.name for system in systems]
    if not names:
        raise ValueError("There is nothing to report: 0 systems.")
    check_names(names)
    metrics = list(metrics)
    runs = [len(system.runs) for system in systems]
    check_settings(runs, metrics=metrics, tokenize=tokenize, test=test, samples=samples, aligned=aligned)
    table = load_metrics(metrics, tokenize=tokenize)
    counts = [[_count(metric, system, sources, references, progress) for metric in table] for system in systems]
    of_metrics = [
        _score_cells(metric, [own[place] for own in counts], test, samples, progress)
        for place, metric in enumerate(table)
    ]
    report = Report(
        title=title,
        metrics=table,
        sources=list(islice(sources, MOST_LISTED)),
        references=list(islice(references, MOST_LISTED)),
        systems=names,
        hypotheses=[list(islice(system.runs[0], MOST_LISTED)) for system in systems],
        scores=[list(cells) for cells in zip(*of_metrics, strict=True)],
        segment_scores=[
            [_segment_scores(metric, runs[0], progress) for metric, runs in zip(table, own, strict=True)]
            for own in counts
        ],
        test=test,
        runs=runs,
        sentences=len(sources),
    )
    report.plots.append(_length_plot(report, sources, counts, samples, progress))
    report.plots += _ngram_plots(systems, references, tokenize, progress)
    for system, name in zip(systems, file_names(names), strict=True):
        report.plots += attention_plots(system, name, report.sources[:_MEASURED], progress=progress)
        report.plots += alignment_plots(system, name, report.sources[:_MEASURED], progress=progress)
    report.alignments = [word_alignments(system, report.sources[:aligned], progress=progress) for system in systems]
    return report


def file_names(names: Sequence[str]) -> list[str]:
    """Returns an ending of plots' names for each system, distinct also where case does not count."""
    found: list[str] = []
    for name in names:
        plain = re.sub(r"\W+", "_", name)[:60]
        taken = {other.casefold() for other in found}
        numbered = (plain if number == 1 else f"{plain}_{number}" for number in count(1))
        found.append(next(choice for choice in numbered if choice.casefold() not in taken))
    return found


def _count(
    metric: CorpusMetric, system: System, sources: Collection[str], references: Collection[str], progress: bool
) -> list[np.ndarray]:
    """Returns the counts of each run, [S, K]."""
    title = f"{metric.label}, {system.name}"
    return [metric.segment_counts(run, references, sources, progress=progress, title=title) for run in system.runs]


def _segment_scores(metric: CorpusMetric, counts: np.ndarray, progress: bool) -> np.ndarray:
    rows = counts[:MOST_LISTED]
    bar = tqdm(rows, desc=f"{metric.label} of each", unit="sentence", disable=not progress, delay=1, leave=False)
    scores = np.array([metric.segment_score(row) for row in bar], dtype=np.float64)
    if not np.isfinite(scores).all():
        row = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise ValueError(f"{metric.label} of sentence {row + 1} is {scores[row]}; a score must be a finite number.")
    return scores


def _score_cells(
    metric: CorpusMetric, counts: Sequence[Sequence[np.ndarray]], test: Test | None, samples: int, progress: bool
) -> list[ScoreCell]:
    """Returns each system's score and the test, if there is to be one, of the first system against it."""
    resampled = [resample(metric, runs, samples=samples, progress=progress) for runs in counts]
    variance = seed_variance(resampled)
    cells: list[ScoreCell] = []
    for runs, system in zip(counts, resampled, strict=True):
        if not cells or test is None:
            found = None
        elif test == "randomisation":
            found = paired_test(metric, counts[0], runs, test=test, variance=variance, progress=progress)
        else:
            found = compare_resampled(resampled[0], system, variance, test=test)
        cells.append(ScoreCell(system.mean, confidence_interval(draw_scores(system, variance)), found))
    return cells


def _length_plot(
    report: Report,
    sources: Collection[str],
    counts: Sequence[Sequence[Sequence[np.ndarray]]],
    samples: int,
    progress: bool,
) -> ReportPlot:
    metric, lengths = report.metrics[0], count_words(sources)
    groups: dict[str, list[dict[str, Any]]] = {name: [] for name in report.systems}
    rows = []
    for part in group_by_length(sources):
        span = {"shortest": int(lengths[part].min()), "longest": int(lengths[part].max())}
        row = [f"{span['shortest']} to {span['longest']}", f"{len(part):,}"]
        cells = _score_cells(metric, [[run[part] for run in own[0]] for own in counts], None, samples, progress)
        for name, cell in zip(report.systems, cells, strict=True):
            low, high = cell.interval
            groups[name].append({**span, metric.name: cell.score, f"{metric.name}_interval": (low, high)})
            row.append(f"{metric.format(cell.score)} [{metric.format(low)}, {metric.format(high)}]")
        rows.append(row)
    title = f"{metric.label} by length of the source, with 95% intervals"
    columns = ["words in the source", "sentences", *report.systems]
    return ReportPlot("scores_by_length", title, plot_scores_by_length(groups, metric), columns, rows)


def _ngram_plots(
    systems: Sequence[System], references: Collection[str], tokenize: str | None, progress: bool
) -> list[ReportPlot]:
    scores = {
        system.name: score_by_ngram(system.runs[0], references, tokenize=tokenize, progress=progress)
        for system in systems
    }

    def table(cell: Callable[[Any], float]) -> list[list[str]]:
        orders = zip(*scores.values(), strict=True)
        return [[str(entries[0].order), *(f"{cell(entry):.2f}" for entry in entries)] for entries in orders]

    columns = ["n", *scores]
    title = "n-grams of the hypotheses that are in the reference"
    accuracy = plot_ngram_accuracy(scores)
    plots = [ReportPlot("ngram_accuracy", title, accuracy, columns, table(lambda entry: entry.accuracy))]
    if len(scores) > 1:
        title = f"BLEU of n-grams up to each length, beside {systems[-1].name}"
        plots.append(ReportPlot("ngram_gap", title, plot_ngram_gap(scores), columns, table(lambda entry: entry.bleu)))
    return plots
