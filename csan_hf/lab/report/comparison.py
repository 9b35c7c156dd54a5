# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Scoring of systems, and comparison of each with a baseline."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from csan_hf.evaluation.metrics import (
    DEFAULT_METRICS,
    CorpusMetric,
    check_sacrebleu_tokenizer,
    load_metrics,
    tokenizer_of,
)
from csan_hf.evaluation.pieces import Pair
from csan_hf.evaluation.scores import bleu_by_order, count_words, group_by_length
from csan_hf.evaluation.significance import (
    BOOTSTRAP_SAMPLES,
    Test,
    adjust_p_values,
    check_test,
    compare_resampled,
    confidence_interval,
    draw_scores,
    randomised,
    resample,
    seed_variance,
)
from csan_hf.lab.analysis.charts import plot_ngram_gap, plot_scores_by_length, share_heights

from .page import Report, ReportPlot
from .plots import checkpoint_plots, table_rows, word_alignments
from .side_by_side import compare_pieces
from .systems import ScoreCell, System, check_names

MOST_LISTED = 100_000
"""Most sentences that a page lists, so that browsers open it without hanging; scores and plots are
of all.
"""
_MEASURED = 500  # sentences, for what the attention does


def check_settings(
    runs: Sequence[int],
    *,
    metrics: Iterable[str],
    tokenize: str | None = None,
    test: Test = "bootstrap",
) -> list[CorpusMetric]:
    """Returns the metrics, if they and the test fit the number of runs of each system, before any
    translates.
    """
    check_sacrebleu_tokenizer(tokenize, "bleu_tokenize")
    table = load_metrics(metrics, tokenize=tokenize)
    for metric in table:
        metric.check_requirements()
    for count in runs[1:]:
        check_test(test, runs[0], count)
    return table


def compare_systems(
    systems: Sequence[System],
    sources: Collection[str],
    references: Collection[str],
    *,
    baseline: str | None = None,
    title: str = "Translations compared",
    metrics: Iterable[str] = DEFAULT_METRICS,
    tokenize: str | None = None,
    test: Test = "bootstrap",
    samples: int = BOOTSTRAP_SAMPLES,
    aligned: int = 1000,
    pieces: Sequence[list[Pair]] = (),
    progress: bool = False,
) -> Report:
    """Scores systems and compares each with a baseline.

    Args:
        systems: The systems, one or more.
        sources: The source sentences: a list or, like the references, a
            `csan_hf_runtime.text_files.TextFile`.
        references: A reference each, or several, separated by
            `csan_hf_runtime.text_files.VARIANTS`.
        baseline: The name of the system that the others are compared with; None = the last.
        title: Heading of the report.
        metrics: Names in the table of metrics; the first is plotted.
        tokenize: sacreBLEU's tokenizer; None = that of the references' script.
        test: The test of significance.
        samples: Resamples of intervals and of the bootstrap.
        aligned: Number of sentences, from the first, for which checkpoints show word alignments.
        pieces: Of long texts, the source and the reference of each piece: those of three texts are
            shown beside each other.
        progress: Shows bars on standard error.

    Raises:
        ValueError: If two systems have one name, the numbers of sentences differ or are zero, or a
            setting cannot be.
    """
    names = [system.name for system in systems]
    check_names(names, baseline)
    base = len(names) - 1 if baseline is None else names.index(baseline)
    tokenize = tokenize or tokenizer_of(references)
    table = check_settings(
        [len(system.runs) for system in systems], metrics=metrics, tokenize=tokenize, test=test
    )

    listed = list(islice(sources, MOST_LISTED))
    reported = [
        replace(
            system,
            scores=[],
            segment_scores=[],
            alignments=word_alignments(system, listed[:aligned], progress=progress),
        )
        for system in systems
    ]
    report = Report(
        title,
        table,
        listed,
        list(islice(references, MOST_LISTED)),
        reported,
        baseline=base,
        test=test,
        sentences=len(sources),
    )
    for metric in table:
        counts = []
        for system in systems:
            counts.append(
                [
                    metric.segment_counts(run, references, sources, progress=progress)
                    for run in system.runs
                ]
            )
        cells = _score_cells(metric, counts, samples=samples, test=test, base=base)
        for system, runs, cell in zip(reported, counts, cells, strict=True):
            system.scores.append(cell)
            rows = runs[0][:MOST_LISTED]
            system.segment_scores.append(np.array([metric.segment_score(row) for row in rows]))
        if metric is table[0]:
            report.plots.append(_length_plot(metric, names, sources, counts, samples))
    if pieces:
        report.long_texts = compare_pieces(
            reported, pieces, scores=reported[base].segment_scores[0]
        )
    if len(systems) > 1:
        report.plots.append(_ngram_plot(systems, names[base], references, tokenize, progress))
    for system, name in zip(systems, file_names(names), strict=True):
        report.plots += checkpoint_plots(system, name, listed[:_MEASURED], progress=progress)
    for kind in ("distance_", "entropy_", "windows_", "channel_ranks_"):
        share_heights([plot.figure for plot in report.plots if plot.name.startswith(kind)])
    return report


