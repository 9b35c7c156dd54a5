# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Tiny models that tests export as ONNX graphs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import tiny
import torch
from tokenizers import AddedToken
from torch import nn

from csan_hf import CsanForConditionalGeneration
from csan_hf.data import TokenizerPair, train_tokenizer

# Every kind of locality, with layers that keep a window, everything or a sum; areas and the other
# Gaussians are in the other model and in the checkpoint of the command's test
EVERY_KIND = {
    **tiny.PLAIN,
    "sinusoids": None,
    "encoder_locality": [
        {"block": 2},
        {"cnn": True, "bi_direct": True, "local_hard": {"width": 4.0, "cut_off": True}},
    ],
    "decoder_locality": [
        {"window": 5, "relative_positions": 2, "neighbor": True},
        {"relative_bias": True, "gaussian": {"width": "layer"}},
    ],
    "cross_locality": [
        {"moving_gaussian": {"width": 3.0}},
        {"moving_gaussian": {"width": 3.0, "gain": 0.4, "ends_within": 1}},
    ],
}


class UnusualProducts(nn.Module):
    """A layer of products that int8 leaves in float32."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.bias = layer.bias
        self.weights = nn.ParameterList(layer.weight.T * factor for factor in (1, 2, 3))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Adds up a Gemm with a factor, a product within an If and one with three axes."""
        matrix, matrix_of_branch, matrices = self.weights
        rows = states.flatten(0, 1)
        scaled = torch.addmm(self.bias, rows, matrix, alpha=-2)
        is_number = rows.square().sum() >= 0
        branch = torch.cond(
            is_number, torch.mm, lambda *factors: -torch.mm(*factors), (rows, matrix_of_branch)
        )
        return states @ matrices[None] + (scaled + branch).view(*states.shape[:2], -1)


def with_unusual_products() -> CsanForConditionalGeneration:
    """The decoder's first product is one of embeddings as they are."""
    model = tiny.csan(seed=1, **tiny.PLAIN_LAYER, sinusoids=None, scale_embedding=False)
    layer = model.model.encoder.layers[0]
    layer.fc1 = UnusualProducts(layer.fc1)
    return model


def residual_grid(**sizes: int) -> Any:
    return tiny.grid(
        seed=59,
        num_layers=1,
        **tiny.RESIDUAL,
        aggregation="gated_max",
        position_embeddings="sinusoidal",
        **sizes,
    )


def grid_of_letters() -> Any:
    letters, phones = letters_and_phones()
    model = residual_grid(vocab_size=len(letters), decoder_vocab_size=len(phones))
    model.generation_config.max_length = 14
    return model


@cache
def letters_and_phones() -> tuple[Any, Any]:
    words = ["née", "a", "bcadé", ""]
    letters = train_tokenizer(words, 30, kind="characters", unicode_form="NFD", case="lower")
    return letters, train_tokenizer(["n e", "a b", "tʃ ks ɔ̃ ʒ"], 30, kind="symbols")


def reader_of_letters() -> Any:
    model = tiny.recurrent(vocab_size=len(letters_of_sentences()))
    model.generation_config.max_length = 8
    return model


@cache
def letters_of_sentences() -> Any:
    return train_tokenizer([*tiny.SENTENCES, "zwei"] * 3, 99, kind="characters")


WORDS_OF_LINES = ["one", "two", "three", "a dog runs", "much of them", "nine words"]


def tokenizer_of_lines(mark: str) -> Any:
    """A tokenizer with a token that ends lines."""
    tokenizer = train_tokenizer(WORDS_OF_LINES, 320)
    tokenizer.add_tokens([AddedToken(mark, normalized=False)])
    return tokenizer


def model_of_lines(mark: str = "\n") -> CsanForConditionalGeneration:
    """A model that knows lines, which the mark of `tokenizer_of_lines` ends."""
    tokenizer = tokenizer_of_lines(mark)
    near = {"window": 5, "relative_positions": 3}
    model = tiny.csan(
        seed=4,
        **{
            **tiny.PLAIN,
            "vocab_size": len(tokenizer),
            "encoder_layers": 1,
            "sinusoids": None,
            "line_token_id": tokenizer.convert_tokens_to_ids(mark),
            "encoder_locality": [near],
            "decoder_locality": [near, None],
            "cross_locality": [
                {"line": True, "moving_gaussian": {"gain": 0.1, "ends_within": 1}},
                {"line": True},
            ],
        },
    )
    model.generation_config.max_length = 9
    return model


@dataclass(frozen=True)
class Export:
    """How a model is made, whether its graphs give attention, and its tokenizers."""

    make: Callable[[], Any]
    with_attention: bool = True
    tokenizers: Callable[[], TokenizerPair | None] = lambda: None


EXPORTS = {
    "csan": Export(
        lambda: tiny.csan(
            seed=2,
            vocab_size=1400,
            encoder_layers=1,
            decoder_locality=[{"window": 3}, None],
            **tiny.PLAIN,
        )
    ),
    "csan, every kind": Export(lambda: tiny.csan(seed=1, **EVERY_KIND)),
    "csan, unusual products": Export(with_unusual_products, with_attention=False),
    "csan, blocks and windows alone": Export(
        lambda: tiny.csan(
            seed=1,
            attn_implementation="blocked",
            **{**tiny.ONE_LAYER, "cross_localness_layers": []},
        )
    ),
    "csan, lines": Export(
        model_of_lines, tokenizers=lambda: TokenizerPair(*[tokenizer_of_lines("\n")] * 2)
    ),
    "pervasive attention": Export(
        lambda: tiny.grid(
            seed=2,
            num_layers=1,
            gated=True,
            aggregation="max_attention",
            vocab_size=20,
            decoder_vocab_size=40,
            position_embeddings="learned",  # or scores would be equal where histories are
        )
    ),
    "pervasive attention, residual": Export(
        grid_of_letters,
        with_attention=False,
        tokenizers=lambda: TokenizerPair(*letters_and_phones()),
    ),
    "conv_s2s": Export(lambda: tiny.convolutional(seed=2, encoder_layers=1, decoder_layers=1)),
    "rnnsearch": Export(
        lambda: tiny.recurrent(seed=1, hidden_size=64, encoder_layers=2, attention="additive")
    ),
    "letters": Export(
        reader_of_letters,
        with_attention=False,
        tokenizers=lambda: TokenizerPair(*[letters_of_sentences()] * 2),
    ),
}

_PROGRAMS: dict[str, Any] = {}


@contextmanager
def traced_once() -> Iterator[None]:
    """Within it, modules that are written alike are traced once in this process, whatever their
    weights.
    """
    trace = torch.onnx.export

    def trace_once(module: nn.Module, **options: Any) -> Any:
        if str(module) not in _PROGRAMS:
            _PROGRAMS[str(module)] = trace(module, **options)
        return _PROGRAMS[str(module)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.onnx, "export", trace_once)
        yield
