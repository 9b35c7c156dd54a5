#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Speed and memory of CSAN beside transformers' MarianMTModel of the same size, in one run.

Every round times each model once, in turn, so that a noisy machine disturbs all alike; the table
shows the median time of a step and the median over the rounds of Marian's time divided by the
model's (above 1 = faster than Marian). Before anything is timed the models are checked: CSAN with
locality off must give Marian's logits, and the local models' fast backends those of the eager one.
Peak memory is that of a process of its own which makes one step, less what the process held before
it.

    python scripts/benchmark.py                    # the table of the README
    OMP_NUM_THREADS=1 python scripts/benchmark.py --backends    # backend_grid.py

On a GPU scripts/gpu.py measures both: its stages training-step, encoders, generation, backends.
"""

import statistics
import sys
from functools import partial

import backend_grid
import torch
from measuring import (
    check_differences,
    machine,
    make_parser,
    peak_memory_of,
    seconds_in_turn,
    seconds_of,
    speed_ratio,
)
from networks import (
    MOST_POSITIONS,
    SMALL,
    Step,
    encoding_step,
    make_csan,
    make_marian,
    make_pairs,
    training_step,
)
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from csan_hf_cli import script

MARIAN = "MarianMTModel"
PRESETS = {"CSAN, locality off": None, "1D-CSAN (11)": "csan_1d", "2D-CSAN (3×11)": "csan_2d"}
# Name -> (batch, source and target length, part of the model, training step or generation)
WORKLOADS = {
    "training step, 80 pairs of about 25 tokens": (80, 25, "train"),
    "training step, 4 pairs of 512 tokens": (4, 512, "train"),
    "training step, 1 pair of 2,048 tokens": (1, 2048, "train"),
    "encoder alone, 1 sentence of 2,048 tokens, forward": (1, 2048, "encoder"),
    "encoder alone, 1 sentence of 2,048 tokens, forward and backward": (1, 2048, "encoder-train"),
    "beam 5, 16 sentences of about 25 tokens": (16, 25, "generate"),
}


@script()
def main(arguments: list[str]) -> None:
    parser = make_parser(__doc__, rounds=7)
    parser.add_argument(
        "--only", default="", help="run only the workloads whose name contains this"
    )
    parser.add_argument(
        "--backends", action="store_true", help="compare the backends of local attention instead"
    )
    args = parser.parse_args(arguments)
    transformers_logging.set_verbosity_error()
    if args.backends:
        backend_grid.print_grid(args.rounds, args.only)
        return
    check_models()
    print(
        f"\nd {SMALL.d_model}, {SMALL.layers}+{SMALL.layers} layers, {SMALL.heads} heads, "
        f"feed-forward {SMALL.ffn}, vocabulary {SMALL.vocabulary}; float32; {machine()}\n"
    )
    print(
        "| workload | model | median s | speed × Marian | peak memory MiB |\n| --- | --- | --- | "
        "--- | --- |"
    )
    for workload in WORKLOADS:
        if args.only in workload:
            print_workload(workload, args.rounds)


def print_workload(workload: str, rounds: int) -> None:
    """Prints the rows of one workload, Marian's first."""
    steps = {name: make_step(name, workload) for name in (MARIAN, *PRESETS)}
    times = seconds_in_turn(steps, rounds, seconds_of)
    for name, seconds in times.items():
        speed = speed_ratio(times[MARIAN], seconds)
        memory = peak_memory_of(partial(make_step, name, workload))
        print(
            f"| {workload} | {name} | {statistics.median(seconds):.3f} | {speed:.2f} | "
            f"{memory:,.0f} |",
            flush=True,
        )


def build(name: str) -> PreTrainedModel:
    """The model of that name, all with the same weights."""
    marian = make_marian(SMALL)
    if name == MARIAN:
        return marian
    model = make_csan(PRESETS[name], SMALL, max_position_embeddings=MOST_POSITIONS)
    model.load_state_dict(marian.state_dict(), strict=False)  # positions are made, not loaded
    return model


def make_batch(pairs: int, length: int) -> dict[str, Tensor]:
    """Random sentences; lengths spread by a fifth around `length` where there are several."""
    generator = torch.Generator().manual_seed(1)
    spread = length // 5 if pairs > 4 else 0
    lengths = torch.randint(length - spread, length + spread + 1, (2, pairs), generator=generator)
    lengths[:, 0] = length + spread
    return make_pairs(lengths, SMALL.vocabulary, "cpu")


def make_step(name: str, workload: str) -> Step:
    """A function that makes one step of the workload with a model."""
    model = build(name)
    pairs, length, kind = WORKLOADS[workload]
    batch = make_batch(pairs, length)
    if kind == "train":
        return training_step(model, batch)
    source = {key: batch[key] for key in ("input_ids", "attention_mask")}
    if kind == "generate":
        # Exactly 25 tokens each: no model gains by stopping early.
        options = {"num_beams": 5, "min_new_tokens": 25, "max_new_tokens": 25}
        return partial(model.eval().generate, **source, **options)
    return encoding_step(model.get_encoder(), source, backward=kind == "encoder-train")


@torch.no_grad()
def check_models() -> None:
    """Exit with an error unless the models compute what they should."""

    def difference(logits: Tensor, expected: Tensor) -> float:
        return (logits - expected).abs().max().item()

    batch = make_batch(6, 25)
    expected = build(MARIAN).eval()(**batch).logits
    plain = build("CSAN, locality off").eval()(**batch).logits
    differences = {"CSAN, locality off, against Marian": difference(plain, expected)}
    for length in (25, 200):
        batch = make_batch(2, length)
        for name in ("1D-CSAN (11)", "2D-CSAN (3×11)"):
            model = build(name).eval()
            fast = model(**batch).logits
            model.set_attn_implementation("eager")
            eager = model(**batch).logits
            differences[f"{name}, {length} tokens, against eager"] = difference(fast, eager)
    check_differences(differences, "largest difference of a logit", most=1e-4)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
