# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The families as tiny models, under one roof: what transformers' users rely on is tested alike for
all.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import tiny
import torch
from torch import Tensor
from torch.testing import assert_close

from csan_hf import (
    ConvS2SForConditionalGeneration,
    CsanForConditionalGeneration,
    PervasiveAttentionForConditionalGeneration,
    RnnSearchForConditionalGeneration,
)

# Special tokens of every family
PAD = 0
EOS = 1
START = 0

WORDS = (2, 11)  # first, and one after the last: tokens that the tiny vocabularies of all have

# Everything at once: window, area of heads and Gaussian in encoder, decoder and cross-attention.
LOCAL = tiny.LOCALITIES["everything, query"]


@dataclass(frozen=True)
class Family:
    """A family: how a tiny model of it is made, its classes, and fields for one and for two
    vocabularies.
    """

    tiny_model: Callable
    model_class: type
    shared: dict
    separate: dict

    @property
    def config_class(self) -> type:
        return self.model_class.config_class


ONE_VOCABULARY = {"share_encoder_decoder_embeddings": True}
TWO_VOCABULARIES = {"decoder_vocab_size": 37}
FAMILIES = {
    "csan": Family(
        lambda seed=0, **options: tiny.csan(seed, **{**LOCAL, **options}),
        CsanForConditionalGeneration,
        shared={},
        separate={"share_encoder_decoder_embeddings": False, **TWO_VOCABULARIES},
    ),
    "pervasive attention": Family(
        tiny.grid,
        PervasiveAttentionForConditionalGeneration,
        shared=tiny.SHARED,
        separate={},
    ),
    "pervasive attention, residual": Family(
        lambda seed=0, **options: tiny.grid(
            seed, **{**tiny.RESIDUAL, "aggregation": "gated_max", **options}
        ),
        PervasiveAttentionForConditionalGeneration,
        shared=tiny.SHARED,
        separate={},
    ),
    "rnnsearch": Family(
        tiny.recurrent,
        RnnSearchForConditionalGeneration,
        shared=ONE_VOCABULARY,
        separate=TWO_VOCABULARIES,
    ),
    "conv_s2s": Family(
        tiny.convolutional,
        ConvS2SForConditionalGeneration,
        shared=ONE_VOCABULARY,
        separate=TWO_VOCABULARIES,
    ),
}

CHECKPOINTED = {
    name: family
    for name, family in FAMILIES.items()
    if family.model_class.supports_gradient_checkpointing
}

every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
checkpointed_families = pytest.mark.parametrize("family", CHECKPOINTED.values(), ids=CHECKPOINTED)


def sources(lengths: tuple[int, ...] = (7, 4, 6), seed: int = 0) -> dict[str, Tensor]:
    """Source sentences of given lengths, padded on the right."""
    return tiny.padded_sources(lengths, seed=seed)


def targets(rows: int, length: int, seed: int = 1) -> Tensor:
    """Decoder inputs [rows, length], the start token first."""
    ids = torch.randint(*WORDS, (rows, length), generator=torch.Generator().manual_seed(seed))
    ids[:, 0] = START
    return ids


@torch.no_grad()
def logits_of(model: torch.nn.Module) -> Tensor:
    """For three sentences, without a cache."""
    return model(**sources(), decoder_input_ids=targets(3, 5), use_cache=False).logits


def assert_same(first: torch.nn.Module, second: torch.nn.Module) -> None:
    """The weights exactly; where they lie in memory decides the order in which some processors add."""
    assert_close(first.state_dict(), second.state_dict(), rtol=0, atol=0)
    assert_close(logits_of(first), logits_of(second))


def training_batch(
    lengths: tuple[int, ...] = (7, 4, 6), target_lengths: tuple[int, ...] = (5, 6, 3)
) -> dict:
    """Source sentences with labels, both padded."""
    return {**sources(lengths), "labels": tiny.labels_of(target_lengths)}
