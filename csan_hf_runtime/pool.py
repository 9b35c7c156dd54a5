# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Processes of one machine that translate side by side, each with a model of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from . import usable_cores


class ProcessPool(ProcessPoolExecutor):
    """Processes that share the cores of the machine and end with the process that made them.

    Threads wait for each other at every small product, so N processes of one thread translate more
    than one process of N threads.

    Args:
        count: Processes; 0 = as many as this process may use cores.
        start: What each of them calls first, with its number of threads and the arguments.
        *arguments: Further arguments of `start`.
    """

    def __init__(self, count: int, start: Callable[..., None], *arguments: Any) -> None:
        cores = usable_cores()
        self.count = count or cores
        threads = max(1, cores // self.count)
        super().__init__(
            max_workers=self.count,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start,
            initargs=(start, threads, *arguments),
        )

    def __exit__(self, kind: Any, error: Any, place: Any) -> None:
        if kind is not None:  # batches may take long; Python 3.14 has terminate_workers
            for process in list(self._processes.values()):
                process.terminate()
        self.shutdown(cancel_futures=kind is not None)
        if kind is BrokenProcessPool:
            raise ValueError(
                f"A process of --processes has died, perhaps for want of memory: {error}"
            ) from error


def _start(start: Callable[..., None], threads: int, *arguments: Any) -> None:
    # Ctrl-C and the end of a terminal reach all processes; the parent ends the pool
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    start(threads, *arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # a killed parent closes no queue, for which this process would wait
        os._exit(1)
