# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What the benchmark scripts share: the time and the peak memory of a step."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch


def machine(device: str) -> str:
    """The device, its threads and torch's version, for the line that says what was measured where."""
    where = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    return f"{where}; torch {torch.__version__}"


def seconds_of(step: Callable[[], None], device: str) -> float:
    """Seconds of one step."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_memory_of(step: Callable[[], None], device: str) -> float:
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
