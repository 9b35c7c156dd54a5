# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Stopping a run where it must stop: at a signal, after saving, and at a loss that is not finite, without saving."""

from __future__ import annotations

import errno
import itertools
import math
import os
import signal
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState

from .processes import STOP_SIGNALS

if TYPE_CHECKING:
    from .trainer import TranslationTrainer

# Signals within this time are one: torchrun forwards what the whole process group got, and a key may be held down.
_ONE_SIGNAL = 1.0  # seconds


class RunError(RuntimeError):
    """A run that cannot go on; the message says why, and what to do."""


def is_disk_full(error: BaseException) -> bool:
    """Says whether an error is that of a full disk or an exhausted quota, from Python or from a library in Rust."""
    texts = ("No space left on device", "Disk quota exceeded")
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or any(text in str(error) for text in texts)


class RunInterrupted(BaseException):
    """A run that a signal ended; like `KeyboardInterrupt` no `Exception`, so that no handler of errors catches it.

    Args:
        message: What was saved, and how to resume the run.
        number: The signal's number.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number  # the shell's convention


class StopSignals:
    """Takes SIGTERM, SIGINT, SIGUSR1 and SIGHUP while a run is under way (a context manager).

    While the model trains, the first signal is kept for the end of the update, and a second one, a second later or
    more, ends the run at once. Before and after, there is nothing to save, and the first one ends it.

    Args:
        output_dir: Folder of the run, for the messages.
    """

    def __init__(self, output_dir: Path | str) -> None:
        self.output_dir = output_dir
        self.phase: Literal["before", "training", "after"] = "before"
        self.received = 0  # number of the signal
        self._last_time = -math.inf  # when the last one came, in seconds
        self._process = os.getpid()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if number == getattr(signal, "SIGHUP", None) and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # of nohup: the run goes on without its terminal
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *exception: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            return  # in a forked child, which must not stop the run
        now, before = time.monotonic(), self._last_time
        self._last_time = now
        if now - before < _ONE_SIGNAL:
            return
        name = signal.Signals(number).name
        if name == "SIGHUP":
            _leave_closed_terminal()
        if self.phase == "training" and not self.received:
            self.received = number
            print_now(f"{name}: saving a checkpoint at the end of this update; a second signal ends the run at once.")
            return
        self.received = number
        self.raise_if_received()

    def raise_if_received(self) -> None:
        """Ends the run outside training if a signal came.

        What a signal handler raises may be lost: Python drops what is raised in a destructor or a callback from C, and
        libraries have handlers for every exception. So this is called between the steps of a run, too. It also finds a
        signal that came after the last update, when no other end of an update followed.

        Raises:
            RunInterrupted: If a signal came.
        """
        if self.received:
            raise RunInterrupted(self._what_is_there(signal.Signals(self.received).name), self.received)

    def _what_is_there(self, name: str) -> str:
        again = "Start the same command again (without --overwrite)"
        if self.phase == "training":
            return f"Stopped by {name} without saving. {again} to go on from the last checkpoint in {self.output_dir}."
        if self.phase == "before":
            return f"Stopped by {name} before training began. {again} to go on."
        return f"Stopped by {name} after training, before the end of the run was written. {again} to write it."


def _leave_closed_terminal() -> None:
    """Discards from here on what goes to a terminal that is gone: the error of writing there would end the run."""
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream)
            os.close(nowhere)


def print_now(text: str) -> None:
    """Writes a line to standard error, also from a signal handler, where buffered output could be under way."""
    os.write(2, f"{text}\n".encode())


@dataclass
class _Update:
    """The outcome of an update: what the host knows at once, and flags that are on their way from the device."""

    step: int
    losses_finite: list[Tensor]  # one for every batch of this process, on the device
    flags: Tensor  # [2]: whether any process had a loss that is not finite; the number of a signal
    ready: torch.cuda.Event | None  # None: the flags are there


class RunGuard(TrainerCallback):
    """Ends training at a signal or at a loss that is not finite, in all processes at the same update.

    The host never waits for the device's present update: on a GPU the flags of an update are read when the next one
    is under way, and at once before an evaluation or a save.

    Args:
        trainer: The trainer whose training is watched.
    """

    def __init__(self, trainer: TranslationTrainer) -> None:
        self.trainer = trainer
        self.signals: StopSignals | None = None
        self._losses_finite: list[Tensor] = []
        self._updates: deque[_Update] = deque()
        self._stop = 0

    def watch(self, loss: Tensor) -> None:
        """Notes the loss of one batch."""
        self._losses_finite.append(torch.isfinite(loss.detach()).all())

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Lets a signal wait for the end of the update from here on."""
        state.compute_steps(args, state.max_steps)  # the library would keep the intervals of the interrupted run
        self._losses_finite, self._stop = [], 0
        self._updates.clear()
        if self.signals is not None:
            self.signals.phase = "training"

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Collects the flags of the update, and asks for a checkpoint if a signal came."""
        self._updates.append(self._ask(state.global_step))
        self._losses_finite = []
        lag = 0 if control.should_evaluate or control.should_save or self._updates[-1].ready is None else 1
        self._read(lag)
        if self._stop:
            control.should_save = True

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Ends the run, if a signal came before or during the evaluation and the save."""
        self._updates.append(self._ask(state.global_step))
        self._read(0)
        if not self._stop:
            return
        self.trainer.callback_handler.on_train_end(args, state, control)  # closes bars and logs
        self.trainer._finish_current_push()
        name = signal.Signals(self._stop).name
        raise RunInterrupted(
            f"Stopped by {name} at update {state.global_step} of {state.max_steps}: saved in "
            f"{Path(args.output_dir) / f'checkpoint-{state.global_step}'}. "
            "Start the same command again (without --overwrite) to go on.",
            self._stop,
        )

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Lets a signal end the run at once from here on."""
        if self.signals is not None:
            self.signals.phase = "after"

    def check(self) -> None:
        """Waits for the flags of every update so far.

        Raises:
            RunError: In every process, if a loss was not finite.
        """
        self._read(0)

    def _ask(self, step: int) -> _Update:
        """Starts to collect the flags of an update from all processes."""
        device = self.trainer.args.device
        bad = [~finite for finite in self._losses_finite]
        any_bad = torch.stack(bad).any() if bad else torch.zeros((), dtype=torch.bool, device=device)
        received = self.signals.received if self.signals is not None else 0
        flags = torch.stack([any_bad.int(), torch.tensor(received, dtype=torch.int32).to(device, non_blocking=True)])
        if self.trainer.args.world_size > 1:
            torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MAX)
        if flags.device.type != "cuda":
            return _Update(step, self._losses_finite, flags.cpu(), None)
        copy = torch.empty(2, dtype=torch.int32, pin_memory=True).copy_(flags, non_blocking=True)
        ready = torch.cuda.Event()
        ready.record()
        return _Update(step, self._losses_finite, copy, ready)

    def _read(self, lag: int) -> None:
        while len(self._updates) > lag:
            update = self._updates.popleft()
            if update.ready is not None:
                update.ready.synchronize()
            bad, received = update.flags.tolist()
            if bad:
                raise RunError(self._describe(update))
            self._stop = self._stop or received

    def _describe(self, update: _Update) -> str:
        """Names the batches of all processes whose loss was not finite."""
        args: Any = self.trainer.args
        loader: Any = self.trainer.callback_handler.train_dataloader
        accumulated = args.gradient_accumulation_steps
        updates_per_epoch = max(-(-len(loader) // accumulated), 1)
        epoch, first = divmod(update.step - 1, updates_per_epoch)
        bad = [number for number, finite in enumerate(update.losses_finite) if not finite]
        batches = [
            f"batch {first * accumulated + number + 1} of {len(loader)} in epoch {epoch + 1}"
            + (f" of process {args.process_index}" if args.world_size > 1 else "")
            + f" (rows {_shorten(_rows(loader, epoch, first * accumulated + number))})"
            for number in bad
        ]
        if args.world_size > 1:
            everyones: list[Any] = [None] * args.world_size
            torch.distributed.all_gather_object(everyones, batches)
            batches = list(itertools.chain(*everyones))
        return (
            f"The loss is not finite (NaN or infinite) at update {update.step}, {'; '.join(batches)} of the tokenized "
            f"training set, counted from 0. Nothing was saved since {self.trainer.last_checkpoint()}. If it happens "
            "at the same rows again, look at them; otherwise training diverged: start anew with a lower "
            "training.learning_rate, more warmup_steps or a lower max_grad_norm, or with bf16 instead of fp16."
        )


def _rows(loader: Any, epoch: int, number: int) -> list[int]:
    """Returns the rows of a batch of this process: the order is a function of seed and epoch."""
    loader.set_epoch(epoch)
    sampler = loader.batch_sampler
    inner = getattr(sampler, "batch_sampler", sampler)
    if hasattr(inner, "set_epoch"):
        inner.set_epoch(epoch)
    return next(itertools.islice(iter(sampler), number, None), [])


def _shorten(rows: list[int], most: int = 50) -> str:
    rest = f" and {len(rows) - most} more" if len(rows) > most else ""
    return ", ".join(map(str, rows[:most])) + rest
