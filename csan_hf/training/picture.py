"""The picture of loss and BLEU over the updates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from csan_hf.files import open_for_writing

_COLOURS = {"loss": "#9a9a9a", "eval_loss": "#c44e52", "eval_bleu": "#4c72b0", "eval_chrf": "#8da0cb"}


def draw_training(log_history: Sequence[dict[str, float]], path: Path | str) -> None:
    """Draws training and validation loss on the left, BLEU and chrF on the right.

    The file is replaced at once, so that a viewer never sees half a picture.

    Args:
        log_history: ``trainer.state.log_history``.
        path: PNG file to write; nothing is written while there is nothing to draw.
    """
    curves = {key: _curve(log_history, key) for key in _COLOURS}
    if not any(steps for steps, _ in curves.values()):
        return
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)  # no display, no global state: the Trainer may run in a thread
    left, right = figure.subplots(1, 2)
    for key, label in (("loss", "training (smoothed labels)"), ("eval_loss", "validation")):
        steps, values = curves[key]
        if steps:
            left.plot(steps, values, color=_COLOURS[key], label=label, marker="o" if len(steps) < 30 else "", ms=3)
    left.set(xlabel="updates", ylabel="loss per target token", title="Loss")
    for key, label in (("eval_bleu", "BLEU"), ("eval_chrf", "chrF")):
        steps, values = curves[key]
        if steps:
            right.plot(steps, values, color=_COLOURS[key], label=label, marker="o" if len(steps) < 30 else "", ms=3)
    _mark_best(right, *curves["eval_bleu"])
    right.set(xlabel="updates", ylabel="score", title="Validation")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        if axes.has_data():
            axes.legend(frameon=False)
    with open_for_writing(path, binary=True) as file:
        figure.savefig(file, format="png", dpi=110)


def _curve(log_history: Sequence[dict[str, float]], key: str) -> tuple[list[float], list[float]]:
    # After a resume a step may stand twice; the later entry is the one that counted.
    points = {entry["step"]: entry[key] for entry in log_history if key in entry and "step" in entry}
    steps = sorted(points)
    return steps, [points[step] for step in steps]


def _mark_best(axes: object, steps: list[float], values: list[float]) -> None:
    if not values:
        return
    best = max(range(len(values)), key=values.__getitem__)
    axes.annotate(  # type: ignore[attr-defined]
        f"{values[best]:.2f}",
        (steps[best], values[best]),
        textcoords="offset points",
        xytext=(0, -6),  # below the curve: above it may lie the edge of the picture
        ha="right" if best == len(values) - 1 else "center",
        va="top",
        color=_COLOURS["eval_bleu"],
    )
