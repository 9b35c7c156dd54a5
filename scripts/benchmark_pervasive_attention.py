#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Speed and memory of Pervasive Attention beside a straightforward implementation of it, in one run.

The straightforward one computes full k×k convolutions times a mask, concatenates features at every layer, and builds
the whole grid again at every decoding step. Both have the same weights; before anything is timed their logits,
gradients and translations are compared. Every round times each variant once, in turn, so that a noisy machine
disturbs all alike; the tables show the median time and the median over the rounds of the ratio to the first line
(above 1 = faster). Peak memory is that of a process of its own which makes one step, less what it held before (CPU),
or the peak of the allocator (CUDA); the median of three processes.

    python scripts/benchmark_pervasive_attention.py      # the table of the README
"""

import argparse
import copy
import functools
import statistics
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from measuring import last_number_printed_by, peak_memory_of, seconds_of
from torch import nn
from transformers.utils import logging as transformers_logging

from csan_hf import PervasiveAttentionConfig, PervasiveAttentionForConditionalGeneration
from csan_hf_cli import script

# Name -> (straightforward, autocast to bf16, channels last, gradient checkpointing)
VARIANTS = {
    "straightforward, float32": (True, False, False, False),
    "straightforward, bf16, channels last": (True, True, True, False),
    "csan_hf, float32": (False, False, True, False),
    "csan_hf, float32, checkpointing": (False, False, True, True),
    "csan_hf, bf16": (False, True, True, False),
    "csan_hf, bf16, checkpointing": (False, True, True, True),
}
TRAINING = "training step, 16 pairs of 24 × 24 tokens"
DECODING = "beam 5, 4 sentences of 24 tokens, 24 new tokens"
VOCABULARY = 8000


class StraightforwardNetwork(nn.Module):
    """A dense block with its transition and last normalisation as plain 2D modules, with the weights of ours."""

    def __init__(self, decoder: nn.Module, channels_last: bool) -> None:
        super().__init__()
        block, config = decoder.dense_block, decoder.config
        self.config, self.channels_last = config, channels_last
        self.halve = nn.Conv2d(decoder.input_projection.weight.shape[1], config.input_channels, 1)
        self.halve.weight.data = decoder.input_projection.weight.data[:, :, None, None].clone()
        self.halve.bias.data = decoder.input_projection.bias.data.clone()
        self.norms1, self.convs1, self.norms2, self.convs2 = (nn.ModuleList() for _ in range(4))
        kernel, bottleneck = config.kernel_size, config.bottleneck_factor * config.growth_rate
        for layer in block.dense_layers():
            self.norms1.append(_plain_norm(layer.norm1, block.feature_norm))
            self.convs1.append(_plain_conv(layer.conv1.weight[:, :, None, None]))
            self.norms2.append(_plain_norm(layer.norm2, layer.norm2))
            full = layer.conv2.weight.new_zeros(config.growth_rate, bottleneck, kernel, kernel)
            full[:, :, : kernel // 2 + 1] = layer.conv2.weight.data
            self.convs2.append(_plain_conv(full))
        self.register_buffer("mask", torch.ones(kernel, kernel))
        self.mask[kernel // 2 + 1 :] = 0
        self.transition_norm = _plain_norm(block.transition.norm, block.feature_norm)
        self.transition = _plain_conv(block.transition.conv.weight[:, :, None, None])
        self.final_norm = _plain_norm(decoder.final_norm, decoder.final_norm)

    def forward(self, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """H [B, I, J, f_L] from embeddings [B, I, d_t] and [B, J, d_s]."""
        rows = target.unsqueeze(2).expand(-1, -1, source.shape[1], -1)
        columns = source.unsqueeze(1).expand(-1, target.shape[1], -1, -1)
        grid = torch.cat([rows, columns], dim=-1).permute(0, 3, 1, 2)
        features = self.halve(grid.contiguous(memory_format=self.memory_format))
        for norm1, conv1, norm2, conv2 in zip(self.norms1, self.convs1, self.norms2, self.convs2, strict=True):
            inner = conv1(F.relu(norm1(features)))
            kernel, padding = conv2.weight * self.mask, self.config.kernel_size // 2
            new = F.conv2d(F.relu(norm2(inner)), kernel, padding=padding)
            new = F.dropout(new, self.config.dropout, self.training)
            features = torch.cat([features, new], dim=1)
        features = self.transition(F.relu(self.transition_norm(features)))
        return F.relu(self.final_norm(features)).permute(0, 2, 3, 1)

    @property
    def memory_format(self) -> torch.memory_format:
        """How images lie in memory."""
        return torch.channels_last if self.channels_last else torch.contiguous_format


def _plain_conv(weight: torch.Tensor) -> nn.Conv2d:
    conv = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2], bias=False)
    conv.weight.data = weight.data.clone()
    return conv


def _plain_norm(affine: nn.Module, statistics_of: nn.Module) -> nn.BatchNorm2d:
    channels = affine.weight.shape[0]
    norm = nn.BatchNorm2d(channels, eps=statistics_of.eps, momentum=statistics_of.momentum)
    norm.weight.data, norm.bias.data = affine.weight.data.clone(), affine.bias.data.clone()
    norm.running_mean.copy_(statistics_of.running_mean[:channels])
    norm.running_var.copy_(statistics_of.running_var[:channels])
    return norm


def make_straightforward(model: nn.Module, channels_last: bool) -> nn.Module:
    """The same model with the straightforward network in it."""
    model = copy.deepcopy(model)
    decoder = model.model.decoder
    weights = next(model.parameters())
    network = StraightforwardNetwork(decoder, channels_last).to(weights.device, weights.dtype)
    for name in ("dense_block", "final_norm", "input_projection"):
        delattr(decoder, name)
    decoder.network = network

    def run_grid(target, source, canvas, source_mask, cache):
        grid = network(target, source)
        return grid, *decoder.aggregation(grid, source_mask)

    decoder._run_grid = run_grid
    return model


@script()
def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="times that each variant runs (default: 5)")
    parser.add_argument("--num-layers", type=int, default=24, help="dense layers L (default: 24)")
    parser.add_argument("--growth-rate", type=int, default=32, help="growth rate g (default: 32)")
    parser.add_argument("--kernel-size", type=int, default=5, help="kernel k (default: 5)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--only", choices=PARTS, help="run this part only")
    parser.add_argument("--memory-of", metavar="VARIANT", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    transformers_logging.set_verbosity_error()
    if args.memory_of:
        print(peak_memory_of(training_step(args.memory_of, args), args.device))
        return
    check(args)
    print(f"\n{describe(args)}\n")
    for part, measure in PARTS.items():
        if args.only in (None, part):
            measure(args)


def describe(args: argparse.Namespace) -> str:
    """One line on what was measured where."""
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    shape = f"L {args.num_layers}, g {args.growth_rate}, k {args.kernel_size}, d 128, vocabulary {VOCABULARY}"
    return f"{shape}; {where}; torch {torch.__version__}"


def build(args: argparse.Namespace, **options: float) -> nn.Module:
    """Our model with random weights, normalisations and running statistics: none of them is the identity."""
    torch.manual_seed(0)
    config = PervasiveAttentionConfig(
        vocab_size=VOCABULARY,
        num_layers=args.num_layers,
        growth_rate=args.growth_rate,
        kernel_size=args.kernel_size,
        **options,
    )
    model = PervasiveAttentionForConditionalGeneration(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            mean, deviation = (1.0, 0.1) if name.endswith("weight") else (0.0, 0.1)
            nn.init.normal_(parameter, mean, deviation)
    for name, buffer in model.named_buffers():
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2.0)
        elif name.endswith("running_mean"):
            buffer.normal_(0.0, 0.1)
    return model.to(args.device)


def make_batch(pairs: int, args: argparse.Namespace) -> dict[str, torch.Tensor]:
    """Random pairs of 24 × 24 tokens, without padding."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, VOCABULARY, (2, pairs, 24), generator=generator).to(args.device)
    return {"input_ids": ids[0], "labels": ids[1]}


