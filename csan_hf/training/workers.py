"""Data-loading workers: their seeds, and signals that are meant for the main process alone."""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
from collections.abc import Collection
from multiprocessing import context, resource_tracker, util
from multiprocessing.context import BaseContext
from typing import Any

from transformers.trainer_utils import seed_worker

STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name))
"""What ends a run after a checkpoint: signals of schedulers (SLURM: --signal=USR1@120), and Ctrl-C."""


class WorkerInit:
    """What a worker does first: it seeds its random numbers; a class, so that it can be pickled.

    Args:
        num_workers: how many workers the process has.
        rank: number of the process.
        blocked: signals that the worker is not to see.
    """

    def __init__(self, num_workers: int, rank: int, blocked: Collection[int] = ()) -> None:
        self.num_workers, self.rank, self.blocked = num_workers, rank, blocked

    def __call__(self, worker_id: int) -> None:
        """Prepares the worker that this is called in."""
        seed_worker(worker_id, self.num_workers, self.rank)
        if self.blocked:  # already so, but for the children of a fork server that was started before
            signal.pthread_sigmask(signal.SIG_BLOCK, self.blocked)


def shielded_context(method: str | None) -> BaseContext | None:
    """Returns a multiprocessing context whose processes see none of the signals that end a run.

    Schedulers and terminals signal the whole process group. A worker that ended at once (torch gives it a handler for
    SIGTERM that does so) would take the batches along that the main process still needs for its last update. The
    signals are blocked from a worker's first instruction on: a handler that it set later would come too late.

    Args:
        method: "fork", "spawn" or "forkserver"; None: the system's default.

    Returns:
        The context, or None where the system knows no signal masks (Windows).
    """
    if not hasattr(signal, "pthread_sigmask"):
        return None
    shielded = copy.copy(multiprocessing.get_context(method))
    vars(shielded)["Process"] = _PROCESSES[str(shielded.get_start_method())]
    return shielded


class _Shielded:
    """A process that is born with the signals blocked; mixed into those of `multiprocessing`."""

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

    class _ForkWorker(_Shielded, context.ForkProcess):
        pass

    class _SpawnWorker(_Shielded, context.SpawnProcess):
        pass

    class _ForkServerWorker(_Shielded, context.ForkServerProcess):
        pass

    _PROCESSES.update(fork=_ForkWorker, spawn=_SpawnWorker, forkserver=_ForkServerWorker)


_ends_workers: set[int] = set()
"""The processes (this one, or one that it is a fork of) that end their workers when they exit."""


def _end_workers_at_exit() -> None:
    if os.getpid() not in _ends_workers:
        _ends_workers.add(os.getpid())
        util.Finalize(None, _end_workers, exitpriority=0)


def _end_workers() -> None:
    """Ends the workers that are left when Python exits: `multiprocessing` would send SIGTERM and wait for ever."""
    for child in multiprocessing.active_children():
        if isinstance(child, _Shielded):
            child.terminate()
