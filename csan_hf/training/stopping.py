# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Early ends of a run: at a signal after saving, at a loss that is not finite without saving.

- `StopSignals` receives the signals, in the main thread of every process.
- `RunGuard` tells all processes, between two updates, of a signal or a bad loss in one of them.
- `signal_blocking_context` and `prepare_worker` keep the signals from workers that load data.
"""

from __future__ import annotations

import copy
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable
from multiprocessing import resource_tracker
from multiprocessing.context import BaseContext
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import seed_worker

from .checkpoints import last_checkpoint

STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name)
)
"""Signals that end a run after a checkpoint: schedulers' (SLURM: --signal=USR1@120) and Ctrl-C."""

# Signals within this time are one: torchrun forwards what the whole process group got, and a key
# may be held down.
_ONE_SIGNAL = 1.0  # seconds


class RunError(RuntimeError):
    """A run that cannot go on; the message says why, and what to do."""


# ---- signals


class RunInterrupted(BaseException):
    """A run that the signal `number` ended; a `BaseException`, as `KeyboardInterrupt` is, because
    libraries catch every `Exception`.
    """

    def __init__(self, message: str, number: int, *, is_saved: bool) -> None:
        super().__init__(message)
        self.exit_code = 128 + number  # the shell's convention
        self.is_saved = is_saved


