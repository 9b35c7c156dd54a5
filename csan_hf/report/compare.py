"""Scoring of systems, and comparison of the first with each of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from csan_hf.analysis.alignment import align
from csan_hf.analysis.score_plots import plot_ngram_accuracy, plot_ngram_gap, plot_scores_by_length
from csan_hf.evaluation.lengths import group_by_length
from csan_hf.evaluation.metrics import DEFAULT_METRICS, CorpusMetric, load_metrics
from csan_hf.evaluation.ngrams import score_by_ngram
from csan_hf.evaluation.significance import (
    BOOTSTRAP_SAMPLES,
    Test,
    bootstrap_scores,
    confidence_interval,
    mean_score,
    paired_test,
)

from .attention import attention_plots
from .contents import Report, ReportPlot, ScoreCell
from .systems import System

_ALIGNED_AT_ONCE = 16
_MEASURED = 500  # sentences, for what the attention does


def compare_systems(
    systems: Sequence[System],
    sources: Sequence[str],
    references: Sequence[str],
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
        systems: the systems.
        sources: the source sentences.
        references: a reference each.
        title: heading of the report.
        metrics: names in the table of metrics; the first is plotted.
        tokenize: sacreBLEU's tokenizer; None picks 13a.
        test: the test of significance.
        samples: resamples of intervals and of the bootstrap.
        aligned: of how many sentences, from the first, checkpoints show their word alignment.
        progress: shows bars on standard error.

    Raises:
        ValueError: if there is no system, two have one name, or the numbers of sentences differ or are zero.
    """
    names = [system.name for system in systems]
    if not names:
        raise ValueError("There is nothing to report: 0 systems.")
    if len({*names}) < len(names):
        raise ValueError(f"Two systems have one name among {', '.join(names)}: write NAME=PATH to tell them apart.")
    table = load_metrics(metrics, tokenize=tokenize)
    counts = [[_count(metric, system, sources, references, progress) for metric in table] for system in systems]
    report = Report(
        title=title,
        metrics=table,
        sources=sources,
        references=references,
        systems=names,
        hypotheses=[system.runs[0] for system in systems],
        scores=[
            [_score(metric, runs, samples, progress) for metric, runs in zip(table, own, strict=True)]
            for own in counts
        ],
        segment_scores=[
            [np.array([metric.segment_score(row) for row in runs[0]]) for metric, runs in zip(table, own, strict=True)]
            for own in counts
        ],
        test=test,
        runs=[len(system.runs) for system in systems],
    )
    for number in range(1, len(systems)):
        report.scores[number] = [
            ScoreCell(
                cell.score,
                cell.interval,
                paired_test(
                    metric,
                    counts[0][place],
                    counts[number][place],
                    test=test,
                    samples=samples if test == "bootstrap" else None,
                    progress=progress,
                ),
            )
            for place, (metric, cell) in enumerate(zip(table, report.scores[number], strict=True))
        ]
    report.plots += [_length_plot(report, counts, samples), *_ngram_plots(report, tokenize)]
    for system in systems:
        report.plots += attention_plots(system, sources[:_MEASURED], progress=progress)
    report.alignments = [_alignments(system, sources, aligned, progress) for system in systems]
    return report


def _count(
    metric: CorpusMetric, system: System, sources: Sequence[str], references: Sequence[str], progress: bool
) -> list[np.ndarray]:
    """Returns the counts of each run, [S, K]; a bar moves every thousand sentences."""
    found = []
    for run in system.runs:
        parts = []
        title = f"{metric.label}, {system.name}"
        with tqdm(total=len(run), desc=title, unit="sentence", disable=not progress, delay=1) as bar:
            step = len(run) if metric.needs_sources else 1000  # a neural metric loads its network once
            for start in range(0, len(run), step):
                part = slice(start, start + step)
                parts.append(metric.statistics(run[part], references[part], sources[part]))
                bar.update(len(parts[-1]))
        found.append(np.concatenate(parts))
    return found


def _score(metric: CorpusMetric, runs: Sequence[np.ndarray], samples: int, progress: bool) -> ScoreCell:
    scores = bootstrap_scores(metric, runs, samples=samples, progress=progress)
    return ScoreCell(mean_score(metric, runs), confidence_interval(scores))


def _length_plot(report: Report, counts: Sequence[Sequence[Sequence[np.ndarray]]], samples: int) -> ReportPlot:
    metric, lengths = report.metrics[0], np.array([len(source.split()) for source in report.sources])
    groups: dict[str, list[dict[str, Any]]] = {name: [] for name in report.systems}
    rows = []
    for part in group_by_length(report.sources):
        span = {"shortest": int(lengths[part].min()), "longest": int(lengths[part].max())}
        row = [f"{span['shortest']} to {span['longest']}", f"{len(part):,}"]
        for name, own in zip(report.systems, counts, strict=True):
            runs = [run[part] for run in own[0]]
            score = mean_score(metric, runs)
            low, high = confidence_interval(bootstrap_scores(metric, runs, samples=samples))
            groups[name].append({**span, metric.name: score, f"{metric.name}_interval": (low, high)})
            row.append(f"{metric.format(score)} [{metric.format(low)}, {metric.format(high)}]")
        rows.append(row)
    title = f"{metric.label} by length of the source, with 95% intervals"
    columns = ["words in the source", "sentences", *report.systems]
    return ReportPlot("scores_by_length", title, plot_scores_by_length(groups, metric), columns, rows)


def _ngram_plots(report: Report, tokenize: str | None) -> list[ReportPlot]:
    scores = {
        name: score_by_ngram(list(lines), list(report.references), tokenize=tokenize)
        for name, lines in zip(report.systems, report.hypotheses, strict=True)
    }

    def table(cell: Callable[[Any], float]) -> list[list[str]]:
        orders = zip(*scores.values(), strict=True)
        return [[str(entries[0].order), *(f"{cell(entry):.2f}" for entry in entries)] for entries in orders]

    columns = ["n", *report.systems]
    title = "n-grams of the hypotheses that are in the reference"
    accuracy = plot_ngram_accuracy(scores)
    plots = [ReportPlot("ngram_accuracy", title, accuracy, columns, table(lambda entry: entry.accuracy))]
    if len(scores) > 1:
        title = f"BLEU of n-grams up to each length, beside {report.systems[-1]}"
        plots.append(ReportPlot("ngram_gap", title, plot_ngram_gap(scores), columns, table(lambda entry: entry.bleu)))
    return plots


def _alignments(system: System, sources: Sequence[str], aligned: int, progress: bool) -> dict[int, list[list[int]]]:
    """Returns word matrices scaled to the largest number of each sentence."""
    if system.model is None or system.tokenizers is None or aligned < 1:
        return {}
    found = align(
        system.model,
        system.tokenizers,
        list(sources[:aligned]),
        system.runs[0][:aligned],
        batch_size=_ALIGNED_AT_ONCE,
        progress=progress,
    )
    matrices = {}
    for number, alignment in enumerate(found):
        matrix = alignment.word_matrix()
        if matrix.size and (largest := np.abs(matrix).max()) > 0:
            matrices[number] = np.rint(99 * matrix / largest).astype(int).tolist()
    return matrices