def file_names(names: Sequence[str]) -> list[str]:
    """Returns an ending of plots' names for each system, distinct whatever the case of letters."""
    endings: dict[str, str] = {}
    for name in names:
        plain = ending = re.sub(r"\W+", "_", name)[:60]
        number = 1
        while ending.casefold() in endings:
            number += 1
            ending = f"{plain}_{number}"
        endings[ending.casefold()] = ending
    return list(endings.values())


def _score_cells(
    metric: CorpusMetric,
    counts: Sequence[Sequence[np.ndarray]],
    *,
    samples: int,
    test: Test | None = None,
    base: int = 0,
) -> list[ScoreCell]:
    """Returns each system's score and, with a `test`, how it compares with the baseline."""
    resampled = [resample(metric, runs, samples=samples) for runs in counts]
    variance = seed_variance(resampled)
    cells = [
        ScoreCell(system.mean, confidence_interval(draw_scores(system, variance)))
        for system in resampled
    ]
    if test is None:
        return cells
    for place, cell in enumerate(cells):
        if place == base:
            continue
        cell.test = compare_resampled(resampled[place], resampled[base], variance)
        if test == "randomisation":
            cell.test = randomised(cell.test, metric, counts[place], counts[base])
    adjust_p_values([(cell, cell.test) for cell in cells])
    return cells


def _length_plot(
    metric: CorpusMetric,
    names: Sequence[str],
    sources: Collection[str],
    counts: Sequence[Sequence[np.ndarray]],
    samples: int,
) -> ReportPlot:
    lengths = count_words(sources)
    groups: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    rows = []
    for part in group_by_length(sources):
        span = {"shortest": int(lengths[part].min()), "longest": int(lengths[part].max())}
        row = [f"{span['shortest']} to {span['longest']}", f"{len(part):,}"]
        counts_of_part = []
        for runs in counts:
            counts_of_part.append([run[part] for run in runs])
        cells = _score_cells(metric, counts_of_part, samples=samples)
        for name, cell in zip(names, cells, strict=True):
            groups[name].append(
                {**span, metric.name: cell.score, f"{metric.name}_interval": cell.interval}
            )
            low, high = map(metric.format, cell.interval)
            row.append(f"{metric.format(cell.score)} [{low}, {high}]")
        rows.append(row)
    return ReportPlot(
        name="scores_by_length",
        title=f"{metric.label} by length of the source, with 95% intervals",
        figure=plot_scores_by_length(groups, metric),
        columns=["words in the source", "sentences", *names],
        rows=rows,
    )


def _ngram_plot(
    systems: Sequence[System],
    baseline: str,
    references: Collection[str],
    tokenize: str | None,
    progress: bool,
) -> ReportPlot:
    scores = {
        system.name: bleu_by_order(system.runs[0], references, tokenize=tokenize, progress=progress)
        for system in systems
    }
    by_order = list(zip(*scores.values(), strict=True))
    return ReportPlot(
        name="ngram_gap",
        title=f"BLEU of n-grams up to each length, minus that of {baseline}",
        figure=plot_ngram_gap(scores, baseline),
        columns=["n", *scores],
        rows=table_rows(range(1, len(by_order) + 1), by_order, ".2f"),
    )
