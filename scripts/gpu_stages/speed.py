# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Training steps, encoders of long texts and Pervasive Attention, each beside its anchor."""

import argparse
import itertools
from collections.abc import Iterator
from typing import Any

import benchmark_long
import benchmark_pervasive_attention as straightforward
import torch
from measuring import BASE, Size, make_marian, make_pairs
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from csan_hf import (
    CsanConfig,
    CsanForConditionalGeneration,
    PervasiveAttentionConfig,
    PervasiveAttentionForConditionalGeneration,
)

from .setting import Row, Setting, milliseconds, peak_gib, row_of

OFF: dict[str, Any] = {"local_window": None, "head_area": 1}
SYSTEMS = ("off", "csan_1d", "csan_2d", "local_soft", "long")
SENTENCE = 32
"""Tokens of a sentence, on either side."""


def size_of(setting: Setting) -> Size:
    """Transformer-base (Vaswani 2017), in a rehearsal two narrow layers."""
    return Size(d_model=64, layers=2, heads=8, ffn=64, vocabulary=100) if setting.tiny else BASE


def marian(setting: Setting) -> Any:
    """transformers' Marian of this size, the anchor."""
    return make_marian(size_of(setting)).to(setting.device)


def csan(name: str, setting: Setting) -> Any:
    """A CSAN of this size: a preset, or "off"."""
    torch.manual_seed(0)
    fields = size_of(setting).fields()
    config = CsanConfig(**fields, **OFF) if name == "off" else CsanConfig.preset(name, **fields)
    return CsanForConditionalGeneration(config).to(setting.device)


# --- training steps


def training_steps(setting: Setting) -> Iterator[Row]:
    """Rows: forward, backward and fused AdamW in bf16 autocast; tokens of source and target."""
    # First what was not yet measured when docs/gpu.md was written
    cases = [(25000, name, False) for name in ("Marian", "off", "csan_2d", "long")]
    cases += [(8192, name, True) for name in ("off", "Marian", "csan_2d")]
    cases += [(8192, name, False) for name in ("Marian", *SYSTEMS)]
    if setting.tiny:
        cases = [(256, name, False) for name in ("Marian", *SYSTEMS)]
    for tokens, name, is_compiled in cases:
        if setting.is_over:
            return
        names: Row = {"tokens": tokens, "model": f"{name}, compiled" if is_compiled else name}
        yield row_of(names, _training, name, tokens, is_compiled, setting)
        torch.compiler.reset()


def _training(name: str, tokens: int, is_compiled: bool, setting: Setting) -> Row:
    model = marian(setting) if name == "Marian" else csan(name, setting)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=setting.device == "cuda")
    pairs = tokens // (2 * SENTENCE)
    batch = _pairs(pairs, setting, model.config.vocab_size)
    forward = torch.compile(model) if is_compiled else model

    def step() -> None:
        with setting.autocast():
            loss = forward(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    with FlopCounterMode(display=False) as counter:
        with setting.autocast():
            loss = model(**batch).loss
        loss.backward()
    optimizer.zero_grad(set_to_none=True)
    taken = milliseconds(step, setting)
    return {
        "ms": taken,
        "tokens/s": 2 * SENTENCE * pairs / taken * 1e3,
        "share of products, %": 100 * counter.get_total_flops() / (taken / 1e3) / setting.rate,
        "peak GiB": peak_gib(step, setting),
    }


def _pairs(pairs: int, setting: Setting, vocabulary: int) -> dict[str, torch.Tensor]:
    """Pairs of which every fourth is three quarters as long, on either side."""
    lengths = torch.full((2, pairs), SENTENCE)
    lengths[:, ::4] = 3 * SENTENCE // 4
    return make_pairs(lengths, vocabulary, setting.device)


# --- encoders of long texts


def encoders(setting: Setting) -> Iterator[Row]:
    """Rows: milliseconds of one text through an encoder of base width and two layers, in bf16
    autocast, forward and with backward.
    """
    lengths = (128,) if setting.tiny else (16384, 65536, 4096)
    windows = (17,) if setting.tiny else (513, 65, 129)
    for window in windows:
        for length in lengths:
            for name in _encoder_names(length, window == windows[0]):
                if setting.is_over:
                    return
                names: Row = {"tokens": length, "window": window, "encoder": name}
                yield row_of(names, _encoding, name, length, window, setting)


def _encoder_names(length: int, with_full: bool) -> list[str]:
    names = ["LongT5 (local)", "1D-CSAN", "2D-CSAN", "1D-CSAN blocked", "2D-CSAN blocked"]
    if length <= 16384:
        names += ["LED", "1D-CSAN flex_attention"]
    return [*names, "full attention"] if with_full else names


def _encoding(name: str, length: int, window: int, setting: Setting) -> Row:
    model = _encoder(name, length, window, setting).to(setting.device)
    ids = torch.randint(4, 100, (1, length), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids.to(setting.device)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])

    def forward() -> None:
        with torch.no_grad(), setting.autocast():
            model.eval()(**inputs)

    def both() -> None:
        with setting.autocast():
            states = model.train()(**inputs).last_hidden_state
        states.float().square().mean().backward()
        model.zero_grad(set_to_none=True)

    row: Row = {"forward, ms": milliseconds(forward, setting, rounds=3)}
    if setting.device != "cpu" or "flex" not in name:
        row["with backward, ms"] = milliseconds(both, setting, rounds=3)
        row["peak GiB"] = peak_gib(both, setting)
    return row


