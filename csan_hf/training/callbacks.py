# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Callbacks: progress, early stopping, the picture, the rotation of checkpoints."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tqdm.auto import tqdm
from transformers import (
    EarlyStoppingCallback,
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)

from csan_hf.analysis.figures import COLOURS
from csan_hf.evaluation.metrics import CorpusMetric, metrics_in
from csan_hf.evaluation.translate import search_name
from csan_hf.text_files import open_for_writing

from .arguments import TranslationTrainingArguments
from .checkpoints import list_checkpoints, rank_checkpoints, rotate_checkpoints, scores_by_step


class KeepBestCheckpoints(TrainerCallback):
    """Keeps the `args.keep_best` best checkpoints, and the newest for resuming."""

    def on_save(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Deletes the checkpoints that are not to be kept beside a new one."""
        if not state.is_world_process_zero:
            return
        paths, metric = list_checkpoints(args.output_dir), args.metric_for_best_model or "loss"
        best = rank_checkpoints(
            paths, state.log_history, metric, greater_is_better=bool(args.greater_is_better)
        )
        # Of equal scores the Trainer calls the first the best
        first = [path for path in paths if path.name == f"checkpoint-{state.best_global_step}"]
        rotate_checkpoints(args.output_dir, [*best[: args.keep_best], *first])


def evaluations_without_gain(args: TranslationTrainingArguments, state: TrainerState) -> int:
    """Counts the evaluations since the last one that was better by more than the threshold."""
    sign = 1.0 if args.greater_is_better else -1.0
    best: float | None = None
    count = 0
    for _, score in sorted(
        scores_by_step(state.log_history, args.metric_for_best_model or "loss").items()
    ):
        gained = best is None or sign * (score - best) > args.early_stopping_threshold
        count = 0 if gained else count + 1
        best = score if best is None else max(best, score, key=lambda value: sign * value)
    return count


class ScoreEarlyStopping(EarlyStoppingCallback):
    """The library's early stopping; a resumed run, which may have more patience, takes the count
    from the log.
    """

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Replays the evaluations before the interruption."""
        super().on_train_begin(args, state, control, **kwargs)
        self.early_stopping_patience_counter = evaluations_without_gain(args, state)

    def on_evaluate(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        metrics: Any = None,
        **kwargs: Any,
    ) -> None:
        """Counts an evaluation and says so when it is the last."""
        super().on_evaluate(args, state, control, metrics, **kwargs)
        if control.should_training_stop and state.is_world_process_zero:
            tqdm.write(
                f"Early stopping at step {state.global_step}: no better "
                f"{args.metric_for_best_model} in {self.early_stopping_patience_counter} "
                f"evaluations (best {state.best_metric:.2f} at step {state.best_global_step}).",
                file=sys.stderr,
            )


class TrainingPicture(TrainerCallback):
    """Draws `training.png` at the end, and at evaluations as long as drawing takes a hundredth of
    the time at most.
    """

    def __init__(self) -> None:
        self.next_time = -math.inf

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Redraws the picture, if the last one is old enough."""
        if time.monotonic() >= self.next_time:
            self.on_train_end(args, state, control)

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Draws the picture."""
        start = time.monotonic()
        if state.is_world_process_zero:
            search = search_name(args.generation_num_beams)
            draw_training(state.log_history, Path(args.output_dir) / "training.png", search)
        self.next_time = time.monotonic() + 100 * (time.monotonic() - start)


class TranslationProgress(ProgressCallback):
    """The library's bars with loss and scores on a terminal; plain lines where the output is a
    file.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shown: dict[str, str] = {}
        self.start: tuple[int, float] = (0, 0.0)

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Opens the bar."""
        self.start, self.current_step = (state.global_step, time.time()), state.global_step
        if state.is_world_process_zero and _shows_bars(args):
            self.training_bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                desc="training",
                unit="step",
                dynamic_ncols=True,
            )

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Moves the bar."""
        if self.training_bar is not None:
            super().on_step_end(args, state, control, **kwargs)

    def on_prediction_step(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        eval_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        """Moves the bar of an evaluation."""
        if _shows_bars(args):
            super().on_prediction_step(args, state, control, eval_dataloader, **kwargs)

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: Any = None,
        **kwargs: Any,
    ) -> None:
        """Shows the newest loss, scores and speed."""
        if not state.is_world_process_zero or not logs:
            return
        if "eval_loss" in logs:
            metrics = metrics_in(key.removeprefix("eval_") for key in logs)
            scores = {
                metric.label: f"{logs[f'eval_{metric.name}']:.{metric.decimals}f}"
                for metric in metrics
            }
            self.shown |= scores
            parts = [f"step {state.global_step}", f"epoch {state.epoch or 0.0:.2f}"]
            parts += [
                f"validation loss {logs['eval_loss']:.3f}",
                *(f"{key} {value}" for key, value in scores.items()),
            ]
            parts += [f"({search_name(args.generation_num_beams)})"] * bool(scores)
            tqdm.write("  ".join(parts), file=sys.stderr)
        elif "loss" in logs and self.training_bar is not None:
            self.shown["loss"] = f"{logs['loss']:.3f}"
            self.training_bar.set_postfix(self.shown)
        elif "loss" in logs:
            done, seconds = state.global_step - self.start[0], time.time() - self.start[1]
            remaining = (state.max_steps - state.global_step) * seconds / max(done, 1)
            print(
                f"step {state.global_step}/{state.max_steps}  loss {logs['loss']:.3f}  rate "
                f"{logs.get('learning_rate', 0.0):.2e}  {logs.get('tokens_per_second', 0.0):,.0f} "
                f"tokens/s  {tqdm.format_interval(seconds)} gone, "
                f"{tqdm.format_interval(remaining)} to go",
                file=sys.stderr,
                flush=True,
            )

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Closes the bar."""
        if self.training_bar is not None:
            super().on_train_end(args, state, control, **kwargs)


