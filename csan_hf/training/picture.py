# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The picture of loss and scores over the updates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from csan_hf.evaluation.metrics import CorpusMetric, metrics_in
from csan_hf.text_files import open_for_writing

_LOSSES = {"loss": ("training (smoothed labels)", "#9a9a9a"), "eval_loss": ("validation", "#c44e52")}
_COLOURS = ("#4c72b0", "#8da0cb", "#55a868", "#dd8452", "#8172b3", "#937860")


def draw_training(log_history: Sequence[dict[str, float]], path: Path | str) -> None:
    """Draws training and validation loss on the left, the scores of the validation set on the right.

    The file is replaced at once, so that a viewer never sees half a picture.

    Args:
        log_history: `trainer.state.log_history`.
        path: PNG file to write; nothing is written while there is nothing to draw.
    """
    metrics = list(metrics_in(key.removeprefix("eval_") for entry in log_history for key in entry))
    curves = {key: _curve(log_history, key) for key in (*_LOSSES, *(f"eval_{metric.name}" for metric in metrics))}
    if not any(steps for steps, _ in curves.values()):
        return
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)  # no display, no global state: the Trainer may run in a thread
    left, right = figure.subplots(1, 2)
    for key, (label, colour) in _LOSSES.items():
        _plot(left, curves[key], label, colour)
    left.set(xlabel="updates", ylabel="loss per target token", title="Loss")
    for number, metric in enumerate(metrics):
        _plot(right, curves[f"eval_{metric.name}"], metric.label, _COLOURS[number % len(_COLOURS)])
    if metrics:
        _mark_best(right, metrics[0], *curves[f"eval_{metrics[0].name}"])
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


def _plot(axes: Any, curve: tuple[list[float], list[float]], label: str, colour: str) -> None:
    steps, values = curve
    if steps:
        axes.plot(steps, values, color=colour, label=label, marker="o" if len(steps) < 30 else "", ms=3)


def _mark_best(axes: Any, metric: type[CorpusMetric], steps: list[float], values: list[float]) -> None:
    best = (max if metric.greater_is_better else min)(range(len(values)), key=values.__getitem__)
    axes.annotate(
        f"{values[best]:.{metric.decimals}f}",
        (steps[best], values[best]),
        textcoords="offset points",
        xytext=(0, -6),  # below the curve: above it may lie the edge of the picture
        ha="right" if best == len(values) - 1 else "center",
        va="top",
        color=_COLOURS[0],
    )