def training_step(name: str, args: argparse.Namespace) -> Callable[[], None]:
    """A function that makes one training step (without the optimiser's) of a variant."""
    straightforward, bf16, channels_last, checkpointing = VARIANTS[name]
    model = build(args)
    if straightforward:
        model = make_straightforward(model, channels_last)
    if checkpointing:
        model.gradient_checkpointing_enable()
    model.train()
    batch = make_batch(16, args)

    def step() -> None:
        with torch.autocast(args.device, dtype=torch.bfloat16, enabled=bf16):
            loss = model(**batch).loss
        loss.backward()
        model.zero_grad(set_to_none=True)

    return step


def time_training(args: argparse.Namespace) -> None:
    """Times and prints the training steps."""
    time_together(TRAINING, {name: training_step(name, args) for name in VARIANTS}, args, memory=True)


def time_evaluation(args: argparse.Namespace) -> None:
    """Times and prints the forward in eval mode on 16 sentences of 3 to 48 tokens, with and without gradients."""
    model = build(args).eval()
    lengths = torch.tensor([3 + 45 * number**2 // 225 for number in range(16)])
    mask = (torch.arange(48) < lengths[:, None]).long().to(args.device)
    ids = torch.randint(2, VOCABULARY, mask.shape, generator=torch.Generator().manual_seed(2)).to(args.device)

    def forward(enabled: bool) -> None:
        with torch.set_grad_enabled(enabled):
            model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))

    steps = {
        "with gradients": functools.partial(forward, True),
        "under no_grad": functools.partial(forward, False),
    }
    time_together("forward in eval mode, 16 sentences of 3 to 48 tokens", steps, args)