def _encoder(name: str, length: int, window: int, setting: Setting) -> nn.Module:
    size = size_of(setting)._replace(layers=2)
    kind, _, backend = name.partition("CSAN ")
    model = benchmark_long.encoder(f"{kind}CSAN" if backend else kind, window, length, size)
    if backend:
        model.set_attn_implementation(backend)
    return model


# --- Pervasive Attention


def pervasive(setting: Setting) -> Iterator[Row]:
    """Rows: training steps of Pervasive Attention (L 24, g 32, k 5), dense beside the
    straightforward network, and residual; the floor is the time of its products at the card's rate.
    """
    sizes = {"num_layers": 24, "growth_rate": 32, "kernel_size": 5}
    if setting.tiny:
        sizes |= {"num_layers": 2, "growth_rate": 4, "kernel_size": 3}
    args = argparse.Namespace(device=setting.device, **sizes)
    networks = ("residual", "dense", "straightforward", "straightforward, channels last")
    for name, precision in itertools.product(networks, ("float32", "bf16")):
        if setting.is_over:
            return
        names: Row = {"network": name, "precision": precision}
        yield row_of(names, _grid, name, precision, args, setting)


def _grid(name: str, precision: str, args: argparse.Namespace, setting: Setting) -> Row:
    if name == "residual":
        fields = {"block": "residual", "ffn_dim": 256, "aggregation": "gated_max"}
        config = PervasiveAttentionConfig(
            vocab_size=straightforward.VOCABULARY, num_layers=6, kernel_size=7, **fields
        )
        model = PervasiveAttentionForConditionalGeneration(config).to(setting.device)
    else:
        model = straightforward.build(args)
    if name.startswith("straightforward"):
        model = straightforward.make_straightforward(model, name.endswith("channels last"))
    model.train()
    pairs = 2 if setting.tiny else 128
    batch = straightforward.make_batch(pairs, args)

    def step() -> None:
        with setting.autocast(torch.bfloat16 if precision == "bf16" else None):
            loss = model(**batch).loss
        loss.backward()
        model.zero_grad(set_to_none=True)

    taken = milliseconds(step, setting, rounds=5)
    with FlopCounterMode(display=False) as counter:
        step()
    return {
        "ms": taken,
        "floor by bf16 products, ms": 1e3 * counter.get_total_flops() / setting.rate,
        "cells/s": pairs * 24 * 24 / taken * 1e3,
        "peak GiB": peak_gib(step, setting),
    }
