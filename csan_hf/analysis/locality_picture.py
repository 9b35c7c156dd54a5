# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The picture of a model's locality: which keys a query sees, how far a cell of the grid sees."""

import dataclasses
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, Colormap, ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor
from transformers import PreTrainedConfig

from csan_hf.families import FAMILIES
from csan_hf.models import CsanConfig, PervasiveAttentionConfig
from csan_hf.models.attention_call import AttentionCall, KeyArea, Term
from csan_hf.models.backend_dense import DenseCells
from csan_hf.models.gaussian import Gaussian, GaussianTerm
from csan_hf.models.locality import PARTS, AttentionSite, LayerLocality, LocalityMethod
from csan_hf.models.sublayers import Block

from .figures import COLOURS, add_cell_lines, new_figure, save_figure

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
_SHORTEST = 15  # tokens drawn, at least
_MARGIN = 6  # tokens drawn beyond a window
_GRID_LINES = 45  # cells on a side beyond which lines between them would only darken the picture


@dataclass(frozen=True)
class AttentionReach:
    """What the queries of a group of layers see that are local in the same way.

    Attributes:
        part: `"encoder"`, `"decoder"` (its self-attention) or `"cross"`.
        layers: The layers, counted from 0, of `depth` in that encoder or decoder.
        locality: What is local there; None = full attention.
        query: Head and position of the query that `heads` is about.
        heads: [H, J], weight of every key in every head for that query: 0 = not seen, 1 = seen,
            between them = lowered by an energy.
        positions: [I, J], the same for every query and the keys of its own head.
        areas: [H, H], 1 for the heads whose keys each head sees.
    """

    part: str
    layers: tuple[int, ...]
    depth: int
    locality: LayerLocality | None
    query: tuple[int, int]
    heads: Tensor
    positions: Tensor
    areas: Tensor


