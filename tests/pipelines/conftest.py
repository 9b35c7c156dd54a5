# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import logging

import multilingual
import pytest
import tiny
import torch
from transformers import MarianConfig, MarianMTModel

GERMAN = tuple(
    "eins zwei drei vier fünf sechs sieben acht neun zehn und ein Haus Hund Katze".split()  # noqa: SIM905
)
ENGLISH = tuple("one two three four five six seven eight nine ten and a house dog cat".split())  # noqa: SIM905


def build_model(source_size, target_size=None, **overrides):
    """A random model whose translations depend on the source: hence the large weights."""
    torch.manual_seed(0)
    sizes = {"vocab_size": source_size, "decoder_vocab_size": target_size or source_size}
    ids = {
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
        "forced_eos_token_id": None,
    }
    shared = target_size is None
    config = MarianConfig(
        **multilingual.SIZES, **sizes, **ids, share_encoder_decoder_embeddings=shared, **overrides
    )
    model = MarianMTModel(config).eval()
    model.generation_config.forced_eos_token_id = None
    return model


@pytest.fixture
def joint():
    """A model and the one tokenizer of both its languages."""
    tokenizer = tiny.tokenizer(GERMAN + ENGLISH, model_max_length=64)
    return build_model(len(tokenizer)), tokenizer


@pytest.fixture
def separate():
    """A model with a tokenizer for each language."""
    source, target = (
        tiny.tokenizer(GERMAN, model_max_length=64),
        tiny.tokenizer(ENGLISH[:-1], model_max_length=64),
    )
    return build_model(len(source), len(target)), source, target


@pytest.fixture
def library_log(caplog):
    """The warnings of transformers, whose loggers do not propagate."""
    logger = logging.getLogger("csan_hf")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)
