#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Speed and memory of Pervasive Attention beside a straightforward implementation of it, in one
run.

The straightforward one computes full k×k convolutions times a mask, concatenates features at every
layer, and builds the whole grid again at every decoding step. Both have the same weights; before
anything is timed their logits, gradients and translations are compared. Every round times each
variant once, in turn, so that a noisy machine disturbs all alike; the tables show the median time
and the median over the rounds of the ratio to the first line (above 1 = faster). Peak memory is
that of a process of its own which makes one step, less what it held before; the median of three
processes.

    python scripts/benchmark_pervasive_attention.py      # the table of the README

On a GPU the stage pervasive of scripts/gpu.py measures both.
"""

import copy
import statistics
import sys
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from measuring import (
    check_differences,
    machine,
    make_parser,
    peak_memory_of,
    seconds_in_turn,
    seconds_of,
    speed_ratio,
)
from networks import Step, bf16_autocast, make, make_pairs, random_ids, training_step
from torch import Tensor, nn
from transformers.utils import logging as transformers_logging

from csan_hf import PervasiveAttentionConfig
from csan_hf.models.modeling_pervasive_attention import PervasiveAttentionDecoderOutput
from csan_hf_cli import script


class Variant(NamedTuple):
    """A way to train."""

    straightforward: bool = False
    bf16: bool = False  # autocast
    channels_last: bool = False  # of the straightforward network
    checkpointing: bool = False


VARIANTS = {
    "straightforward, float32": Variant(straightforward=True),
    "straightforward, bf16, channels last": Variant(
        straightforward=True, bf16=True, channels_last=True
    ),
    "csan_hf, float32": Variant(),
    "csan_hf, float32, checkpointing": Variant(checkpointing=True),
    "csan_hf, bf16": Variant(bf16=True),
    "csan_hf, bf16, checkpointing": Variant(bf16=True, checkpointing=True),
}
VOCABULARY = 8000
Steps = dict[str, Step]


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


def make_straightforward(model: nn.Module, channels_last: bool) -> nn.Module:
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


@script()
def main(arguments: list[str]) -> None:
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument("--only", choices=PARTS, help="run this part only")
    args = parser.parse_args(arguments)
    transformers_logging.set_verbosity_error()
    check()
    config = PervasiveAttentionConfig()
    sizes = f"L {config.num_layers}, g {config.growth_rate}, k {config.kernel_size}"
    print(f"\n{sizes}; {machine()}\n")
    for part, (workload, make_steps) in PARTS.items():
        if args.only in (None, part):
            time_together(workload, make_steps(), args.rounds, memory=part == "training")


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


def variant_step(name: str) -> Step:
    """A training step (without the optimiser's) of a variant."""
    variant = VARIANTS[name]
    model = build()
    if variant.straightforward:
        model = make_straightforward(model, variant.channels_last)
    if variant.checkpointing:
        model.gradient_checkpointing_enable()
    return training_step(model, make_batch(16), bf16=variant.bf16)


def training_steps() -> Steps:
    """The training steps of all variants."""
    return {name: variant_step(name) for name in VARIANTS}


def evaluation_steps() -> Steps:
    """The forward in eval mode, with and without gradients."""
    model = build().eval()
    lengths = torch.tensor([3 + 45 * number**2 // 225 for number in range(16)])
    batch = make_pairs(torch.stack([lengths, lengths]), VOCABULARY, "cpu")

    def forward(enabled: bool) -> None:
        with torch.set_grad_enabled(enabled):
            model(**batch)

    return {"with gradients": partial(forward, True), "under no_grad": partial(forward, False)}


def beam_steps() -> Steps:
    """Beam search of both implementations."""
    ours = build().eval()
    plain = make_straightforward(ours, False).eval()
    source = make_batch(4)["input_ids"]

    def search(model: nn.Module, bf16: bool) -> None:
        with bf16_autocast("cpu", bf16):
            model.generate(
                source,
                num_beams=5,
                min_new_tokens=24,
                max_new_tokens=24,
                use_cache=model is ours,
            )

    return {
        "straightforward, float32": partial(search, plain, bf16=False),
        "straightforward, bf16": partial(search, plain, bf16=True),
        "csan_hf, float32": partial(search, ours, bf16=False),
        "csan_hf, bf16": partial(search, ours, bf16=True),
    }


def greedy_steps() -> Steps:
    """Greedy decoding to several lengths: the cost of a token must not grow."""
    generate = build().eval().generate
    source = make_batch(4)["input_ids"]
    return {
        f"{count} new tokens": partial(generate, source, min_new_tokens=count, max_new_tokens=count)
        for count in (16, 64, 256)
    }


PARTS = {
    "training": ("training step, 16 pairs of 24 × 24 tokens", training_steps),
    "evaluation": ("forward in eval mode, 16 sentences of 3 to 48 tokens", evaluation_steps),
    "beam": ("beam 5, 4 sentences of 24 tokens, 24 new tokens", beam_steps),
    "token": ("greedy, 4 sentences of 24 tokens", greedy_steps),
}


def time_together(workload: str, steps: Steps, rounds: int, *, memory: bool) -> None:
    """Time steps in turn, and print a table with speeds relative to its first line."""
    times = seconds_in_turn(steps, rounds, seconds_of)
    first = times[next(iter(steps))]
    print(
        f"| {workload} | median s | speed × the first line | peak memory MiB |\n| --- | ---: | "
        "---: | ---: |"
    )
    for name, seconds in times.items():
        peak = "-"
        if memory:
            peaks = [peak_memory_of(partial(variant_step, name)) for _ in range(3)]
            peak = f"{statistics.median(peaks):,.0f}"
        print(
            f"| {name} | {statistics.median(seconds):.3f} | {speed_ratio(first, seconds):.2f} | "
            f"{peak} |",
            flush=True,
        )
    print()


def check() -> None:
    """Exit with an error unless logits, gradients and translations agree."""
    # In double precision: in float32, rounding moves ReLUs and maxima of a deep network
    ours = build(dropout=0.0).double()
    plain = make_straightforward(ours, False)
    batch = make_batch(2)
    differences = {}
    for mode in ("evaluation", "training"):
        output = ours.train(mode == "training")(**batch)
        expected = plain.train(mode == "training")(**batch)
        difference = (output.logits - expected.logits).abs().max()
        differences[f"logits in {mode}"] = (difference / expected.logits.abs().max()).item()
    output.loss.backward()
    expected.loss.backward()
    gradient, expected_gradient = (
        model.model.encoder.embed_tokens.weight.grad for model in (ours, plain)
    )
    difference = (gradient - expected_gradient).norm()
    differences["gradients"] = (difference / expected_gradient.norm()).item()
    options = {"num_beams": 5, "max_new_tokens": 12, "min_new_tokens": 12}
    tokens = ours.eval().generate(batch["input_ids"], **options)
    expected_tokens = plain.eval().generate(batch["input_ids"], **options, use_cache=False)
    differences["translations"] = float(not torch.equal(tokens, expected_tokens))
    check_differences(differences, "relative difference", most=1e-6)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
