# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Greedy and beam search of 1, 64 and 512 sentences, beside transformers' Marian."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from measuring import Row
from networks import make, random_ids, search_step
from transformers import PreTrainedModel

from csan_hf import ConvS2SConfig, RnnSearchConfig

from .setting import Measurement, Setting, milliseconds
from .speed import SENTENCE, model_of, size_of

LOOPS: dict[str, dict[str, Any]] = {
    "transformers": {},
    "static cache, compiled": {"cache_implementation": "static"},
}
# First what was not yet measured when docs/gpu.md was written, last what compiles for half a minute
CASES = [
    *((name, "transformers") for name in ("RNNsearch", "ConvS2S", "long", "off", "csan_2d")),
    ("Marian", "transformers"),
    ("Marian", "static cache, compiled"),
    ("off", "static cache, compiled"),
]


def searches(setting: Setting) -> Iterator[Measurement]:
    """Tokens a second in bf16, every translation as long as its source."""
    counts = (2,) if setting.tiny else (512, 64, 1)
    for name, loop in CASES:
        dtype = torch.float32 if setting.tiny else torch.bfloat16
        model = _build(name, setting).to(setting.device, dtype).eval()
        for count, beams in itertools.product(counts, (1, 5)):
            if "static" in loop and (beams > 1 or count == 512):
                continue
            names: Row = {"model": name, "loop": loop, "sentences": count, "beams": beams}
            yield names, partial(_search, model, count, beams, LOOPS[loop], setting)


def _build(name: str, setting: Setting) -> PreTrainedModel:
    size = size_of(setting)
    width = size.d_model
    if name == "RNNsearch":
        recurrent = RnnSearchConfig(
            vocab_size=size.vocabulary,
            source_embed_dim=width,
            target_embed_dim=width,
            hidden_size=2 * width,
        )
        return make(recurrent)
    if name == "ConvS2S":
        convolutional = ConvS2SConfig(
            vocab_size=size.vocabulary,
            embed_dim=width,
            hidden_size=width,
            encoder_layers=6,
            decoder_layers=6,
        )
        return make(convolutional)
    return model_of(name, size)


def _search(
    model: PreTrainedModel, count: int, beams: int, options: dict[str, Any], setting: Setting
) -> Row:
    vocabulary = model.config.vocab_size
    ids = random_ids(count, SENTENCE, vocabulary=vocabulary, device=setting.device)
    tokens = 4 if setting.tiny else SENTENCE
    translate = search_step(model, {"input_ids": ids}, tokens, num_beams=beams, **options)
    taken = milliseconds(translate, setting, rounds=2)
    return {"ms": taken, "tokens/s": count * tokens / taken * 1e3}
