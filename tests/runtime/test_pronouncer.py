# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The English pronouncer of the package: looked up and predicted."""

import gzip

import numpy as np
import pytest

from csan_hf.data import train_tokenizer
from csan_hf_runtime import exported_folder
from csan_hf_runtime.dictionary import DICTIONARY, PronouncingDictionary
from csan_hf_runtime.terms import Terms
from csan_hf_runtime.translator import TextTranslator

COLONEL = "K ER1 N AH0 L"


@pytest.fixture(scope="module")
def pronouncer():
    return TextTranslator.from_directory(exported_folder("pronouncer-english"))


def texts(results):
    return [[candidate.text for candidate in candidates] for candidates in results]


def test_words_are_looked_up_whatever_their_case(pronouncer, caplog):
    words = ["colonel", "Colonel", " a.m.", "", "abacus"]
    looked_up = [[COLONEL], [COLONEL], ["EY2 EH1 M"], [""], ["AE1 B AH0 K AH0 S"]]
    assert texts(pronouncer.translate(words)) == looked_up
    assert caplog.text == ""  # of the signs in "a.m."
    assert texts(pronouncer.translate(["blorp"])) == [["B L AO1 R P"]], "predicted"


def test_candidates_begin_with_the_dictionary(pronouncer):
    read, colonel = pronouncer.translate(["read", "colonel"], n_best=3, return_scores=True)
    assert [candidate.text for candidate in read[:2]] == ["R EH1 D", "R IY1 D"]
    assert [candidate.log_probability for candidate in read[:2]] == [0, 0]
    assert colonel[0].text == COLONEL
    for candidates in (read, colonel):
        assert len({candidate.text for candidate in candidates}) == 3
    assert colonel[1].log_probability < 0


def test_a_word_with_a_term_is_not_looked_up(pronouncer):
    terms = Terms({"colonel": "T UW1"})
    [[colonel], [abacus]] = pronouncer.translate(["colonel", "abacus"], terms=terms)
    assert "T UW1" in colonel.text
    assert abacus.text == "AE1 B AH0 K AH0 S"


def test_an_entry_has_its_word_as_a_sentence(pronouncer):
    [[colonel]] = pronouncer.translate([" colonel"])
    [sentence] = colonel.sentences
    assert (sentence.source_text, sentence.translation_text) == ("colonel", COLONEL)


def test_samples_and_prefixes_are_the_models(pronouncer):
    samples = pronouncer.translate(
        ["colonel"], sample=True, n_best=20, generator=np.random.default_rng(1)
    )
    assert len(set(texts(samples)[0])) > 1
    [[begun]] = texts(pronouncer.translate(["colonel"], prefixes=["G"]))
    assert begun.startswith("G ")


ROWS = ["cat\tK AE1 T", "fish\tF IH1 SH\tF AH1 SH", "gas\tG AE1 S", "nez\tn e", "tree\tT R IY1"]
LETTERS = train_tokenizer(["a"], 9, kind="characters", unicode_form="NFD", case="lower")
normalize = LETTERS.backend_tokenizer.normalizer.normalize_str


@pytest.fixture
def make(tmp_path):
    """A function that writes a dictionary and loads it."""

    def make(text):
        path = tmp_path / DICTIONARY
        path.write_bytes(gzip.compress(text.encode()))
        return PronouncingDictionary(path, normalize)

    return make


@pytest.fixture
def dictionary(make):
    return make("\n".join(ROWS))


@pytest.mark.parametrize(
    ("word", "pronunciations"),
    [
        ("cats", ["K AE1 T S"]),
        ("Cat's", ["K AE1 T S"]),
        ("cat’s", ["K AE1 T S"]),
        ("trees", ["T R IY1 Z"]),
        ("fish's", ["F IH1 SH IH0 Z", "F AH1 SH IH0 Z"]),
        ("gas", ["G AE1 S"]),
        ("gass", []),
        ("nez's", []),  # of another alphabet
        ("dogs", []),
    ],
)
def test_plurals_and_possessives_of_words_in_the_dictionary(dictionary, word, pronunciations):
    assert dictionary.pronunciations(word) == pronunciations


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(["\ufeff" + ROWS[0], *ROWS[1:]]),  # byte order mark
        "\n".join(reversed(ROWS)),
        "\r\n".join(ROWS) + "\r\n",
        "\n".join(ROWS).replace("cat", "CAT").replace("fish", "Fish"),
        "\n".join(ROWS).replace("\tF AH1 SH", "\nfish\tF AH1 SH"),  # a line for each
        "\n".join(["cat\x01\tx", "gas\t", "gas", *reversed(ROWS)]).replace("nez\t", "nez\t\t"),
    ],
)
def test_every_word_of_a_dictionary_is_found(make, text):
    dictionary = make(text)
    for row in ROWS:
        word, *pronunciations = row.split("\t")
        assert dictionary.pronunciations(word) == pronunciations
    assert make("zoo\ta\u2028b\x0bc\x85d").pronunciations("zoo") == ["a\u2028b\x0bc\x85d"]


@pytest.mark.parametrize("word", ["Café", "CAFE\u0301", "İstanbul", "ΛΌΓΟΣ", "O’Hara"])
def test_words_are_looked_up_as_the_model_reads_them(make, word):
    dictionary = make(f"zoo\tZ UW1\n{word}\tx")
    assert dictionary.pronunciations(word) == ["x"]
    assert dictionary.pronunciations(normalize(word)) == ["x"]


@pytest.mark.parametrize(
    ("word", "pronunciations"),
    [
        ("Polish", ["A", "B"]),
        ("polish", ["B"]),
        ("Cat", ["K AE1 T"]),
        ("CATS", ["K AE1 T S"]),
        ("Don’t", ["D OW1 N T"]),
    ],
)
@pytest.mark.parametrize("read", [normalize, str], ids=["small letters", "case is kept"])
def test_the_spelling_itself_comes_first(read, word, pronunciations, tmp_path):
    path = tmp_path / DICTIONARY
    path.write_bytes(gzip.compress(b"Polish\tA\ncat\tK AE1 T\ndon't\tD OW1 N T\npolish\tB"))
    entries = PronouncingDictionary(path, read).pronunciations(word)
    assert entries == (pronunciations if read is normalize else pronunciations[:1])


@pytest.mark.parametrize(
    "content",
    [b"cat", gzip.compress(b"cat")[:-4], gzip.compress(b"\xff")],
    ids=["not gzipped", "cut", "not UTF-8"],
)
def test_damaged_dictionaries_are_named(tmp_path, content):
    path = tmp_path / DICTIONARY
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{DICTIONARY} is damaged"):
        PronouncingDictionary(path, normalize)
