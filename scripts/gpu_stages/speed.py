# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Training steps, encoders of long texts and Pervasive Attention, each beside its anchor."""

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from unittest import mock

import torch
from measuring import Row
from networks import (
    BASE,
    Size,
    encoding_step,
    make,
    make_csan,
    make_encoder,
    make_marian,
    make_pairs,
    output_step,
    random_text,
    training_step,
)
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from csan_hf import PervasiveAttentionConfig
from csan_hf.models.grid_norm import BACKWARD

from .setting import Measurement, Setting, compile_for, milliseconds, peak_gib

SYSTEMS = ("Marian", "off", "csan_1d", "csan_2d", "local_soft", "long")
SENTENCE = 32
"""Tokens of a sentence, on either side."""
WAYS_OF_GRIDS = {
    "dense": ("by hand", "by autograd", "compiled"),
    "residual": ("by autograd", "compiled"),
}
"""How the backward pass of each network comes about. The one by hand computes the features between
convolutions again, in a quarter of the memory.
"""


def size_of(setting: Setting) -> Size:
    """Transformer-base (Vaswani 2017), in a rehearsal two narrow layers."""
    return Size(d_model=64, layers=2, heads=8, ffn=64, vocabulary=100) if setting.tiny else BASE


def model_of(name: str, size: Size) -> PreTrainedModel:
    """One of `SYSTEMS`: transformers' Marian, the anchor, or a CSAN."""
    if name == "Marian":
        return make_marian(size)
    return make_csan(None if name == "off" else name, size)


# --- training steps


def training_steps(setting: Setting) -> Iterator[Measurement]:
    """Forward, backward and fused AdamW in bf16 autocast; tokens of source and target,
    of which every fourth pair has three quarters.
    """
    # First what was not yet measured when docs/gpu.md was written
    cases = [(25000, name, True) for name in ("off", "Marian", "csan_1d", "csan_2d", "long")]
    cases += [(25000, name, False) for name in ("off", "Marian", "csan_2d", "long")]
    cases += [(8192, name, False) for name in SYSTEMS]
    if setting.tiny:
        cases = [(256, name, False) for name in SYSTEMS]
    for tokens, name, is_compiled in cases:
        names: Row = {"tokens": tokens, "model": f"{name}, compiled" if is_compiled else name}
        yield names, partial(_training, name, tokens, is_compiled, setting)


def _training(name: str, tokens: int, is_compiled: bool, setting: Setting) -> Row:
    size = size_of(setting)
    model = model_of(name, size).to(setting.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=setting.device == "cuda")
    pairs = tokens // (2 * SENTENCE)
    lengths = torch.full((2, pairs), SENTENCE)
    lengths[:, ::4] = 3 * SENTENCE // 4
    batch = make_pairs(lengths, size.vocabulary, setting.device)
    with FlopCounterMode(display=False) as counter:
        training_step(model, batch, bf16=True)()
    forward = compile_for(setting, model) if is_compiled else model
    step = training_step(forward, batch, bf16=True, optimizer=optimizer)
    taken = milliseconds(step, setting)
    return {
        "ms": taken,
        "tokens/s": 2 * SENTENCE * pairs / taken * 1e3,
        "share of products, %": 100 * counter.get_total_flops() / (taken / 1e3) / setting.rate,
        "peak GiB": peak_gib(step, setting),
    }


# --- the output layer and its loss


def losses(setting: Setting) -> Iterator[Measurement]:
    """The output layer and its loss in bf16 autocast, forward and backward: all logits at once, and
    as the Trainer computes them.
    """
    for positions in (64,) if setting.tiny else (4096, 12500, 25000):
        for way in ("whole", "in pieces"):
            names: Row = {"target tokens": positions, "logits": way}
            yield names, partial(_loss, positions, way == "in pieces", setting)


def _loss(positions: int, in_pieces: bool, setting: Setting) -> Row:
    size = size_of(setting)
    step = output_step(positions, size, in_pieces=in_pieces, device=setting.device, bf16=True)
    return {"ms": milliseconds(step, setting), "peak GiB": peak_gib(step, setting)}