def draw_locality(
    config: PreTrainedConfig | dict[str, Any],
    path: Path | str,
    *,
    length: int | None = None,
) -> None:
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
        length: Tokens of the sentence that is drawn; None = 6 more than the widest window, and at
            least 15. Ignored for Pervasive Attention.

    Raises:
        ValueError: The config is impossible, of a family that cannot be drawn, or nothing of it is
            local.
    """
    save_figure(plot_locality(config, length=length), path, dpi=120, margin=0.15)


def plot_locality(
    config: PreTrainedConfig | dict[str, Any], *, length: int | None = None
) -> Figure:
    """Draws where a model is local; see `draw_locality`."""
    drawn = _as_config(config)
    draw = pkgutil.resolve_name(str(FAMILIES[drawn.model_type].draw))
    return draw(drawn, length)


def attention_reaches(
    config: PreTrainedConfig | dict[str, Any], *, length: int | None = None
) -> list[AttentionReach]:
    """Says for each group of equal layers of a CSAN which keys its queries see.

    Args:
        config: A `CsanConfig`, or its fields.
        length: Tokens of source and target; see `draw_locality`.

    Returns:
        Local layers before the others, encoder before decoder; of a classifier only the encoder.
    """
    csan: CsanConfig = _as_config(config)
    is_classifier = any("Classification" in name for name in csan.architectures or [])
    groups = layer_groups(csan, ["encoder"] if is_classifier else PARTS)
    if length is None:
        length = _SHORTEST
        for _, locality, _ in groups:
            if locality is not None and locality.area.window is not None:
                length = max(length, locality.area.window + _MARGIN)
    return [_reach(csan, part, locality, layers, length) for part, locality, layers in groups]


def is_drawn(config: PreTrainedConfig | dict[str, Any]) -> bool:
    """Whether a model has a picture of its locality: something of it is local."""
    fields = config if isinstance(config, dict) else config.to_dict()
    if fields["model_type"] not in _drawn_families():
        return False
    drawn = _as_config(fields)
    return not isinstance(drawn, CsanConfig) or bool(drawn.localities())


def _drawn_families() -> list[str]:
    return [name for name, family in FAMILIES.items() if family.draw is not None]


def layer_groups(
    config: CsanConfig, parts: Iterable[str] = PARTS
) -> list[tuple[str, LayerLocality | None, tuple[int, ...]]]:
    """The layers of each part that are alike, local ones first."""
    groups = []
    for part in parts:
        alike: dict[LayerLocality | None, list[int]] = {}
        for index in range(len(config.specifications(part))):
            alike.setdefault(config.layer_locality(part, index), []).append(index)
        ordered = sorted(alike.items(), key=lambda item: item[0] is None)
        groups += [(part, locality, tuple(layers)) for locality, layers in ordered]
    return groups


def grid_reach(config: PervasiveAttentionConfig) -> Tensor:
    """Says in which layer of Pervasive Attention a cell of the grid first enters what one cell
    sees.

    Returns:
        [R + 1, 2 R + 1] for R = layers · (k - 1) / 2: rows are target positions from R before the
        cell to its own, columns source positions from R before to R after it. The cell itself,
        which needs no convolution, has 0.
    """
    side = config.kernel_size // 2
    radius = config.num_layers * side
    rows = torch.arange(-radius, 1).abs()[:, None]
    columns = torch.arange(-radius, radius + 1).abs()[None, :]
    return torch.ceil(torch.maximum(rows, columns) / max(side, 1)).long()


def _as_config(config: PreTrainedConfig | dict[str, Any]) -> Any:
    if not isinstance(config, dict):
        # A config that came with a checkpoint, as remote code, has another class of the same name
        config = config.to_dict()
    name = config.get("model_type", CsanConfig.model_type)
    if name not in _drawn_families():
        raise ValueError(
            f"The locality of model_type {name!r} cannot be drawn, only that of "
            f"{' and '.join(_drawn_families())}."
        )
    return FAMILIES[name].config_class.from_dict(config)


def _reach(
    config: CsanConfig,
    part: str,
    locality: LayerLocality | None,
    layers: tuple[int, ...],
    length: int,
) -> AttentionReach:
    site = config.attention_site(part, layers[0])
    num_heads = site.num_heads
    area = KeyArea(causal=site.is_causal) if locality is None else locality.area
    head = num_heads // 2
    position = length - 1 - length // 4 if site.is_causal else length // 2
    weights = _example_weights(site, locality, area, length)
    areas = area.with_neighbours(torch.eye(num_heads)[None, :, None]).sum(dim=2)[0]
    return AttentionReach(
        part=part,
        layers=layers,
        depth=len(config.specifications(part)),
        locality=locality,
        query=(head, position),
        heads=areas[head][:, None] * weights[head, position],
        positions=weights[head],
        areas=areas,
    )


@torch.no_grad()
def _example_weights(
    site: AttentionSite, locality: LayerLocality | None, area: KeyArea, length: int
) -> Tensor:
    """[H, I, J]: 0 = not seen, 1 = seen, between them = lowered by an energy."""
    cells = DenseCells(_example_call(site, length))
    weights = area.within_window(cells.distance).float().expand(1, site.num_heads, length, length)
    for method in () if locality is None else locality.methods:
        if isinstance(method, Block):
            query_block = cells.query_position // method.length
            is_own_block = cells.key_position // method.length == query_block
            # Paler: the other blocks, seen through a summary
            weights = weights * (is_own_block.float() - 1.0).exp()
        term = _example_term(method, site, length)
        if term is not None and term.visible is not None:
            weights = weights * term.visible(cells)
        if term is not None and term.energy is not None:
            weights = weights * term.energy(cells).exp()
    return weights[0]


def _example_term(method: Any, site: AttentionSite, length: int) -> Term | None:
    """A method's term in a sentence of `length` tokens: that of a Gaussian as `caption` says,
    others as untrained.
    """
    if isinstance(method, Gaussian):
        center = (torch.arange(length, dtype=torch.float32) + _SHIFT[site.part]).clamp(0, length)
        return GaussianTerm(
            center[None, None], torch.full((1, 1, 1), _example_width(method, length))
        )
    if method.term is None:
        return None
    with torch.random.fork_rng(devices=[]):
        term: Term | None = method.term(method.build(site), _example_call(site, length))
    return term


_SHIFT = {"encoder": 2, "decoder": -2, "cross": 0}  # of an example's centre from the query
_PLACE = {"encoder": "i + 2", "decoder": "i − 2", "cross": "i"}


def _example_call(site: AttentionSite, length: int) -> AttentionCall:
    states = torch.zeros(1, site.num_heads, length, site.head_dim)
    return AttentionCall(
        states, states, states, KeyArea(causal=site.is_causal), site.head_dim**-0.5
    )


def _example_width(method: Gaussian, length: int) -> float:
    """Width of a Gaussian as a trained model might predict it."""
    return {"fixed": float(method.size), "head": 10.0}.get(method.width, length / 2)


_CAPTIONS = {
    "window": "window of {0.size} tokens",
    "head_area": "area of {0.size} heads",
    "bi_direct": (
        "first half of the heads: no later tokens; second half, shown here: no earlier ones"
    ),
    "relative_positions": "relative positions up to {0.max_distance} tokens",
    "relative_bias": "biases of {0.buckets} buckets of distances",
    "neighbor": "Gaussian (around the query, width D predicted; here D = {half:g})",
    "local_hard": "Gaussian (centre P predicted, width D = {0.width:g}{cut}; here P = {half:g})",
    "gaussian fixed": "Gaussian (centre P predicted, width D = {example:g}; here P = {place})",
    "gaussian layer": (
        "Gaussian (centre P predicted, width D predicted per layer; here P = {place}, "
        "D = {example:g})"
    ),
    "gaussian query": (
        "Gaussian (centre P predicted, width D predicted per query; here P = {place}, "
        "D = {example:g})"
    ),
    "gaussian head": (
        "Gaussian (centre P predicted, width D learned for each head; here P = {place}, "
        "D = {example:g})"
    ),
    "moving_gaussian": (
        "Gaussian (centre P moves on by a predicted step{corrected}, width D learned for each head)"
    ),
    "block": (
        "block self-attention (blocks of {0.length} tokens; paler: seen through a summary of the "
        "block)"
    ),
    "cnn": "attention after {0.layers} convolutions of {0.kernel_size} tokens",
}


def caption(method: LocalityMethod, part: str = "encoder", length: int = 0) -> str:
    """Says a method in a few words, as above a picture; of one from outside the package its key and
    settings.
    """
    values = {
        "half": length / 2,
        "place": _PLACE[part],
        "cut": ", cut off at P ± D" if getattr(method, "cut_off", False) else "",
        "corrected": " and corrects itself" if getattr(method, "gain", 0) else "",
    }
    name = method.key
    if isinstance(method, Gaussian):
        name = f"{name} {method.width}"
        values["example"] = _example_width(method, length)
    if name not in _CAPTIONS:
        settings = dataclasses.asdict(method).items()
        shown = ", ".join(f"{name} {value}" for name, value in settings)
        return method.key.replace("_", " ") + (f" ({shown})" if shown else "")
    text = _CAPTIONS[name].format(method, **values)
    return f"{text}, wrapped" if getattr(method, "boundary", None) == "circular" else text


def draw_attention(config: CsanConfig, length: int | None) -> Figure:
    """Draws which keys the queries of a CSAN see; see `draw_locality`."""
    shown = attention_reaches(config, length=length)
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
    structure = [caption(method, reach.part, length) for method in methods if method.term is None]
    terms = [caption(method, reach.part, length) for method in methods if method.term is not None]
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
    colours = [tuple(1 - (1 - channel) * share for channel in to_rgb(_SEEN)) for share in shares]
    return ListedColormap(colours).with_extremes(bad=_UNSEEN)


def _outline(axes: Axes, column: float, row: float) -> None:
    axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **_QUERY, zorder=3))


def draw_grid(config: PervasiveAttentionConfig, length: int | None) -> Figure:
    """Draws which cells a cell of Pervasive Attention's grid sees; `length` is ignored."""
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
