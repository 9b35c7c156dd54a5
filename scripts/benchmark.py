#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Speed and memory of CSAN on a CPU, each table in one run."""

import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import backend_grid
import torch
from measuring import Row, Variants, check_equal, compare, cpu_clock, machine, print_table
from networks import (
    BASE,
    MOST_POSITIONS,
    SMALL,
    Size,
    Step,
    encoding_step,
    make_csan,
    make_encoder,
    make_marian,
    make_pairs,
    random_text,
    search_step,
    training_step,
)
from torch import Tensor
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from csan_hf_cli import run


def benchmark(
    table: Literal["marian", "long", "decoding", "backends"] = "marian",
    /,
    *,
    rounds: int = 7,
    only: str = "",
) -> None:
    """Speed and memory of CSAN on a CPU, in one run.

        python scripts/benchmark.py
        OMP_NUM_THREADS=1 python scripts/benchmark.py long
        OMP_NUM_THREADS=1 python scripts/benchmark.py decoding
        OMP_NUM_THREADS=1 python scripts/benchmark.py backends

    Every round runs each model once, in turn, so that a noisy machine disturbs all alike; the table
    shows the median time of a step (with one thread the processor's) and the median over the rounds
    of the first model's time divided by the model's (above 1 = faster). Peak memory is that of a
    process of its own which runs one step, less what the process held before it. On a GPU
    scripts/gpu.py measures, in its stages training-step, encoders, generation, backends.

    Args:
        table: marian: CSAN beside transformers' MarianMTModel of the same size, after a check that
            all compute what they should; long: encoders of long texts beside LED, LongT5 (local)
            and full attention; decoding: 4,096 tokens, with windows, without, and by Mistral;
            backends: those of local attention beside the one chosen by default
        rounds: times that each model runs (not of decoding, which generates once)
        only: run only the workloads whose name contains this (not of decoding)
    """
    transformers_logging.set_verbosity_error()
    print(f"{SMALL}; {machine()}")
    if table == "marian":
        check_models()
        rows = compare(marian_workloads(), rounds, only)
    elif table == "long":
        rows = compare(long_workloads(), rounds, only)
    elif table == "decoding":
        rows = decoding()
    else:
        rows = backend_grid.rows(rounds, only)
    print_table(rows)


# --- CSAN beside Marian

MARIAN = "MarianMTModel"
PRESETS = {"CSAN, locality off": None, "1D-CSAN (11)": "csan_1d", "2D-CSAN (3×11)": "csan_2d"}


def marian_workloads() -> dict[str, Variants]:
    """Training, encoding and beam search by Marian and CSAN."""
    makers: dict[str, Callable[..., Step]] = {
        "training step, 80 pairs of about 25 tokens": partial(train, pairs=80, length=25),
        "training step, 4 pairs of 512 tokens": partial(train, pairs=4, length=512),
        "training step, 1 pair of 2,048 tokens": partial(train, pairs=1, length=2048),
        "beam 5, 16 sentences of about 25 tokens": search,
    }
    for length in (2048, 4096):
        for backward in (False, True):
            passes = "forward and backward" if backward else "forward"
            workload = f"encoder alone, 1 sentence of {length:,} tokens, {passes}"
            makers[workload] = partial(encode, length=length, backward=backward)
        base = f"six layers of width 512, the lowest three local, {length:,} tokens"
        makers[f"{base}, encoder alone, forward"] = partial(encode, length=length, size=BASE)
        makers[f"{base}, training step"] = partial(train, pairs=1, length=length, size=BASE)
    workloads: dict[str, Variants] = {}
    for workload, make_step in makers.items():
        workloads[workload] = {name: partial(make_step, name) for name in (MARIAN, *PRESETS)}
    return workloads


def build(name: str, size: Size = SMALL) -> PreTrainedModel:
    """The model of that name, all with the same weights."""
    marian = make_marian(size)
    if name == MARIAN:
        return marian
    model = make_csan(PRESETS[name], size, max_position_embeddings=MOST_POSITIONS)
    model.load_state_dict(marian.state_dict(), strict=False)  # positions are made, not loaded
    return model


def make_batch(pairs: int, length: int) -> dict[str, Tensor]:
    """Random sentences; of more than four, lengths spread by a fifth around `length`."""
    generator = torch.Generator().manual_seed(1)
    spread = length // 5 if pairs > 4 else 0
    lengths = torch.randint(length - spread, length + spread + 1, (2, pairs), generator=generator)
    lengths[:, 0] = length + spread  # a batch as wide as it can be
    return make_pairs(lengths, SMALL.vocabulary, "cpu")


