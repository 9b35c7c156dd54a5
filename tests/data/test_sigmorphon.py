# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The corpus of one model for several languages, and patterns with the languages of a corpus."""

import pytest

from csan_hf.data import DataArguments, load_translation_dataset
from csan_hf.data.sigmorphon import prepare_multilingual, word_symbols


def write(folder, language, **splits):
    for split, lines in splits.items():
        (folder / f"{language}_{split}.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def test_words_become_symbols():
    assert word_symbols("vie", "ăn gì") == "<vie> a \u0306 n \u2581 g i \u0300"


def test_the_files(tmp_path):
    dev = [f"{letter}\tx y" for letter in "abcdefg"]
    write(tmp_path, "one", train=["ab\ta b"], dev=dev)
    write(tmp_path, "two", train=["c\tz"], dev=dev[:2], test=["d\tz"])
    written = prepare_multilingual(tmp_path, tmp_path / "out", ["one", "two"])
    assert written == {
        **{"one_dev.tsv": 7, "two_dev.tsv": 2, "two_test.tsv": 1},
        **{"train.tsv": 2, "validation.tsv": 3},
    }
    assert (tmp_path / "out/train.tsv").read_text() == "<one> a b\ta b\n<two> c\tz\n"
    assert (tmp_path / "out/validation.tsv").read_text() == "<one> a\tx y\n<one> f\tx y\n<two> a\tx y\n"


def test_a_language_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"No such file.*xyz_train\.tsv"):
        prepare_multilingual(tmp_path, tmp_path / "out", ["xyz"])


def test_patterns_may_name_the_languages(tmp_path):
    write(tmp_path, "dut", train=["ab\ta b"])
    data = DataArguments(
        data_dir=str(tmp_path),
        train="{source_lang}_train.tsv",
        source_lang="dut",
        target_lang="ipa",
        source_column="0",
        target_column="1",
    )
    assert load_translation_dataset(data)[0]["train"][0] == {"source": "ab", "target": "a b"}
