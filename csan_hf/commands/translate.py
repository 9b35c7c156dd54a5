# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Models of torch for `csan-hf translate`."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch

from csan_hf.evaluation import torch_engine
from csan_hf.evaluation.launched import LaunchedProcesses, launched_processes
from csan_hf.evaluation.loading import load_translation_model
from csan_hf.own_code import import_modules
from csan_hf.pipelines.torch_engine import TorchEngine
from csan_hf_runtime import IMPORTS
from csan_hf_runtime.pool import EnginePool
from csan_hf_runtime.translator import TextTranslator


@contextmanager
def torch_translator(
    names: list[str],
    *,
    processes: int | None,
    device: str | None,
    dtype: str,
    trust_remote_code: bool,
    quiet: bool,
) -> Iterator[TextTranslator]:
    """Loads what translates, and ends its processes after the block; the arguments are those of
    `csan-hf translate`.
    """
    launched = launched_processes(device)
    network, tokenizers = load_translation_model(
        names,
        device=device if launched is None else str(launched.device),
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        progress=not quiet,
    )
    engine = torch_engine(network, tokenizers)
    if launched is not None:
        yield TextTranslator(engine, workers=LaunchedProcesses(engine, launched))
        launched.destroy_process_group()
        return
    with ExitStack() as stack:
        workers = None
        if processes is not None:
            load = partial(_load, names, dtype, trust_remote_code)
            workers = stack.enter_context(EnginePool(processes, load))
        yield TextTranslator(engine, workers=workers)


def _load(names: list[str], dtype: str, trust_remote_code: bool, *, threads: int) -> TorchEngine:
    """Loads the engine of a process of a pool."""
    torch.set_num_threads(threads)
    import_modules(os.environ.get(IMPORTS, "").split(","))
    network, tokenizers = load_translation_model(
        names, device="cpu", dtype=dtype, trust_remote_code=trust_remote_code, progress=False
    )
    return torch_engine(network, tokenizers)
