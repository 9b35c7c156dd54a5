# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Glossaries, and translations that hold their targets."""

import multilingual
import pytest
from pipelines.conftest import translator_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from csan_hf.data import train_tokenizer
from csan_hf.pipelines.tokenizer_vocabulary import TokenizerVocabulary
from csan_hf_runtime.terms import Terms, lacking


@pytest.mark.parametrize(
    ("source", "targets"),
    [
        ("the New York Times", ["Times-NY"]),
        ("New York, York", ["NY", "York-DE"]),
        ("Newer Yorkshire york", []),
        ("York and York", ["York-DE"]),
        ("C++ or (C++)", ["cpp"]),
        ("大東京は", ["Tokyo"]),
        ("York Yorks York", ["York-DE", "York-DE"]),
        ("New\u00a0York, Tür", ["NY", "door"]),
        ("कमी है", []),
        ("कम है", ["less"]),
        ("ฉันกินข้าวทุกวัน", ["rice"]),
        ("저는 학생입니다", ["student"]),
    ],
)
def test_terms_are_found_as_whole_words(source, targets):
    names = {"New York": "NY", "York": "York-DE", "New York Times": "Times-NY", "C++": "cpp"}
    names |= {"Yorks": "York-DE", "東京": "Tokyo", "Tu\u0308r": "door"}
    names |= {"कम": "less", "ข้าว": "rice", "학생": "student"}
    assert Terms(names).targets_of(source) == targets


@pytest.mark.parametrize(
    ("targets", "translation", "missing"),
    [
        ("Zahl aus 東", "Zahlen im Haus, 大東", "aus"),
        ("Haus Haustür", "Die Haustür.", "Haus"),
        ("Haus Haustür", "Des Hauses Haustüren.", ""),
        ("A A", "A", "A"),
        ("A A", "A A", ""),
        ("Haus Rat", "Hausrat, Rathaus", "Haus Rat"),
        ("Tag Box", "an Tagen, in Boxen", ""),
        ("C++ b", "C++17 bc", ""),
        ("b,c a,b", "a,b,c; b,c", ""),
        ("a,b b,c", "a,b,c", "b,c"),
        ("a,b b,c,d", "a,b,c,d", "a,b"),
        ("Tür Café", "Tu\u0308ren, Cafe\u0301", ""),
        ("Cafe\u0301", "Caféterie", "Cafe\u0301"),
        ("कम", "कमरा", "कम"),
    ],
)
def test_each_target_has_a_place_of_its_own_where_a_word_begins(targets, translation, missing):
    assert lacking(targets.split(), translation) == missing.split()


@pytest.mark.parametrize("text", ["", " ", "a\nb", "a\u2028", "\ud800"])
def test_what_is_no_term_is_refused(text):
    for terms in ({text: "dog"}, {"Hund": text}):
        with pytest.raises(ValueError, match=r"is no term|half of a surrogate pair"):
            Terms(terms)


def test_a_file_of_terms(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text("a b\t c d\n\nHund\tdog\n")
    assert Terms.read(path).targets_of("Hund a b") == ["dog", "c d"]
    for line in ("Hund", "Hund\t", "Hund\tdog\tnoun"):
        path.write_text(f"a\tb\n{line}\n")
        with pytest.raises(ValueError, match=r"terms.tsv, line 2: .* is no term"):
            Terms.read(path)


def byte_level(vocabulary):
    """BPE as GPT-2 has it: the first word of a text has no space before it."""
    tokens = ["<unk>", *vocabulary]
    numbers = {token: number for number, token in enumerate(tokens)}
    bpe = Tokenizer(models.BPE(vocab=numbers, merges=[("Ġ", "a"), ("Ġa", "b")]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    return bpe


def sentencepiece(vocabulary):
    scores = [("<unk>", -9.0), *((token, -1.0) for token in vocabulary)]
    unigram = Tokenizer(models.Unigram(scores, unk_id=0))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    return unigram


@pytest.mark.parametrize(
    ("build", "vocabulary", "tokens"),
    [
        (byte_level, ["a", "b", "Ġ", ".", "Ġa", "Ġab"], ["Ġab"]),
        (sentencepiece, ["a", "b", "▁", ".", "▁.", "▁ab", "ab"], ["▁ab"]),
        (None, None, ["Ġab"]),
    ],
    ids=["byte-level BPE", "SentencePiece", "of csan_hf"],
)
def test_a_target_is_cut_as_within_a_sentence(build, vocabulary, tokens):
    tokenizer = train_tokenizer(["ab ab . ab"] * 9, 300)
    if build is not None:
        backend = build(vocabulary)
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=backend, unk_token="<unk>", pad_token="<unk>"
        )
    vocabulary = TokenizerVocabulary(tokenizer, is_target=True)
    ids = vocabulary.within_text("ab")
    assert tokenizer.convert_ids_to_tokens(ids) == tokens
    with pytest.raises(ValueError, match=r"^The term '\\u200b' has"):
        vocabulary.within_text("\u200b")


def test_a_target_is_cut_without_a_language(tmp_path):
    _, tokenizer = multilingual.m2m100(tmp_path)
    vocabulary = TokenizerVocabulary(tokenizer, is_target=True)
    tokens = tokenizer.convert_ids_to_tokens(vocabulary.within_text("zwei drei"))
    assert tokens == ["▁zwei", "▁drei"]
    assert vocabulary.unknown_pieces(["zwei ☃"]) == [["☃"]]


def test_a_term_that_has_no_room_is_warned_of(joint, library_log):
    translator = translator_of(*joint)
    translator("Katze", terms=Terms({"Katze": "one two three"}), max_new_tokens=2)
    assert "A translation lacks 'one two three', the term for one in 'Katze'" in library_log.text
