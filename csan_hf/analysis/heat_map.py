"""The picture of an alignment: target tokens against source tokens."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import font_manager, rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .alignment import Alignment

_CELL = 0.3  # inches; a label of 10 points takes a little less
_LONGEST_SIDE = 50.0  # inches; at 120 dots per inch Agg still draws 6,000 x 6,000 quickly


def draw_heat_map(alignment: Alignment, path: Path | str, *, title: str | None = None) -> None:
    """Draws an alignment, target tokens from top to bottom and source tokens from left to right.

    Colours are white at 0. Where there are negative values, they are red and the positive ones blue, over the same
    range. The picture grows with the sentence, up to some 170 tokens; beyond that the cells get smaller.

    The file is replaced at once, so that a viewer never sees half a picture. Characters that the default font lacks
    are drawn with an installed font that has them.

    Args:
        alignment: the alignment.
        path: PNG file to write.
        title: text above the picture.

    Raises:
        ValueError: if a side has no token.

    Warns:
        UserWarning: once, if no installed font has some of the characters; they are drawn as boxes.
    """
    target_length, source_length = alignment.matrix.shape
    if not alignment.matrix.size:
        raise ValueError(f"There is nothing to draw: {target_length} target and {source_length} source tokens.")
    cell = min(_CELL, _LONGEST_SIDE / max(target_length, source_length))
    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)  # no display and no global state
    axes = figure.subplots()
    image = axes.imshow(alignment.matrix, aspect="equal", interpolation="nearest", **_colours(alignment.matrix))
    fonts = _fonts("".join([*alignment.source.tokens, *alignment.target.tokens, title or ""]))
    _label_axes(axes, alignment, cell, fonts)
    if title is not None:
        figure.suptitle(title, family=fonts, parse_math=False)
    ...
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        figure.savefig(temporary, format="png", dpi=120)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