def train(name: str, pairs: int, length: int, size: Size = SMALL) -> Step:
    """A training step, without the optimiser's."""
    return training_step(build(name, size), make_batch(pairs, length))


def encode(name: str, length: int, backward: bool = False, size: Size = SMALL) -> Step:
    """The encoder alone, on one sentence."""
    text = random_text(length, size.vocabulary)
    return encoding_step(build(name, size).get_encoder(), text, backward=backward)


def search(name: str) -> Step:
    """Beam search."""
    source = make_batch(16, 25)
    del source["labels"]
    return search_step(build(name), source, 25, num_beams=5)


@torch.no_grad()
def check_models() -> None:
    """CSAN with locality off must give Marian's logits, the fast backends those of the eager one.

    Raises:
        ValueError: They do not.
    """
    batch = make_batch(6, 25)
    expected = build(MARIAN).eval()(**batch).logits
    plain = build("CSAN, locality off").eval()(**batch).logits
    check_equal("CSAN, locality off, against Marian", plain, expected)
    for length in (25, 200):
        batch = make_batch(2, length)
        for name in ("1D-CSAN (11)", "2D-CSAN (3×11)"):
            model = build(name).eval()
            fast = model(**batch).logits
            model.set_attn_implementation("eager")
            check_equal(f"{name}, {length} tokens, against eager", fast, model(**batch).logits)


# --- encoders of long texts

ENCODERS = ("LED", "LongT5 (local)", "full attention", "1D-CSAN", "2D-CSAN (3 heads)")
LONGEST = {"LED": 16384, "full attention": 4096}
"""Tokens: more would take LED more than 24 GB, and full attention minutes."""
# Tokens, window, whether with backward
LONG_TEXTS = (
    (4096, 513, False),
    (4096, 513, True),
    (16384, 513, False),
    (65536, 513, False),
    (4096, 65, False),
    (4096, 65, True),
)


def long_workloads() -> dict[str, Variants]:
    """Encoding of one text."""
    workloads: dict[str, Variants] = {}
    for length, window, backward in LONG_TEXTS:
        workload = f"{length:,} tokens, window {window}"
        if backward:
            workload += ", with backward"
        workloads[workload] = {
            name: partial(encode_long, name, window, length, backward)
            for name in ENCODERS
            if length <= LONGEST.get(name, length)
        }
    return workloads


def encode_long(name: str, window: int, length: int, backward: bool) -> Step:
    """An encoder on one text."""
    text = random_text(length, SMALL.vocabulary)
    return encoding_step(make_encoder(name, window, length, SMALL), text, backward=backward)


# --- decoding of a long text


@torch.no_grad()
def decoding(tokens: int = 4096, window: int = 129) -> Iterator[Row]:
    """Rows: the time of a token early and late in a long text, and what the cache holds at its
    end.
    """
    windows = [{"window": window}] * SMALL.layers
    mistral = MistralConfig(
        hidden_size=SMALL.d_model,
        intermediate_size=SMALL.ffn,
        num_hidden_layers=SMALL.layers,
        num_attention_heads=SMALL.heads,
        num_key_value_heads=SMALL.heads,
        vocab_size=SMALL.vocabulary,
        sliding_window=window // 2 + 1,
    )
    models: dict[str, Any] = {
        f"CSAN, decoder windows of {window}": make_csan(None, SMALL, decoder_locality=windows),
        "CSAN, full decoder": make_csan(None, SMALL),
        f"Mistral, sliding window {window // 2 + 1}": MistralForCausalLM(mistral),
    }
    source = random_text(128, SMALL.vocabulary)
    token = torch.full((1, 1), 5)
    for name, model in models.items():
        model.eval()
        inputs: dict[str, Any] = {"input_ids": token}
        if name.startswith("CSAN"):
            states = model.get_encoder()(**source)
            inputs = {"encoder_outputs": states, "decoder_input_ids": token}
        cache: Any = None
        seconds = []
        for _ in range(tokens):
            start = cpu_clock()
            cache = model(**inputs, cache=cache, use_cache=True).cache
            seconds.append(cpu_clock() - start)
        layers = getattr(cache, "self_attention_cache", cache).layers
        yield {
            "decoder": name,
            "ms per token, 200 to 456": statistics.mean(seconds[200:456]) * 1000,
            "ms per token, the last 256": statistics.mean(seconds[-256:]) * 1000,
            "cache at the end, KiB": sum(
                layer.keys.nbytes + layer.values.nbytes for layer in layers
            )
            / 1024,
        }


if __name__ == "__main__":
    sys.exit(run(benchmark, sys.argv[1:]))
