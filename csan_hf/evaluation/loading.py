# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Loading of models and tokenizers for translation, in one process or in several."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from multiprocessing import parent_process
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel
from transformers.utils import logging

from csan_hf.models.seq2seq_model import check_complete
from csan_hf.own_code import import_modules
from csan_hf.pipelines.ensemble import (
    EnsembleForConditionalGeneration,
    check_member,
    check_vocabularies,
)
from csan_hf.pipelines.torch_engine import torch_engine
from csan_hf_runtime import IMPORTS, exported_folder
from csan_hf_runtime.engine import Engine
from csan_hf_runtime.extras import needs_extra
from csan_hf_runtime.text_files import reading_folder_or_name
from csan_hf_runtime.translator import TextTranslator

from .launched import launched_processes, shared_translator

if TYPE_CHECKING:
    from csan_hf.data import TokenizerPair

logger = logging.get_logger(__name__)


def load_engine(names: str | Sequence[str], **options: Any) -> Engine:
    """Loads what translates: a checkpoint, several as an ensemble, or what `export_onnx` made of
    one, which runs on the CPU as it was exported; see `load_translation_model`.
    """
    names = [names] if isinstance(names, str) else names
    folder = exported_folder(names[0])
    if folder is None or len(names) > 1:
        return torch_engine(*load_translation_model(names, **options))
    with needs_extra("onnx"):
        from csan_hf_runtime.graph_engine import GraphEngine

        return GraphEngine.from_directory(folder, threads=torch.get_num_threads())


@contextmanager
def loaded_translator(
    names: str | Sequence[str], *, device: str | None = None, **options: Any
) -> Iterator[TextTranslator]:
    """Loads what translates, see `load_engine`; processes that a launcher started share the work in
    the block, and part after it.
    """
    processes = launched_processes(device)
    yield shared_translator(load_engine(names, device=device, **options), processes)
    if processes is not None:
        processes.destroy_process_group()


def load_in_pool(names: Sequence[str], *, threads: int, **options: Any) -> Engine:
    """Loads what translates in a process of an `EnginePool`."""
    torch.set_num_threads(threads)
    import_modules(os.environ.get(IMPORTS, "").split(","))
    return load_engine(names, **options)


def load_translation_model(
    names: str | Sequence[str],
    *,
    device: str | None = None,
    dtype: str = "float32",
    trust_remote_code: bool = False,
    progress: bool = True,
) -> tuple[PreTrainedModel, TokenizerPair]:
    """Loads a checkpoint with its tokenizers, or several as an ensemble.

    Args:
        names: Folder or Hub name, or those of an ensemble's members.
        device: torch device; None = the accelerator if there is one, else the CPU. A process that a
            launcher started has its own, unless this is the CPU.
        dtype: `float32`, `bfloat16` or `float16`.
        trust_remote_code: Whether code in the checkpoint may run; csan_hf's own families need none.
        progress: Whether transformers shows bars while it loads, if it does at all.

    Raises:
        ValueError: If the dtype or the device is unknown or cannot be used, or weights or
            `num_beams` are impossible, members of an ensemble have different vocabularies or a
            class of their own code, or a folder holds ONNX graphs.
        OSError: If there is no such checkpoint.
    """
    processes = launched_processes(device)
    if processes is not None:
        device = str(processes.device)
    usable_device = _usable_device(device or _default_device())
    if dtype == "bfloat16" and usable_device.type == "cpu" and parent_process() is None:
        warn_of_slow_bfloat16()
    names = [names] if isinstance(names, str) else names
    for name in names:
        if exported_folder(name) is not None:
            raise ValueError(
                f"{name} holds ONNX graphs, which only translate, and alone: take the checkpoint "
                "that they were exported from."
            )
    if len(names) > 1:
        for name in names:
            with reading_folder_or_name(name, "model"):
                check_member(name)
    with nullcontext() if progress else _no_bars():
        loaded = [_load(name, dtype, trust_remote_code) for name in names]
    models = [model for model, _ in loaded]
    tokenizers = [pair for _, pair in loaded]
    check_vocabularies(dict(zip(names, tokenizers, strict=True)))
    model = models[0]
    if len(models) > 1:
        model = EnsembleForConditionalGeneration.of(models)
    return model.to(usable_device).eval(), tokenizers[0]


def cpu_has_bfloat16() -> bool:
    """Whether the processor computes bfloat16 in hardware: by AMX or AVX512-BF16."""
    probes = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(bool(getattr(torch.cpu, probe, bool)()) for probe in probes)


def warn_of_slow_bfloat16() -> None:
    """Warns, once, where the processor computes bfloat16 in software."""
    if not cpu_has_bfloat16():
        logger.warning_once(
            "This processor has neither AMX nor AVX512-BF16: bfloat16 will be slower than float32, "
            "up to six times."
        )


def _default_device() -> str:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if accelerator is None else accelerator.type


def _load(name: str, dtype: str, trust_remote_code: bool) -> tuple[Any, TokenizerPair]:
    from csan_hf.data import TokenizerPair

    with reading_folder_or_name(name, "model"):
        try:
            model, report = AutoModelForSeq2SeqLM.from_pretrained(
                name,
                dtype=dtype,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
            )
            check_complete(name, report["missing_keys"])  # of other families, too
        except RuntimeError as error:  # the library's report, logged before, names the tensors
            raise ValueError(f"{name}: the weights do not fit config.json: {error}") from error
        _check_weights(name, model)
        return model, TokenizerPair.from_pretrained(name, trust_remote_code=trust_remote_code)


def _check_weights(name: str, model: PreTrainedModel) -> None:
    """Refuses weights that are NaN: every translation would be empty, every probability NaN."""
    for weight, values in model.state_dict().items():
        if values.isnan().any():
            raise ValueError(
                f"{name}: {weight} is NaN, so that the model computes nothing: its training has "
                "failed, or the file is damaged. Take an earlier checkpoint."
            )


@contextmanager
def _no_bars() -> Iterator[None]:
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _usable_device(name: str) -> torch.device:
    """Returns a device after a test that it can compute, before a model is loaded for it."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without CUDA
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(
            f"device {name!r} cannot be used here: {reason}. Leave it out, or use 'cpu'."
        ) from error
    return device
