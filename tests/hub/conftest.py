# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import pytest
import tiny
import torch

from csan_hf import (
    CsanConfig,
    CsanForConditionalGeneration,
    PervasiveAttentionConfig,
    PervasiveAttentionForConditionalGeneration,
)
from csan_hf.data import TokenizerPair

SOURCE = ("eins", "zwei", "drei", "vier", "Hund", "Katze")
TARGET = ("one", "two", "three", "four", "five", "dog", "cat")


def build_csan(source_size, target_size=None, **overrides):
    torch.manual_seed(0)
    sizes = dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 16)
    sizes |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4)
    config = CsanConfig(
        vocab_size=source_size,
        decoder_vocab_size=target_size or source_size,
        share_encoder_decoder_embeddings=target_size is None,
        encoder_layers=2,
        decoder_layers=1,
        max_position_embeddings=40,
        initialization="normal",
        init_std=1.5,
        **sizes,
        **overrides,
    )
    model = CsanForConditionalGeneration(config).eval()
    model.generation_config.update(num_beams=2, max_length=12)
    return model


@pytest.fixture
def joint():
    """A CSAN and the tokenizer of both its languages."""
    tokenizer = tiny.tokenizer(SOURCE + TARGET)
    return build_csan(len(tokenizer)), tokenizer


@pytest.fixture
def separate():
    """A CSAN and its pair of tokenizers."""
    pair = TokenizerPair(tiny.tokenizer(SOURCE), tiny.tokenizer(TARGET))
    return build_csan(len(pair.source), len(pair.target), localness_window="query"), pair


@pytest.fixture
def grid():
    """A Pervasive Attention model and its pair of tokenizers."""
    pair = TokenizerPair(tiny.tokenizer(SOURCE), tiny.tokenizer(TARGET))
    torch.manual_seed(1)
    config = PervasiveAttentionConfig(
        vocab_size=len(pair.source),
        decoder_vocab_size=len(pair.target),
        source_embed_dim=8,
        target_embed_dim=8,
        num_layers=2,
        growth_rate=4,
        aggregation="max_attention",
        init_std=1.5,
    )
    model = PervasiveAttentionForConditionalGeneration(config).eval()
    model.generation_config.update(num_beams=2, max_length=12)
    return model, pair
