# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Time and peak memory of a step, for the benchmark scripts and the GPU stages."""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import torch
from networks import Step
from transformers.utils import logging as transformers_logging

Result = TypeVar("Result")


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


def machine() -> str:
    """The processor's threads and torch's version, for the line above a table."""
    return f"CPU, {torch.get_num_threads()} threads; torch {torch.__version__}"


def check_differences(differences: Mapping[str, float], kind: str, most: float) -> None:
    """Prints how far results are from the expected ones; exits with an error if it is too far."""
    for name, difference in differences.items():
        print(f"check: {name}: {kind} {difference:.1e}")
        if not difference < most:
            sys.exit(
                f"error: {name}: {kind} {difference}; a benchmark of wrong results is worth "
                "nothing."
            )


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


def timed(compute: Callable[[], Result], device: str = "cpu") -> tuple[Result, float]:
    """The result of a computation, and its seconds."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = compute()
    if device == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - start


def seconds_of(step: Step, device: str = "cpu") -> float:
    """Seconds of one step."""
    _, seconds = timed(step, device)
    return seconds


def processor_seconds(step: Step) -> float:
    """The processor's seconds of a step."""
    start = time.process_time()
    step()
    return time.process_time() - start


def peak_memory_of(make_step: Callable[[], Step]) -> float:
    """MiB that one step needs at its peak, beside what a fresh process that made it held before
    (Linux).
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_growth_of_memory, make_step).result()


def _growth_of_memory(make_step: Callable[[], Step]) -> float:
    transformers_logging.set_verbosity_error()
    step = make_step()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of making the step
    before = _peak_resident_mib()
    step()
    return _peak_resident_mib() - before


def _peak_resident_mib() -> float:
    """Largest resident memory of this process (getrusage would count the parent's peak)."""
    status = Path("/proc/self/status").read_text()
    return float(status.split("VmHWM:")[1].split()[0]) / 1024
