# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import logging

import multilingual
import pytest
import tiny
from transformers.utils.logging import warning_once

from csan_hf.pipelines import TextTranslationPipeline
from csan_hf_runtime.texts import warn_once

GERMAN = tuple(
    "eins zwei drei vier fünf sechs sieben acht neun zehn und ein Haus Hund Katze".split()  # noqa: SIM905
)
ENGLISH = tuple("one two three four five six seven eight nine ten and a house dog cat".split())  # noqa: SIM905


def build_model(source_size, target_size=None):
    """A random model whose translations depend on the source: hence the large weights."""
    return tiny.marian(
        **multilingual.SIZES,
        vocab_size=source_size,
        decoder_vocab_size=target_size or source_size,
        share_encoder_decoder_embeddings=target_size is None,
    )


def translator_of(model, tokenizer, **options):
    return TextTranslationPipeline(model=model, tokenizer=tokenizer, device="cpu", **options)


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
    """The warnings, also those of transformers, whose loggers do not propagate."""
    warning_once.cache_clear()
    warn_once.cache_clear()
    logger = logging.getLogger("csan_hf")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)
