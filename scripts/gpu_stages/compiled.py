# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`torch.compile` of training steps, and CUDA graphs of decoding with static caches."""

import copy
from collections.abc import Iterator
from functools import partial

import torch
from measuring import Row, relative_error, timed
from torch import Tensor
from transformers import PreTrainedModel

from . import numerics
from .setting import Measurement, Setting, compile_for

DECODERS = ("CSAN plain", "CSAN csan_2d", "CSAN local_soft", "CSAN decoder windows", "CSAN long")


def programs(setting: Setting) -> Iterator[Measurement]:
    """Compiled against uncompiled, in float32: logits and gradients of training steps of three
    shapes, and tokens of greedy search with a static cache, whose step transformers compiles on a
    GPU.
    """
    for name, model in numerics.all_models(setting):
        if setting.tiny and name != "CSAN csan_2d":
            continue
        model.to(setting.device)
        yield {"model": name, "compiled": "training steps"}, partial(_steps, model, setting)
        if name in DECODERS:
            yield {"model": name, "compiled": "decoding"}, partial(_decoding, model, setting)


@torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
def _steps(model: PreTrainedModel, setting: Setting) -> Row:
    precision = numerics.PRECISIONS["float32"]
    batch = numerics.make_batch(setting.device)
    batches = [batch, _cut(batch, 3, 37), _cut(batch, 2, 29)]
    expected = [numerics.results(model.train(), batch, precision) for batch in batches]
    compiled = compile_for(setting, model)
    counters = torch._dynamo.utils.counters["stats"]
    counters.clear()
    logits_errors = []
    gradients_errors = []
    graphs = []
    times = []
    for batch, (logits, gradients) in zip(batches, expected, strict=True):
        run = partial(numerics.results, compiled, batch, precision)
        results, seconds = timed(run, setting.device)
        logits_errors.append(relative_error(results[0], logits))
        gradients_errors.append(relative_error(results[1], gradients))
        graphs.append(counters["unique_graphs"])
        times.append(seconds)
    return {
        "logits": max(logits_errors),
        "gradients": max(gradients_errors),
        "tokens equal": None,
        "first call, s": times[0],
        "graphs": graphs[0],
        "of two more shapes": graphs[-1] - graphs[0],
    }


def _cut(batch: dict[str, Tensor], pairs: int, tokens: int) -> dict[str, Tensor]:
    """The last pairs of a batch, and so many tokens of each."""
    return {name: values[-pairs:, :tokens].contiguous() for name, values in batch.items()}


def _decoding(model: PreTrainedModel, setting: Setting) -> Row:
    model = copy.deepcopy(model)
    numerics.make_distinct(model)
    length = 8 if setting.tiny else 24
    expected = numerics.translate(model, length)
    tokens, seconds = timed(
        lambda: numerics.translate(model, length, cache_implementation="static"), setting.device
    )
    return {
        "logits": None,
        "gradients": None,
        "tokens equal": numerics.share_of_equal(tokens, expected),
        "first call, s": seconds,
        "graphs": None,
        "of two more shapes": None,
    }
