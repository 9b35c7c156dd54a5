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
    machine,
    make_parser,
    peak_memory_of,
    seconds_in_turn,
    seconds_of,
    speed_ratio,
)
from networks import Step, bf16_autocast, make, make_pairs, random_ids
from networks import training_step as step_of
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


class StraightforwardNetwork(nn.Module):
    """A dense block with its transition and last normalisation as plain 2D modules, with the
    weights of ours.
    """

    def __init__(self, decoder: nn.Module, channels_last: bool) -> None:
        super().__init__()
        block = decoder.dense_block
        config = decoder.config
        self.config = config
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.halve = nn.Conv2d(decoder.input_projection.weight.shape[1], config.input_channels, 1)
        self.halve.weight.data = decoder.input_projection.weight.data[:, :, None, None].clone()
        self.halve.bias.data = decoder.input_projection.bias.data.clone()
        self.layers = nn.ModuleList()
        kernel = config.kernel_size
        for layer in block.layers:
            seen = layer.conv2.weight.data  # the rows of the kernel that do not look ahead
            plain = nn.ModuleDict(
                {
                    "norm1": _plain_norm(layer.norm1, block.feature_norm),
                    "conv1": _plain_conv(layer.conv1.weight[:, :, None, None]),
                    "norm2": _plain_norm(layer.norm2, layer.norm2),
                    "conv2": _plain_conv(F.pad(seen, (0, 0, 0, kernel - seen.shape[2]))),
                }
            )
            self.layers.append(plain)
        self.register_buffer("mask", torch.ones(kernel, kernel))
        self.mask[kernel // 2 + 1 :] = 0
        self.transition_norm = _plain_norm(block.transition.norm, block.feature_norm)
        self.transition = _plain_conv(block.transition.conv.weight[:, :, None, None])
        self.final_norm = _plain_norm(decoder.final_norm, decoder.final_norm)

    def forward(self, target: Tensor, source: Tensor) -> Tensor:
        """H [B, I, J, f_L] from embeddings [B, I, d_t] and [B, J, d_s]."""
        rows = target.unsqueeze(2).expand(-1, -1, source.shape[1], -1)
        columns = source.unsqueeze(1).expand(-1, target.shape[1], -1, -1)
        grid = torch.cat([rows, columns], dim=-1).permute(0, 3, 1, 2)
        features = self.halve(grid.contiguous(memory_format=self.memory_format))
        for layer in self.layers:
            inner = layer["conv1"](F.relu(layer["norm1"](features)))
            kernel = layer["conv2"].weight * self.mask
            padding = self.config.kernel_size // 2
            new = F.conv2d(F.relu(layer["norm2"](inner)), kernel, padding=padding)
            new = F.dropout(new, self.config.dropout, self.training)
            features = torch.cat([features, new], dim=1)
        features = self.transition(F.relu(self.transition_norm(features)))
        return F.relu(self.final_norm(features)).permute(0, 2, 3, 1)


def _plain_conv(weight: Tensor) -> nn.Conv2d:
    conv = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2], bias=False)
    conv.weight.data = weight.data.clone()
    return conv


def _plain_norm(affine: nn.Module, statistics_of: nn.Module) -> nn.BatchNorm2d:
    channels = affine.weight.shape[0]
    norm = nn.BatchNorm2d(channels, eps=statistics_of.eps, momentum=statistics_of.momentum)
    norm.weight.data = affine.weight.data.clone()
    norm.bias.data = affine.bias.data.clone()
    norm.running_mean.copy_(statistics_of.running_mean[:channels])
    norm.running_var.copy_(statistics_of.running_var[:channels])
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


def training_step(name: str) -> Step:
    """A training step (without the optimiser's) of a variant."""
    variant = VARIANTS[name]
    model = build()
    if variant.straightforward:
        model = make_straightforward(model, variant.channels_last)
    if variant.checkpointing:
        model.gradient_checkpointing_enable()
    return step_of(model, make_batch(16), bf16=variant.bf16)


def training_steps() -> Steps:
    """The training steps of all variants."""
    return {name: training_step(name) for name in VARIANTS}


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
            peaks = [peak_memory_of(partial(training_step, name)) for _ in range(3)]
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
    for name, difference in differences.items():
        print(f"check: {name}: relative difference {difference:.1e}")
        if not difference < 1e-6:
            sys.exit(
                f"error: {name} differ by {difference}; a benchmark of wrong results is worth "
                "nothing."
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
