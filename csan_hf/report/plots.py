# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Word alignments of checkpoints, and plots of their alignments, channels and attention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
from matplotlib.figure import Figure

from csan_hf.alignment import pairs_within_positions
from csan_hf.analysis import Alignment, align, channel_ranks, channel_shares
from csan_hf.analysis.attention_statistics import area_usage, attention_statistics, learned_windows
from csan_hf.analysis.figures import (
    plot_area_usage,
    plot_attention_distance,
    plot_attention_entropy,
    plot_channel_ranks,
    plot_learned_windows,
)
from csan_hf.analysis.heat_map import plot_heat_map

from .page import ReportPlot
from .systems import System, WordAlignment

_ALIGNED_AT_ONCE = 16
_EXAMPLE_WORDS = range(5, 16)
_MEASURED = 200  # sentences whose channels are counted


def word_alignments(
    system: System, sources: Sequence[str], *, progress: bool = False
) -> dict[int, WordAlignment]:
    """Aligns a checkpoint's translations of the first sentences, those that the model has positions
    for.

    Returns:
        The alignments by number of the sentence; a matrix is scaled so that the largest number is
        99.
    """
    if system.model is None or system.tokenizers is None or not sources:
        return {}
    model, tokenizers = system.model, system.tokenizers
    targets = list(islice(system.runs[0], len(sources)))
    numbers = pairs_within_positions(model, tokenizers, sources, targets)
    aligned = align(
        model,
        tokenizers,
        [sources[number] for number in numbers],
        [targets[number] for number in numbers],
        batch_size=_ALIGNED_AT_ONCE,
        progress=progress,
    )
    alignments = {}
    for number, alignment in zip(numbers, aligned, strict=True):
        matrix = alignment.word_matrix()
        largest = np.abs(matrix).max(initial=0)
        if largest > 0:
            scaled = np.rint(99 * matrix / largest).astype(int).tolist()
            alignments[number] = WordAlignment(scaled, alignment.links())
    return alignments


def alignment_plots(
    system: System, name: str, sources: Sequence[str], *, progress: bool = False
) -> list[ReportPlot]:
    """Draws a checkpoint's alignment of an example and, if it pools by maximum, which tokens its
    channels come from.

    `name` is the ending of the plots' names.
    """
    model, tokenizers = system.model, system.tokenizers
    if model is None or tokenizers is None:
        return []
    targets = list(islice(system.runs[0], len(sources)))
    numbers = [
        number
        for number in pairs_within_positions(model, tokenizers, sources, targets)
        if sources[number].strip() and targets[number].strip()
    ]
    if not numbers:
        return []
    example = numbers[0]
    for number in numbers:
        lengths = {len(sources[number].split()), len(targets[number].split())}
        if lengths <= set(_EXAMPLE_WORDS):
            example = number
            break
    pair = [sources[example]], [targets[example]]
    [alignment] = align(model, tokenizers, *pair)
    title = f"alignment of a sentence ({alignment.measure})"
    plots = [_heat_map(system, f"alignment_{name}", title, alignment)]
    if getattr(model.config, "aggregation", None) != "max":
        return plots
    [share] = channel_shares(model, tokenizers, *pair)
    plots.append(_heat_map(system, f"channels_{name}", "share of channels per source token", share))
    measured = numbers[:_MEASURED]
    shares = channel_shares(
        model,
        tokenizers,
        [sources[number] for number in measured],
        [targets[number] for number in measured],
        progress=progress,
    )
    ranks = channel_ranks(shares)
    plot = _plot_of(
        system,
        f"channel_ranks_{name}",
        "how many channels go to few source tokens",
        figure=plot_channel_ranks(ranks),
        columns=["rank of the source token", "share of the channels, %"],
        rows=[[str(rank), f"{100 * value:.1f}"] for rank, value in enumerate(ranks, 1)],
    )
    return [*plots, plot]


