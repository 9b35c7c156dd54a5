# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The picture of an alignment: target tokens against source tokens."""

import textwrap
import warnings
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from csan_hf.alignment import Alignment
from csan_hf_runtime.extras import needs_extra

from .figures import add_cell_lines, figure_style, new_figure, save_figure

with needs_extra("train"):
    from matplotlib import font_manager
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

_LONGEST_SIDE = 50.0  # inches
_CELL = (0.3, 0.6)  # inches: of a long and of a short sentence
_SHORT_SIDE = 3.6  # inches, up to which cells grow
_FONT_SIZE = (5.0, 10.0)  # points: smallest, largest
# Largest font size for each inch of a cell: lines at 45 degrees stand cell / sqrt(2) apart and are
# 1.2 sizes high.
_POINTS_PER_CELL = 42.0


def draw_heat_map(alignment: Alignment, path: Path | str) -> None:
    """Draws an alignment, as `plot_heat_map` does, into a PNG file."""
    save_figure(plot_heat_map(alignment), path, dpi=120, margin=0.15)


def plot_heat_map(alignment: Alignment) -> Figure:
    """Draws an alignment, target tokens from top to bottom and source tokens from left to right.

    Without negative values, white is 0 and dark blue the highest. With them, blue is positive and
    red negative, over the same range, and white is still 0. The picture grows with the sentence, up
    to some 170 tokens; beyond that the cells get smaller and some go without a label. Characters
    that matplotlib's own font lacks are drawn with an installed font that has them.

    Returns:
        The figure, whose labels stand outside it: save it with `bbox_inches="tight"`.

    Warns:
        UserWarning: Once, if no installed font has some of the characters; they are drawn as boxes.
    """
    rows, columns = alignment.matrix.shape
    longest = max(rows, columns)
    cell = min(max(_SHORT_SIDE / longest, _CELL[0]), _CELL[1], _LONGEST_SIDE / longest)
    # The axes fill the figure and have the size of their cells; saving makes room for all that
    # stands around them.
    families, missing = _families_for("".join(alignment.source.tokens + alignment.target.tokens))
    with figure_style():
        figure = new_figure(columns * cell, rows * cell, layout=None)
        axes = figure.add_axes((0, 0, 1, 1))
        image = axes.imshow(
            alignment.matrix, aspect="auto", interpolation="nearest", **_colours(alignment.matrix)
        )
        _label_cells(axes, alignment, cell, families)
        _add_colour_bar(figure, image, alignment.measure)
    if missing:
        warnings.warn(
            f"No installed font has the characters {missing[:20]!r}: they are drawn as boxes. "
            "Install a font that has them, such as Noto Sans CJK for Chinese, Japanese and "
            "Korean.",
            stacklevel=2,
        )
    return figure


def _colours(matrix: np.ndarray) -> dict[str, Any]:
    highest = float(np.abs(matrix).max()) or 1.0
    if matrix.min() < 0:
        return {"cmap": "RdBu", "vmin": -highest, "vmax": highest}
    return {"cmap": "Blues", "vmin": 0.0, "vmax": highest}


def _label_cells(axes: Axes, alignment: Alignment, cell: float, families: Sequence[str]) -> None:
    size = min(max(_POINTS_PER_CELL * cell, _FONT_SIZE[0]), _FONT_SIZE[1])
    # Labels stand apart where cells are too small for all
    step = ceil(size / (_POINTS_PER_CELL * cell) - 1e-6)
    # Signs of mathematics in a text ("$") are signs and not commands
    style: dict[str, Any] = {"fontsize": size, "family": families, "parse_math": False}
    rows, columns = alignment.matrix.shape
    axes.set_xticks(
        range(0, columns, step),
        alignment.source.tokens[::step],
        rotation=45,
        rotation_mode="anchor",
        ha="left",
        va="center",
        **style,
    )
    axes.set_yticks(range(0, rows, step), alignment.target.tokens[::step], **style)
    axes.xaxis.set_ticks_position("top")
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("source")
    axes.set_ylabel("target")
    # Thin lines between the cells lead the eye to the labels
    add_cell_lines(axes, color="0.9", linewidth=0.5)


def _add_colour_bar(figure: Figure, image: AxesImage, label: str) -> None:
    width, height = figure.get_size_inches()
    # Inches: as high as the picture, but no higher than is of use
    length = min(max(height, 2.5), 4.0)
    place = figure.add_axes((1 + 0.3 / width, 1 - length / height, 0.15 / width, length / height))
    # 14 letters of 10 points an inch
    figure.colorbar(image, cax=place, label=textwrap.fill(label, int(length * 14)))


def _families_for(text: str) -> tuple[list[str], str]:
    """Chooses font families that matplotlib is to try in turn, and returns the characters that none
    of them has.

    The default font comes first; others are looked up only for what it lacks.
    """
    default = font_manager.FontProperties()
    families = list(default.get_family())
    missing = _lacking(font_manager.findfont(default), set(text))
    fonts = sorted(font_manager.fontManager.ttflist, key=lambda font: (font.name, font.fname))
    for font in fonts:
        if not missing:
            break
        is_regular = font.style == "normal" and str(font.weight) in ("400", "normal")
        # The font of last resort draws boxes for everything
        if not is_regular or "Last Resort" in font.name:
            continue
        still_missing = _lacking(font.fname, missing)
        if len(still_missing) < len(missing):
            families.append(font.name)
            missing = still_missing
    return families, "".join(sorted(missing))


def _lacking(font_file: str, characters: set[str]) -> set[str]:
    font = font_manager.get_font(font_file)
    return {character for character in characters if not font.get_char_index(ord(character))}
