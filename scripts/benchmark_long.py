#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Encoders of long texts: CSAN's windows beside LED, LongT5 (local) and full attention of the same
size, in one run.

Every round runs each model once, in turn; the table shows the median over the rounds of LED's
processor time divided by the model's (above 1 = faster than LED), forward and forward with
backward. d 256, 3 layers, 4 heads, feed-forward
1024. Peak memory is that of a process of its own.

    OMP_NUM_THREADS=1 python scripts/benchmark_long.py              # the table, then memory
    OMP_NUM_THREADS=1 python scripts/benchmark_long.py --decode     # decoding 4,096 tokens instead
"""

import statistics
import sys
import time
from functools import partial
from typing import Any

import torch
from measuring import (
    machine,
    make_parser,
    peak_memory_of,
    processor_seconds,
    seconds_in_turn,
    speed_ratio,
)
from networks import SMALL, Step, encoding_step, make_csan, make_encoder, random_ids
from transformers import MistralConfig, MistralForCausalLM
from transformers.utils import logging as transformers_logging

from csan_hf_cli import script

CASES = {  # name -> tokens, window, whether with backward
    "4,096 tokens, window 513": (4096, 513, False),
    "4,096 tokens, window 513, with backward": (4096, 513, True),
    "16,384 tokens, window 513": (16384, 513, False),
    "4,096 tokens, window 65": (4096, 65, False),
    "4,096 tokens, window 65, with backward": (4096, 65, True),
}
MODELS = ("LED", "LongT5 (local)", "full attention", "1D-CSAN", "2D-CSAN (3 heads)")
MEMORY_LENGTHS = (4096, 16384, 65536)


def make_step(name: str, window: int, length: int, backward: bool) -> Step:
    """A function that encodes one text, without padding."""
    ids = random_ids(1, length, vocabulary=SMALL.vocabulary)
    source = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return encoding_step(make_encoder(name, window, length, SMALL), source, backward=backward)


def print_speeds(rounds: int, only: str) -> None:
    """Prints LED's time divided by each model's, case by case."""
    print(f"| | {' | '.join(MODELS[1:])} |\n| --- |{' ---: |' * len(MODELS[1:])}")
    for case, (length, window, backward) in CASES.items():
        if only not in case:
            continue
        names = [name for name in MODELS if name != "full attention" or length <= 4096]
        steps = {name: make_step(name, window, length, backward) for name in names}
        times = seconds_in_turn(steps, rounds, processor_seconds)
        cells = dict.fromkeys(MODELS[1:], "-")
        for name in names[1:]:
            cells[name] = f"{speed_ratio(times['LED'], times[name]):.2f}"
        print(f"| {case} | {' | '.join(cells.values())} |", flush=True)


def print_memory() -> None:
    """Prints the peak memory of one forward pass, each in a process of its own."""
    print(
        "\n| forward, window 513, peak MiB | "
        f"{' | '.join(f'{length:,} tokens' for length in MEMORY_LENGTHS)} |"
    )
    print(f"| --- |{' ---: |' * len(MEMORY_LENGTHS)}")
    for name in MODELS:
        if name == "full attention":
            continue
        cells = []
        for length in MEMORY_LENGTHS:
            if name == "LED" and length > 16384:
                cells.append("more than 24 GB")
                continue
            peak = peak_memory_of(partial(make_step, name, 513, length, backward=False))
            cells.append(f"{peak:,.0f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


@torch.no_grad()
def print_decoding(tokens: int = 4096, window: int = 129) -> None:
    """Prints the time of a token early and late in a long text, and what the cache holds at the
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
    source = random_ids(1, 128, vocabulary=SMALL.vocabulary)
    print(
        "\n| decoder | ms a token, 200 to 456 | ms a token, the last 256 | keys and values at the "
        "end, KiB |"
    )
    print("| --- | ---: | ---: | ---: |")
    for name, model in models.items():
        model.eval()
        inputs: dict[str, Any] = {}
        key = "input_ids"
        if name.startswith("CSAN"):
            inputs = {"encoder_outputs": model.get_encoder()(source)}
            key = "decoder_input_ids"
        cache: Any = None
        token = torch.full((1, 1), 5)
        seconds = []
        for _ in range(tokens):
            start = time.process_time()
            output = model(**inputs, **{key: token}, cache=cache, use_cache=True)
            cache = output.cache
            token = output.logits[:, -1:].argmax(dim=-1)
            seconds.append(time.process_time() - start)
        layers = getattr(cache, "self_attention_cache", cache).layers
        kib = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers) / 1024
        early = statistics.mean(seconds[200:456]) * 1000
        late = statistics.mean(seconds[-256:]) * 1000
        print(f"| {name} | {early:.2f} | {late:.2f} | {kib:,.0f} |", flush=True)


@script()
def main(arguments: list[str]) -> None:
    parser = make_parser(__doc__, rounds=7)
    parser.add_argument(
        "--only", default="", help="only the cases whose name contains this, without memory"
    )
    parser.add_argument("--decode", action="store_true", help="decode 4,096 tokens instead")
    args = parser.parse_args(arguments)
    transformers_logging.set_verbosity_error()
    print(
        f"d {SMALL.d_model}, {SMALL.layers} layers, {SMALL.heads} heads, feed-forward {SMALL.ffn}; "
        f"float32; {machine()}\n",
        flush=True,
    )
    if args.decode:
        print_decoding()
        return
    print_speeds(args.rounds, args.only)
    if not args.only:
        print_memory()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
