#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Checks, measures and trains on a GPU, in stages that can be chosen and bounded in time."""

import importlib.metadata
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Literal

import torch
from gpu_stages import compiled, generation, kernels, numerics, speed, training
from gpu_stages.setting import Setting, Stage, milliseconds
from gpu_stages.setting import rows as rows_of
from measuring import Row, print_row
from transformers.utils import logging as transformers_logging

from csan_hf_runtime.command_line import run
from csan_hf_runtime.text_files import check_writable, write_json

# Name -> stage, and its seconds at most unless --seconds says otherwise
STAGES: dict[str, tuple[Stage, float]] = {
    "numerics": (numerics.models, 90),
    "tokens": (numerics.tokens, 30),
    "flex": (kernels.flex, 60),
    "compiled": (compiled.programs, 120),
    "attention": (kernels.attention, 60),
    "backends": (kernels.backends, 40),
    "generation": (generation.searches, 60),
    "encoders": (speed.encoders, 45),
    "pervasive": (speed.pervasive, 90),
    "loss": (speed.losses, 20),
    "training-step": (speed.training_steps, 180),
    "multi30k": (training.multi30k, 400),
}
PACKAGES = ("torch", "transformers", "tokenizers", "huggingface_hub", "datasets", "accelerate")


def measure(
    *,
    device: Literal["cuda", "cpu"] = "cuda",
    stages: list[str] | None = None,
    seconds: float | None = None,
    only: str = "",
    tiny: bool = False,
    data_dir: Path | None = None,
    output: Path | None = None,
) -> None:
    """Check, measure and train on a GPU, in stages that can be chosen and bounded in time.

        scripts/gpu_wheels.sh build/wheels
        python scripts/gpu.py --output gpu.json --data_dir PATH/TO/multi30k
        python scripts/gpu.py --device cpu --tiny

    The first line gets what it needs beside torch, for a machine without a network; the last is a
    rehearsal: all of it in a minute. Every stage prints a table as it goes. A measurement that
    fails is a row with its error.

    Args:
        device: of all stages
        stages: numerics, tokens, flex, compiled, attention, backends, generation, encoders,
            pervasive, training-step, loss, multi30k (default: all)
        seconds: bound of each stage (default: its own, 20 to 400)
        only: pattern of models or, in the stage flex, of backends
        tiny: small sizes, one round
        data_dir: Multi30k, for the stage that trains
        output: JSON file that the rows are appended to
    """
    if unknown := set(stages or ()) - STAGES.keys():
        raise ValueError(f"stages are {', '.join(STAGES)}; got {', '.join(unknown)}.")
    # Trainings are processes of their own: on the same card
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        raise ValueError("There is no GPU: rehearse with --device cpu --tiny.")
    chosen = stages or list(STAGES)
    if "multi30k" in chosen and data_dir is None and not tiny:
        raise ValueError("--data_dir is the folder of Multi30k: name it, or --stages without that.")
    records: list[dict[str, object]] = []
    if output is not None:
        check_writable(output)
        if output.exists():
            records = json.loads(output.read_bytes())
    transformers_logging.set_verbosity_error()
    machine = describe(device)
    print("\n".join(f"{name}: {value}" for name, value in machine.items()), flush=True)
    setting = Setting(device, tiny, data_dir, only)
    setting.rate = matrix_products(setting)
    for name in chosen:
        stage, bound = STAGES[name]
        start = time.monotonic()
        setting.deadline = start + (seconds or bound)
        print(f"\n## {name}\n", flush=True)
        rows: list[Row] = []
        record: dict[str, object] = {"stage": name, "machine": machine, "rows": rows}
        records.append(record)
        columns: list[str] = []
        for row in rows_of(stage, setting):
            columns = print_row(row, columns)
            rows.append(row)
            write(records, output)
        taken = time.monotonic() - start
        record["seconds"] = taken
        record["time_was_up"] = setting.is_over
        write(records, output)
        end = "; its time was up" if setting.is_over else ""
        print(f"\n{name}: {len(rows)} rows in {taken:.0f} s{end}", flush=True)


def write(records: list[dict[str, object]], output: Path | None) -> None:
    """Writes all stages so far; of one that was ended early the last record has no seconds."""
    if output is not None:
        write_json(output, records)


def describe(device: str) -> dict[str, str]:
    """The machine and the versions that it ran with."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    card = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "CPU"
    return {"card": card, "date": time.strftime("%Y-%m-%d"), **versions}


def matrix_products(setting: Setting) -> float:
    """Measures and prints the card's rates of bf16 products and of copies; returns the first,
    operations per second.
    """
    size = 256 if setting.tiny or setting.device == "cpu" else 8192
    matrix = torch.randn(size, size, device=setting.device, dtype=torch.bfloat16)
    rate = 2 * size**3 / milliseconds(lambda: matrix @ matrix, setting) * 1e3
    copied = 2 * matrix.nbytes * 8
    big = matrix.repeat(8, 1)
    target = torch.empty_like(big)
    bytes_per_second = copied / milliseconds(lambda: target.copy_(big), setting) * 1e3
    print(f"bf16 products: {rate / 1e12:.1f} TFLOP/s; copies: {bytes_per_second / 1e12:.2f} TB/s")
    return rate


if __name__ == "__main__":
    sys.exit(run(measure, sys.argv[1:]))
