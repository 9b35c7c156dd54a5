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
from networks import Step, make, random_ids, search_step, training_step
from torch import Tensor, nn
from transformers.utils import logging as transformers_logging

from csan_hf import PervasiveAttentionConfig
from csan_hf.models.seq2seq_model import DecoderOutput
from csan_hf_cli import run

VOCABULARY = 8000


def straightforward_network(decoder: nn.Module, grid: Tensor) -> Tensor:
    """The features [B, I, J, f_L] of a grid [B, d_t + d_s, I, J], by plain 2D functions."""
    block = decoder.dense_block
    first = decoder.input_projection
    features = F.conv2d(grid, _pointwise(first), first.bias)
    for layer in block.layers:
        cells = _normalise(features, layer.norm1, block.feature_norm).relu()
        cells = F.conv2d(cells, _pointwise(layer.conv1))
        cells = _normalise(cells, layer.norm2, layer.norm2).relu()
        cells = _convolve_all(cells, layer.conv2.weight)
        cells = F.dropout(cells, decoder.config.dropout, decoder.training)
        features = torch.cat([features, cells], dim=1)
    features = _normalise(features, block.transition.norm, block.feature_norm).relu()
    features = F.conv2d(features, _pointwise(block.transition.conv))
    features = _normalise(features, decoder.final_norm, decoder.final_norm).relu()
    return features.permute(0, 2, 3, 1)


def _pointwise(linear: nn.Module) -> Tensor:
    """A linear map's weights as those of a 1×1 convolution."""
    return linear.weight[:, :, None, None]


def _convolve_all(cells: Tensor, weight: Tensor) -> Tensor:
    """A full k×k convolution, whose kernel is masked where it would look ahead."""
    rows, kernel = weight.shape[2:]
    return F.conv2d(cells, F.pad(weight, (0, 0, 0, kernel - rows)), padding=kernel // 2)


def _normalise(cells: Tensor, affine: nn.Module, norm: nn.Module) -> Tensor:
    """Batch normalisation, which leaves the running statistics as they are."""
    channels = cells.shape[1]
    return F.batch_norm(
        cells,
        norm.running_mean[:channels],
        norm.running_var[:channels],
        affine.weight,
        affine.bias,
        training=norm.training,
        momentum=0.0,
        eps=norm.eps,
    )


def make_straightforward(model: nn.Module, channels_last: bool = False) -> nn.Module:
    """The same model with the straightforward network in it, for sentences without padding."""
    model = copy.deepcopy(model)
    decoder = model.model.decoder
    memory_format = torch.channels_last if channels_last else torch.contiguous_format

    def forward(input_ids, encoder_hidden_states, **_):
        target = decoder.embed_tokens(input_ids)
        rows = target.unsqueeze(2).expand(-1, -1, encoder_hidden_states.shape[1], -1)
        columns = encoder_hidden_states.unsqueeze(1).expand(-1, target.shape[1], -1, -1)
        grid = torch.cat([rows, columns], dim=-1).permute(0, 3, 1, 2)
        features = straightforward_network(decoder, grid.contiguous(memory_format=memory_format))
        vectors = decoder.output_projection(decoder.aggregation(features, None)[0])
        vectors = F.dropout(vectors, decoder.config.dropout, decoder.training)
        return DecoderOutput(last_hidden_state=vectors)

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
    source = {"input_ids": make_batch(4)["input_ids"]}
    use_cache = not straightforward
    return search_step(model, source, tokens, bf16=bf16, num_beams=num_beams, use_cache=use_cache)


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
    ours.eval()
    plain.eval()
    check_equal("logits in evaluation", ours(**batch).logits, plain(**batch).logits)
    options = {"num_beams": 5, "max_new_tokens": 12, "min_new_tokens": 12}
    tokens = ours.generate(batch["input_ids"], **options)
    expected_tokens = plain.generate(batch["input_ids"], **options, use_cache=False)
    check_equal("translations", tokens, expected_tokens)
    output = ours.train()(**batch)
    expected = plain.train()(**batch)
    check_equal("logits in training", output.logits, expected.logits)
    output.loss.backward()
    expected.loss.backward()
    gradient, expected_gradient = (
        model.model.encoder.embed_tokens.weight.grad for model in (ours, plain)
    )
    check_equal("gradients", gradient, expected_gradient)


if __name__ == "__main__":
    sys.exit(run(benchmark, sys.argv[1:]))
