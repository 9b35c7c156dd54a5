# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Processes of one machine that translate side by side, each with an engine of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache, partial
from types import TracebackType
from typing import TypeVar

from . import usable_cores
from .engine import Engine

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class EnginePool(ProcessPoolExecutor):
    """An engine in each of several processes, which share the cores of the machine and end with the
    process that made them.

    Threads wait for each other at every small product, so N processes of one thread translate more
    than one process of N threads.

    Args:
        count: Processes; 0 = as many as this process may use cores.
        load: Loads the engine in each of them, with their number of `threads`.
    """

    windows_ahead = 1

    def __init__(self, count: int, load: Callable[..., Engine]) -> None:
        cores = usable_cores()
        self.count = count or cores
        threads = max(1, cores // self.count)
        super().__init__(
            max_workers=self.count,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start,
            initargs=(partial(load, threads=threads),),
        )

    def run(
        self, work: Callable[[Engine, Argument], Result], arguments: Sequence[Argument]
    ) -> Iterator[Result]:
        """See `csan_hf_runtime.translator.Workers`; the processes begin at once."""
        with _explaining_dead_processes():
            futures = [self.submit(_call, work, argument) for argument in arguments]
        return map(_result, futures)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        place: TracebackType | None,
    ) -> None:
        """Ends the processes at once if the block raised."""
        if kind is not None:  # batches may take long; Python 3.14 has terminate_workers
            for process in list(self._processes.values()):
                process.terminate()
        self.shutdown(cancel_futures=kind is not None)


def _result(future: Future[Result]) -> Result:
    with _explaining_dead_processes():
        return future.result()


@contextmanager
def _explaining_dead_processes() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise ValueError(
            f"A process of --processes has died, perhaps for want of memory: {error}"
        ) from error


_engine: Callable[[], Engine]  # of a process of the pool


def _start(load: Callable[[], Engine]) -> None:
    global _engine
    # Not loaded here, where an error would be that of a dead process
    _engine = cache(load)
    # Ctrl-C and the end of a terminal reach all processes; the parent ends the pool
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _call(work: Callable[[Engine, Argument], Result], argument: Argument) -> Result:
    return work(_engine(), argument)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # a killed parent closes no queue, for which this process would wait
        os._exit(1)
