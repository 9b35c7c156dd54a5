# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A tiny untrained model in a folder, and a file that commands read."""

import copy

import pytest
import tiny

from csan_hf import EnsembleForConditionalGeneration
from csan_hf.data import TokenizerPair, train_tokenizer
from csan_hf.data.tokenization import add_language_tags
from csan_hf_runtime.command_line import main
from csan_hf_runtime.text_files import write_lines

SENTENCES = [
    "two",
    "one hundred and twenty-seven thousand",
    "",
    "the third of May",
    "   ",
    "nine",
    "a much longer sentence with nineteen hundred and eighty-four words in it",
    "two",
]


@pytest.fixture(scope="session")
def tokenizers():
    tokenizer = train_tokenizer([*SENTENCES, "zwei", "eins"] * 3, 300)
    return TokenizerPair(tokenizer, tokenizer)


@pytest.fixture(scope="session")
def model(tokenizers):
    model = tiny.csan(vocab_size=len(tokenizers.source), local_window=5, head_area=3)
    model.generation_config.max_length = 12
    return model


@pytest.fixture(scope="session")
def saved(tokenizers, tmp_path_factory):
    """A function that saves a model with its tokenizers and returns the folder."""

    def save(model):
        path = tmp_path_factory.mktemp("model")
        model.save_pretrained(path)
        tokenizers.save_pretrained(path)
        return path

    return save


@pytest.fixture(scope="session")
def folder(model, saved):
    return saved(model)


@pytest.fixture(scope="session")
def ensemble(model, tokenizers):
    other = tiny.csan(seed=1, vocab_size=len(tokenizers.source))
    return EnsembleForConditionalGeneration.of([model, other])


@pytest.fixture(scope="session")
def of_two_languages(tokenizers, tmp_path_factory):
    """The folder of a model whose sources begin with the tag of their target language."""
    pair = copy.deepcopy(tokenizers)
    add_language_tags(pair, [">>de<<", ">>fr<<"])
    path = tmp_path_factory.mktemp("languages")
    tiny.csan(vocab_size=len(pair.source)).save_pretrained(path)
    pair.save_pretrained(path)
    return path


@pytest.fixture
def words(folder, tmp_path):
    """The command that translates a file of the sentences."""
    write_lines(tmp_path / "in", SENTENCES)
    return f"translate --model {folder} --input {tmp_path}/in --quiet"


def run(words):
    """Runs a command of csan-hf; returns its exit code."""
    return main(words.split())
