# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Callbacks: progress, early stopping, the picture."""

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import (
    EarlyStoppingCallback,
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from csan_hf.evaluation.metrics import CorpusMetric, metrics_in
from csan_hf.hub.figures import COLOURS, new_figure
from csan_hf_runtime.text_files import open_for_writing

from .checkpoints import ranked_steps, scores_by_step, values_by_step


def evaluations_without_gain(args: TrainingArguments, state: TrainerState, threshold: float) -> int:
    """Counts the evaluations since the last one that was better by more than the threshold."""
    scores = scores_by_step(state.log_history, args.metric_for_best_model or "loss")
    best = -math.inf
    count = 0
    for score in scores.values():
        if not args.greater_is_better:
            score = -score
        count = 0 if score - best > threshold else count + 1
        best = max(best, score)
    return count


class ScoreEarlyStopping(EarlyStoppingCallback):
    """The library's early stopping that counts in the log, so that a resumed run keeps its count,
    also with more patience.
    """

    def check_metric_value(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metric_value: float,
    ) -> None:
        """Counts the evaluations since the last better one, those before an interruption, too."""
        self.early_stopping_patience_counter = evaluations_without_gain(
            args, state, self.early_stopping_threshold or 0.0
        )

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        """Counts an evaluation and says so when it is the last."""
        super().on_evaluate(args, state, control, metrics, **kwargs)
        if control.should_training_stop and state.is_world_process_zero:
            best_step = ranked_steps(args, state.log_history)[0]
            scores = scores_by_step(state.log_history, args.metric_for_best_model or "loss")
            tqdm.write(
                f"Early stopping at step {state.global_step}: no better "
                f"{args.metric_for_best_model} in {self.early_stopping_patience_counter} "
                f"evaluations (best {scores[best_step]:.2f} at step {best_step}).",
                file=sys.stderr,
            )


class TrainingPicture(TrainerCallback):
    """Draws `training.png` at the end, and at evaluations as long as drawing takes at most a
    hundredth of the time.

    Args:
        search: How the validation set is translated: greedy, beam 5.
    """

    def __init__(self, search: str) -> None:
        self.search = search
        self.next_time = -math.inf

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Redraws the picture, if the last one is old enough."""
        if time.monotonic() >= self.next_time:
            self.on_train_end(args, state, control)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Draws the picture."""
        start = time.monotonic()
        if state.is_world_process_zero:
            draw_training(
                state.log_history, Path(str(args.output_dir)) / "training.png", self.search
            )
        end = time.monotonic()
        self.next_time = end + 100 * (end - start)


class TranslationProgress(ProgressCallback):
    """The library's bars with loss and scores on a terminal; plain lines where the output is a
    file.

    Args:
        search: How the validation set is translated: greedy, beam 5.
    """

    def __init__(self, search: str) -> None:
        super().__init__()
        self.search = search
        self.shown: dict[str, str] = {}
        self.start_step = 0
        self.start_time = 0.0

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Opens the bar."""
        self.start_step = state.global_step
        self.current_step = state.global_step
        self.start_time = time.time()
        if state.is_world_process_zero:
            self.training_bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                desc="training",
                bar_format=_BAR,
                dynamic_ncols=True,
                disable=not _shows_bars(args),
            )

    def on_prediction_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        eval_dataloader: DataLoader | None = None,
        **kwargs: object,
    ) -> None:
        """Moves the bar of an evaluation."""
        if _shows_bars(args):
            super().on_prediction_step(args, state, control, eval_dataloader, **kwargs)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        """Shows the newest loss, scores and speed."""
        if not state.is_world_process_zero or not logs:
            return
        if "eval_loss" in logs:
            self._show_evaluation(state, logs)
        elif "loss" in logs:
            self._show_loss(state, logs)

    def _show_evaluation(self, state: TrainerState, logs: dict[str, float]) -> None:
        parts = [
            f"step {state.global_step}",
            f"epoch {state.epoch or 0.0:.2f}",
            f"validation loss {logs['eval_loss']:.3f}",
        ]
        metrics = _metrics_in_log(logs)
        for metric in metrics:
            score = metric.format(logs[f"eval_{metric.name}"])
            self.shown[metric.label] = score
            parts.append(f"{metric.label} {score}")
        if metrics:
            parts.append(f"({self.search})")
        tqdm.write("  ".join(parts), file=sys.stderr)

    def _show_loss(self, state: TrainerState, logs: dict[str, float]) -> None:
        loss = f"{logs['loss']:.3f}"
        if self.training_bar is not None and not self.training_bar.disable:
            self.shown["loss"] = loss
            self.training_bar.set_postfix(self.shown)
            return
        seconds = time.time() - self.start_time
        updates = max(state.global_step - self.start_step, 1)
        remaining = (state.max_steps - state.global_step) * seconds / updates
        print(
            f"step {state.global_step}/{state.max_steps}  loss {loss}  rate "
            f"{logs.get('learning_rate', 0.0):.2e}  {logs.get('tokens_per_second', 0.0):,.0f} "
            f"tokens/s  {tqdm.format_interval(seconds)} gone, "
            f"{tqdm.format_interval(remaining)} to go",
            file=sys.stderr,
            flush=True,
        )


_BAR = "{desc} {percentage:.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
"""Leaves room for loss and scores on 80 columns."""


def _shows_bars(args: TrainingArguments) -> bool:
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
    keys: dict[str, float] = {}
    for entry in log_history:
        keys |= entry
    if not keys.keys() & {"loss", "eval_loss"}:
        return
    metrics = _metrics_in_log(keys)
    figure = new_figure(10, 4)
    panels = list(figure.subplots(1, 2 if metrics else 1, squeeze=False)[0])
    for key, (label, colour) in _LOSSES.items():
        _plot(panels[0], values_by_step(log_history, key), label, colour)
    panels[0].set(xlabel="updates", ylabel="loss per target token", title="Loss")
    if metrics:
        for number, metric in enumerate(metrics):
            curve = scores_by_step(log_history, metric.name)
            _plot(panels[1], curve, metric.label, COLOURS[number % len(COLOURS)])
        panels[1].set(xlabel="updates", ylabel=f"score, {search}", title="Validation")
    for panel in panels:
        panel.grid(alpha=0.3)
        if panel.has_data():
            panel.legend(frameon=False)
    with open_for_writing(path, binary=True) as file:
        figure.savefig(file, format="png", dpi=110)


def _metrics_in_log(logs: dict[str, float]) -> list[type[CorpusMetric]]:
    return list(metrics_in(key.removeprefix("eval_") for key in logs))


def _plot(axes: Axes, curve: dict[int, float], label: str, colour: str) -> None:
    if curve:
        axes.plot(
            list(curve),
            list(curve.values()),
            color=colour,
            label=label,
            marker="o" if len(curve) < 30 else "",
            ms=3,
        )
