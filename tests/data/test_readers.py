# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import dataclasses
import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from csan_hf.data import DataArguments, load_translation_dataset
from csan_hf.data.readers import table_pairs, text_pairs


def read_table(path, source_column, target_column):
    pairs = list(table_pairs(path, (source_column, target_column)))
    return [pair["source"] for pair in pairs], [pair["target"] for pair in pairs]


def test_unequal_line_counts_are_refused(tmp_path):
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("1\n2\n")
    message = r"a has 3 lines and .*b has 2: line 3 of .*a has no partner in .*b"
    with pytest.raises(ValueError, match=message):
        list(text_pairs(tmp_path / "a", tmp_path / "b"))


TSV = 'de\tid\ten\nein "Wort\t1\ta "word\n\nzwei\t2\ttwo\n\n'
CSV = '\ufeffen,de,de\n"one, ""1""",eins,x\ntwo,"zw\nei",\n\n'


@pytest.mark.parametrize(
    ("kind", "text", "source", "target"),
    [
        ("tsv", TSV, {"en": ['a "word', "two"]}, {"de": ['ein "Wort', "zwei"]}),
        ("tsv", TSV, {"2": ["en", 'a "word', "two"]}, {"0": ["de", 'ein "Wort', "zwei"]}),
        # Of columns of one name the first counts
        ("csv", CSV, {"en": ['one, "1"', "two"]}, {"de": ["eins", "zw\nei"]}),
        ("csv", CSV, {"1": ["de", "eins", "zw\nei"]}, {"2": ["de", "x", ""]}),
        (
            "jsonl",
            '{"en": "one\\u2028", "de": ""}\n\n{"translation": {"en": "two", "de": "zwei"}, "id": 3}',
            {"en": ["one\u2028", "two"]},
            {"de": ["", "zwei"]},
        ),
    ],
)
def test_tables_of_text(kind, text, source, target, tmp_path):
    path = tmp_path / f"pairs.{kind}.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert read_table(path, *source, *target) == (*source.values(), *target.values())


def test_parquet(tmp_path):
    flat = tmp_path / "flat.parquet"
    nested = tmp_path / "nested.parquet"
    columns = {"en": ["one", "two"], "de": ["eins", None], "fr": ["un", "deux"]}
    pq.write_table(pa.table(columns), flat)
    pq.write_table(pa.table({"translation": [{"en": "one", "de": "eins"}]}), nested)
    assert read_table(flat, "en", "fr") == (["one", "two"], ["un", "deux"])
    assert read_table(nested, "de", "en") == (["eins"], ["one"])
    with pytest.raises(ValueError, match=r"flat\.parquet, row 1: 'de' is None; text is needed"):
        read_table(flat, "en", "de")
    with pytest.raises(ValueError, match=r"nested\.parquet, row 0: .* 'fr' among 'en', 'de'"):
        read_table(nested, "fr", "en")


PAIR = '{"en": "one", "de": "eins"}\n'


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (
            "tsv",
            "en\tde\none\teins\ntwo\n",
            r"after line 2: .*\(line 3 has 1 fields instead of 2\)",
        ),
        ("csv", "en,fr\none,un\n", "line 2: there is no column 'de' among 'en', 'fr'"),
        (
            "tsv",
            "en\tde\none\teins\nthree\ta\tb\n",
            r"after line 2: not tsv, or damaged \(line 3 has 3 fields instead of 2\)",
        ),
        (
            "csv",
            "en,de\none,eins\ntwo, too,zwei\n",
            r"after line 2: .*\(line 3 has 3 fields instead of 2\)",
        ),
        ("csv", 'en,de\none,"eins\n', r"after the beginning: not csv, or damaged \(unexpected end"),
        (
            "jsonl",
            PAIR + '{"translation": {"en": "two"}}',
            "line 2: there is no column 'de' among 'en'",
        ),
        ("jsonl", PAIR + '{"en": "two", "de": null}', "line 2: 'de' is None; text is needed"),
        (
            "jsonl",
            PAIR + '{"en": "two", "de": "\\ud800"}',
            "line 2: 'de' is '.ud800'; text is needed",
        ),
        ("jsonl", PAIR + "[1, 2]", "line 2: there is no column 'en' among"),
        ("jsonl", PAIR + "{two", "after line 1: not jsonl, or damaged"),
        ("jsonl", '{"de": ' + "[" * 100_000, "after the beginning: not jsonl"),
        ("parquet", "no parquet", "after the beginning: not parquet"),
    ],
)
def test_bad_tables_are_refused_by_file_and_line(kind, text, reason, tmp_path):
    path = tmp_path / f"pairs.{kind}"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"pairs\.{kind}, {reason}") as error:
        read_table(path, "en", "de")
    assert "\n" not in str(error.value)


def test_damaged_parquet_pages_are_refused_in_one_line(tmp_path):
    path = tmp_path / "pairs.parquet"
    rows = [f"satz {number}" for number in range(2000)]
    pq.write_table(pa.table({"de": rows, "en": rows}), path, use_dictionary=False)
    content = path.read_bytes()
    path.write_bytes(content[:200] + b"\xff" * 200 + content[400:])
    message = r"pairs\.parquet, after the beginning: not parquet, or damaged"
    with pytest.raises(ValueError, match=message) as error:
        read_table(path, "de", "en")
    assert "\n" not in str(error.value)


# ---- words and their phones


COLUMNS = {"source_column": "0", "target_column": "1"}


def test_patterns_may_name_the_languages(tmp_path):
    (tmp_path / "dut_train.tsv").write_text("ab\ta b\n")
    pattern = "{source_lang}_train.tsv"
    data = DataArguments(data_dir=str(tmp_path), train=pattern, source_lang="dut", **COLUMNS)
    assert load_translation_dataset(data)[0]["train"][0] == {"source": "ab", "target": "a b"}


def test_pairs_with_an_empty_side_are_not_drawn(tmp_path):
    lines = [f"a{number}\t{'b' * (number % 2)}" for number in range(40)]
    (tmp_path / "words.tsv").write_text("\n".join(lines))
    data = DataArguments(data_dir=str(tmp_path), train="words.tsv", validation_size=9, **COLUMNS)
    splits, _ = load_translation_dataset(data)
    assert splits.num_rows == {"train": 11, "validation": 9}
    assert set(splits["validation"]["target"]) == {"b"}
    (tmp_path / "words.tsv").write_text("a\tb\na\tc\n")
    with pytest.raises(ValueError, match="validation_size is 1, and each source has more pairs"):
        load_translation_dataset(dataclasses.replace(data, validation_size=1))


@pytest.mark.parametrize("form", ["É", "é", "E\u0301", "e\u0301", "Ｅ\u0301"])
def test_a_words_pronunciations_are_on_one_side(form, tmp_path):
    pairs = [(f"{form if number % 2 else 'é'}{number // 2}", f"{number}") for number in range(40)]
    (tmp_path / "words.tsv").write_text("\n".join(map("\t".join, pairs)))
    data = DataArguments(data_dir=str(tmp_path), train="words.tsv", validation_size=9, **COLUMNS)
    splits, _ = load_translation_dataset(data)
    assert splits.num_rows == {"train": 32, "validation": 8}
    rows = [*splits["train"], *splits["validation"]]
    assert sorted((row["source"], row["target"]) for row in rows) == sorted(pairs)
    words = []
    for split in splits.values():
        words.append({source.lstrip(f"é{form}") for source in split["source"]})
    assert not words[0] & words[1]
