# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from csan_hf.data import DataArguments, load_translation_dataset
from csan_hf.data.readers import read_table, read_text_pair
from csan_hf.data.sigmorphon import prepare_multilingual, word_symbols


def test_unequal_line_counts_are_refused(tmp_path):
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("1\n2\n")
    with pytest.raises(ValueError, match=r"a has 3 lines and .*b has 2: line 3 of .*a has no partner in .*b"):
        read_text_pair(tmp_path / "a", tmp_path / "b")


def test_tsv(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text('de\tid\ten\nein "Wort\t1\ta "word\nzwei\t2\ttwo\n', encoding="utf-8")
    assert read_table(path, "en", "de") == (['a "word', "two"], ['ein "Wort', "zwei"])
    assert read_table(path, "2", "0") == (["en", 'a "word', "two"], ["de", 'ein "Wort', "zwei"])
    with pytest.raises(ValueError, match=r"pairs\.tsv, line 2: there is no column 'fr' among 'de', 'id', 'en'"):
        read_table(path, "en", "fr")
    path.write_text("en\tde\none\teins\ntwo\n")
    with pytest.raises(ValueError, match=r"pairs\.tsv, line 3: there is no column 'de' among 'en'"):
        read_table(path, "en", "de")


def test_csv(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text('\ufeffen,de\n"one, ""1""",eins\ntwo,"zw\nei"\n\n', encoding="utf-8")
    assert read_table(path, "en", "de") == (['one, "1"', "two"], ["eins", "zw\nei"])
    assert read_table(path, "1", "0")[0] == ["de", "eins", "zw\nei"]
    with pytest.raises(ValueError, match=r"pairs\.csv, line 2: there is no column 'fr' among 'en', 'de'"):
        read_table(path, "en", "fr")
    path.write_text("en,de\none,eins\ntwo\n")
    with pytest.raises(ValueError, match=r"pairs\.csv, line 3: there is no column 'de' among 'en'"):
        read_table(path, "en", "de")
    path.write_text('en,de\none,"eins\n')
    with pytest.raises(ValueError, match=r"pairs\.csv, after the beginning: not csv, or damaged \(unexpected end"):
        read_table(path, "en", "de")


def test_jsonl(tmp_path):
    path = tmp_path / "pairs.jsonl.gz"

    def write(*lines):
        path.write_bytes(gzip.compress("\n".join(lines).encode()))

    write('{"en": "one\\u2028", "de": "eins"}', '{"translation": {"en": "two", "de": "zwei"}, "id": 3}')
    assert read_table(path, "en", "de") == (["one\u2028", "two"], ["eins", "zwei"])
    for line, reason in (
        ('{"en": "two"}', "line 2: there is no column 'de' among 'en'"),
        ('{"translation": {"en": "two"}}', "line 2: there is no column 'de' among 'en'"),
        ('{"en": "two", "de": null}', "line 2: 'de' is None; text is needed"),
        ('{"en": "two", "de": "\\ud800"}', "line 2: 'de' is '.ud800'; text is needed"),
        ("[1, 2]", "line 2: there is no column 'en' among"),
        ("{two", "after line 1: not jsonl, or damaged"),
    ):
        write('{"en": "one", "de": "eins"}', line)
        with pytest.raises(ValueError, match=rf"pairs\.jsonl\.gz, {reason}"):
            read_table(path, "en", "de")


def test_parquet(tmp_path):
    flat, nested = tmp_path / "flat.parquet", tmp_path / "nested.parquet"
    pq.write_table(pa.table({"en": ["one", "two"], "de": ["eins", None], "fr": ["un", "deux"]}), flat)
    pq.write_table(pa.table({"translation": [{"en": "one", "de": "eins"}, {"en": "two", "de": "zwei"}]}), nested)
    assert read_table(flat, "en", "fr") == (["one", "two"], ["un", "deux"])
    assert read_table(nested, "de", "en") == (["eins", "zwei"], ["one", "two"])
    with pytest.raises(ValueError, match=r"flat\.parquet, row 1: 'de' is None; text is needed"):
        read_table(flat, "en", "de")
    with pytest.raises(ValueError, match=r"flat\.parquet, row 0: there is no column 'es' among 'en', 'de', 'fr'"):
        read_table(flat, "en", "es")
    with pytest.raises(ValueError, match=r"nested\.parquet, row 0: there is no column 'fr' among 'en', 'de'"):
        read_table(nested, "en", "fr")
    flat.write_text("no parquet")
    with pytest.raises(ValueError, match=r"flat\.parquet, after the beginning: not parquet"):
        read_table(flat, "en", "de")


def test_damaged_parquet_pages_and_deep_json_are_refused_in_one_line(tmp_path):
    path = tmp_path / "pairs.parquet"
    rows = [f"satz {number}" for number in range(2000)]
    pq.write_table(pa.table({"de": rows, "en": rows}), path, compression="snappy", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[200:400] = b"\xff" * 200
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"pairs\.parquet, after the beginning: not parquet, or damaged") as error:
        read_table(path, "de", "en")
    assert "\n" not in str(error.value)
    deep = tmp_path / "deep.jsonl"
    deep.write_text('{"de": ' + "[" * 100_000)
    with pytest.raises(ValueError, match=r"deep\.jsonl, after the beginning: not jsonl"):
        read_table(deep, "de", "en")


# ---- words and their phones


def write_words(folder, language, **splits):
    for split, lines in splits.items():
        (folder / f"{language}_{split}.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def test_the_files(tmp_path):
    dev = [f"{letter}\tx y" for letter in "abcdefg"]
    write_words(tmp_path, "one", train=["ab\ta b"], dev=dev)
    write_words(tmp_path, "two", train=["c\tz"], dev=dev[:2], test=["d\tz"])
    written = prepare_multilingual(tmp_path, tmp_path / "out", ["one", "two"])
    assert written == {
        **{"one_dev.tsv": 7, "two_dev.tsv": 2, "two_test.tsv": 1},
        **{"train.tsv": 2, "validation.tsv": 3},
    }
    assert (tmp_path / "out/train.tsv").read_text() == "<one> a b\ta b\n<two> c\tz\n"
    assert word_symbols("vie", "ăn gì") == "<vie> a \u0306 n \u2581 g i \u0300"
    assert (tmp_path / "out/validation.tsv").read_text() == "<one> a\tx y\n<one> f\tx y\n<two> a\tx y\n"


def test_patterns_may_name_the_languages(tmp_path):
    write_words(tmp_path, "dut", train=["ab\ta b"])
    languages = {"source_lang": "dut", "target_lang": "ipa", "source_column": "0", "target_column": "1"}
    data = DataArguments(data_dir=str(tmp_path), train="{source_lang}_train.tsv", **languages)
    assert load_translation_dataset(data)[0]["train"][0] == {"source": "ab", "target": "a b"}
