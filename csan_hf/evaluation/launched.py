# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Processes that `accelerate launch` or torchrun started, which share the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from operator import itemgetter
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object, parse_flag_from_env

from csan_hf_runtime import is_launched
from csan_hf_runtime.engine import Engine
from csan_hf_runtime.translator import TextTranslator

T = TypeVar("T")
Argument = TypeVar("Argument")
Result = TypeVar("Result")


class LaunchedProcesses:
    """Workers that each call an engine of their own for every R-th batch, see
    `csan_hf_runtime.translator.Workers`.

    Args:
        engine: This process's.
        processes: All R of them, each of which translates the same texts.
    """

    windows_ahead = 0

    def __init__(self, engine: Engine, processes: PartialState) -> None:
        self.count = processes.num_processes
        self._number = processes.process_index
        self._engine = engine

    def run(
        self, work: Callable[[Engine, Argument], Result], arguments: Sequence[Argument]
    ) -> Iterator[Result]:
        """See `Workers`; the results are exchanged after the last one."""
        results = []
        for number in range(self._number, len(arguments), self.count):
            results.append((number, work(self._engine, arguments[number])))
        for _, result in sorted(gather_object(results), key=itemgetter(0)):
            yield result


def launched_processes(device: str | None = None) -> PartialState | None:
    """Joins the processes that `accelerate launch` or torchrun started.

    Returns the state of all of them, or None if this process is alone. The device "cpu" keeps them
    off the accelerators; otherwise each has its own."""
    if not is_launched():
        return None
    on_cpu = device == "cpu" or parse_flag_from_env("ACCELERATE_USE_CPU")
    # A long timeout, as the processes wait for each other only at the end of their work
    return PartialState(
        cpu=on_cpu or not torch.accelerator.is_available(), timeout=timedelta(hours=6)
    )


def shared_translator(engine: Engine, processes: PartialState | None) -> TextTranslator:
    """Returns what translates with an engine, together with the other processes if there are
    some.
    """
    workers = None if processes is None else LaunchedProcesses(engine, processes)
    return TextTranslator(engine, workers=workers)


def on_main_process(work: Callable[[], T]) -> T:
    """Does some work in the main process, and returns its result, or raises its `ValueError`, in
    all.

    Processes that looked for themselves could differ: a network file system shows files at
    different moments.
    """
    processes = PartialState()
    if processes.num_processes == 1:
        return work()
    result: Any = None
    failure = None
    if processes.is_main_process:
        try:
            result = work()
        except ValueError as error:
            failure = error
    result, failure = broadcast_object_list([result, failure])
    if failure is not None:
        raise failure
    return result
