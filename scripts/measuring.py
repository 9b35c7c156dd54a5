# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Models, sentences, time and peak memory of a step, for the benchmark scripts."""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

Step = Callable[[], object]
MOST_POSITIONS = 2048


class Size(NamedTuple):
    """Sizes of a Transformer, of encoder and decoder alike."""

    d_model: int
    layers: int
    heads: int
    ffn: int
    vocabulary: int

    def fields(self) -> dict[str, Any]:
        """The fields of a config, of CSAN's or Marian's."""
        fields = {"vocab_size": self.vocabulary, "d_model": self.d_model}
        for side in ("encoder", "decoder"):
            fields[f"{side}_layers"] = self.layers
            fields[f"{side}_attention_heads"] = self.heads
            fields[f"{side}_ffn_dim"] = self.ffn
        return fields


SMALL = Size(d_model=256, layers=3, heads=4, ffn=1024, vocabulary=8000)
BASE = Size(d_model=512, layers=6, heads=8, ffn=2048, vocabulary=32000)


def make_marian(size: Size) -> MarianMTModel:
    """transformers' Marian with CSAN's defaults, the anchor of benchmarks."""
    torch.manual_seed(0)
    config = MarianConfig(
        **size.fields(),
        max_position_embeddings=MOST_POSITIONS,
        activation_function="relu",
        scale_embedding=True,
        dropout=0.1,
        pad_token_id=0,
        eos_token_id=1,
        forced_eos_token_id=None,
        decoder_start_token_id=0,
    )
    return MarianMTModel(config)


def make_pairs(lengths: Tensor, vocabulary: int, device: str) -> dict[str, Tensor]:
    """Random sentence pairs of these lengths [2, B], padded on the right."""
    generator = torch.Generator().manual_seed(1)
    batch = {}
    for name, sizes in zip(("input_ids", "labels"), lengths, strict=True):
        longest = int(sizes.max())
        ids = torch.randint(2, vocabulary, (len(sizes), longest), generator=generator)
        padding = torch.arange(longest) >= sizes[:, None]
        batch[name] = ids.masked_fill(padding, -100 if name == "labels" else 0).to(device)
    batch["attention_mask"] = (batch["input_ids"] != 0).long()
    return batch


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
