# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Figures without a display: made, saved as PNG and SVG, or put into a page."""

import io
import re
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from csan_hf_runtime.extras import needs_extra
from csan_hf_runtime.text_files import open_for_writing, write_text

with needs_extra("train"):
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito (2008): told apart also without red or green, and on white as on black
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9")
WIDTH, HEIGHT = 3.4, 2.4  # inches of a chart: as wide as a phone shows at full size
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


def new_figure(
    width: float = WIDTH,
    height: float = HEIGHT,
    layout: Literal["constrained"] | None = "constrained",
) -> Figure:
    """Makes a figure that needs no display, in inches; plot in it within `figure_style`."""
    return Figure(figsize=(width, height), layout=layout)


def figure_style() -> AbstractContextManager[None]:
    """The context in which figures are drawn: `with figure_style(): …`."""
    return matplotlib.rc_context(_STYLE)


def save_figure(figure: Figure, path: Path | str, *, dpi: int = 150, margin: float = 0.1) -> None:
    """Writes a figure whole, as SVG if the path ends so, else as PNG; the margin around it is in
    inches.
    """
    path = Path(path)
    if path.suffix == ".svg":
        write_text(path, _svg(figure, path.stem))
        return
    with warnings.catch_warnings(), open_for_writing(path, binary=True) as file:
        # `plot_heat_map` names them, once for all
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(file, format="png", dpi=dpi, bbox_inches="tight", pad_inches=margin)


def save_as_png_and_svg(figure: Figure, stem: Path) -> None:
    """Writes a figure twice, under a name that gets the endings."""
    for ending in (".png", ".svg"):
        save_figure(figure, f"{stem}{ending}")


def page_svg(figure: Figure, name: str) -> str:
    """Returns a figure as an `<svg>` element in the colour of the page's text; no other figure
    there has its name.
    """
    svg = _svg(figure, name, transparent=True)
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    return re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)


def _svg(figure: Figure, name: str, transparent: bool = False) -> str:
    file = io.StringIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure.savefig(
            file,
            format="svg",
            transparent=transparent,
            metadata={"Date": None},
            bbox_inches="tight",
        )
    # Two figures of a page have no identifier in common
    return re.sub(r'(\bid="|url\(#|href="#)([\w.-]+)(?=["\)])', rf"\1{name}-\2", file.getvalue())


def add_cell_lines(axes: Axes, **style: Any) -> None:
    """Draws lines between the cells of the image in these axes."""
    left, right, lower, upper = axes.images[0].get_extent()
    axes.set_xticks(np.arange(left + 1, right), minor=True)
    axes.set_yticks(np.arange(upper + 1, lower), minor=True)
    axes.grid(which="minor", **style)
    axes.tick_params(which="minor", length=0)