class StopSignals:
    """Context manager that receives SIGTERM, SIGINT and SIGUSR1 during a run.

    While the model trains, the first signal waits for the end of the update, and a second one, a
    second later or more, ends the run at once. Before and after training there is nothing to save,
    and the first signal ends the run.

    Args:
        output_dir: Folder of the run, for messages.
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
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *exception: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            return  # in a forked child, which must not stop the run
        now = time.monotonic()
        is_repetition = now - self._last_time < _ONE_SIGNAL
        self._last_time = now
        if is_repetition:
            return
        waits = self.phase == "training" and not self.received
        self.received = number
        if not waits:
            self.raise_if_received()
        text = (
            f"{signal.Signals(number).name}: saving a checkpoint at the end of this update; a "
            "second signal ends the run at once.\n"
        )
        os.write(2, text.encode())  # buffered output could be under way

    def raise_if_received(self, outcome: str | None = None) -> None:
        """Ends the run if a signal came.

        Called by the signal handler, and between the steps of a run: Python drops exceptions that a
        handler raises inside a destructor or a callback from C, and a signal after the last update
        finds no end of an update to wait for.

        Args:
            outcome: Where the run was saved, for the message; None: nowhere, as the phase implies.

        Raises:
            RunInterrupted: If a signal came.
        """
        if not self.received:
            return
        outcomes = {
            "training": f"without saving since the last checkpoint in {self.output_dir}",
            "before": "before training began",
            "after": "after training, before the end of the run was written",
        }
        raise RunInterrupted(
            f"Stopped by {signal.Signals(self.received).name} {outcome or outcomes[self.phase]}. "
            "Start the same command again (without --overwrite) to go on.",
            self.received,
            is_saved=outcome is not None,
        )


# ---- workers that load data


def signal_blocking_context(method: str | None) -> BaseContext:
    """Returns a multiprocessing context ("fork", "spawn"...) whose processes start with
    `STOP_SIGNALS` blocked.

    Schedulers and terminals signal the whole process group, and the main process needs its workers
    until the update is done. A handler set by the worker itself would come too late.
    """
    context: Any = copy.copy(multiprocessing.get_context(method))
    process_class = context.Process

    def make_process(*args: Any, **kwargs: Any) -> Any:
        worker = process_class(*args, **kwargs)

        def start() -> None:
            del worker.start  # spawning pickles the worker, and this function cannot be
            resource_tracker.ensure_running()  # its start would unblock the signals
            previous = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
            try:
                worker.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, previous)
            worker._popen.terminate = worker._popen.kill  # SIGTERM is blocked

        worker.start = start
        return worker

    context.Process = make_process
    return context


def prepare_worker(number: int, *, num_workers: int, rank: int) -> None:
    """Seeds a worker, and blocks the signals once more: children of a fork server that was started
    earlier do not inherit the blocking.
    """
    seed_worker(number, num_workers, rank)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


# ---- training


class _UpdateFlags(NamedTuple):
    """Flags of one update, the maximum over all processes.

    `values` [2] on the CPU: whether a value was not finite, and the number of a signal or 0. They
    may be read once `ready` has happened; None: at once.
    """

    update: str
    values: Tensor
    ready: torch.cuda.Event | None


class RunGuard(TrainerCallback):
    """Ends training at a signal or at a loss that is not finite, in all processes at the same
    update.

    transformers' own `enable_jit_checkpoint` saves in the middle of an update and in each process
    on its own, so that a resumed run differs. On a GPU the host never waits for the update under
    way: its flags are read when the next one is queued, and at once only before an evaluation or a
    save.
    """

    def __init__(self, args: TrainingArguments) -> None:
        self.args = args
        self.signals = StopSignals(str(args.output_dir))  # which receives none
        self._losses_finite: list[Tensor] = []  # of the update under way, on the device
        self._unread: _UpdateFlags | None = None
        self._stop_signal = 0  # received by any process

    def watch(self, loss: Tensor) -> None:
        """Notes whether the loss of one batch is finite."""
        self._losses_finite.append(torch.isfinite(loss.detach()).all())

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Lets a signal wait for the end of the update from here on."""
        # The library would keep the intervals of the interrupted run
        state.compute_steps(args, state.max_steps)
        self._losses_finite = []
        self._unread = None
        self._stop_signal = 0
        self.signals.phase = "training"

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Collects the flags of the update, and asks for a checkpoint if a signal came."""
        self._collect(state)
        is_ready = args.device.type != "cuda"
        if is_ready or control.should_evaluate or control.should_save:
            self._read()
        if self._stop_signal:
            control.should_save = True

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ends the run, if a signal came before or during the evaluation and the save."""
        self._collect(state)
        self._read()
        if not self._stop_signal:
            return
        # Not by `control.should_training_stop`, with which the library would evaluate and save once
        # more, and log the end of the training
        self.signals.received = self._stop_signal
        path = Path(str(args.output_dir), f"checkpoint-{state.global_step}")
        self.signals.raise_if_received(
            f"at update {state.global_step} of {state.max_steps}: saved in {path}"
        )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Lets a signal end the run at once from here on."""
        self.signals.phase = "after"

    def check(self, weights: Iterable[Tensor], state: TrainerState) -> None:
        """Checks the weights before a save: the last gradient may have overflowed.

        Raises:
            RunError: In every process, if a loss or a weight of one is not finite.
        """
        for weight in weights:
            if isinstance(weight, DTensor):
                weight = weight.to_local()  # the part of this process under FSDP
            self.watch(weight)
        self._collect(state)
        self._read()

    def _collect(self, state: TrainerState) -> None:
        """Reads the flags of the update before, and starts to collect those of this one."""
        self._read()
        args = self.args
        received = torch.tensor(self.signals.received, dtype=torch.int32)
        number = received.to(args.device, non_blocking=True)
        is_bad = torch.zeros_like(number)
        if self._losses_finite:
            is_bad = (~torch.stack(self._losses_finite).all()).int()
        self._losses_finite = []
        flags = torch.stack([is_bad, number])
        if args.world_size > 1:
            torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MAX)
        on_host = flags.to("cpu", non_blocking=flags.is_cuda)  # into pinned memory
        ready = None
        if flags.is_cuda:
            ready = torch.cuda.Event()
            ready.record()
        self._unread = _UpdateFlags(f"{state.global_step} of {state.max_steps}", on_host, ready)

    def _read(self) -> None:
        """Reads the flags collected last, after waiting for the device to have computed them."""
        if self._unread is None:
            return
        update, values, ready = self._unread
        self._unread = None
        if ready is not None:
            ready.synchronize()
        is_bad, received = values.tolist()
        if is_bad:
            newest = last_checkpoint(str(self.args.output_dir))
            raise RunError(
                f"The loss or a weight is not finite (NaN or infinite) at update {update}. Nothing "
                f"was saved since {newest}. Training diverged: start anew with a lower "
                "training.learning_rate, more warmup_steps or a lower max_grad_norm, or with "
                "bf16 instead of fp16."
            )
        self._stop_signal = self._stop_signal or received
