# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Word alignments of checkpoints, and plots of their alignments, channels and attention."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from transformers import PreTrainedModel

from csan_hf.alignment import Alignment, pairs_within_positions
from csan_hf.data import TokenizerPair
from csan_hf.evaluation import align
from csan_hf.hub.heat_map import plot_heat_map
from csan_hf.lab.analysis import channel_ranks, channel_shares
from csan_hf.lab.analysis.attention_statistics import (
    area_usage,
    attention_statistics,
    learned_windows,
)
from csan_hf.lab.analysis.charts import (
    plot_area_usage,
    plot_attention_distance,
    plot_attention_entropy,
    plot_channel_ranks,
    plot_learned_windows,
)

from .page import ReportPlot
from .systems import System, WordAlignment, tagged_sources

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
    targets = list(itertools.islice(system.runs[0], len(sources)))
    read_sources = tagged_sources(system, sources)
    numbers = pairs_within_positions(model, tokenizers, read_sources, targets)
    aligned = align(
        model,
        tokenizers,
        [read_sources[number] for number in numbers],
        [targets[number] for number in numbers],
        batch_size=_ALIGNED_AT_ONCE,
        progress=progress,
    )
    alignments = {}
    for number, alignment in zip(numbers, aligned, strict=True):
        # A tag that was typed is a word of the page, and none of the alignment
        tags = max(len(sources[number].split()) - len(alignment.source.words), 0)
        matrix = np.pad(alignment.word_matrix(), [(0, 0), (tags, 0)])
        links = [(tags + source, target) for source, target in alignment.links()]
        largest = np.abs(matrix).max(initial=0)
        if largest > 0:
            scaled = np.rint(99 * matrix / largest).astype(int).tolist()
            alignments[number] = WordAlignment(scaled, links)
    return alignments


def checkpoint_plots(
    system: System, ending: str, sources: Sequence[str], *, progress: bool = False
) -> list[ReportPlot]:
    """Draws attention and alignments of a system that is a checkpoint; `ending` is that of the
    plots' names.
    """
    model, tokenizers = system.model, system.tokenizers
    if model is None or tokenizers is None:
        return []
    targets = list(itertools.islice(system.runs[0], len(sources)))
    sources = tagged_sources(system, sources)
    plots = itertools.chain(
        attention_plots(model, tokenizers, sources, progress=progress),
        alignment_plots(model, tokenizers, sources, targets, progress=progress),
    )
    return [
        replace(
            plot,
            name=f"{plot.name}_{ending}",
            title=f"{system.name}: {plot.title}",
            system=system.name,
        )
        for plot in plots
    ]


def alignment_plots(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    progress: bool = False,
) -> Iterator[ReportPlot]:
    """Draws a model's alignment of an example and, if it pools by maximum, which tokens its
    channels come from.
    """
    pairs = []
    for number in pairs_within_positions(model, tokenizers, sources, targets):
        if sources[number].strip() and targets[number].strip():
            pairs.append((sources[number], targets[number]))
    if not pairs:
        return
    examples = [pair for pair in pairs if all(len(text.split()) in _EXAMPLE_WORDS for text in pair)]
    source, target = (examples or pairs)[0]
    [alignment] = align(model, tokenizers, [source], [target])
    title = f"alignment of a sentence ({alignment.measure})"
    yield _heat_map("alignment", title, alignment)
    if getattr(model.config, "aggregation", None) != "max":
        return
    [share] = channel_shares(model, tokenizers, [source], [target])
    yield _heat_map("channels", "share of channels per source token", share)
    measured_sources, measured_targets = zip(*pairs[:_MEASURED], strict=True)
    shares = channel_shares(
        model, tokenizers, measured_sources, measured_targets, progress=progress
    )
    ranks = channel_ranks(shares)
    yield ReportPlot(
        name="channel_ranks",
        title="how many channels go to few source tokens",
        figure=plot_channel_ranks(ranks),
        columns=["rank of the source token", "share of the channels, %"],
        rows=table_rows(range(1, len(ranks) + 1), 100 * ranks[:, None], ".1f"),
    )


def _heat_map(name: str, title: str, alignment: Alignment) -> ReportPlot:
    return ReportPlot(
        name,
        title,
        figure=plot_heat_map(alignment),
        columns=["target \\ source", *alignment.source.tokens],
        rows=table_rows(alignment.target.tokens, alignment.matrix, ".3f"),
    )


def attention_plots(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sources: Sequence[str],
    *,
    progress: bool = False,
) -> Iterator[ReportPlot]:
    """Draws where the encoder of a model looks, if it has attention, in sentences that it has
    positions for.
    """
    config = model.config
    # LED's attention weights are those of windows
    if not hasattr(config, "encoder_attention_heads") or hasattr(config, "attention_window"):
        return
    sources = [sources[n] for n in pairs_within_positions(model, tokenizers, sources)]
    if not any(source.strip() for source in sources):
        return
    statistics = attention_statistics(model, tokenizers, sources, progress=progress)
    last = statistics.mass.shape[2] - 1
    layers = range(1, len(statistics.entropy) + 1)
    heads = range(1, statistics.entropy.shape[1] + 1)
    of_heads = ["layer", *(f"head {head}" for head in heads)]
    yield ReportPlot(
        name="distance",
        title="attention by distance from the query, means of the heads",
        figure=plot_attention_distance(statistics),
        columns=["layer", *map(str, range(last)), f"{last} or more"],
        rows=table_rows(layers, 100 * statistics.mass.mean(axis=1), ".1f"),
    )
    yield ReportPlot(
        name="entropy",
        title="entropy of the attention",
        figure=plot_attention_entropy(statistics),
        columns=of_heads,
        rows=table_rows(layers, statistics.entropy, ".2f"),
    )
    windows = learned_windows(model, tokenizers, sources, progress=progress)
    if windows is not None:
        medians = [np.median(widths, axis=1) for widths in windows.widths]
        yield ReportPlot(
            name="windows",
            title="windows that the queries look at, and their middles (numbers: median windows, "
            "tokens)",
            figure=plot_learned_windows(windows),
            columns=of_heads,
            rows=table_rows([layer + 1 for layer in windows.layers], medians, ".1f"),
        )
    # With fewer channels a head cannot tell the others apart
    if model.config.hidden_size >= len(heads) ** 2:
        usage = area_usage(model, tokenizers, sources, progress=progress)
        yield from _area_plots(usage, heads)


def _area_plots(usage: dict[int, np.ndarray], heads: range) -> Iterator[ReportPlot]:
    """A plot of the layers in which heads take from their neighbours, if there are any."""
    areas = {
        layer: shares
        for layer, shares in usage.items()
        if not np.allclose(shares, np.eye(len(shares)), atol=1e-4)
    }
    if not areas:
        return
    rows = []
    for layer, shares in areas.items():
        rows += table_rows([f"{layer + 1}, {head}" for head in heads], 100 * shares, ".1f")
    yield ReportPlot(
        name="area",
        title="what each head takes from its neighbours, %",
        figure=plot_area_usage(areas),
        columns=["layer, head", *(f"from head {head}" for head in heads)],
        rows=rows,
    )


def table_rows(
    labels: Iterable[object], numbers: Iterable[Iterable[float]], form: str
) -> list[list[str]]:
    """Returns rows of a table: a label and its numbers, formatted."""
    rows = []
    for label, values in zip(labels, numbers, strict=True):
        rows.append([str(label), *(format(value, form) for value in values)])
    return rows
