# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Tokens for a reader, and the word that each token belongs to."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from csan_hf.alignment import tokenize_texts
from csan_hf.data import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(
        ["the number is twenty-one.", "犬が走る。"] * 3, 330, unicode_form="NFKC"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("   ", ""),
        ("the number, twenty", "the:␣the number,:␣number+, twenty:␣twenty"),
        ("  the  is ", "the:␣+␣+␣the is:␣+␣is"),
        ("ﬁ is", "ﬁ:␣+f+i is:␣is"),  # one character that becomes two
        ("e\u0301 is", "e\u0301:␣+\\xc3+\\xa9 is:␣is"),  # two that become one
        ("５ is", "５:␣+5 is:␣is"),
        ("the\u3000is", "the:␣the is:␣is"),  # white space of other kinds
        ("the\u00a0\tis", "the:␣the is:␣+\\t+is"),
        ("</s> is", "</s>:␣+<+/+s+> is:␣is"),  # typed, hence no special token
        ("犬が走る。 is", "犬が走る。:␣犬が走る+。 is:␣is"),
    ],
)
def test_white_space_and_normalisation(tokenizer, text, expected):
    (result,) = tokenize_texts(tokenizer, [text])
    tokens = {word: [] for word in range(len(result.words))}
    for token, word in zip(result.tokens, result.word_of_token, strict=True):
        if word is not None:
            tokens[word].append(token)
    words = (f"{word}:{'+'.join(tokens[number])}" for number, word in enumerate(result.words))
    assert " ".join(words) == expected


@given(st.text(alphabet=st.sampled_from("ab1 \t\u3000é\u0301ﬁ½走🙂¨.$"), max_size=12))
def test_every_word_has_tokens_in_order(tokenizer, text):
    (result,) = tokenize_texts(tokenizer, [text])
    assert result.words == tuple(text.split())
    numbers = [word for word in result.word_of_token if word is not None]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(len(result.words)))
    assert result.word_of_token[-1] is None
    assert result.tokens[-1] == "</s>"
    assert len(result.tokens) == len(result.ids) == len(result.word_of_token)
    assert result.ids == tuple(tokenizer(text)["input_ids"])


def test_words_of_characters_are_letters():
    tokenizer = train_tokenizer(["ab cd"], 20, kind="characters")
    (result,) = tokenize_texts(tokenizer, ["ab  dx"])
    assert result.words == ("a", "b", "d", "x")
    assert result.word_of_token == (0, 1, 2, 2, 2, 3, None)


def test_other_tokenizers_show_their_own_tokens():
    plain = Tokenizer(models.WordLevel({"<unk>": 0, "▁a": 1, "éĠ": 2}, unk_token="<unk>"))
    plain.normalizer = normalizers.Replace("x", "")
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>")
    (result,) = tokenize_texts(tokenizer, ["▁a x éĠ b"])
    assert result.tokens == ("▁a", "éĠ", "<unk>")
    assert result.words == ("▁a", "x", "éĠ", "b")
    assert result.word_of_token == (0, 2, 3)  # the second word has no token
    assert tokenize_texts(tokenizer, []) == []
    with pytest.raises(ValueError, match=r"SimpleNamespace.*need a fast tokenizer"):
        tokenize_texts(SimpleNamespace(is_fast=False), ["a"])