def time_decoding(args: argparse.Namespace) -> None:
    """Times and prints beam search."""
    model = build(args).eval()
    plain = make_straightforward(model, False).eval()
    source = {"input_ids": make_batch(4, args)["input_ids"]}

    def search(own: bool, bf16: bool) -> None:
        options = {"num_beams": 5, "min_new_tokens": 24, "max_new_tokens": 24, "use_cache": own}
        with torch.autocast(args.device, dtype=torch.bfloat16, enabled=bf16):
            (model if own else plain).generate(**source, **options)

    steps = {
        "straightforward, float32": functools.partial(search, False, False),
        "straightforward, bf16": functools.partial(search, False, True),
        "csan_hf, float32": functools.partial(search, True, False),
        "csan_hf, bf16": functools.partial(search, True, True),
    }
    time_together(DECODING, steps, args)


def time_together(
    workload: str, steps: dict[str, Callable[[], None]], args: argparse.Namespace, memory: bool = False
) -> None:
    """Times steps in turn, and prints a table whose first line is the one that the others are compared with."""
    for step in steps.values():
        step()  # warm-up
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(args.rounds):
        for name, step in steps.items():
            times[name].append(seconds_of(step, args.device))
    first = times[next(iter(steps))]
    print(f"| {workload} | median s | speed × the first line | peak memory MiB |\n| --- | ---: | ---: | ---: |")
    for name, seconds in times.items():
        speed = statistics.median(base / own for base, own in zip(first, seconds, strict=True))
        peak = f"{memory_of(name, args):,.0f}" if memory else "-"
        print(f"| {name} | {statistics.median(seconds):.3f} | {speed:.2f} | {peak} |", flush=True)
    print()


def memory_of(name: str, args: argparse.Namespace) -> float:
    """Peak memory of one training step in a fresh process, in MiB: the median of three processes."""
    sizes = [
        f"--{size.replace('_', '-')}={getattr(args, size)}" for size in ("num_layers", "growth_rate", "kernel_size")
    ]
    arguments = [*sizes, f"--device={args.device}", f"--memory-of={name}"]
    return statistics.median(last_number_printed_by(__file__, arguments) for _ in range(3))


def time_tokens(args: argparse.Namespace) -> None:
    """Times and prints greedy decoding to several lengths: the cost of a token must not grow."""
    model = build(args).eval()
    source = {"input_ids": make_batch(4, args)["input_ids"]}
    print("| greedy, 4 sentences of 24 tokens | milliseconds per new token |\n| --- | ---: |")
    for count in (16, 64, 256):
        step = functools.partial(model.generate, **source, min_new_tokens=count, max_new_tokens=count)
        step()  # warm-up
        seconds = statistics.median(seconds_of(step, args.device) for _ in range(args.rounds))
        print(f"| {count} new tokens | {1000 * seconds / count:.1f} |", flush=True)
    print()


PARTS = {"training": time_training, "evaluation": time_evaluation, "beam": time_decoding, "token": time_tokens}


def check(args: argparse.Namespace) -> None:
    """Exit with an error unless both implementations agree in logits, gradients and translations."""
    ours = build(args, dropout=0.0).double()  # in float32, rounding moves ReLUs and maxima of a deep network
    plain = make_straightforward(ours, False)
    batch = make_batch(2, args)
    found = {}
    for mode in ("evaluation", "training"):
        for model in (ours, plain):
            model.train(mode == "training")
        outputs = [model(**batch) for model in (ours, plain)]
        scale = outputs[1].logits.abs().max().item()
        found[f"logits in {mode}"] = (outputs[0].logits - outputs[1].logits).abs().max().item() / scale
    for output in outputs:
        output.loss.backward()
    embeddings = [model.model.encoder.embed_tokens.weight.grad for model in (ours, plain)]
    found["gradients"] = ((embeddings[0] - embeddings[1]).norm() / embeddings[1].norm()).item()
    for name, difference in found.items():
        print(f"check: {name}: relative difference {difference:.1e}")
        if not difference < 1e-6:
            sys.exit(f"error: {name} differ by {difference}; a benchmark of wrong results is worth nothing.")
    source, options = {"input_ids": batch["input_ids"]}, {"num_beams": 5, "max_new_tokens": 12, "min_new_tokens": 12}
    texts = [model.eval().generate(**source, **options, use_cache=model is ours) for model in (ours, plain)]
    if not torch.equal(*texts):
        sys.exit("error: the translations differ; a benchmark of wrong results is worth nothing.")
    print("check: beam search: the same translations")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
