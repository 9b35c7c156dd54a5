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

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from measuring import last_number_printed_by, machine, peak_memory_of
from torch import nn
from transformers import (
    LEDConfig,
    LongT5Config,
    LongT5EncoderModel,
    MistralConfig,
    MistralForCausalLM,
)
from transformers.models.led.modeling_led import LEDEncoder
from transformers.utils import logging as transformers_logging

from csan_hf import CsanConfig, CsanForConditionalGeneration
from csan_hf_cli import script

D_MODEL, LAYERS, HEADS, FFN, VOCABULARY = 256, 3, 4, 1024, 8000
CASES = {  # name -> tokens, window, whether with backward
    "4,096 tokens, window 513": (4096, 513, False),
    "4,096 tokens, window 513, with backward": (4096, 513, True),
    "16,384 tokens, window 513": (16384, 513, False),
    "4,096 tokens, window 65": (4096, 65, False),
    "4,096 tokens, window 65, with backward": (4096, 65, True),
}
MODELS = ("LED", "LongT5 (local)", "full attention", "1D-CSAN", "2D-CSAN (3 heads)")
MEMORY_LENGTHS = (4096, 16384, 65536)


def encoder(name: str, window: int, length: int) -> nn.Module:
    """The encoder of that name, without dropout."""
    torch.manual_seed(0)
    if name == "LED":
        sizes = {
            "vocab_size": VOCABULARY,
            "d_model": D_MODEL,
            "encoder_layers": LAYERS,
            "encoder_ffn_dim": FFN,
        }
        places = {
            "max_encoder_position_embeddings": length,
            "attention_window": window - 1,
            "dropout": 0.0,
        }
        return LEDEncoder(
            LEDConfig(**sizes, **places, encoder_attention_heads=HEADS, attention_dropout=0.0)
        )
    if name == "LongT5 (local)":
        sizes = {
            "vocab_size": VOCABULARY,
            "d_model": D_MODEL,
            "d_kv": D_MODEL // HEADS,
            "d_ff": FFN,
        }
        layers = {"num_layers": LAYERS, "num_heads": HEADS, "dropout_rate": 0.0}
        return LongT5EncoderModel(LongT5Config(**sizes, **layers, local_radius=(window - 1) // 2))
    is_full = name == "full attention"
    locality = {
        "local_window": None if is_full else window,
        "head_area": 3 if name.startswith("2D") else 1,
    }
    return CsanForConditionalGeneration(
        config(dropout=0.0, max_position_embeddings=length, **locality)
    ).get_encoder()


def config(**fields: object) -> CsanConfig:
    """A CSAN of the size."""
    sides = {"layers": LAYERS, "attention_heads": HEADS, "ffn_dim": FFN}
    sizes = {
        f"{side}_{field}": size for side in ("encoder", "decoder") for field, size in sides.items()
    }
    return CsanConfig(**{"vocab_size": VOCABULARY, "d_model": D_MODEL, **sizes, **fields})  # type: ignore[arg-type]


def make_step(model: nn.Module, length: int, backward: bool) -> Callable[[], None]:
    """A function that encodes one text, without padding."""
    model.train(backward)
    ids = torch.randint(4, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(1))

    def step() -> None:
        with torch.set_grad_enabled(backward):
            states = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
            if backward:
                states.square().mean().backward()
                model.zero_grad(set_to_none=True)

    return step


def print_speeds(rounds: int, only: str) -> None:
    """Prints LED's time divided by each model's, case by case."""
    print(f"| | {' | '.join(MODELS[1:])} |\n| --- |{' ---: |' * len(MODELS[1:])}")
    for case, (length, window, backward) in CASES.items():
        if only not in case:
            continue
        names = [name for name in MODELS if name != "full attention" or length <= 4096]
        steps = {name: make_step(encoder(name, window, length), length, backward) for name in names}
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(rounds + 1):
            for name, step in steps.items():
                start = time.process_time()
                step()
                seconds[name] += (
                    [time.process_time() - start] if turn else []
                )  # the first is a warm-up
        ratios = {
            name: statistics.median(
                led / own for led, own in zip(seconds["LED"], seconds[name], strict=True)
            )
            for name in names
        }
        cells = " | ".join(f"{ratios[name]:.2f}" if name in ratios else "-" for name in MODELS[1:])
        print(f"| {case} | {cells} |", flush=True)


def print_memory() -> None:
    """Prints the peak memory of one forward pass, each in a process of its own."""
    print(
        "\n| forward, window 513, peak MiB | "
        f"{' | '.join(f'{length:,} tokens' for length in MEMORY_LENGTHS)} |"
    )
    print(f"| --- |{' ---: |' * len(MEMORY_LENGTHS)}")
    for name in MODELS:
        if name != "full attention":
            lengths = MEMORY_LENGTHS[: 2 if name == "LED" else None]
            peaks = [
                last_number_printed_by(__file__, ["--memory-of", name, str(length)])
                for length in lengths
            ]
            cells = [f"{peak:,.0f}" for peak in peaks] + ["more than 24 GB"] * (
                len(MEMORY_LENGTHS) - len(peaks)
            )
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


@torch.no_grad()
def print_decoding(tokens: int = 4096, window: int = 129) -> None:
    """Prints the time of a token early and late in a long text, and what the cache holds at the
    end.
    """
    locality = {
        "decoder_locality": [{"window": window}] * LAYERS,
        "local_window": None,
        "head_area": 1,
    }
    full = {"local_window": None, "head_area": 1}
    source = torch.randint(4, VOCABULARY, (1, 128), generator=torch.Generator().manual_seed(1))
    mistral: dict = {"hidden_size": D_MODEL, "intermediate_size": FFN, "num_hidden_layers": LAYERS}
    mistral |= {
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": VOCABULARY,
    }
    models = {
        f"CSAN, decoder windows of {window}": CsanForConditionalGeneration(config(**locality)),
        "CSAN, full decoder": CsanForConditionalGeneration(config(**full)),
        f"Mistral, sliding window {window // 2 + 1}": MistralForCausalLM(
            MistralConfig(**mistral, sliding_window=window // 2 + 1)
        ),
    }
    print(
        "\n| decoder | ms a token, 200 to 456 | ms a token, the last 256 | keys and values at the "
        "end, KiB |"
    )
    print("| --- | ---: | ---: | ---: |")
    for name, model in models.items():
        model.eval()
        given: dict = {"input_ids": source}
        if name.startswith("CSAN"):
            given = {"encoder_outputs": model.get_encoder()(source)}
        cache, token, seconds = None, torch.full((1, 1), 5), []
        for _ in range(tokens):
            start = time.process_time()
            key = "decoder_input_ids" if name.startswith("CSAN") else "input_ids"
            output = model(**{**given, key: token}, cache=cache, use_cache=True)
            cache, token = output.cache, output.logits[:, -1:].argmax(dim=-1)
            seconds.append(time.process_time() - start)
        layers = getattr(cache, "self_attention_cache", cache).layers
        held = (
            sum(states.nbytes for layer in layers for states in (layer.keys, layer.values)) / 1024
        )
        early, late = (
            statistics.mean(seconds[200:456]) * 1000,
            statistics.mean(seconds[-256:]) * 1000,
        )
        print(f"| {name} | {early:.2f} | {late:.2f} | {held:,.0f} |", flush=True)


@script()
def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=7, help="times that each model runs (default: 7)"
    )
    parser.add_argument(
        "--only", default="", help="only the cases whose name contains this, without memory"
    )
    parser.add_argument("--decode", action="store_true", help="decode 4,096 tokens instead")
    parser.add_argument("--memory-of", nargs=2, metavar=("MODEL", "TOKENS"), help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    transformers_logging.set_verbosity_error()
    if args.memory_of:
        name, length = args.memory_of[0], int(args.memory_of[1])
        print(peak_memory_of(make_step(encoder(name, 513, length), length, False), "cpu"))
        return
    print(
        f"d {D_MODEL}, {LAYERS} layers, {HEADS} heads, feed-forward {FFN}; float32; "
        f"{machine('cpu')}\n",
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
