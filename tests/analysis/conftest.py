# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Tokenizers that split words into pieces."""

import pytest

from csan_hf.data import TokenizerPair, train_tokenizer

SENTENCES = [
    "the number is twenty-one.",
    "die Zahl ist einundzwanzig.",
    "one two three",
    "eins zwei drei",
]


@pytest.fixture(scope="session")
def tokenizers():
    tokenizer = train_tokenizer(SENTENCES * 2, 300)
    return TokenizerPair(tokenizer, tokenizer)
