# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import pytest
import tiny

from csan_hf.data import TokenizerPair

SOURCE = ("eins", "zwei", "drei", "vier", "Hund", "Katze")
TARGET = ("one", "two", "three", "four", "five", "dog", "cat")


def build_csan(source_size, target_size=None, **overrides):
    sizes = {"vocab_size": source_size, "decoder_vocab_size": target_size or source_size}
    shared = {"share_encoder_decoder_embeddings": target_size is None}
    model = tiny.csan(**sizes, **shared, decoder_layers=1, **overrides)
    model.generation_config.update(num_beams=2, max_length=12)
    return model


@pytest.fixture
def undrawn(monkeypatch):
    """Localities and trainings are not drawn, which takes a second each."""
    for name in (
        "hub.locality_picture.draw_locality",
        "training.callbacks.draw_training",
        "training.run.draw_training",
    ):
        monkeypatch.setattr(
            f"csan_hf.{name}", lambda content, path, *search: path.write_bytes(b"drawn")
        )


@pytest.fixture
def joint():
    """A CSAN and the tokenizer of both its languages."""
    tokenizer = tiny.tokenizer(SOURCE + TARGET)
    return build_csan(len(tokenizer)), tokenizer


@pytest.fixture
def pair():
    """Tokenizers of two vocabularies."""
    return TokenizerPair(tiny.tokenizer(SOURCE), tiny.tokenizer(TARGET))


@pytest.fixture
def separate(pair):
    """A CSAN and its pair of tokenizers."""
    return build_csan(len(pair.source), len(pair.target), localness_window="query"), pair


def with_pair(make, pair, **options):
    """A model of another family and its pair of tokenizers."""
    sizes = {"vocab_size": len(pair.source), "decoder_vocab_size": len(pair.target)}
    model = make(**sizes, **options)
    model.generation_config.update(num_beams=2, max_length=12)
    return model, pair


@pytest.fixture
def grid(pair):
    return with_pair(tiny.grid, pair, aggregation="max_attention", seed=1)


@pytest.fixture
def recurrent(pair):
    return with_pair(tiny.recurrent, pair)


@pytest.fixture
def convolutional(pair):
    return with_pair(tiny.convolutional, pair)
