# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`torch.compile` of training steps, and CUDA graphs of decoding with static caches."""

import copy
from collections.abc import Iterator
from functools import partial

import torch
from measuring import Row, relative_error, timed
from transformers import PreTrainedModel

from . import numerics
from .setting import Measurement, Setting

MODELS = ("CSAN plain", "CSAN csan_2d", "CSAN local_soft", "CSAN decoder windows", "CSAN long")


def programs(setting: Setting) -> Iterator[Measurement]:
    """Compiled against uncompiled, in float32: gradients of a training step, and tokens of
    greedy search with a static cache, whose step transformers compiles on a GPU.
    """
    names = ("CSAN csan_2d",) if setting.tiny else MODELS
    for name, model in numerics.all_models(setting):
        if name not in names:
            continue
        model.to(setting.device)
        yield {"model": name, "compiled": "training step"}, partial(_step, model, setting)
        yield {"model": name, "compiled": "decoding"}, partial(_decoding, model, setting)


def _step(model: PreTrainedModel, setting: Setting) -> Row:
    precision = numerics.PRECISIONS["float32"]
    batch = numerics.make_batch(setting.device)
    expected = numerics.results(model.train(), batch, precision)
    compiled = torch.compile(model, backend="eager" if setting.tiny else "inductor")
    results, seconds = timed(lambda: numerics.results(compiled, batch, precision), setting.device)
    return {
        "logits": relative_error(results[0], expected[0]),
        "gradients": relative_error(results[1], expected[1]),
        "tokens equal": None,
        "first call, s": seconds,
    }


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
    }
