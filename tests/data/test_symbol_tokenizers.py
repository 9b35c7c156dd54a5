# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Tokenizers of characters and of symbols."""

import unicodedata

import pytest
from datasets import Dataset
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from csan_hf.data import train_tokenizer, train_tokenizers

LETTERS = "abcé갂 \n<>/s"
characters = train_tokenizer([LETTERS], 100, kind="characters")
decomposed = train_tokenizer([LETTERS], 100, kind="characters", unicode_form="NFD")
symbols = train_tokenizer(["tʰ a ː", "ɑ̃ é é"], 100, kind="symbols")


def round_trip(tokenizer, text):
    return tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)


@given(text=st.text(st.sampled_from(LETTERS), max_size=20))
@settings(max_examples=100, deadline=None)
@example("a </s> b")
@example("  ")
@example("")
def test_characters_come_back_exactly(text):
    assert round_trip(characters, text) == text
    assert round_trip(decomposed, text) == unicodedata.normalize("NFD", text)
    assert len(characters(text)["input_ids"]) == len(text) + 1


@given(found=st.lists(st.sampled_from(["tʰ", "a", "ː", "ɑ̃", "é", "é"]), max_size=10))
@settings(max_examples=50, deadline=None)
def test_symbols_come_back_exactly(found):
    assert round_trip(symbols, " ".join(found)) == " ".join(found)
    assert len(symbols("  ".join(found))["input_ids"]) == len(found) + 1


def test_forms_of_unicode():
    assert characters.tokenize("e\u0301갂") == ["é", "갂"]
    assert decomposed.tokenize("é갂") == ["e", "\u0301", "ᄀ", "ᅡ", "ᆩ"]
    assert symbols.tokenize("é é") == ["é", "é"]  # two symbols that differ in their form


@pytest.mark.parametrize("tokenizer", [characters, symbols], ids=["characters", "symbols"])
def test_they_are_ordinary_tokenizers(tokenizer, tmp_path):
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("a é", "z é"):
        assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert round_trip(loaded, text) == round_trip(tokenizer, text)
    assert tokenizer("z")["input_ids"] == [2, 1]


def test_the_most_frequent_stay():
    assert set(train_tokenizer(["a a b b c"], 5, kind="symbols").get_vocab()) == {"<pad>", "</s>", "<unk>", "a", "b"}


def test_letters_to_phones():
    pairs = Dataset.from_dict({"source": ["an"], "target": ["a n"]})
    both = train_tokenizers(pairs, 10, joint=False, kind="characters", target_kind="symbols")
    assert both.source.tokenize("na") == ["n", "a"]
    assert both.target.tokenize("n a") == ["n", "a"]
    assert " " not in both.target.get_vocab()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "letters"}, "kind is 'letters'; it must be one of bpe, characters, symbols"),
        ({"kind": "characters", "unicode_form": "NFX"}, "unicode_form is 'NFX'"),
        ({"kind": "symbols", "vocab_size": 2}, "vocab_size is 2; it must be at least 3: 3 special tokens"),
    ],
)
def test_what_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        train_tokenizer(["a b"], **{"vocab_size": 100, **options})


def test_a_special_token_is_no_symbol():
    with pytest.raises(ValueError, match="the symbol '</s>' occurs in the text"):
        train_tokenizer(["a </s> b"], 100, kind="symbols")


def test_a_joint_vocabulary_has_one_kind():
    pairs = Dataset.from_dict({"source": ["a"], "target": ["b"]})
    with pytest.raises(ValueError, match="target_kind is symbols, but the vocabulary is joint"):
        train_tokenizers(pairs, 300, target_kind="symbols")
