#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Speed and memory of CSAN beside transformers' MarianMTModel of the same size, in one run.

Every round times each model once, in turn, so that a noisy machine disturbs all alike; the table
shows the median time of a step and the median over the rounds of Marian's time divided by the
model's (above 1 = faster than Marian). Before anything is timed the models are checked: CSAN with
locality off must give Marian's logits, and the local models' fast backends those of the eager one.
Peak memory is that of a process of its own which makes one step, less what the process held before
it (CPU), or the peak of the allocator (CUDA).

    python scripts/benchmark.py                    # the table of the README
    python scripts/benchmark.py --size base --dtype bfloat16 --device cuda
    OMP_NUM_THREADS=1 python scripts/benchmark.py --backends    # backend_grid.py
"""

import argparse
import statistics
import sys
from collections.abc import Callable

import backend_grid
import torch
from measuring import (
    BASE,
    MOST_POSITIONS,
    SMALL,
    last_number_printed_by,
    machine,
    make_marian,
    make_pairs,
    make_parser,
    peak_memory_of,
    seconds_in_turn,
    seconds_of,
    speed_ratio,
)
from torch import Tensor
from transformers.utils import logging as transformers_logging

from csan_hf import CsanConfig, CsanForConditionalGeneration
from csan_hf_cli import script

SIZES = {"small": SMALL, "base": BASE}
LOCALITIES: dict[str, dict] = {
    "CSAN, locality off": {"local_window": None, "head_area": 1},
    "1D-CSAN (11)": {"local_window": 11, "head_area": 1},
    "2D-CSAN (3×11)": {"local_window": 11, "head_area": 3},
}
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
        "--size", choices=SIZES, default="small", help="model size (default: small)"
    )
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], default="float32", help="bfloat16: autocast"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--only", help="run only the workloads whose name contains this")
    parser.add_argument(
        "--backends", action="store_true", help="compare the backends of local attention instead"
    )
    parser.add_argument("--no-memory", action="store_true", help="leave the memory column out")
    parser.add_argument(
        "--memory-of", nargs=2, metavar=("MODEL", "WORKLOAD"), help=argparse.SUPPRESS
    )
    args = parser.parse_args(arguments)
    transformers_logging.set_verbosity_error()
    if args.memory_of:
        name, workload = args.memory_of
        print(peak_memory_of(make_step(build(name, args), workload, args), args.device))
        return
    if args.backends:
        backend_grid.print_grid(args.device, args.dtype, args.rounds, args.only)
    else:
        check_models(args)
        print_workloads(args)


def print_workloads(args: argparse.Namespace) -> None:
    """Prints the table of the models, workload by workload."""
    size = SIZES[args.size]
    print(
        f"\nd {size.d_model}, {size.layers}+{size.layers} layers, {size.heads} heads, "
        f"feed-forward {size.ffn}, vocabulary {size.vocabulary}; {args.dtype}; "
        f"{machine(args.device)}\n"
    )
    print(
        "| workload | model | median s | speed × Marian | peak memory MiB |\n| --- | --- | --- | "
        "--- | --- |"
    )
    for workload in WORKLOADS:
        if args.only is None or args.only in workload:
            print_workload(workload, args)


def print_workload(workload: str, args: argparse.Namespace) -> None:
    """Prints the rows of one workload, Marian's first."""
    names = ["MarianMTModel", *LOCALITIES]
    steps = {name: make_step(build(name, args), workload, args) for name in names}
    times = seconds_in_turn(steps, args.rounds, lambda step: seconds_of(step, args.device))
    for name, seconds in times.items():
        speed = speed_ratio(times["MarianMTModel"], seconds)
        memory = "-" if args.no_memory else f"{memory_of(name, workload, args):,.0f}"
        print(
            f"| {workload} | {name} | {statistics.median(seconds):.3f} | {speed:.2f} | {memory} |",
            flush=True,
        )


def build(name: str, args: argparse.Namespace) -> torch.nn.Module:
    """The model of that name, all with the same weights."""
    size = SIZES[args.size]
    marian = make_marian(size)
    if name == "MarianMTModel":
        return marian.to(args.device)
    config = CsanConfig(**size.fields(), **LOCALITIES[name], max_position_embeddings=MOST_POSITIONS)
    model = CsanForConditionalGeneration(config)
    model.load_state_dict(marian.state_dict(), strict=False)  # positions are made, not loaded
    return model.to(args.device)


def make_batch(pairs: int, length: int, args: argparse.Namespace) -> dict[str, Tensor]:
    """Random sentences; lengths spread by a fifth around `length` where there are several."""
    generator = torch.Generator().manual_seed(1)
    spread = length // 5 if pairs > 4 else 0
    lengths = torch.randint(length - spread, length + spread + 1, (2, pairs), generator=generator)
    lengths[:, 0] = length + spread
    return make_pairs(lengths, SIZES[args.size].vocabulary, args.device)


def make_step(
    model: torch.nn.Module, workload: str, args: argparse.Namespace
) -> Callable[[], None]:
    """A function that makes one step of the workload."""
    pairs, length, kind = WORKLOADS[workload]
    batch = make_batch(pairs, length, args)
    source = {key: batch[key] for key in ("input_ids", "attention_mask")}
    autocast = torch.autocast(args.device, dtype=torch.bfloat16, enabled=args.dtype == "bfloat16")

    def train() -> None:
        model.train()
        with autocast:
            loss = model(**batch).loss
        loss.backward()
        model.zero_grad(set_to_none=True)

    def encode() -> None:
        model.eval()
        with torch.no_grad(), autocast:
            model.get_encoder()(**source)

    def train_encoder() -> None:
        model.train()
        with autocast:
            states = model.get_encoder()(**source).last_hidden_state
        states.float().square().mean().backward()
        model.zero_grad(set_to_none=True)

    def generate() -> None:
        model.eval()
        with autocast:
            # Exactly 25 tokens each: no model gains by stopping early.
            model.generate(**source, num_beams=5, min_new_tokens=25, max_new_tokens=25)

    steps = {
        "train": train,
        "encoder": encode,
        "encoder-train": train_encoder,
        "generate": generate,
    }
    return steps[kind]


def memory_of(name: str, workload: str, args: argparse.Namespace) -> float:
    """Peak memory of one step in a fresh process, in MiB."""
    options = [f"--size={args.size}", f"--dtype={args.dtype}", f"--device={args.device}"]
    return last_number_printed_by(__file__, [*options, "--memory-of", name, workload])


@torch.no_grad()
def check_models(args: argparse.Namespace) -> None:
    """Exit with an error unless the models compute what they should."""

    def difference(logits: Tensor, expected: Tensor) -> float:
        return (logits - expected).abs().max().item()

    batch = make_batch(6, 25, args)
    expected = build("MarianMTModel", args).eval()(**batch).logits
    plain = build("CSAN, locality off", args).eval()(**batch).logits
    differences = {"CSAN, locality off, against Marian": difference(plain, expected)}
    for length in (25, 200):
        batch = make_batch(2, length, args)
        for name in list(LOCALITIES)[1:]:
            model = build(name, args).eval()
            fast = model(**batch).logits
            model.set_attn_implementation("eager")
            eager = model(**batch).logits
            differences[f"{name}, {length} tokens, against eager"] = difference(fast, eager)
    for name, largest in differences.items():
        print(f"check: {name}: largest difference of a logit {largest:.1e}")
        if not largest < 1e-4:
            sys.exit(
                f"error: {name}: logits differ by {largest}; a benchmark of wrong results is "
                "worth nothing."
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
