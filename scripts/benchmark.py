#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Speed and memory of CSAN and Pervasive Attention on a CPU, each comparison in one run."""

import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import backend_grid
import numpy as np
import torch
from measuring import Workload, check_equal, compare, machine, print_table
from networks import (
    BASE,
    MOST_POSITIONS,
    SMALL,
    Size,
    Step,
    encoding_step,
    make,
    make_csan,
    make_encoder,
    make_marian,
    make_pairs,
    output_step,
    random_ids,
    random_text,
    search_step,
    training_step,
)
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from csan_hf import PervasiveAttentionConfig
from csan_hf.hub.onnx import export_onnx
from csan_hf.models.modeling_csan import CsanEncoderOutput
from csan_hf_runtime.command_line import run
from csan_hf_runtime.graphs import GraphDecoder, Graphs


def benchmark(
    comparison: Literal["marian", "long", "steps", "pervasive", "loss", "backends"] = "marian",
    /,
    *,
    rounds: int = 7,
    only: str = "",
) -> None:
    """Speed and memory of CSAN and Pervasive Attention on a CPU, in one run.

        python scripts/benchmark.py
        OMP_NUM_THREADS=1 python scripts/benchmark.py long
        OMP_NUM_THREADS=1 python scripts/benchmark.py steps --rounds 50
        OMP_NUM_THREADS=1 python scripts/benchmark.py backends

    Every round runs each model once, in turn, so that a noisy machine disturbs all alike; the table
    shows the median time of a step (with one thread the processor's) and the median over the rounds
    of the first model's time divided by the model's (above 1 = faster). Peak memory is that of a
    process of its own which runs one step, less what the process held before it. On a GPU
    scripts/gpu.py measures, in its stages training-step, encoders, pervasive, generation, backends.

    Args:
        comparison: marian: CSAN beside transformers' MarianMTModel of the same size, after a check
            that all compute what they should; long: encoders of long texts beside LED, LongT5
            (local) and full attention; steps: a token of five beams after sources of 100 to 10,000
            tokens, by the presets lines and long, with torch and ONNX Runtime (memory: with the
            source's keys); pervasive: Pervasive Attention in float32 and bf16; loss:
            the output layer and its loss, all logits at once and as the Trainer computes them;
            backends: those of local attention beside the one chosen by default
        rounds: times that each model runs
        only: run only the workloads whose name contains this
    """
    transformers_logging.set_verbosity_error()
    print(f"{SMALL}; {machine()}")
    if comparison == "marian":
        check_models()
    if comparison == "backends":
        print_table(backend_grid.rows(rounds, only))
        return
    workloads = {
        "marian": marian_workloads,
        "long": long_workloads,
        "steps": step_workloads,
        "pervasive": pervasive_workloads,
        "loss": loss_workloads,
    }[comparison]
    print_table(compare(workloads(), rounds, only))


# --- CSAN beside Marian

MARIAN = "MarianMTModel"
PRESETS = {"CSAN, locality off": None, "1D-CSAN (11)": "csan_1d", "2D-CSAN (3×11)": "csan_2d"}


def marian_workloads() -> Iterator[Workload]:
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
    for workload, make_step in makers.items():
        yield workload, {name: partial(make_step, name) for name in (MARIAN, *PRESETS)}


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


def long_workloads() -> Iterator[Workload]:
    """Encoding of one text."""
    for length, window, backward in LONG_TEXTS:
        workload = f"{length:,} tokens, window {window}"
        if backward:
            workload += ", with backward"
        encoders = [name for name in ENCODERS if length <= LONGEST.get(name, length)]
        yield (
            workload,
            {name: partial(encode_long, name, window, length, backward) for name in encoders},
        )


def encode_long(name: str, window: int, length: int, backward: bool) -> Step:
    """An encoder on one text."""
    text = random_text(length, SMALL.vocabulary)
    return encoding_step(make_encoder(name, window, length, SMALL), text, backward=backward)


# --- steps of decoding after long sources

BEAMS = 5
LINE_TOKEN = 3
LINE_LENGTH = 25  # tokens, with the line's mark


