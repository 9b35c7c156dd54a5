# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from csan_hf import (
    CsanConfig,
    CsanForConditionalGeneration,
    PervasiveAttentionConfig,
    PervasiveAttentionForConditionalGeneration,
)
from csan_hf.data import TokenizerPair

SPECIAL = ("<pad>", "</s>", "<unk>")
SOURCE = ("eins", "zwei", "drei", "vier", "Hund", "Katze")
TARGET = ("one", "two", "three", "four", "five", "dog", "cat")


def build_tokenizer(words):
    vocabulary = {word: index for index, word in enumerate((*SPECIAL, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def build_csan(source_size, target_size=None, **overrides):
    torch.manual_seed(0)
    config = CsanConfig(
        vocab_size=source_size,
        decoder_vocab_size=target_size or source_size,
        share_encoder_decoder_embeddings=target_size is None,
        d_model=16,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=40,
        initialization="normal",
        init_std=1.5,
        **overrides,
    )
    model = CsanForConditionalGeneration(config).eval()
    model.generation_config.update(num_beams=2, max_length=12)
    return model


@pytest.fixture
def joint():
    """A CSAN and the tokenizer of both its languages."""
    tokenizer = build_tokenizer(SOURCE + TARGET)
    return build_csan(len(tokenizer)), tokenizer


@pytest.fixture
def separate():
    """A CSAN and its pair of tokenizers."""
    pair = TokenizerPair(build_tokenizer(SOURCE), build_tokenizer(TARGET))
    return build_csan(len(pair.source), len(pair.target), localness_window="query"), pair


@pytest.fixture
def grid():
    """A Pervasive Attention model and its pair of tokenizers."""
    pair = TokenizerPair(build_tokenizer(SOURCE), build_tokenizer(TARGET))
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
