# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Pictures of scores: by the length of the source and by the length of n-grams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from csan_hf.evaluation.metrics import CorpusMetric
from csan_hf.evaluation.ngrams import NgramScore

from .figures import figure_style, new_figure, plain_label, style_of

# The width of a figure, and that of a line with its marker, in small letters
_LETTERS, _KEY = 78, 7


def plot_scores_by_length(
    groups: Mapping[str, Sequence[Mapping[str, Any]]], metric: CorpusMetric | type[CorpusMetric]
) -> Figure:
    """Draws scores by the length of the source (Yang et al., 2018, and Elbayad et al., 2018, Figure 5).

    Args:
        groups: For each system what `csan_hf.evaluation.score_by_length` returns; where it has intervals, bars show
            them.
        metric: The metric to draw.
    """
    with figure_style():
        figure = new_figure()
        axes = figure.add_subplot()
        for number, (name, entries) in enumerate(groups.items()):
            # Systems stand side by side, so that their bars can be told apart
            places = [place + (number - (len(groups) - 1) / 2) * 0.12 for place in range(len(entries))]
            scores = [entry[metric.name] for entry in entries]
            style = _line_style(number)
            axes.plot(places, scores, label=plain_label(name), **style)
            if entries and (key := f"{metric.name}_interval") in entries[0]:
                lows, highs = zip(*(entry[key] for entry in entries), strict=True)
                axes.vlines(places, lows, highs, color=style["color"], linewidth=2.5, alpha=0.45)
        some = next(iter(groups.values()))
        axes.set_xticks(range(len(some)), [_range(entry) for entry in some])
        axes.set(xlabel="words in the source", ylabel=plain_label(metric.label))
        _finish(axes, len(groups))
    return figure


def plot_ngram_accuracy(scores: Mapping[str, Sequence[NgramScore]]) -> Figure:
    """Draws the accuracy of n-grams by their length.

    Args:
        scores: For each system what `csan_hf.evaluation.score_by_ngram` returns.
    """
    curves = {name: [(entry.order, entry.accuracy) for entry in entries] for name, entries in scores.items()}
    return _plot_by_order(curves, "n-grams found in the reference, %")


def plot_ngram_gap(scores: Mapping[str, Sequence[NgramScore]]) -> Figure:
    """Draws how much higher the BLEU of each system is than that of the last one, for n-grams up to each length.

    That is Figure 4 of Yang et al. (EMNLP 2018) and Figure 3 of Yang et al. (NAACL 2019).

    Args:
        scores: For each system what `csan_hf.evaluation.score_by_ngram` returns; the last system is the baseline.
    """
    *names, baseline = scores
    base = scores[baseline]
    curves = {
        name: [(entry.order, entry.bleu - other.bleu) for entry, other in zip(scores[name], base, strict=True)]
        for name in names
    }
    return _plot_by_order(curves, f"BLEU minus that of {baseline}", zero=True)


def _plot_by_order(curves: Mapping[str, Sequence[tuple[int, float]]], label: str, zero: bool = False) -> Figure:
    with figure_style():
        figure = new_figure()
        axes = figure.add_subplot()
        if zero:
            axes.axhline(0, color="0.5", linewidth=1)
        for number, (name, points) in enumerate(curves.items()):
            orders, values = zip(*points, strict=True)
            axes.plot(orders, values, label=plain_label(name), **_line_style(number))
        axes.set(xlabel="length of the n-grams", ylabel=plain_label(label))
        _finish(axes, len(curves))
    return figure


def _finish(axes: Any, curves: int) -> None:
    axes.grid(axis="y", color="0.5", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if curves > 1:
        longest = max(len(label) for label in axes.get_legend_handles_labels()[1])
        columns = min(3, max(1, _LETTERS // (longest + _KEY)))
        axes.legend(frameon=False, fontsize="small", ncols=columns, loc="lower left", bbox_to_anchor=(0, 1))


def _range(entry: Mapping[str, Any]) -> str:
    if entry["shortest"] == entry["longest"]:
        return str(entry["shortest"])
    return f"{entry['shortest']}–{entry['longest']}"


def _line_style(number: int) -> dict[str, Any]:
    return {**style_of(number), "markersize": 5, "linewidth": 1.2}