def _heat_map(system: System, name: str, title: str, alignment: Alignment) -> ReportPlot:
    rows = []
    for token, row in zip(alignment.target.tokens, alignment.matrix, strict=True):
        rows.append([token, *(f"{value:.3f}" for value in row)])
    return _plot_of(
        system,
        name,
        title,
        figure=plot_heat_map(alignment),
        columns=["target \\ source", *alignment.source.tokens],
        rows=rows,
    )


def _plot_of(
    system: System,
    name: str,
    title: str,
    *,
    figure: Figure,
    columns: list[str],
    rows: list[list[str]],
) -> ReportPlot:
    title = f"{system.name}: {title}"
    return ReportPlot(name, title, figure, columns, rows, system=system.name)


def attention_plots(
    system: System, name: str, sources: Sequence[str], *, progress: bool = False
) -> list[ReportPlot]:
    """Draws where the encoder of a checkpoint looks, if it has attention, in sentences that it has
    positions for.
    """
    model, tokenizers = system.model, system.tokenizers
    if model is None or tokenizers is None or not hasattr(model.config, "encoder_attention_heads"):
        return []
    sources = [sources[n] for n in pairs_within_positions(model, tokenizers, sources)]
    if not any(source.strip() for source in sources):
        return []
    statistics = attention_statistics(model, tokenizers, sources, progress=progress)
    last = statistics.mass.shape[2] - 1
    heads = range(1, statistics.entropy.shape[1] + 1)
    layers = range(1, len(statistics.entropy) + 1)
    plots = [
        _plot_of(
            system,
            f"distance_{name}",
            "attention by distance from the query, means of the heads",
            figure=plot_attention_distance(statistics),
            columns=["layer", *map(str, range(last)), f"{last} or more"],
            rows=_rows(layers, [_percent(mass.mean(axis=0)) for mass in statistics.mass]),
        ),
        _plot_of(
            system,
            f"entropy_{name}",
            "entropy of the attention",
            figure=plot_attention_entropy(statistics),
            columns=["layer", *(f"head {head}" for head in heads)],
            rows=_rows(layers, [_numbers(row, ".2f") for row in statistics.entropy]),
        ),
    ]
    windows = learned_windows(model, tokenizers, sources, progress=progress)
    if windows is not None:
        title = (
            "windows that the queries look at, and their middles (numbers: median windows, tokens)"
        )
        medians = [_numbers(map(np.median, layer), ".1f") for layer in windows.widths]
        plot = _plot_of(
            system,
            f"windows_{name}",
            title,
            figure=plot_learned_windows(windows),
            columns=["layer", *(f"head {head}" for head in heads)],
            rows=_rows([layer + 1 for layer in windows.layers], medians),
        )
        plots.append(plot)
    usage: dict[int, np.ndarray] = {}
    # With fewer channels a head cannot tell the others apart
    if model.config.hidden_size >= model.config.encoder_attention_heads**2:
        usage = area_usage(model, tokenizers, sources, progress=progress)
    usage = {
        layer: shares
        for layer, shares in usage.items()
        if not np.allclose(shares, np.eye(len(shares)), atol=1e-4)
    }
    if usage:
        rows = []
        for layer, shares in usage.items():
            for head, row in enumerate(shares, 1):
                rows.append([f"{layer + 1}, {head}", *_percent(row)])
        plot = _plot_of(
            system,
            f"area_{name}",
            "what each head takes from its neighbours, %",
            figure=plot_area_usage(usage),
            columns=["layer, head", *(f"from head {head}" for head in heads)],
            rows=rows,
        )
        plots.append(plot)
    return plots


def _rows(labels: Iterable[int], cells: Iterable[list[str]]) -> list[list[str]]:
    return [[str(label), *row] for label, row in zip(labels, cells, strict=True)]


def _numbers(values: Iterable[float], form: str) -> list[str]:
    return [format(value, form) for value in values]


def _percent(shares: np.ndarray) -> list[str]:
    return _numbers(100 * shares, ".1f")
