#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Speed and memory of Pervasive Attention beside a straightforward implementation of it."""

import copy
import sys
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from measuring import Variants, check_equal, compare, machine, print_table
from networks import Step, bf16_autocast, make, random_ids, training_step
from torch import Tensor, nn
from transformers.utils import logging as transformers_logging

from csan_hf import PervasiveAttentionConfig
from csan_hf.models.modeling_pervasive_attention import PervasiveAttentionDecoderOutput
from csan_hf_cli import run

VOCABULARY = 8000


class FullConvolution(nn.Conv2d):
    """A full k×k convolution times a mask, from the rows of a kernel that do not look ahead."""

    def __init__(self, weight: Tensor) -> None:
        outputs, inputs, rows, kernel = weight.shape
        super().__init__(inputs, outputs, kernel, padding=kernel // 2, bias=False)
        self.weight.data = F.pad(weight.data, (0, 0, 0, kernel - rows))
        self.register_buffer("mask", torch.ones(kernel, kernel))
        self.mask[rows:] = 0

    def forward(self, features: Tensor) -> Tensor:
        return F.conv2d(features, self.weight * self.mask, padding=self.padding)


class StraightforwardNetwork(nn.Module):
    """A dense block with its transition and last normalisation as plain 2D modules, with the
    weights of ours.
    """

    def __init__(self, decoder: nn.Module, channels_last: bool) -> None:
        super().__init__()
        block = decoder.dense_block
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.halve = _pointwise(decoder.input_projection.weight, decoder.input_projection.bias)
        self.layers = nn.ModuleList()
        for layer in block.layers:
            plain_layer = nn.Sequential(
                _plain_norm(layer.norm1, block.feature_norm),
                nn.ReLU(),
                _pointwise(layer.conv1.weight),
                _plain_norm(layer.norm2, layer.norm2),
                nn.ReLU(),
                FullConvolution(layer.conv2.weight),
                nn.Dropout(decoder.config.dropout),
            )
            self.layers.append(plain_layer)
        self.end = nn.Sequential(
            _plain_norm(block.transition.norm, block.feature_norm),
            nn.ReLU(),
            _pointwise(block.transition.conv.weight),
            _plain_norm(decoder.final_norm, decoder.final_norm),
            nn.ReLU(),
        )

    def forward(self, target: Tensor, source: Tensor) -> Tensor:
        """H [B, I, J, f_L] from embeddings [B, I, d_t] and [B, J, d_s]."""
        rows = target.unsqueeze(2).expand(-1, -1, source.shape[1], -1)
        columns = source.unsqueeze(1).expand(-1, target.shape[1], -1, -1)
        grid = torch.cat([rows, columns], dim=-1).permute(0, 3, 1, 2)
        features = self.halve(grid.contiguous(memory_format=self.memory_format))
        for layer in self.layers:
            features = torch.cat([features, layer(features)], dim=1)
        return self.end(features).permute(0, 2, 3, 1)


def _pointwise(weight: Tensor, bias: Tensor | None = None) -> nn.Conv2d:
    """A 1×1 convolution with the weights of a linear map."""
    conv = nn.Conv2d(weight.shape[1], weight.shape[0], kernel_size=1)
    conv.weight.data = weight.data[:, :, None, None].clone()
    conv.bias = None if bias is None else nn.Parameter(bias.data.clone())
    return conv


def _plain_norm(affine: nn.Module, statistics_of: nn.Module) -> nn.BatchNorm2d:
    channels = affine.weight.shape[0]
    norm = nn.BatchNorm2d(channels, eps=statistics_of.eps, momentum=statistics_of.momentum)
    weights = {
        "weight": affine.weight,
        "bias": affine.bias,
        "running_mean": statistics_of.running_mean[:channels],
        "running_var": statistics_of.running_var[:channels],
    }
    norm.load_state_dict(weights, strict=False)  # without the count of batches
    return norm


def make_straightforward(model: nn.Module, channels_last: bool = False) -> nn.Module:
    """The same model with the straightforward network in it, for sentences without padding."""
    model = copy.deepcopy(model)
    decoder = model.model.decoder
    weights = next(model.parameters())
    network = StraightforwardNetwork(decoder, channels_last).to(weights.device, weights.dtype)
    for name in ("dense_block", "final_norm", "input_projection"):
        delattr(decoder, name)
    decoder.network = network

    def forward(input_ids, encoder_hidden_states, **_):
        grid = network(decoder.embed_tokens(input_ids), encoder_hidden_states)
        vectors = decoder.output_projection(decoder.aggregation(grid, None)[0])
        vectors = F.dropout(vectors, decoder.config.dropout, decoder.training)
        return PervasiveAttentionDecoderOutput(last_hidden_state=vectors)

    decoder.forward = forward
    return model


def benchmark(*, rounds: int = 5, only: str = "") -> None:
    """Speed and memory of Pervasive Attention beside a straightforward implementation, in one run.

        python scripts/benchmark_pervasive_attention.py

    The straightforward one computes full k×k convolutions times a mask, concatenates features at
    every layer, and builds the whole grid again at every decoding step. Both have the same weights;
    before anything is timed their logits, gradients and translations are compared. Every round
    times each variant once, in turn, so that a noisy machine disturbs all alike; the tables show
    the median time and the median over the rounds of the first variant's time divided by the
    variant's (above 1 = faster). Peak memory is that of a process of its own which makes one step,
    less what it held before. On a GPU the stage pervasive of scripts/gpu.py measures both.

    Args:
        rounds: times that each variant runs
        only: run only the workloads whose name contains this
    """
    transformers_logging.set_verbosity_error()
    check()
    config = PervasiveAttentionConfig()
    sizes = f"L {config.num_layers}, g {config.growth_rate}, k {config.kernel_size}"
    print(f"{sizes}; {machine()}")
    print_table(compare(WORKLOADS, rounds, only))


def build(**fields: float) -> Any:
    """Our model with random weights, normalisations and running statistics: none of them is the
    identity.
    """
    model = make(PervasiveAttentionConfig(vocab_size=VOCABULARY, **fields))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter, float(name.endswith("weight")), 0.1)
    for name, buffer in model.named_buffers():
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2.0)
        elif name.endswith("running_mean"):
            buffer.normal_(0.0, 0.1)
    return model


