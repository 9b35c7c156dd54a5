# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Where a run must stop: at a signal, after saving; at a loss that is not finite, without saving."""

from __future__ import annotations

import copy
import math
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from multiprocessing import resource_tracker
from multiprocessing.context import BaseContext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import seed_worker

from .arguments import TranslationTrainingArguments
from .recipe import RecipeError

if TYPE_CHECKING:
    from .trainer import TranslationTrainer

T = TypeVar("T")

PREPARED_DATA = "_prepared_data"
"""Folder in `output_dir` with the tokenized corpus while several processes train; it is never
uploaded.
"""

STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name)
)
"""What ends a run after a checkpoint: signals of schedulers (SLURM: --signal=USR1@120) and Ctrl-C.
"""

# Signals within this time are one: torchrun forwards what the whole process group got, and a key
# may be held down.
_ONE_SIGNAL = 1.0  # seconds


class RunError(RuntimeError):
    """A run that cannot go on; the message says why, and what to do."""


def on_main_process(args: TranslationTrainingArguments, work: Callable[[], T]) -> T:
    """Does some work in the main process, and gives its result, or its RecipeError, to all.

    What every process found for itself could differ: a network file system shows files at different
    moments."""
    if args.world_size == 1:
        return work()
    outcome: list[Any] = [None, None]
    if args.process_index == 0:
        try:
            outcome[0] = work()
        except RecipeError as error:
            outcome[1] = str(error)
    result, failure = broadcast_object_list(outcome)
    if failure is not None:
        raise RecipeError(failure)
    return result


# ---- signals


class RunInterrupted(BaseException):
    """A run that the signal `number` ended; like `KeyboardInterrupt` no `Exception`, which handlers
    would catch.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number  # the shell's convention


class StopSignals:
    """Takes SIGTERM, SIGINT and SIGUSR1 while a run is under way (a context manager); messages name
    its folder.

    While the model trains, the first signal is kept for the end of the update, and a second one, a
    second later or more, ends the run at once. Before and after, there is nothing to save, and the
    first one ends it."""

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
        now, before = time.monotonic(), self._last_time
        self._last_time = now
        if now - before < _ONE_SIGNAL:
            return
        if self.phase == "training" and not self.received:
            self.received = number
            name = signal.Signals(number).name
            text = f"{name}: saving a checkpoint at the end of this update; a second signal ends the run at once.\n"
            os.write(2, text.encode())  # buffered output could be under way
            return
        self.received = number
        self.raise_if_received()

    def raise_if_received(self, outcome: str | None = None) -> None:
        """Ends the run if a signal came; `outcome` says what became of it, by default by the phase.

        What a signal handler raises may be lost: Python drops what is raised in a destructor or a
        callback from C, and libraries have handlers for every exception. So this is called between
        the steps of a run, too. It also finds a signal that came after the last update, after which
        no update ended.

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
        )


# ---- workers that load data


def signal_blocking_context(method: str | None) -> BaseContext:
    """Returns a multiprocessing context ("fork", "spawn"...) whose processes see none of the
    signals that end a run.

    Schedulers and terminals signal the whole process group, and the main process needs its workers
    for its last update. The signals are blocked from their first instruction on: a handler that
    they set would come too late."""
    context: Any = copy.copy(multiprocessing.get_context(method))
    make = context.Process

    def process(*args: Any, **kwargs: Any) -> Any:
        worker: Any = make(*args, **kwargs)

        def start() -> None:
            del worker.start  # a worker that is spawned is pickled
            resource_tracker.ensure_running()  # started within, it would unblock the signals
            before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
            try:
                worker.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            worker._popen.terminate = worker._popen.kill  # for SIGTERM is blocked

        worker.start = start
        return worker

    vars(context)["Process"] = process
    return context


def prepare_worker(number: int, *, num_workers: int, rank: int, block: bool) -> None:
    """Seeds a worker; blocks the signals, which a child of a fork server that was there before does
    not yet.
    """
    seed_worker(number, num_workers, rank)
    if block:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


