# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Setting of the stages: where they run, until when, and how a measurement becomes a row."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measuring import Row, seconds_of
from networks import Step
from torch import nn

Measurement = tuple[Row, Callable[[], Row]]
"""The cells of a row that name what is measured, and what measures the others."""
Stage = Callable[["Setting"], Iterator[Measurement]]


@dataclass
class Setting:
    """Where a stage runs.

    Attributes:
        device: `"cpu"` or `"cuda"`.
        tiny: Whether sizes are those of a rehearsal.
        data_dir: Folder of Multi30k, for the stage that trains.
        only: Pattern that the names of models must match, in the stages of numerics.
        rate: Measured bf16 matrix products, operations per second.
        deadline: Time of `time.monotonic` after which the stage begins nothing new.
    """

    device: str
    tiny: bool
    data_dir: Path | None = None
    only: str = ""
    rate: float = float("nan")
    deadline: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the stage's time is up."""
        return time.monotonic() > self.deadline


def compile_for(setting: Setting, model: nn.Module) -> Any:
    """A model compiled once for all lengths; a rehearsal has no C++ to wait for."""
    return torch.compile(model, backend="eager" if setting.tiny else "inductor", dynamic=True)


def milliseconds(step: Step, setting: Setting, rounds: int = 7) -> float:
    """Median time of a step, after two that are not timed."""
    for _ in range(1 if setting.tiny else 2):
        step()
    if setting.tiny:
        rounds = 1
    return 1e3 * statistics.median(seconds_of(step, setting.device) for _ in range(rounds))


def peak_gib(step: Step, setting: Setting) -> float | None:
    """Most memory that the allocator holds in a step, GiB; None on a CPU."""
    if setting.device != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated() / 2**30


def rows(stage: Stage, setting: Setting) -> Iterator[Row]:
    """The rows of a stage until its time is up; a measurement that fails is a row with the first
    line of its error.
    """
    for names, measure in stage(setting):
        if setting.is_over:
            return
        try:
            yield {**names, **measure()}
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            yield {**names, "error": f"{type(error).__name__}: {lines[0][:160]}"}
        finally:
            torch.compiler.reset()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
