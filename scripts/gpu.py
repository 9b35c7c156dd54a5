#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Checks, measures and trains on a GPU, in stages that can be chosen and bounded in time.

    scripts/gpu_wheels.sh build/wheels         # what it needs beside torch, without a network
    python scripts/gpu.py --device cuda --output gpu.json --data-dir PATH/TO/multi30k
    python scripts/gpu.py --device cpu --tiny  # a rehearsal: all of it in a minute

Every stage prints a table as it goes; `--output` keeps all rows in one JSON file, to which further
runs append. A measurement that fails is a row with its error."""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from gpu_stages import compiled, generation, kernels, numerics, speed, training
from gpu_stages.setting import Row, Setting, Stage, milliseconds, row_of_error
from transformers.utils import logging as transformers_logging

from csan_hf_cli import script
from csan_hf_runtime.text_files import check_writable, write_json

# Name -> stage, and its seconds at most unless --seconds says otherwise
STAGES: dict[str, tuple[Stage, float]] = {
    "kernels": (kernels.gradients, 20),
    "numerics": (numerics.models, 90),
    "tokens": (numerics.tokens, 30),
    "flex": (kernels.flex, 60),
    "compiled": (compiled.programs, 60),
    "attention": (kernels.attention, 60),
    "backends": (kernels.backends, 40),
    "generation": (generation.searches, 60),
    "encoders": (speed.encoders, 45),
    "pervasive": (speed.pervasive, 30),
    "training-step": (speed.training_steps, 90),
    "multi30k": (training.multi30k, 180),
}
PACKAGES = ("torch", "transformers", "tokenizers", "huggingface_hub", "datasets", "accelerate")


@script()
def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument(
        "--seconds", type=float, help="bound of each stage (default: its own, 20 to 180)"
    )
    parser.add_argument(
        "--only", default="", help="pattern of models or, in the stage flex, of backends"
    )
    parser.add_argument("--tiny", action="store_true", help="small sizes, one round")
    parser.add_argument("--data-dir", type=Path, help="Multi30k, for the stage that trains")
    parser.add_argument("--output", type=Path, help="JSON file that the rows are appended to")
    args = parser.parse_args(arguments)
    # Trainings are processes of their own: on the same card
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    if args.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        raise ValueError("There is no GPU: rehearse with --device cpu --tiny.")
    records = []
    if args.output:
        check_writable(args.output)
        records = read_records(args.output)
    transformers_logging.set_verbosity_error()
    machine = describe(args.device)
    print("\n".join(f"{name}: {value}" for name, value in machine.items()), flush=True)
    setting = Setting(args.device, args.tiny, deadline=0.0, data_dir=args.data_dir, only=args.only)
    setting = dataclasses.replace(setting, rate=matrix_products(setting))
    for name in args.stages:
        stage, seconds = STAGES[name]
        start = time.monotonic()
        limited = dataclasses.replace(setting, deadline=start + (args.seconds or seconds))
        print(f"\n## {name}\n", flush=True)
        rows: list[Row] = []
        record: dict[str, object] = {"stage": name, "machine": machine, "rows": rows}
        records.append(record)
        for row in print_rows(rows_or_error(stage, limited)):
            rows.append(row)
            keep(records, args.output)
        taken = time.monotonic() - start
        record["seconds"] = taken
        record["time_was_up"] = limited.is_over
        keep(records, args.output)
        end = "; its time was up" if limited.is_over else ""
        print(f"\n{name}: {len(rows)} rows in {taken:.0f} s{end}", flush=True)


def keep(records: list[dict[str, object]], output: Path | None) -> None:
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
    size = 256 if setting.tiny else 8192
    matrix = torch.randn(size, size, device=setting.device, dtype=torch.bfloat16)
    rate = 2 * size**3 / milliseconds(lambda: matrix @ matrix, setting) * 1e3
    copied = 2 * matrix.nbytes * 8
    big = matrix.repeat(8, 1)
    target = torch.empty_like(big)
    bytes_per_second = copied / milliseconds(lambda: target.copy_(big), setting) * 1e3
    print(f"bf16 products: {rate / 1e12:.1f} TFLOP/s; copies: {bytes_per_second / 1e12:.2f} TB/s")
    return rate


def rows_or_error(stage: Stage, setting: Setting) -> Iterator[Row]:
    """The rows of a stage, the last of them its error if it fails between measurements."""
    try:
        yield from stage(setting)
    except Exception as error:
        yield row_of_error({}, error)


def print_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Prints rows as they come, with a heading where the columns change."""
    columns: list[str] = []
    for row in rows:
        if list(row) != columns and "error" not in row:
            columns = list(row)
            print(f"\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
        print(f"| {' | '.join(map(written, row.values()))} |", flush=True)
        yield row


def written(cell: str | float | None) -> str:
    """A cell of a table: numbers with three digits."""
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if cell and abs(cell) < 1e-2:
        return f"{cell:.1e}"
    return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"


def read_records(path: Path) -> list[dict[str, object]]:
    """Reads what earlier runs wrote.

    Raises:
        ValueError: The file is not theirs.
    """
    if not path.exists():
        return []
    try:
        records = json.loads(path.read_text())
    except ValueError:
        records = None
    if not isinstance(records, list):
        raise ValueError(f"{path} holds no list of stages: choose another --output.")
    return records


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