def make_batch(pairs: int, device: str = "cpu") -> dict[str, Tensor]:
    """Random pairs of 24 × 24 tokens, without padding."""
    source, target = random_ids(2, pairs, 24, vocabulary=VOCABULARY, device=device)
    return {"input_ids": source, "labels": target}


def train(
    *,
    straightforward: bool = False,
    channels_last: bool = False,
    bf16: bool = False,
    checkpointing: bool = False,
) -> Step:
    """A training step, without the optimiser's; `channels_last` is of the straightforward
    network.
    """
    model = build()
    if straightforward:
        model = make_straightforward(model, channels_last)
    if checkpointing:
        model.gradient_checkpointing_enable()
    return training_step(model, make_batch(16), bf16=bf16)


def search(
    tokens: int, *, num_beams: int = 1, straightforward: bool = False, bf16: bool = False
) -> Step:
    """Generation of so many tokens."""
    model = build()
    if straightforward:
        model = make_straightforward(model)
    model.eval()
    source = make_batch(4)["input_ids"]

    def step() -> None:
        with bf16_autocast("cpu", bf16):
            model.generate(
                source,
                num_beams=num_beams,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                use_cache=not straightforward,
            )

    return step


_beam = partial(search, 24, num_beams=5)
WORKLOADS: dict[str, Variants] = {
    "training step, 16 pairs of 24 × 24 tokens": {
        "straightforward, float32": partial(train, straightforward=True),
        "straightforward, bf16, channels last": partial(
            train, straightforward=True, channels_last=True, bf16=True
        ),
        "csan_hf, float32": train,
        "csan_hf, float32, checkpointing": partial(train, checkpointing=True),
        "csan_hf, bf16": partial(train, bf16=True),
        "csan_hf, bf16, checkpointing": partial(train, bf16=True, checkpointing=True),
    },
    "beam 5, 4 sentences of 24 tokens, 24 new tokens": {
        "straightforward, float32": partial(_beam, straightforward=True),
        "straightforward, bf16": partial(_beam, straightforward=True, bf16=True),
        "csan_hf, float32": _beam,
        "csan_hf, bf16": partial(_beam, bf16=True),
    },
    # The cost of a token must not grow
    "greedy, 4 sentences of 24 tokens": {
        f"{tokens} new tokens": partial(search, tokens) for tokens in (16, 64, 256)
    },
}


def check() -> None:
    """Logits, gradients and translations of both must agree.

    Raises:
        ValueError: They do not.
    """
    # In double precision: in float32, rounding moves ReLUs and maxima of a deep network
    ours = build(dropout=0.0).double()
    plain = make_straightforward(ours)
    batch = make_batch(2)
    for training in (False, True):
        output = ours.train(training)(**batch)
        expected = plain.train(training)(**batch)
        check_equal(f"logits, training={training}", output.logits, expected.logits)
    output.loss.backward()
    expected.loss.backward()
    gradient, expected_gradient = (
        model.model.encoder.embed_tokens.weight.grad for model in (ours, plain)
    )
    check_equal("gradients", gradient, expected_gradient)
    options = {"num_beams": 5, "max_new_tokens": 12, "min_new_tokens": 12}
    tokens = ours.eval().generate(batch["input_ids"], **options)
    expected_tokens = plain.eval().generate(batch["input_ids"], **options, use_cache=False)
    check_equal("translations", tokens, expected_tokens)


if __name__ == "__main__":
    sys.exit(run(benchmark, sys.argv[1:]))
