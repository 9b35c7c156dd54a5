# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The picture of a model's locality."""

import pkgutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor
from transformers import PreTrainedConfig

from csan_hf.families import FAMILIES
from csan_hf.models import CsanConfig, PervasiveAttentionConfig
from csan_hf_runtime.extras import needs_extra

from .figures import COLOURS, add_cell_lines, new_figure, save_figure
from .locality_reach import (
    AttentionReach,
    attention_reaches,
    drawn_config,
    grid_reach,
    picture_caption,
)

with needs_extra("train"):
    from matplotlib.axes import Axes
    from matplotlib.colors import BoundaryNorm, Colormap, ListedColormap, to_rgb
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle
    from matplotlib.ticker import MaxNLocator

_UNSEEN = "#e9e9e9"
_SEEN = COLOURS[0]
_MASKED = "#f7dca6"
_QUERY: Any = {"fill": False, "edgecolor": COLOURS[3], "linewidth": 1.8}
_ROW: Any = {"fill": False, "edgecolor": "black", "linestyle": "--"}
_PARTS = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention of the decoder",
}
_GRID_LINES = 45  # cells on a side beyond which lines between them would only darken the picture


def draw_locality(config: PreTrainedConfig | dict[str, Any], path: Path | str) -> None:
    """Draws where a model is local, as its model card shows it.

    Of a CSAN: for each part (encoder, decoder, cross-attention) and each group of layers that are
    local alike, the keys that one query sees in every head (left), those that every query sees in
    its own head (middle), and the heads that every head sees (right); what is not local is named.
    What a method predicts from the sentence, as a Gaussian's centre and width, is drawn as an
    example, and the picture says which.

    Of Pervasive Attention: the taps of its masked convolutions, and the part of the source × target
    grid that one cell sees after each layer.

    Args:
        config: A `CsanConfig` or `PervasiveAttentionConfig`, or its fields as `config.json` holds
            them.
        path: PNG file to write.

    Raises:
        ValueError: The config is impossible, of a family that cannot be drawn, or nothing of it is
            local.
    """
    save_figure(plot_locality(config), path, dpi=120, margin=0.15)


def plot_locality(config: PreTrainedConfig | dict[str, Any]) -> Figure:
    """Draws where a model is local; see `draw_locality`."""
    drawn = drawn_config(config)
    draw = pkgutil.resolve_name(str(FAMILIES[drawn.model_type].draw))
    return draw(drawn)


def draw_attention(config: CsanConfig) -> Figure:
    """Draws which keys the queries of a CSAN see; see `draw_locality`."""
    shown = attention_reaches(config)
    reaches = [reach for reach in shown if reach.locality is not None]
    if not reaches:
        raise ValueError("Nothing of this model is local: there is nothing to draw.")
    figure = new_figure(9.5, 0.7 + 2.5 * len(reaches))
    rows = figure.subfigures(len(reaches), 1, squeeze=False)
    for row, reach in zip(rows[:, 0], reaches, strict=True):
        row.suptitle(_describe(reach), fontsize=10, x=0.01, ha="left", fontweight="bold")
        left, middle, right = row.subplots(1, 3, width_ratios=(1.6, 1, 0.7))
        _show_weights(left, reach.heads, "equal" if reach.heads.shape[1] <= _GRID_LINES else "auto")
        _show_weights(middle, reach.positions, "equal")
        _show_weights(right, reach.areas, "equal")
        head, position = reach.query
        _outline(left, position + 1, head + 1)
        _outline(middle, position + 1, position + 1)
        _outline(right, head + 1, head + 1)
        key = "key: source position j" if reach.part == "cross" else "key: position j"
        left.set(xlabel=key, ylabel="head", title=f"of query i = {position + 1} in head {head + 1}")
        middle.set(xlabel=key, ylabel="query: position i", title="of every query, in its own head")
        right.set(xlabel="keys of head", ylabel="query: head", title="of every head")
        for axes in row.axes:
            axes.title.set_fontsize(9)
    lowered = any(((reach.heads > 0) & (reach.heads < 1)).any() for reach in reaches)
    seen = "seen (paler: lowered by the energies added)" if lowered else "seen"
    handles = [
        Patch(facecolor=_SEEN, label=seen),
        Patch(facecolor=_UNSEEN, label="not seen"),
        Patch(**_QUERY, label="the query's own head and position"),
    ]
    not_local = [_describe(reach) for reach in shown if reach.locality is None]
    _add_legend(figure, handles, "\n".join(not_local))
    return figure


def _add_legend(figure: Figure, handles: list[Patch], title: str | None = None) -> None:
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=len(handles),
        frameon=False,
        fontsize=9,
        title=title,
        title_fontsize=9,
    )


