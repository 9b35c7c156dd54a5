# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Several pairs of languages in one corpus, and corpora that are read as streams."""

import json

import datasets
import pytest

from csan_hf.data import DataArguments, TokenizerPair, load_translation_dataset, train_tokenizer
from csan_hf.data.language_pairs import add_language_tags, language_tags, parse_language_pairs

WORDS = {"de": ["eins", "zwei", ""], "en": ["one", "two", "three"], "fr": ["un", "deux", "trois"]}


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "val", "news"):
        for language, words in WORDS.items():
            (tmp_path / f"{split}.{language}").write_text("".join(f"{word}\n" for word in words))
    return tmp_path


def arguments(folder, pairs, **options):
    files = {"train": "train.{lang}", "validation": "val.{lang}", "test": {"news": "news.{lang}"}}
    return DataArguments(data_dir=str(folder), language_pairs=pairs, **files, **options)


def test_pairs_are_tagged_and_put_together(folder):
    data, report = load_translation_dataset(arguments(folder, ["de-en", "en-fr"]))
    assert list(data) == ["train", "validation", "news_de-en", "news_en-fr"]
    assert data["train"][:] == {
        "source": [">>en<< eins", ">>en<< zwei", ">>fr<< one", ">>fr<< two", ">>fr<< three"],
        "target": ["one", "two", "un", "deux", "trois"],
    }
    assert data["news_de-en"]["source"][:] == [">>en<< eins", ">>en<< zwei", ""]
    assert report.read == {"train": 6, "validation": 6, "news_de-en": 3, "news_en-fr": 3}
    assert (report.kept["train"], report.noted["validation"]) == (5, {"with an empty side": 1})
    only, _ = load_translation_dataset(arguments(folder, ["de-en", "en-fr"]), ["news_en-fr"])
    assert only["news_en-fr"]["source"][0] == ">>fr<< one"
    with pytest.raises(ValueError, match="has no split news"):
        load_translation_dataset(arguments(folder, ["de-en"]), ["news"])


def test_one_target_language_needs_no_tag(folder):
    data, _ = load_translation_dataset(arguments(folder, ["de-en", "fr-en"]))
    assert data["train"]["source"][:] == ["eins", "zwei", "un", "deux", "trois"]


def test_a_tag_is_one_token_and_changes_no_other():
    tokenizer = train_tokenizer(["eins zwei drei"] * 9, 300)
    plain = tokenizer("eins zwei")["input_ids"]
    size = len(tokenizer)
    for _ in range(2):  # the second time it is there
        add_language_tags(TokenizerPair(tokenizer, tokenizer), language_tags([("de", "en"), ("en", "de")]))
    assert len(tokenizer) == size + 2
    assert tokenizer(">>de<< eins zwei")["input_ids"] == [size + 1, *plain]
    assert tokenizer("eins zwei")["input_ids"] == plain


@pytest.mark.parametrize(
    ("pairs", "message"),
    [(["de"], "'de' must be SOURCE-TARGET"), (["de-de"], "one language twice"), (["a-b", "a-b"], "listed twice")],
)
def test_pairs_that_are_none(pairs, message):
    with pytest.raises(ValueError, match=message):
        parse_language_pairs(pairs)


def test_a_stream_gives_as_many_pairs_as_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    folder.mkdir()
    for split in ("train", "test"):
        lines = [json.dumps({"en": f"{split} {number}", "de": f"{number}"}) for number in range(50)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    args = DataArguments(dataset=str(folder), streaming=True, train_size=7, test_size=3)
    data, _ = load_translation_dataset(args)
    assert data["test"]["target"][:] == ["0", "1", "2"]
    assert len(set(data["train"]["target"])) == 7
    assert data["train"]["target"][:] != sorted(data["train"]["target"], key=int), "shuffled"
    assert load_translation_dataset(args)[0]["train"][:] == data["train"][:]
    with pytest.raises(ValueError, match="streaming reads a dataset on the Hub, of which train_size pairs"):
        DataArguments(dataset=str(folder), streaming=True)
