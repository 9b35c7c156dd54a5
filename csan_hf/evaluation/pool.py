# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translation by several processes of one machine, each with a model of its own."""

import multiprocessing
import os
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from csan_hf.own_code import import_modules
from csan_hf.pipelines import TextTranslationPipeline
from csan_hf_cli import IMPORTS

from .loading import load_translation_model

_translator: TextTranslationPipeline  # of a process of the pool


class TranslationPool(ProcessPoolExecutor):
    """Processes that translate batches side by side on the CPU and share its cores.

    Threads wait for each other at every small product, so N processes of one thread translate more
    than one process of N threads.

    Args:
        count: Processes; 0 = as many as this process may use cores.
        names: What each of them loads, see `load_translation_model`.
        **options: More of its arguments.
    """

    def __init__(self, count: int, names: list[str], **options: Any) -> None:
        cores = os.cpu_count() or 1
        if hasattr(os, "sched_getaffinity"):
            cores = len(os.sched_getaffinity(0))
        count = count or cores
        threads = max(1, cores // count)
        super().__init__(
            max_workers=count,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start,
            initargs=(threads, names, {**options, "device": "cpu", "progress": False}),
        )

    def translate_segments(
        self, segments: list[str], **options: Any
    ) -> "Future[list[list[dict[str, Any]]]]":
        """Calls `TextTranslationPipeline.translate_segments` in one of the processes."""
        return self.submit(_translate_segments, segments, options)

    def __exit__(self, kind: Any, error: Any, place: Any) -> None:
        if kind is not None:  # batches may take long; Python 3.14 has terminate_workers
            for process in list(self._processes.values()):
                process.terminate()
        self.shutdown(cancel_futures=kind is not None)
        if kind is BrokenProcessPool:
            raise ValueError(
                f"A process of --processes has died, perhaps for want of memory: {error}"
            ) from error


def _start(threads: int, names: list[str], options: dict[str, Any]) -> None:
    global _translator
    # Ctrl-C and the end of a terminal reach all processes; the parent ends the pool
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    import_modules(os.environ.get(IMPORTS, "").split(","))
    model, tokenizers = load_translation_model(names, **options)
    _translator = TextTranslationPipeline(
        model=model,
        tokenizer=tokenizers.source,
        target_tokenizer=tokenizers.target,
        device=model.device,
    )


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # a killed parent closes no queue, for which this process would wait
        os._exit(1)


def _translate_segments(segments: list[str], options: dict[str, Any]) -> list[list[dict[str, Any]]]:
    return _translator.translate_segments(segments, **options)
