# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Pictures of what the encoder's attention does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .attention_statistics import AttentionStatistics, LearnedWindows
from .figures import COLOURS, figure_style, new_figure, style_of


def plot_attention_distance(statistics: AttentionStatistics) -> Figure:
    """Draws the share of attention by distance from the query, a line for each layer (mean of its heads)."""
    mass = statistics.mass.mean(axis=1)
    with figure_style():
        figure = new_figure()
        axes = figure.add_subplot()
        last = mass.shape[1] - 1
        for layer, row in enumerate(mass):
            axes.plot(range(last + 1), 100 * row, label=f"layer {layer + 1}", **_style(layer))
        axes.set_xticks(range(last + 1), [*map(str, range(last)), f"{last}+"])
        axes.set(xlabel="tokens from the query", ylabel="attention, %")
        _finish(axes)
    return figure


def plot_attention_entropy(statistics: AttentionStatistics) -> Figure:
    """Draws the entropy of every head, by layer, and the mean of each layer as a line."""
    with figure_style():
        figure = new_figure()
        axes = figure.add_subplot()
        layers = np.arange(1, len(statistics.entropy) + 1)
        axes.plot(layers, statistics.entropy.mean(axis=1), color=COLOURS[0], label="mean of the layer")
        spread = (np.arange(statistics.entropy.shape[1]) - (statistics.entropy.shape[1] - 1) / 2) * 0.05
        places = (layers[:, None] + spread).ravel()
        axes.scatter(places, statistics.entropy.ravel(), color=COLOURS[1], s=14, label="head")
        axes.set_xticks(layers)
        axes.set(xlabel="layer", ylabel="entropy of the attention, nats")
        _finish(axes)
    return figure


def plot_learned_windows(windows: LearnedWindows) -> Figure:
    """Draws the windows that each layer's heads have learned, and how far their centres lie from the query.

    Boxes hold the middle half of the queries, whiskers 90% of them, one box for each head (Yang et al., EMNLP 2018,
    Figures 2 and 3).
    """
    with figure_style():
        figure = new_figure(height=5.2)
        upper, lower = figure.subplots(2, 1, sharex=True)
        _boxes(upper, windows.layers, windows.widths)
        _boxes(lower, windows.layers, windows.offsets)
        lower.axhline(0, color="0.5", linewidth=1)
        upper.set(ylabel="window D, tokens", ylim=(0, None))
        lower.set(xlabel="layer (a box for each head)", ylabel="centre − query, tokens")
        lower.set_xticks(range(len(windows.layers)), [str(layer + 1) for layer in windows.layers])
        for axes in (upper, lower):
            axes.grid(axis="y", color="0.5", alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
    return figure


def plot_channel_ranks(ranks: np.ndarray) -> Figure:
    """Draws the share of channels that the source tokens get, from the one with the most on.

    Args:
        ranks: What `csan_hf.analysis.channel_ranks` returns.
    """
    with figure_style():
        figure = new_figure()
        axes = figure.add_subplot()
        places = range(1, len(ranks) + 1)
        axes.bar(places, [100 * share for share in ranks], color=COLOURS[0])
        axes.set_xticks(places)
        axes.set(xlabel="source tokens, the one with the most channels first", ylabel="share of the channels, %")
        axes.grid(axis="y", color="0.5", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def plot_area_usage(usage: Mapping[int, np.ndarray]) -> Figure:
    """Draws what each head takes from each head, a grid for each layer."""
    layers = list(usage)
    with figure_style():
        figure = new_figure(width=max(2.4 * len(layers), 3.0), height=2.9)
        grids: Any = figure.subplots(1, len(layers), squeeze=False)[0]
        for axes, layer in zip(grids, layers, strict=True):
            image = axes.imshow(100 * usage[layer], cmap="Blues", vmin=0, vmax=100)
            for (row, column), share in np.ndenumerate(usage[layer]):
                if share >= 0.005 and len(usage[layer]) <= 8:
                    ink = _ink_on(image.to_rgba(100 * share))
                    axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", color=ink, fontsize=7)
            numbers = range(len(usage[layer]))
            axes.set_xticks(numbers, [str(number + 1) for number in numbers])
            axes.set_yticks(numbers, [str(number + 1) for number in numbers])
            axes.set(title=f"layer {layer + 1}", xlabel="from head")
        grids[0].set_ylabel("head")
    return figure


def _ink_on(colour: Sequence[float]) -> str:
    """Returns black or white, whichever stands out more from a colour by WCAG's contrast."""
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in colour[:3]]
    luminance = np.dot(linear, [0.2126, 0.7152, 0.0722])
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "black"


def _boxes(axes: Any, layers: list[int], values: list[np.ndarray]) -> None:
    heads = len(values[0])
    width = 0.8 / heads
    for head in range(heads):
        places = [place + (head - (heads - 1) / 2) * width for place in range(len(layers))]
        colour = COLOURS[head % len(COLOURS)]
        axes.boxplot(
            [layer[head] for layer in values],
            positions=places,
            widths=0.8 * width,
            whis=(5, 95),
            showfliers=False,
            manage_ticks=False,
            boxprops={"color": colour},
            whiskerprops={"color": colour},
            capprops={"color": colour},
            medianprops={"color": colour, "linewidth": 2},
        )


def _style(number: int) -> dict[str, Any]:
    return {**style_of(number), "markersize": 4, "linewidth": 1.2}


def _finish(axes: Any) -> None:
    axes.grid(axis="y", color="0.5", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
