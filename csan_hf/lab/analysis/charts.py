# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Charts of scores and of attention."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from csan_hf.evaluation.metrics import CorpusMetric
from csan_hf.evaluation.significance import PairedTest
from csan_hf.hub.figures import COLOURS, HEIGHT, WIDTH, figure_style, new_figure
from csan_hf_runtime.text_files import printable

from .attention_statistics import AttentionStatistics, LearnedWindows

_MARKERS = ("o", "s", "^", "D", "v", "P")
SYSTEMS = (
    "Transformer",
    "1D-CSAN",
    "2D-CSAN",
    "BI_DIRECT",
    "LOCAL_SOFT",
    "REL_POS",
    "NEIGHBOR",
    "LOCAL_HARD",
    "BLOCK",
    "CNN",
    "RNNsearch",
    "ConvS2S",
    "Pervasive Attention",
    "Pervasive Attention (residual)",
    "windows",
    "long",
)
"""Systems that have the same colour and marker in every picture; others get those that come after.
"""
_LONGEST_LABEL = 32  # letters
_LETTERS, _KEY = 44, 9  # width of a figure, and of a line with its marker, in small letters


def style_of(number: int) -> dict[str, Any]:
    """Returns colour and marker of a series; the first 36 all differ, neighbours in both."""
    turn = number // len(COLOURS)
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": _MARKERS[(number + turn) % len(_MARKERS)],
    }


