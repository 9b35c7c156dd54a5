# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Time and peak memory of a step, for the benchmark scripts."""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

Step = Callable[[], object]


def make_parser(description: str | None, rounds: int) -> argparse.ArgumentParser:
    """The options of all benchmarks; `description` is shown as it is."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=rounds,
        help="times that each variant runs (default: %(default)s)",
    )
    return parser


def machine(device: str) -> str:
    """The device, its threads and torch's version, for the line above a table."""
    where = f"CPU, {torch.get_num_threads()} threads"
    if device == "cuda":
        where = torch.cuda.get_device_name()
    return f"{where}; torch {torch.__version__}"


def seconds_in_turn(
    steps: Mapping[str, Step], rounds: int, seconds: Callable[[Step], float]
) -> dict[str, list[float]]:
    """The seconds of every step in each round; all are made once before, untimed.

    A round makes each step once, so that a noisy machine disturbs all alike.
    """
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(seconds(step))
    return times


def speed_ratio(baseline: Sequence[float], seconds: Sequence[float]) -> float:
    """The median over the rounds of the baseline's time divided by another's (above 1 = faster)."""
    return statistics.median(base / time for base, time in zip(baseline, seconds, strict=True))


def seconds_of(step: Step, device: str) -> float:
    """Seconds of one step."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_memory_of(step: Step, device: str) -> float:
    """MiB that one step needs at its peak, beside what was held before it.

    On a CPU it is the growth of the largest resident memory so far, hence for the first step of a
    fresh process only."""
    if device == "cuda":
        step()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        step()
        return (torch.cuda.max_memory_allocated() - held) / 2**20
    before = _peak_resident_mib()
    step()
    return _peak_resident_mib() - before


def _peak_resident_mib() -> float:
    """Largest resident memory of this process so far (Linux; getrusage would count the parent's
    peak).
    """
    status = Path("/proc/self/status").read_text()
    return float(status.split("VmHWM:")[1].split()[0]) / 1024


def last_number_printed_by(script: str, arguments: Sequence[str]) -> float:
    """The number that a script prints last, run in a fresh process."""
    result = subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, check=True
    )
    return float(result.stdout.strip().splitlines()[-1])