def step_workloads() -> Iterator[Workload]:
    """A token after sources of several lengths; each first step computes the source's keys, that of
    ONNX the encoder's states, too.
    """
    with tempfile.TemporaryDirectory() as directory:
        folders = {preset: Path(directory, preset) for preset in ("lines", "long")}
        for preset, folder in folders.items():
            export_onnx(make_of_lines(preset), folder)
        for length in (100, 1_000, 10_000):
            variants: dict[str, Callable[[], Step]] = {}
            for preset, folder in folders.items():
                variants[preset] = partial(torch_step, preset, length)
                variants[f"{preset}, ONNX"] = partial(graph_step, folder, length)
            yield f"a token of {BEAMS} beams after {length:,} source tokens", variants


def make_of_lines(preset: str) -> Any:
    """A CSAN with a preset, whose lines end with `LINE_TOKEN`."""
    return make_csan(preset, SMALL, line_token_id=LINE_TOKEN).eval()


def encoded_lines(length: int) -> tuple[Tensor, Tensor]:
    """Tokens [1, J] of a source of lines, and random states [1, J, d] of an encoder."""
    ids = random_ids(1, length, vocabulary=SMALL.vocabulary)
    ids[:, LINE_LENGTH - 1 :: LINE_LENGTH] = LINE_TOKEN
    return ids, torch.randn(1, length, SMALL.d_model)


def torch_step(preset: str, length: int) -> Step:
    """A step of the model."""
    model = make_of_lines(preset)
    ids, states = (tensor.repeat_interleave(BEAMS, dim=0) for tensor in encoded_lines(length))
    line_ids = (torch.arange(length) // LINE_LENGTH).expand(BEAMS, -1)
    step = partial(
        model,
        encoder_outputs=CsanEncoderOutput(last_hidden_state=states, line_ids=line_ids),
        attention_mask=torch.ones_like(ids),
        decoder_input_ids=ids[:, :1],
        cache=model.make_cache(BEAMS),
    )
    return torch.no_grad()(step)


def graph_step(folder: Path, length: int) -> Step:
    """A step of the exported model."""
    graphs = Graphs.from_directory(folder, threads=torch.get_num_threads())
    ids = encoded_lines(length)[0].numpy()
    decoder = cache(lambda: GraphDecoder(graphs, graphs.encode(ids, np.ones_like(ids))))
    tokens = ids[:, :1].repeat(BEAMS, axis=0)
    lengths = itertools.count(1)
    return lambda: decoder().step(tokens.repeat(next(lengths), axis=1))


# --- Pervasive Attention


def pervasive_workloads() -> Iterator[Workload]:
    """Training steps and searches of Pervasive Attention, in both precisions."""
    pairs = make_pairs(torch.full((2, 16), 24), SMALL.vocabulary, "cpu")
    source = random_text(24, SMALL.vocabulary)
    makers: dict[str, Callable[..., Step]] = {
        "training step, 16 pairs of 24 × 24 tokens": partial(grid_step, training_step, pairs)
    }
    for tokens in (16, 64, 256):
        makers[f"greedy, {tokens} new tokens"] = partial(grid_step, search_step, source, tokens)
    for workload, make_step in makers.items():
        yield (
            workload,
            {"float32": partial(make_step, bf16=False), "bf16": partial(make_step, bf16=True)},
        )


def grid_step(make_step: Callable[..., Step], *work: Any, bf16: bool) -> Step:
    """A step of a network that is built first."""
    network = make(PervasiveAttentionConfig(vocab_size=SMALL.vocabulary))
    return make_step(network, *work, bf16=bf16)


# --- the output layer and its loss


def loss_workloads() -> Iterator[Workload]:
    """Output layers of several vocabularies, after a check that both have the same gradients."""
    for positions, width, vocabulary in ((4096, 512, 32000), (4096, 256, 8000), (3000, 256, 400)):
        size = SMALL._replace(d_model=width, vocabulary=vocabulary)
        name = f"{positions:,} target tokens of width {width}, {vocabulary:,} words"
        variants = {
            way: partial(output_step, positions, size, in_pieces=way == "in pieces")
            for way in ("whole", "in pieces")
        }
        whole, in_pieces = (make_step()() for make_step in variants.values())
        check_equal(name, in_pieces, whole)
        yield name, variants


if __name__ == "__main__":
    sys.exit(run(benchmark, sys.argv[1:]))
