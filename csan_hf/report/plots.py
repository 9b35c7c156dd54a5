# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What a report shows of checkpoints: word alignments, and plots of alignments, channels and
attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

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
    pairs: Any = ([lines[number] for number in numbers] for lines in (sources, targets))
    options: Any = {"batch_size": _ALIGNED_AT_ONCE, "progress": progress}
    found = {}
    for number, alignment in zip(numbers, align(model, tokenizers, *pairs, **options), strict=True):
        matrix = alignment.word_matrix()
        if matrix.size and (largest := np.abs(matrix).max()) > 0:
            scaled = np.rint(99 * matrix / largest).astype(int).tolist()
            found[number] = WordAlignment(scaled, alignment.links())
    return found


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
    pairs = [
        (sources[n], targets[n])
        for n in pairs_within_positions(model, tokenizers, sources, targets)
    ]
    pairs = [pair for pair in pairs if all(text.strip() for text in pair)]
    if not pairs:
        return []
    example = next(
        (pair for pair in pairs if all(len(text.split()) in _EXAMPLE_WORDS for text in pair)),
        pairs[0],
    )
    source, target = ([text] for text in example)
    [alignment] = align(model, tokenizers, source, target)
    plots = [
        _heat_map(
            system, f"alignment_{name}", f"alignment of a sentence ({alignment.measure})", alignment
        )
    ]
    if getattr(model.config, "aggregation", None) != "max":
        return plots
    [share] = channel_shares(model, tokenizers, source, target)
    plots.append(_heat_map(system, f"channels_{name}", "share of channels per source token", share))
    columns: Any = zip(*pairs[:_MEASURED], strict=True)
    ranks = channel_ranks(channel_shares(model, tokenizers, *map(list, columns), progress=progress))
    rows = [[str(rank), f"{100 * value:.1f}"] for rank, value in enumerate(ranks, 1)]
    title = f"{system.name}: how many channels go to few source tokens"
    columns = ["rank of the source token", "share of the channels, %"]
    plots.append(
        ReportPlot(
            f"channel_ranks_{name}", title, plot_channel_ranks(ranks), columns, rows, system.name
        )
    )
    return plots


def _heat_map(system: System, name: str, title: str, alignment: Alignment) -> ReportPlot:
    pairs = zip(alignment.target.tokens, alignment.matrix, strict=True)
    rows = [[token, *(f"{value:.3f}" for value in row)] for token, row in pairs]
    columns = ["target \\ source", *alignment.source.tokens]
    return ReportPlot(
        name, f"{system.name}: {title}", plot_heat_map(alignment), columns, rows, system.name
    )


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
    plots: list[ReportPlot] = []

    def add(
        kind: str, title: str, figure: Figure, columns: list[str], rows: list[list[str]]
    ) -> None:
        plots.append(
            ReportPlot(
                f"{kind}_{name}", f"{system.name}: {title}", figure, columns, rows, system.name
            )
        )

    found = attention_statistics(model, tokenizers, sources, progress=progress)
    last, heads = found.mass.shape[2] - 1, range(1, found.entropy.shape[1] + 1)
    columns = ["layer", *map(str, range(last)), f"{last} or more"]
    rows = [[str(layer), *_percent(mass.mean(axis=0))] for layer, mass in enumerate(found.mass, 1)]
    title = "attention by distance from the query, means of the heads"
    add("distance", title, plot_attention_distance(found), columns, rows)
    columns = ["layer", *(f"head {head}" for head in heads)]
    rows = [
        [str(layer), *(f"{value:.2f}" for value in row)]
        for layer, row in enumerate(found.entropy, 1)
    ]
    add("entropy", "entropy of the attention", plot_attention_entropy(found), columns, rows)
    windows = learned_windows(model, tokenizers, sources, progress=progress)
    if windows is not None:
        widths = zip(windows.layers, windows.widths, strict=True)
        rows = [
            [str(layer + 1), *(f"{np.median(head):.1f}" for head in own)] for layer, own in widths
        ]
        title = (
            "windows that the queries look at, and their middles (numbers: median windows, tokens)"
        )
        add("windows", title, plot_learned_windows(windows), columns, rows)
    usage: dict[int, np.ndarray] = {}
    if (
        model.config.hidden_size >= model.config.encoder_attention_heads**2
    ):  # else a head cannot tell the others apart
        usage = area_usage(model, tokenizers, sources, progress=progress)
    usage = {
        layer: own
        for layer, own in usage.items()
        if not np.allclose(own, np.eye(len(own)), atol=1e-4)
    }
    if usage:
        columns = ["layer, head", *(f"from head {head}" for head in heads)]
        rows = [
            [f"{layer + 1}, {head}", *_percent(row)]
            for layer, shares in usage.items()
            for head, row in enumerate(shares, 1)
        ]
        add(
            "area",
            "what each head takes from its neighbours, %",
            plot_area_usage(usage),
            columns,
            rows,
        )
    return plots


def _percent(shares: np.ndarray) -> list[str]:
    return [f"{100 * share:.1f}" for share in shares]
