# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Time and peak memory of steps, errors, and tables of them, for benchmarks and GPU stages."""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import torch
from networks import Step
from torch import Tensor
from transformers.utils import logging as transformers_logging

Result = TypeVar("Result")
Row = dict[str, str | float | None]
"""The cells of a row, by column; None where nothing was measured."""
Workload = tuple[str, Mapping[str, Callable[[], Step]]]
"""Name of a workload, and makers of the steps that are compared, by name; the first is the anchor.
"""


# --- tables


def print_table(rows: Iterable[Row]) -> None:
    """Prints rows as they come."""
    columns: list[str] = []
    for row in rows:
        columns = print_row(row, columns)


def print_row(row: Row, columns: list[str]) -> list[str]:
    """Prints a row, below a heading if its columns are not `columns`, those of the rows before; a
    row with the column `error` stands below theirs.

    Returns:
        The columns of the table now.
    """
    if list(row) != columns and "error" not in row:
        columns = list(row)
        print(f"\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    print(f"| {' | '.join(map(written, row.values()))} |", flush=True)
    return columns


def written(cell: str | float | None) -> str:
    """A cell of a table: numbers with three digits."""
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"


def machine() -> str:
    """The processor's threads and torch's version, for the line above a table."""
    return f"float32; CPU, {torch.get_num_threads()} threads; torch {torch.__version__}"


# --- errors


def relative_error(value: Tensor, expected: Tensor) -> float:
    """‖value - expected‖ / ‖expected‖, in float64 on the CPU."""
    expected = expected.double().cpu()
    return ((value.double().cpu() - expected).norm() / expected.norm()).item()


def check_equal(name: str, value: Tensor, expected: Tensor) -> None:
    """Prints the relative error.

    Raises:
        ValueError: It is more than rounding explains.
    """
    error = relative_error(value, expected)
    print(f"check: {name}: relative error {error:.1e}")
    if not error < 1e-5:
        raise ValueError(
            f"{name}: relative error {error:.1e}; a benchmark of wrong results is worth nothing."
        )


# --- time and memory


def compare(workloads: Iterable[Workload], rounds: int, only: str = "") -> Iterator[Row]:
    """Rows: seconds, speed beside the anchor (above 1 = faster) and peak memory of each variant,
    for the workloads whose names contain `only`.

    Each step is run once before, untimed; then every round runs each once, so that a noisy
    machine disturbs all alike. The speed is the median over the rounds of the ratio.
    """
    for workload, variants in workloads:
        if only not in workload:
            continue
        steps = {name: make_step() for name, make_step in variants.items()}
        for step in steps.values():
            step()
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(rounds):
            for name, step in steps.items():
                times[name].append(seconds_of(step))
        anchor = next(iter(steps))
        for name, seconds in times.items():
            pairs = zip(times[anchor], seconds, strict=True)
            ratios = [anchor_seconds / its_seconds for anchor_seconds, its_seconds in pairs]
            yield {
                "workload": workload,
                "variant": name,
                "median s": statistics.median(seconds),
                f"speed × {anchor}": statistics.median(ratios),
                "peak memory MiB": peak_memory_of(variants[name]),
            }


def timed(compute: Callable[[], Result], device: str = "cpu") -> tuple[Result, float]:
    """The result of a computation, and its seconds by the clock."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = compute()
    if device == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - start


def cpu_clock() -> float:
    """Seconds, to subtract: of the processor where torch has one thread, as other processes do not
    disturb it, else by the clock.
    """
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def seconds_of(step: Step, device: str = "cpu") -> float:
    """Seconds of a step; on a CPU by `cpu_clock`."""
    if device == "cpu":
        start = cpu_clock()
        step()
        return cpu_clock() - start
    _, seconds = timed(step, device)
    return seconds


def peak_memory_of(make_step: Callable[[], Step]) -> float:
    """MiB by which running one step raises the peak of a fresh process that has made it (Linux)."""
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