def _describe(reach: AttentionReach) -> str:
    numbers = ", ".join(str(layer + 1) for layer in reach.layers)
    plural = "s" if len(reach.layers) > 1 else ""
    text = f"{_PARTS[reach.part]}, layer{plural} {numbers} of {reach.depth}: "
    methods = () if reach.locality is None else reach.locality.methods
    length = reach.positions.shape[1]
    structure = [
        picture_caption(method, reach.part, length) for method in methods if method.term is None
    ]
    terms = [
        picture_caption(method, reach.part, length) for method in methods if method.term is not None
    ]
    causal = reach.part == "decoder"
    if causal and structure:
        structure.append("no later tokens")
    if not methods:
        return text + ("all earlier tokens" if causal else "the whole sentence")
    return text + "\n".join([", ".join(structure), *terms] if structure else terms)


def _show_weights(axes: Axes, weights: Tensor, aspect: Literal["equal", "auto"]) -> None:
    rows, columns = weights.shape
    axes.imshow(
        np.ma.masked_equal(weights.numpy(), 0.0),
        # From pale to full blue; what is not seen has a colour outside that range
        cmap=_shades(np.linspace(0.08, 1, 256)),
        vmin=0.0,
        vmax=1.0,
        aspect=aspect,
        # People count from 1, as the layers are counted here
        extent=(0.5, columns + 0.5, rows + 0.5, 0.5),
        interpolation="nearest",
    )
    if max(rows, columns) <= _GRID_LINES:
        add_cell_lines(axes, color="white", linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    axes.tick_params(labelsize=9)


def _shades(shares: np.ndarray) -> Colormap:
    colours = 1 - np.outer(shares, 1 - np.array(to_rgb(_SEEN)))
    return ListedColormap(colours).with_extremes(bad=_UNSEEN)


def _outline(axes: Axes, column: float, row: float) -> None:
    axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **_QUERY, zorder=3))


def draw_grid(config: PervasiveAttentionConfig) -> Figure:
    """Draws which cells a cell of Pervasive Attention's grid sees."""
    figure = new_figure(10, 4.6)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.6))
    _draw_kernel(left, config.kernel_size)
    _draw_field(figure, right, config)
    for axes in (left, right):
        axes.set(
            xlabel="source position, from the cell's own",
            ylabel="target position, from the cell's own",
        )
        axes.tick_params(labelsize=9)
    handles = [
        Patch(facecolor=_SEEN, label="seen"),
        Patch(facecolor=_MASKED, label="masked: later target tokens"),
        Patch(**_QUERY, label="the cell"),
        Patch(**_ROW, label="its row, of which one vector is made"),
    ]
    _add_legend(figure, handles)
    return figure


def _draw_kernel(axes: Axes, kernel_size: int) -> None:
    side = kernel_size // 2
    colours = np.zeros((kernel_size + 2, kernel_size + 2))
    colours[1:-1, 1:-1] = 2
    colours[1 : side + 2, 1:-1] = 1
    edge = side + 1.5
    axes.imshow(
        colours,
        cmap=ListedColormap([_UNSEEN, _SEEN, _MASKED]),
        vmin=0,
        vmax=2,
        extent=(-edge, edge, edge, -edge),
        interpolation="nearest",
    )
    add_cell_lines(axes, color="white", linewidth=0.8)
    _outline(axes, 0, 0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(
        f"One layer: {kernel_size}×{kernel_size} taps, {side + 1} rows not masked", fontsize=10
    )


def _draw_field(figure: Figure, axes: Axes, config: PervasiveAttentionConfig) -> None:
    reach = grid_reach(config)
    layers = config.num_layers
    radius = reach.shape[0] - 1
    border = max(2, radius // 8)
    field = np.pad(reach.numpy().astype(float), border, constant_values=np.nan)
    edge = radius + border + 0.5
    image = axes.imshow(
        np.ma.masked_invalid(field),
        cmap=_shades(np.linspace(1.0, 0.15, layers + 1)),
        norm=BoundaryNorm(np.arange(-0.5, layers + 1), layers + 1),
        extent=(-edge, edge, border + 0.5, -edge),
        interpolation="nearest",
    )
    axes.axhspan(0.5, border + 0.5, color=_MASKED)
    axes.add_patch(Rectangle((-edge + 0.1, -0.5), 2 * edge - 0.2, 1, **_ROW, zorder=2))
    _outline(axes, 0, 0)
    title = (
        f"All {layers} layers: {radius} target tokens back, {radius} source tokens to either side"
    )
    axes.set_title(title, fontsize=10)
    figure.colorbar(
        image, ax=axes, label="seen from layer", ticks=MaxNLocator(6, integer=True), shrink=0.9
    )