def _shows_bars(args: Any) -> bool:
    return sys.stderr.isatty() and not args.disable_tqdm


# ---- the picture

_LOSSES = {"loss": ("training (smoothed labels)", "0.6"), "eval_loss": ("validation", COLOURS[3])}


def draw_training(log_history: Sequence[dict[str, float]], path: Path | str, search: str) -> None:
    """Draws training and validation loss on the left; the scores of the validation set, if it has
    any, on the right.

    The file is replaced at once, so that a viewer never sees half a picture.

    Args:
        log_history: `trainer.state.log_history`.
        search: How the validation set is translated for the scores: greedy, beam 5.
        path: PNG file to write; nothing is written while there is nothing to draw.
    """
    metrics = list(metrics_in(key.removeprefix("eval_") for entry in log_history for key in entry))
    curves = {
        key: _curve(log_history, key)
        for key in (*_LOSSES, *(f"eval_{metric.name}" for metric in metrics))
    }
    if not any(steps for steps, _ in curves.values()):
        return
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)  # no display, no global state: the Trainer may run in a thread
    left, *others = figure.subplots(1, 2 if metrics else 1, squeeze=False)[0]
    for key, (label, colour) in _LOSSES.items():
        _plot(left, curves[key], label, colour)
    left.set(xlabel="updates", ylabel="loss per target token", title="Loss")
    for right in others:
        for number, metric in enumerate(metrics):
            _plot(
                right, curves[f"eval_{metric.name}"], metric.label, COLOURS[number % len(COLOURS)]
            )
        _mark_best(right, metrics[0], *curves[f"eval_{metrics[0].name}"])
        right.set(xlabel="updates", ylabel=f"score, {search}", title="Validation")
    for axes in (left, *others):
        axes.grid(alpha=0.3)
        if axes.has_data():
            axes.legend(frameon=False)
    with open_for_writing(path, binary=True) as file:
        figure.savefig(file, format="png", dpi=110)


def _curve(log_history: Sequence[dict[str, float]], key: str) -> tuple[list[float], list[float]]:
    # After a resume a step may stand twice; the later entry is the one that counted.
    points = {
        entry["step"]: entry[key] for entry in log_history if key in entry and "step" in entry
    }
    steps = sorted(points)
    return steps, [points[step] for step in steps]


def _plot(axes: Any, curve: tuple[list[float], list[float]], label: str, colour: str) -> None:
    steps, values = curve
    if steps:
        axes.plot(
            steps, values, color=colour, label=label, marker="o" if len(steps) < 30 else "", ms=3
        )


def _mark_best(
    axes: Any, metric: type[CorpusMetric], steps: list[float], values: list[float]
) -> None:
    best = (max if metric.greater_is_better else min)(range(len(values)), key=values.__getitem__)
    place = {
        "ha": "right" if best == len(values) - 1 else "center",
        "va": "top",
    }  # above may lie the picture's edge
    text, point = f"{values[best]:.{metric.decimals}f}", (steps[best], values[best])
    axes.annotate(
        text, point, textcoords="offset points", xytext=(0, -6), color=COLOURS[0], **place
    )
