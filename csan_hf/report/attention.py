# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The plots of what a checkpoint's attention does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from csan_hf.analysis.attention_statistics import area_usage, attention_statistics, learned_windows
from csan_hf.analysis.figures import (
    plot_area_usage,
    plot_attention_distance,
    plot_attention_entropy,
    plot_learned_windows,
)
from csan_hf.analysis.positions import pairs_within_positions

from .contents import ReportPlot
from .systems import System


def attention_plots(system: System, name: str, sources: Sequence[str], *, progress: bool = False) -> list[ReportPlot]:
    """Draws where the encoder of a checkpoint looks; a system without attention in its encoder has no such plots.

    Args:
        system: The system.
        name: Ending of the plots' names.
        sources: Source sentences to measure; those with more tokens than the model has positions are left out.
        progress: Shows bars on standard error.
    """
    model, tokenizers = system.model, system.tokenizers
    if model is None or tokenizers is None or not hasattr(model.config, "encoder_attention_heads"):
        return []
    sources = [sources[n] for n in pairs_within_positions(model, tokenizers, sources)]
    if not any(source.strip() for source in sources):
        return []
    plots = []
    found = attention_statistics(model, tokenizers, sources, progress=progress)
    last = found.mass.shape[2] - 1
    title = f"{system.name}: attention by distance from the query, means of the heads"
    columns = ["layer", *map(str, range(last)), f"{last} or more"]
    rows = [[str(layer + 1), *_percent(mass.mean(axis=0))] for layer, mass in enumerate(found.mass)]
    plots.append(ReportPlot(f"distance_{name}", title, plot_attention_distance(found), columns, rows, system.name))
    columns = ["layer", *(f"head {head + 1}" for head in range(found.entropy.shape[1]))]
    rows = [[str(layer + 1), *(f"{value:.2f}" for value in row)] for layer, row in enumerate(found.entropy)]
    title = f"{system.name}: entropy of the attention"
    plots.append(ReportPlot(f"entropy_{name}", title, plot_attention_entropy(found), columns, rows, system.name))
    windows = learned_windows(model, tokenizers, sources, progress=progress)
    if windows is not None:
        rows = [
            [str(layer + 1), *(f"{np.median(head):.1f}" for head in heads)]
            for layer, heads in zip(windows.layers, windows.widths, strict=True)
        ]
        title = f"{system.name}: windows that the queries look at, and their middles (numbers: median windows, tokens)"
        plots.append(ReportPlot(f"windows_{name}", title, plot_learned_windows(windows), columns, rows, system.name))
    usage: dict[int, np.ndarray] = {}
    if model.config.hidden_size >= model.config.encoder_attention_heads**2:  # else a head cannot tell the others apart
        usage = area_usage(model, tokenizers, sources, progress=progress)
    usage = {layer: shares for layer, shares in usage.items() if _takes_from_others(shares)}
    if usage:
        columns = ["layer, head", *(f"from head {head + 1}" for head in range(found.entropy.shape[1]))]
        rows = [
            [f"{layer + 1}, {head + 1}", *_percent(row)]
            for layer, shares in usage.items()
            for head, row in enumerate(shares)
        ]
        title = f"{system.name}: what each head takes from its neighbours, %"
        plots.append(ReportPlot(f"area_{name}", title, plot_area_usage(usage), columns, rows, system.name))
    return plots


def _takes_from_others(shares: np.ndarray) -> bool:
    return not np.allclose(shares, np.eye(len(shares)), atol=1e-4)


def _percent(shares: np.ndarray) -> list[str]:
    return [f"{100 * share:.1f}" for share in shares]
