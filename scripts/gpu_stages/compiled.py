# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`torch.compile` of training steps, and CUDA graphs of decoding with static caches."""

import copy
import re
from collections.abc import Iterator
from typing import Any

import torch
from measuring import seconds_of
from transformers import PreTrainedModel

from . import numerics
from .setting import Row, Setting, relative_error, row_of

MODELS = ("CSAN plain", "CSAN csan_2d", "CSAN local_soft", "CSAN decoder windows", "CSAN long")


def programs(setting: Setting) -> Iterator[Row]:
    """Rows: compiled against uncompiled, in float32: gradients of a training step, and tokens of
    greedy search with a static cache, whose step transformers compiles on a GPU.
    """
    models = dict(numerics.all_models())
    for name in MODELS[1:2] if setting.tiny else MODELS:
        if not re.search(setting.only, name):
            continue
        if setting.is_over:
            return
        model = models[name].to(setting.device)
        yield row_of({"model": name, "compiled": "training step"}, _step, model, setting)
        yield row_of({"model": name, "compiled": "decoding"}, _decoding, model, setting)
        torch.compiler.reset()


def _step(model: PreTrainedModel, setting: Setting) -> Row:
    precision = numerics.PRECISIONS["float32"]
    batch = numerics.make_batch(setting.device)
    expected = numerics.results(model.train(), batch, setting, precision)
    compiled = torch.compile(model, backend="eager" if setting.tiny else "inductor")
    kept: list[Any] = []
    seconds = seconds_of(
        lambda: kept.extend(numerics.results(compiled, batch, setting, precision)), setting.device
    )
    return {
        "logits": relative_error(kept[0], expected[0]),
        "gradients": relative_error(kept[1], expected[1]),
        "tokens equal": None,
        "first call, s": seconds,
    }


def _decoding(model: PreTrainedModel, setting: Setting) -> Row:
    model = copy.deepcopy(model).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(3.0)
    batch = numerics.make_batch(setting.device)
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    length = 8 if setting.tiny else 24
    options: dict[str, Any] = {"max_new_tokens": length, "min_new_tokens": length}
    expected = model.generate(**source, **options)
    kept: list[Any] = []
    seconds = seconds_of(
        lambda: kept.append(model.generate(**source, **options, cache_implementation="static")),
        setting.device,
    )
    return {
        "logits": None,
        "gradients": None,
        "tokens equal": (kept[0] == expected).all(dim=-1).double().mean().item(),
        "first call, s": seconds,
    }
