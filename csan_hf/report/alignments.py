# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Word alignments by checkpoints: matrices for the list of sentences, and plots of one sentence and of channels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from csan_hf.analysis import Alignment, align, channel_ranks, channel_shares
from csan_hf.analysis.figures import plot_channel_ranks
from csan_hf.analysis.heat_map import plot_heat_map
from csan_hf.analysis.positions import pairs_within_positions

from .contents import ReportPlot, WordAlignment
from .systems import System

_ALIGNED_AT_ONCE = 16
_EXAMPLE_WORDS = range(5, 16)
_MEASURED = 200  # sentences whose channels are counted


def word_alignments(system: System, sources: Sequence[str], *, progress: bool = False) -> dict[int, WordAlignment]:
    """Aligns a checkpoint's translations of the first sentences; other systems have no alignments.

    Sentences with more tokens than the model has positions have none either.

    Args:
        system: The system.
        sources: The sentences to align.
        progress: Shows bars on standard error.

    Returns:
        The alignments by number of the sentence; a matrix is scaled so that the largest number is 99.
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


def alignment_plots(system: System, name: str, sources: Sequence[str], *, progress: bool = False) -> list[ReportPlot]:
    """Draws the alignment of an example and, where a model pools by maximum, which tokens its channels come from.

    Args:
        system: The system; one that is no checkpoint has no such plots.
        name: Ending of the plots' names.
        sources: The first source sentences.
        progress: Shows bars on standard error.
    """
    model, tokenizers = system.model, system.tokenizers
    if model is None or tokenizers is None:
        return []
    targets = list(islice(system.runs[0], len(sources)))
    pairs = [(sources[n], targets[n]) for n in pairs_within_positions(model, tokenizers, sources, targets)]
    pairs = [pair for pair in pairs if all(text.strip() for text in pair)]
    if not pairs:
        return []
    example = next((pair for pair in pairs if all(len(text.split()) in _EXAMPLE_WORDS for text in pair)), pairs[0])
    source, target = ([text] for text in example)
    [alignment] = align(model, tokenizers, source, target)
    plots = [_heat_map(system, f"alignment_{name}", f"alignment of a sentence ({alignment.measure})", alignment)]
    if getattr(model.config, "aggregation", None) != "max":
        return plots
    [share] = channel_shares(model, tokenizers, source, target)
    plots.append(_heat_map(system, f"channels_{name}", "share of channels per source token", share))
    columns: Any = zip(*pairs[:_MEASURED], strict=True)
    ranks = channel_ranks(channel_shares(model, tokenizers, *map(list, columns), progress=progress))
    rows = [[str(rank), f"{100 * value:.1f}"] for rank, value in enumerate(ranks, 1)]
    title = f"{system.name}: how many channels go to few source tokens"
    columns = ["rank of the source token", "share of the channels, %"]
    plots.append(ReportPlot(f"channel_ranks_{name}", title, plot_channel_ranks(ranks), columns, rows, system.name))
    return plots


def _heat_map(system: System, name: str, title: str, alignment: Alignment) -> ReportPlot:
    rows = [
        [token, *(f"{value:.3f}" for value in row)]
        for token, row in zip(alignment.target.tokens, alignment.matrix, strict=True)
    ]
    columns = ["target \\ source", *alignment.source.tokens]
    return ReportPlot(name, f"{system.name}: {title}", plot_heat_map(alignment), columns, rows, system.name)
