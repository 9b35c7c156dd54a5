# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Making and saving of figures: as PNG and SVG, and as SVG for a page that may be light or dark."""

from __future__ import annotations

import io
import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from csan_hf.text_files import open_for_writing, printable, write_text

# `style_of` tells systems apart also without colour; the colours show on white and on black.
COLOURS = ("#3b75af", "#d97d3a", "#4f9a5b", "#c1524f", "#8a72b8", "#8d6e5c")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_LONGEST_LABEL = 40  # letters
_INK = "#010203"  # in a page it becomes the colour of its text
_STYLE: Any = {
    "svg.fonttype": "none",  # letters stay letters
    "font.family": "sans-serif",
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def style_of(number: int) -> dict[str, Any]:
    """Returns colour and marker of a series; the first 36 all differ, neighbours in both."""
    turn = number // len(COLOURS)
    return {"color": COLOURS[number % len(COLOURS)], "marker": _MARKERS[(number + turn) % len(_MARKERS)]}


def new_figure(width: float = 5.2, height: float = 3.4) -> Figure:
    """Makes a figure that needs no display, its size in inches; plot in it within `figure_style`."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # no global state
    return figure


def figure_style() -> AbstractContextManager[None]:
    """The context in which figures are drawn: `with figure_style(): …`."""
    return matplotlib.rc_context(_STYLE)


def plain_label(text: str) -> str:
    """Returns a label that matplotlib draws as it stands: "$" begins no formula, and "_" hides nothing in a legend.

    The middle of a long one is left out: names of runs tend to differ at their ends.
    """
    text = printable(text)
    if len(text) > _LONGEST_LABEL:
        text = f"{text[: _LONGEST_LABEL // 2]}…{text[-(_LONGEST_LABEL // 2) :]}"
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def save_figure(figure: Figure, path: Path | str) -> None:
    """Writes a figure as PNG or SVG, by the ending of the path; a reader never sees half of it.

    Raises:
        ValueError: If the ending is another.
    """
    path = Path(path)
    if path.suffix not in (".png", ".svg"):
        raise ValueError(f"{path}: pictures are written as .png or .svg.")
    if path.suffix == ".svg":
        write_text(path, _svg(figure, path.stem))
        return
    with open_for_writing(path, binary=True) as file:
        figure.savefig(file, format="png", dpi=150, bbox_inches="tight")


def page_svg(figure: Figure, name: str) -> str:
    """Returns a figure as an `<svg>` element whose text and axes have the colour of the page's text.

    Args:
        figure: The figure.
        name: A name that no other figure of the page has.
    """
    svg = _svg(figure, name, transparent=True)
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    return re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)


def _svg(figure: Figure, name: str, transparent: bool = False) -> str:
    file = io.StringIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure.savefig(file, format="svg", transparent=transparent, metadata={"Date": None}, bbox_inches="tight")
    # Two figures of a page have no identifier in common
    return re.sub(r'(\bid="|url\(#|href="#)([\w.-]+)(?=["\)])', rf"\1{name}-\2", file.getvalue())