def styles_of(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns colour and marker by system, the same in every picture for those in `SYSTEMS`."""
    systems = list(dict.fromkeys([*SYSTEMS, *names]))
    return {name: style_of(systems.index(name)) for name in names}


def plain_label(text: str) -> str:
    """Returns a label that matplotlib draws as it stands: "$" begins no formula, and "_" hides
    nothing in a legend.

    The middle of a long one is left out: names of runs tend to differ at their ends.
    """
    text = printable(text)
    if len(text) > _LONGEST_LABEL:
        text = f"{text[: _LONGEST_LABEL // 2]}…{text[-(_LONGEST_LABEL // 2) :]}"
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


@contextmanager
def _chart(width: float = WIDTH, height: float = HEIGHT) -> Iterator[tuple[Figure, Any]]:
    """A figure with one pair of axes, in inches; its grid and, of several series, its legend are
    added at the end.
    """
    with figure_style():
        figure = new_figure(width, height)
        axes = figure.add_subplot()
        yield figure, axes
        _add_grid(axes)


def _add_grid(axes: Axes, axis: Literal["x", "y"] = "y") -> None:
    axes.grid(axis=axis, color="0.5", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def share_heights(figures: Sequence[Figure]) -> None:
    """Gives figures of one kind the same range of heights, so that they can be compared."""
    for alike in zip(*(figure.axes for figure in figures), strict=True):
        lows, highs = zip(*(axes.get_ylim() for axes in alike), strict=True)
        for axes in alike:
            axes.set_ylim(min(lows), max(highs))


def _add_legend(axes: Axes, columns: int = 3) -> None:
    axes.legend(
        frameon=False, fontsize="small", ncols=columns, loc="lower left", bbox_to_anchor=(0, 1)
    )


# ---- scores


def plot_scores_by_length(
    groups: Mapping[str, Sequence[Mapping[str, Any]]], metric: CorpusMetric | type[CorpusMetric]
) -> Figure:
    """Draws scores by the length of the source (Yang et al., 2018, and Elbayad et al., 2018, Figure
    5).

    The groups are what `csan_hf.evaluation.score_by_length` returns for each system; bars show
    intervals, if any."""
    interval = f"{metric.name}_interval"
    with _chart() as (figure, axes):
        for number, (name, style) in enumerate(styles_of(groups).items()):
            entries = groups[name]
            # Systems stand side by side, so that their bars can be told apart; groups are no
            # series, and no line joins
            offset = (number - (len(groups) - 1) / 2) * 0.7 / len(groups)
            places = np.arange(len(entries)) + offset
            scores = [entry[metric.name] for entry in entries]
            axes.plot(
                places, scores, label=plain_label(name), markersize=5, linestyle="none", **style
            )
            if entries and interval in entries[0]:
                lows, highs = zip(*(entry[interval] for entry in entries), strict=True)
                axes.vlines(places, lows, highs, color=style["color"], linewidth=2, alpha=0.5)
        labels = [_range_label(entry) for entry in next(iter(groups.values()))]
        axes.set_xticks(range(len(labels)), labels)
        axes.set(xlabel="words in the source", ylabel=plain_label(metric.label))
        _add_legend_of_systems(axes, len(groups))
    return figure


def _range_label(group: Mapping[str, Any]) -> str:
    shortest = group["shortest"]
    longest = group["longest"]
    return f"{shortest}" if shortest == longest else f"{shortest}–{longest}"


def plot_scores_by_joined(
    scores: Mapping[str, Mapping[int, Sequence[float]]], label: str, trained: int
) -> Figure:
    """Draws scores over how many sentences a text joins: a line for each system, its seeds' range
    as a band.

    Args:
        scores: System -> sentences joined -> the scores of its seeds.
        label: What the scores are.
        trained: Most sentences joined in training, shaded.
    """
    with _chart(7.2, 4.2) as (figure, axes):
        axes.axvspan(0.8, trained + 0.2, color="0.5", alpha=0.15, linewidth=0)
        axes.text(
            trained,
            1.01,
            "trained on",
            transform=axes.get_xaxis_transform(),
            ha="right",
            fontsize="small",
        )
        lengths: set[int] = set()
        for name, style in styles_of(scores).items():
            joined, seeds = zip(*sorted(scores[name].items()), strict=True)
            means = list(map(np.mean, seeds))
            lows = list(map(min, seeds))
            highs = list(map(max, seeds))
            axes.plot(joined, means, label=plain_label(name), markersize=5, **style)
            axes.fill_between(joined, lows, highs, color=style["color"], alpha=0.2)
            lengths |= set(joined)
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.set_xticks(sorted(lengths), map(str, sorted(lengths)))
        axes.set(xlabel="sentences joined", ylabel=label)
        _add_legend_of_systems(axes, len(scores))
    return figure


def plot_ngram_gap(scores: Mapping[str, Sequence[float]], baseline: str) -> Figure:
    """Draws how much higher the BLEU of each system is than that of the baseline, for n-grams up to
    each length.

    That is Figure 4 of Yang et al. (EMNLP 2018) and Figure 3 of Yang et al. (NAACL 2019); the
    scores are systems' `csan_hf.evaluation.scores.bleu_by_order`."""
    with _chart() as (figure, axes):
        axes.axhline(0, color="0.5", linewidth=1)
        for name, style in styles_of(scores).items():
            gaps = np.subtract(scores[name], scores[baseline])
            if name != baseline:
                axes.plot(
                    range(1, len(gaps) + 1),
                    gaps,
                    label=plain_label(name),
                    markersize=5,
                    linewidth=1.2,
                    **style,
                )
        axes.set_xticks(range(1, 1 + len(scores[baseline])))
        axes.set(xlabel="n-grams up to this length", ylabel=plain_label(f"BLEU − {baseline}"))
        _add_legend_of_systems(axes, len(scores))
    return figure


def _add_legend_of_systems(axes: Any, systems: int) -> None:
    if systems > 1:
        longest = max(len(label) for label in axes.get_legend_handles_labels()[1])
        columns = min(3, max(1, _LETTERS // (longest + _KEY)))
        axes.figure.set_figheight(axes.figure.get_figheight() + 0.18 * ceil(systems / columns))
        _add_legend(axes, columns)


def plot_differences(
    rows: Mapping[str, Mapping[str, PairedTest | None]],
    metric: type[CorpusMetric],
    baseline: str,
    search: str,
) -> Figure:
    """Draws systems' differences to a baseline with their 95% intervals, for each column beside the
    others.

    Args:
        rows: System -> name of a column -> its test; None = there is none. All systems have the
            same columns.
        metric: The metric of the scores.
        baseline: The system at 0.
        search: How was translated: greedy, beam 5.
    """
    columns = [
        column
        for column in next(iter(rows.values()), {})
        if any(tests[column] for tests in rows.values())
    ]
    columns = columns or [""]
    across = min(len(columns), 4)
    down = ceil(len(columns) / across)
    with figure_style():
        figure = new_figure(
            2.5 + max(4.5, 1.9 * across), 0.6 + down * (0.5 + 0.24 * max(len(rows), 1))
        )
        panels: Any = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, column in zip(panels, columns, strict=False):
            axes.axvline(0, color="0.5", linewidth=1)
            for place, (name, style) in enumerate(styles_of(rows).items()):
                if (test := rows[name].get(column)) is not None:
                    axes.hlines(
                        place, *test.interval, color=style["color"], linewidth=2.5, alpha=0.5
                    )
                    axes.plot([test.difference], [place], **style, markersize=6, linestyle="none")
            axes.set_title(plain_label(column) if len(columns) > 1 else "", fontsize="medium")
            _add_grid(axes, "x")
        for axes in panels[len(columns) :]:
            axes.set_axis_off()
        for axes in panels[len(columns) - across : len(columns)]:  # the lowest of each
            axes.tick_params(labelbottom=True)
        panels[0].set_yticks(range(len(rows)), [plain_label(name) for name in rows])
        panels[0].set_ylim(max(len(rows), 1) - 0.5, -0.5)
        better = "(\N{LEFTWARDS ARROW} better)"
        if metric.greater_is_better:
            better = "(better \N{RIGHTWARDS ARROW})"
        difference = f"{metric.label}, {search}, minus that of {plain_label(baseline)}"
        label = f"{difference}, with 95% intervals {better}"
        figure.supxlabel(label, fontsize="medium")
    return figure


# ---- attention


def plot_attention_distance(statistics: AttentionStatistics) -> Figure:
    """Draws the share of attention by distance from the query, a line for each layer (mean of its
    heads).
    """
    mass = statistics.mass.mean(axis=1)
    last = mass.shape[1] - 1
    with _chart() as (figure, axes):
        for layer, row in enumerate(mass):
            axes.plot(
                100 * row,
                label=f"layer {layer + 1}",
                markersize=4,
                linewidth=1.2,
                **style_of(layer),
            )
        distances = [*range(0, last - 1, 2), last]
        axes.set_xticks(distances, [*map(str, distances[:-1]), f"{last}+"])
        axes.set(xlabel="tokens from the query", ylabel="attention, %")
        _add_legend(axes)
    return figure


def plot_attention_entropy(statistics: AttentionStatistics) -> Figure:
    """Draws the entropy of every head, by layer, and the mean of each layer as a dash."""
    with _chart() as (figure, axes):
        layers = np.arange(1, len(statistics.entropy) + 1)
        means = statistics.entropy.mean(axis=1)
        axes.plot(
            layers,
            means,
            "_",
            color=COLOURS[0],
            markersize=24,
            markeredgewidth=2,
            label="mean of the layer",
        )
        heads = statistics.entropy.shape[1]
        spread = (np.arange(heads) - (heads - 1) / 2) * 0.05
        places = (layers[:, None] + spread).ravel()
        axes.scatter(places, statistics.entropy.ravel(), color=COLOURS[1], s=14, label="head")
        axes.set_xticks(layers)
        axes.set(xlabel="layer", ylabel="entropy, nats", xlim=(0.5, len(layers) + 0.5))
        _add_legend(axes)
    return figure


def plot_learned_windows(windows: LearnedWindows) -> Figure:
    """Draws the windows that each layer's heads have learned, and how far their centres lie from
    the query.

    Boxes hold the middle half of the queries, whiskers 90% of them, one box for each head (Yang et
    al., EMNLP 2018, Figures 2 and 3)."""
    with figure_style():
        figure = new_figure(height=4.6)
        upper, lower = figure.subplots(2, 1, sharex=True)
        for axes, values in ((upper, windows.widths), (lower, windows.offsets)):
            heads = len(values[0])
            width = 0.8 / heads
            for head in range(heads):
                colour = {"color": COLOURS[head % len(COLOURS)]}
                offset = (head - (heads - 1) / 2) * width
                axes.boxplot(
                    [layer[head] for layer in values],
                    positions=np.arange(len(values)) + offset,
                    widths=0.8 * width,
                    whis=(5, 95),
                    showfliers=False,
                    manage_ticks=False,
                    boxprops=colour,
                    whiskerprops=colour,
                    capprops=colour,
                    medianprops={**colour, "linewidth": 2},
                )
        lower.axhline(0, color="0.5", linewidth=1)
        upper.set(ylabel="window D, tokens", ylim=(0, None))
        lower.set(xlabel="layer (a box for each head)", ylabel="centre − query, tokens")
        lower.set_xticks(range(len(windows.layers)), [str(layer + 1) for layer in windows.layers])
        _add_grid(upper)
        _add_grid(lower)
    return figure


def plot_channel_ranks(ranks: np.ndarray) -> Figure:
    """Draws the share of channels that the source tokens get, from the one with the most on: see
    `channel_ranks`.
    """
    with _chart() as (figure, axes):
        places = range(1, len(ranks) + 1)
        axes.bar(places, 100 * ranks, color=COLOURS[0])
        axes.set_xticks(places)
        axes.set(xlabel="source tokens by their channels", ylabel="share of the channels, %")
    return figure


def plot_area_usage(usage: Mapping[int, np.ndarray]) -> Figure:
    """Draws what each head takes from each head, a grid for each layer."""
    with figure_style():
        figure = new_figure(width=max(2.4 * len(usage), 3.0), height=2.9)
        grids: Any = figure.subplots(1, len(usage), squeeze=False)[0]
        for axes, (layer, shares) in zip(grids, usage.items(), strict=True):
            axes.imshow(100 * shares, cmap="Blues", vmin=0, vmax=100)
            for (row, column), share in np.ndenumerate(shares):
                if share >= 0.005 and len(shares) <= 8:
                    axes.text(
                        column,
                        row,
                        f"{100 * share:.0f}",
                        ha="center",
                        va="center",
                        color="white" if share > 0.7 else "black",  # by WCAG's contrast
                        fontsize=8.5,
                    )
            heads = [str(head + 1) for head in range(len(shares))]
            axes.set_xticks(range(len(shares)), heads)
            axes.set_yticks(range(len(shares)), heads)
            axes.set(title=f"layer {layer + 1}", xlabel="from head")
        grids[0].set_ylabel("head")
    return figure
