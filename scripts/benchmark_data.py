#!/usr/bin/env python3
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Seconds and peak memory of preparing large corpora, the first time and again.

    python scripts/benchmark_data.py --pairs 200000 1000000

A corpus has pairs of built-in number-words, each with a number of its own, as text files. Memory is
the process's own: pages of files that are mapped into it, which the system takes back when it needs
them, are not counted."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from csan_hf.data import load_numbers
from csan_hf_cli import script
from csan_hf_runtime.text_files import write_lines

_KINDS = 20_000  # sentences that the corpora repeat


def write_corpus(folder: Path, pairs: int) -> None:
    """Writes `train.LANGUAGE` and `validation.LANGUAGE`."""
    splits = load_numbers("en", "de", train_size=_KINDS, validation_size=500, test_size=1, seed=0)
    for language, column in (("en", "source"), ("de", "target")):
        texts = splits["train"][column][:]
        lines = (f"{texts[number % _KINDS]} {number}" for number in range(pairs))
        write_lines(folder / f"train.{language}", lines)
        write_lines(folder / f"validation.{language}", splits["validation"][column][:])


def measure_preparing(folder: Path) -> tuple[float, float]:
    """Seconds, and gigabytes at the most, of `csan-hf prepare`, on Linux."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"data: {{data_dir: {folder}, cache_dir: {folder}/cache, train: 'train.{{lang}}', "
        "validation: 'validation.{lang}'}\ntokenizer: {vocab_size: 8000}\n"
    )
    command = [sys.executable, "-m", "csan_hf", "prepare", str(recipe)]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    most_kilobytes = 0
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        if memory := re.search(r"RssAnon:\s+(\d+)", status):  # none when it has ended
            most_kilobytes = max(most_kilobytes, int(memory[1]))
        time.sleep(0.1)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with status {process.returncode}.")
    return time.perf_counter() - start, most_kilobytes / 2**20


@script()
def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", nargs="+", type=int, default=[200_000, 1_000_000])
    args = parser.parse_args(arguments)
    print("| pairs | first, s | again, s | first, GB | again, GB |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for pairs in args.pairs:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_corpus(folder, pairs)
            first_seconds, first_memory = measure_preparing(folder)
            seconds, memory = measure_preparing(folder)
        print(
            f"| {pairs:,} | {first_seconds:.0f} | {seconds:.0f} | {first_memory:.2f} | "
            f"{memory:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
