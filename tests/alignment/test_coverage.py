# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Sentences that a translation leaves out: against loops over tokens and characters."""

from collections import Counter

import numpy as np
import pytest

from csan_hf.alignment import Alignment, tokenize_texts, uncovered_sentences
from csan_hf.data import train_tokenizer

SENTENCES = (
    "the number is twenty-one. ",
    "犬が走る。",
    "the number is two.  ",
    "the number is three hundred and one. ",
    "   ",
)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([*SENTENCES] * 3, 330)


def slow(alignment, sentences):
    """The definition, a token at a time."""
    text = "".join(sentences)
    places = []
    for number, sentence in enumerate(sentences):
        places += [number] * len(sentence)
    sentence_of = {}
    for token, start in enumerate(alignment.source.starts[: len(alignment.source.ids)]):
        if alignment.source.word_of_token[token] is not None:
            while text[start].isspace():
                start += 1
            sentence_of[token] = places[start]
    sizes = Counter(sentence_of.values())
    covering = Counter()
    for row, word in zip(alignment.matrix, alignment.target.word_of_token, strict=True):
        if word is not None:
            got = [0.0] * len(sentences)
            for token, sentence in sentence_of.items():
                got[sentence] += row[token]
            covering[got.index(max(got))] += 1
    return [n for n in range(len(sentences)) if 5 * covering[n] < sizes[n]]


@pytest.mark.parametrize("seed", range(8))  # 0: there is no translation at all
def test_uncovered_sentences_equal_their_definition(seed, tokenizer):
    generator = np.random.default_rng(seed)
    sentences = [SENTENCES[number] for number in generator.integers(0, len(SENTENCES), 5)]
    source, target = tokenize_texts(tokenizer, ["".join(sentences), "the number is two. " * seed])
    matrix = generator.random((len(target.ids), len(source.ids)), dtype=np.float32) ** 8
    alignment = Alignment(source, target, matrix)
    assert uncovered_sentences(alignment, sentences) == slow(alignment, sentences)
