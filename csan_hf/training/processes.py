# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Several processes: who does what, how an evaluation is cut for them, and the workers that load data."""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
from collections.abc import Callable, Collection, Sequence
from multiprocessing import context, resource_tracker, util
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

import torch
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from transformers.trainer_utils import seed_worker

from .arguments import TranslationTrainingArguments
from .options import RecipeError

T = TypeVar("T")

PREPARED_DATA = "_prepared_data"
"""Folder in `output_dir` with the tokenized corpus while several processes train; it is never uploaded."""


def on_main_process(args: TranslationTrainingArguments, work: Callable[[], T]) -> T:
    """Does some work in the main process while the others wait, and gives its result to all.

    A result that every process found for itself could differ: files come and go, and a network file system shows
    them to the nodes at different moments.

    Args:
        args: The run's arguments; with one process this is a plain call.
        work: Function whose result can be pickled. The others wait no longer than `args.ddp_timeout` seconds.

    Raises:
        RecipeError: In every process, if `work` raised it in the main one.
    """
    if args.world_size == 1:
        return work()
    outcome: list[T | None] = [None]
    failure: list[str | None] = [None]
    if args.process_index == 0:
        try:
            outcome[0] = work()
        except RecipeError as error:
            failure[0] = str(error)
    broadcast_object_list(failure)
    if failure[0] is not None:
        raise RecipeError(failure[0])
    broadcast_object_list(outcome)
    return outcome[0]  # type: ignore[return-value]


# ---- evaluation


def cut_for_processes(order: Sequence[int], batch_size: int, processes: int) -> list[list[int]]:
    """Cuts an evaluation into batches, so that all processes have equally many of equal sizes.

    Process r takes the batches r, r + R, ...: the batches that are evaluated at the same time are neighbours in the
    order, which gathering restores. They must have equal sizes; numbers beyond the last row fill the last batches.

    Args:
        order: The N rows, a permutation of 0, ..., N - 1.
        batch_size: Most rows of a batch.
        processes: Their number R.

    Returns:
        Batches, their number a multiple of R. Together they are `order`, with R > 1 followed by the fewest possible
        row numbers from N on, which stand for copies.
    """
    count = len(order)
    size = batch_size
    if processes > 1:
        rounds = -(-count // (batch_size * processes))
        size = -(-count // (rounds * processes))
        order = [*order, *range(count, rounds * processes * size)]
    return [list(order[start : start + size]) for start in range(0, len(order), size)]


class RowsAndCopies(torch.utils.data.Dataset):
    """A dataset in which every number beyond the last row is a copy of one row, without labels that count."""

    def __init__(self, rows: Dataset, copied: int) -> None:
        self.rows, self.copied = rows, copied

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        if number < len(self.rows):
            return self.rows[number]
        row = dict(self.rows[self.copied])
        return {**row, "labels": [-100] * len(row["labels"])}


# ---- workers that load data

STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP") if hasattr(signal, name)
)
"""What ends a run after a checkpoint: signals of schedulers (SLURM: --signal=USR1@120), Ctrl-C, a terminal's end."""


class WorkerInit:
    """What a worker does first: it seeds its random numbers; a class, so that it can be pickled.

    Args:
        num_workers: How many workers the process has.
        rank: Number of the process.
        blocked: Signals that the worker ignores.
    """

    def __init__(self, num_workers: int, rank: int, blocked: Collection[int] = ()) -> None:
        self.num_workers, self.rank, self.blocked = num_workers, rank, blocked

    def __call__(self, worker_id: int) -> None:
        """Prepares the worker that this is called in."""
        seed_worker(worker_id, self.num_workers, self.rank)
        if self.blocked:  # already so, but for the children of a fork server that was started before
            signal.pthread_sigmask(signal.SIG_BLOCK, self.blocked)


def signal_blocking_context(method: str | None) -> BaseContext | None:
    """Returns a multiprocessing context whose processes see none of the signals that end a run.

    Schedulers and terminals signal the whole process group. A worker that ended at once (torch gives it a handler for
    SIGTERM that does so) would lose the batches that the main process still needs for its last update. The
    signals are blocked from a worker's first instruction on: a handler that it set later would come too late.

    Args:
        method: "fork", "spawn" or "forkserver"; None: the system's default.

    Returns:
        The context, or None where the system knows no signal masks (Windows).
    """
    if not hasattr(signal, "pthread_sigmask"):
        return None
    blocking = copy.copy(multiprocessing.get_context(method))
    vars(blocking)["Process"] = _PROCESSES[str(blocking.get_start_method())]
    return blocking


class _SignalBlocking:
    """Mixin of the processes of `multiprocessing`: they start with the signals blocked."""

    def start(self: Any) -> None:
        _end_workers_at_exit()
        resource_tracker.ensure_running()  # started within, it would unblock them
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            super().start()  # type: ignore[misc]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def terminate(self: Any) -> None:
        self.kill()  # for SIGTERM is blocked


_PROCESSES: dict[str, type] = {}
if hasattr(signal, "pthread_sigmask"):

    class _ForkWorker(_SignalBlocking, context.ForkProcess):
        pass

    class _SpawnWorker(_SignalBlocking, context.SpawnProcess):
        pass

    class _ForkServerWorker(_SignalBlocking, context.ForkServerProcess):
        pass

    _PROCESSES.update(fork=_ForkWorker, spawn=_SpawnWorker, forkserver=_ForkServerWorker)


_ends_workers: set[int] = set()
"""Numbers of the processes (this one, or one that it was forked from) that end their workers when they exit."""


def _end_workers_at_exit() -> None:
    if os.getpid() not in _ends_workers:
        _ends_workers.add(os.getpid())
        util.Finalize(None, _end_workers, exitpriority=0)


def _end_workers() -> None:
    """Ends the workers that are left when Python exits: `multiprocessing` would send SIGTERM and wait for ever."""
    for child in multiprocessing.active_children():
        if isinstance(child, _SignalBlocking):
            child.terminate()