# --- encoders of long texts


def encoders(setting: Setting) -> Iterator[Measurement]:
    """Milliseconds of one text through an encoder of base width and two layers, in bf16
    autocast, forward and with backward.
    """
    lengths = (128,) if setting.tiny else (16384, 65536, 4096)
    windows = (17,) if setting.tiny else (513, 65, 129)
    for window in windows:
        for length in lengths:
            for name in _encoder_names(length, window == windows[0]):
                names: Row = {"tokens": length, "window": window, "encoder": name}
                yield names, partial(_encoding, name, length, window, setting)


def _encoder_names(length: int, with_full: bool) -> list[str]:
    names = ["LongT5 (local)", "1D-CSAN", "2D-CSAN", "1D-CSAN blocked", "2D-CSAN blocked"]
    if length <= 16384:
        names += ["LED", "1D-CSAN flex_attention"]
    return [*names, "full attention"] if with_full else names


def _encoding(name: str, length: int, window: int, setting: Setting) -> Row:
    size = size_of(setting)._replace(layers=2)
    kind, _, backend = name.partition("CSAN ")
    encoder = make_encoder(f"{kind}CSAN" if backend else kind, window, length, size)
    if backend:
        encoder.set_attn_implementation(backend)
    encoder.to(setting.device)
    inputs = random_text(length, 100, setting.device)
    forward = encoding_step(encoder, inputs, backward=False, bf16=True)
    row: Row = {"forward, ms": milliseconds(forward, setting, rounds=3)}
    if setting.device != "cpu" or "flex" not in name:
        both = encoding_step(encoder, inputs, backward=True, bf16=True)
        row["with backward, ms"] = milliseconds(both, setting, rounds=3)
        row["peak GiB"] = peak_gib(both, setting)
    return row


# --- Pervasive Attention


def pervasive(setting: Setting) -> Iterator[Measurement]:
    """Training steps of Pervasive Attention, dense (L 24, g 32, k 5) and residual; the floor is the
    time of its products at the card's rate.
    """
    vocabulary = 8000
    dense = PervasiveAttentionConfig(vocab_size=vocabulary)
    if setting.tiny:
        sizes = {"num_layers": 2, "growth_rate": 4, "kernel_size": 3}
        dense = PervasiveAttentionConfig(vocab_size=vocabulary, **sizes)
    residual = PervasiveAttentionConfig(
        vocab_size=vocabulary,
        block="residual",
        num_layers=6,
        kernel_size=7,
        ffn_dim=256,
        aggregation="gated_max",
    )
    networks = {"residual": residual, "dense": dense}
    precisions = ("bf16",) if setting.tiny else ("bf16", "float32")
    for (name, config), precision in itertools.product(networks.items(), precisions):
        for way in WAYS_OF_GRIDS[name]:
            names: Row = {"network": name, "way": way, "precision": precision}
            yield names, partial(_grid, config, way, precision == "bf16", setting)


def _grid(config: PervasiveAttentionConfig, way: str, bf16: bool, setting: Setting) -> Row:
    pairs = 2 if setting.tiny else 128
    batch = make_pairs(torch.full((2, pairs), 24), config.vocab_size, setting.device)
    model = make(config).to(setting.device)
    step = training_step(model, batch, bf16=bf16)
    # The counter takes the backward pass of a convolution in groups for that of a whole one
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**batch)
    products = 3 * counter.get_total_flops()
    if way == "compiled":
        step = training_step(compile_for(setting, model), batch, bf16=bf16)
    by_autograd = mock.patch.dict(BACKWARD, clear=True)
    with by_autograd if way == "by autograd" else nullcontext():
        taken = milliseconds(step, setting, rounds=5)
        peak = peak_gib(step, setting)
    return {
        "ms": taken,
        "floor by bf16 products, ms": 1e3 * products / setting.rate,
        "cells/s": pairs * 24 * 24 / taken * 1e3,
        "peak GiB": peak,
    }
