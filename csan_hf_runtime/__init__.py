# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Exported models, run without torch: numpy, onnxruntime and tokenizers are all they need."""

import os
from pathlib import Path

__version__ = "0.1.0"

ENCODER, DECODER = "encoder_model.onnx", "decoder_model_merged.onnx"
"""The graphs of an exported model."""

SOURCE = "source_model.onnx"
"""The graph of what a decoder needs of each source, where it needs more than the encoder's states.
"""


IMPORTS = "CSAN_HF_IMPORT"
"""Environment variable with the modules of --import, for the processes that a command starts."""


def is_launched() -> bool:
    """Whether torchrun or `accelerate launch` started several processes, of which this is one."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_main_process() -> bool:
    """Whether this process is the first of those, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def usable_cores() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def exported_folder(name: str) -> Path | None:
    """Returns the folder of graphs that a name stands for: a local one, or one of this package."""
    folder = Path(name).expanduser()
    if not folder.exists():
        folder = Path(__file__).parent / "models" / name
    has_graphs = any((folder / graph).is_file() for graph in (ENCODER, DECODER))
    return folder if has_graphs else None