# ---- training


class RunGuard(TrainerCallback):
    """Ends training at a signal or at a loss that is not finite, in all processes at the same
    update.

    transformers' own `enable_jit_checkpoint` saves in the middle of an update and in each process
    on its own, so that a resumed run differs. The host never waits for the device's present update:
    on a GPU the flags of an update are read when the next one is under way, and at once before an
    evaluation or a save."""

    def __init__(self, trainer: TranslationTrainer) -> None:
        self.trainer = trainer
        self.signals: StopSignals | None = None
        self._losses_finite: list[Tensor] = []  # of the update under way, on the device
        self._updates: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()
        self._stop = 0

    def watch(self, loss: Tensor) -> None:
        """Notes the loss of one batch."""
        self._losses_finite.append(torch.isfinite(loss.detach()).all())

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Lets a signal wait for the end of the update from here on."""
        state.compute_steps(
            args, state.max_steps
        )  # the library would keep the intervals of the interrupted run
        self._losses_finite, self._stop = [], 0
        self._updates.clear()
        if self.signals is not None:
            self.signals.phase = "training"

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Collects the flags of the update, and asks for a checkpoint if a signal came."""
        self._ask(state.global_step)
        self._read(0 if control.should_evaluate or control.should_save else 1)
        if self._stop:
            control.should_save = True

    def on_save(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ends the run, if a signal came before or during the evaluation and the save."""
        self._ask(state.global_step)
        self._read(0)
        if not self._stop or self.signals is None:
            return
        self.trainer.callback_handler.on_train_end(args, state, control)  # closes bars and logs
        self.trainer._finish_current_push()
        self.signals.received = self._stop  # perhaps by another process
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self.signals.raise_if_received(
            f"at update {state.global_step} of {state.max_steps}: saved in {path}"
        )

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Lets a signal end the run at once from here on."""
        if self.signals is not None:
            self.signals.phase = "after"

    def check(self, weights: Iterable[Tensor]) -> None:
        """Raises a `RunError` in every process if a loss or a weight, whose gradient overflowed, is
        not finite.
        """
        for weight in weights:
            self.watch(
                weight.to_local() if hasattr(weight, "to_local") else weight
            )  # a part, of FSDP
        self._ask(self.trainer.state.global_step)
        self._read(0)

    def _ask(self, step: int) -> None:
        """Starts to collect the flags of an update from all processes: a value not finite, the
        number of a signal.
        """
        device, received = (
            self.trainer.args.device,
            self.signals.received if self.signals is not None else 0,
        )
        bad = ~torch.stack(
            [torch.ones((), dtype=torch.bool, device=device), *self._losses_finite]
        ).all()
        self._losses_finite = []
        flags = torch.stack(
            [bad.int(), torch.tensor(received, dtype=torch.int32).to(device, non_blocking=True)]
        )
        if self.trainer.args.world_size > 1:
            torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MAX)
        ready = torch.cuda.Event() if flags.is_cuda else None
        flags = flags.to(
            "cpu", non_blocking=flags.is_cuda
        )  # then into pinned memory; elsewhere nothing waits for it
        if ready is not None:
            ready.record()
        self._updates.append((step, flags, ready))

    def _read(self, lag: int) -> None:
        """Reads the flags of all updates but the last `lag`, which a device may still compute."""
        while self._updates and (len(self._updates) > lag or self._updates[0][2] is None):
            step, flags, ready = self._updates.popleft()
            if ready is not None:
                ready.synchronize()
            bad, received = flags.tolist()
            if bad:
                raise RunError(
                    f"The loss or a weight is not finite (NaN or infinite) at update {step} of "
                    f"{self.trainer.state.max_steps}. Nothing was saved since "
                    f"{self.trainer.last_checkpoint()}. Training diverged: start anew with a lower "
                    "training.learning_rate, more warmup_steps or a lower max_grad_norm, or with "
                    "bf16 instead of fp16."
                )
            self._stop = self._stop or received
