# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from csan_hf.data import DataArguments, load_translation_dataset
from csan_hf.data.readers import table_pairs, text_pairs


def read_table(path, source_column, target_column):
    pairs = list(table_pairs(path, (source_column, target_column)))
    return [source for source, _ in pairs], [target for _, target in pairs]


def test_unequal_line_counts_are_refused(tmp_path):
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("1\n2\n")
    with pytest.raises(
        ValueError, match=r"a has 3 lines and .*b has 2: line 3 of .*a has no partner in .*b"
    ):
        list(text_pairs(tmp_path / "a", tmp_path / "b"))


def test_delimited(tmp_path):
    tsv, csv = tmp_path / "pairs.tsv", tmp_path / "pairs.csv"
    tsv.write_text('de\tid\ten\nein "Wort\t1\ta "word\n\nzwei\t2\ttwo\n\n', encoding="utf-8")
    assert read_table(tsv, "en", "de") == (['a "word', "two"], ['ein "Wort', "zwei"])
    assert read_table(tsv, "2", "0") == (["en", 'a "word', "two"], ["de", 'ein "Wort', "zwei"])
    csv.write_text('\ufeffen,de\n"one, ""1""",eins\ntwo,"zw\nei"\n\n', encoding="utf-8")
    assert read_table(csv, "en", "de") == (['one, "1"', "two"], ["eins", "zw\nei"])
    assert read_table(csv, "1", "0")[0] == ["de", "eins", "zw\nei"]


def test_jsonl(tmp_path):
    path = tmp_path / "pairs.jsonl.gz"
    lines = '{"en": "one\\u2028", "de": "eins"}\n\n{"translation": {"en": "two", "de": "zwei"}, "id": 3}'
    path.write_bytes(gzip.compress(lines.encode()))
    assert read_table(path, "en", "de") == (["one\u2028", "two"], ["eins", "zwei"])


def test_parquet(tmp_path):
    flat, nested = tmp_path / "flat.parquet", tmp_path / "nested.parquet"
    columns = {"en": ["one", "two"], "de": ["eins", None], "fr": ["un", "deux"]}
    translations = [{"en": "one", "de": "eins"}, {"en": "two", "de": "zwei"}]
    pq.write_table(pa.table(columns), flat)
    pq.write_table(pa.table({"translation": translations}), nested)
    assert read_table(flat, "en", "fr") == (["one", "two"], ["un", "deux"])
    assert read_table(nested, "de", "en") == (["eins", "zwei"], ["one", "two"])
    with pytest.raises(ValueError, match=r"flat\.parquet, row 1: 'de' is None; text is needed"):
        read_table(flat, "en", "de")
    with pytest.raises(ValueError, match=r"nested\.parquet, row 0: .* 'fr' among 'en', 'de'"):
        read_table(nested, "fr", "en")


PAIR = '{"en": "one", "de": "eins"}\n'


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("tsv", "en\tde\none\teins\ntwo\n", "line 3: there is no column 'de' among 'en'"),
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
    pq.write_table(
        pa.table({"de": rows, "en": rows}), path, compression="snappy", use_dictionary=False
    )
    content = bytearray(path.read_bytes())
    content[200:400] = b"\xff" * 200
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"pairs\.parquet, after the beginning: not parquet, or damaged"
    ) as error:
        read_table(path, "de", "en")
    assert "\n" not in str(error.value)


# ---- words and their phones


def test_patterns_may_name_the_languages(tmp_path):
    (tmp_path / "dut_train.tsv").write_text("ab\ta b\n")
    data = DataArguments(
        data_dir=str(tmp_path),
        train="{source_lang}_train.tsv",
        source_lang="dut",
        source_column="0",
        target_column="1",
    )
    assert load_translation_dataset(data)[0]["train"][0] == {"source": "ab", "target": "a b"}


@pytest.mark.parametrize("form", ["É", "é", "E\u0301", "e\u0301", "Ｅ\u0301"])
def test_a_words_pronunciations_are_on_one_side(form, tmp_path):
    lines = [f"{form if number % 2 else 'é'}{number // 2}\t{number}" for number in range(40)]
    (tmp_path / "words.tsv").write_text("\n".join(lines))
    columns = {"source_column": "0", "target_column": "1"}
    data = DataArguments(data_dir=str(tmp_path), train="words.tsv", validation_size=9, **columns)
    splits, _ = load_translation_dataset(data)
    words = {
        name: {int(source.lstrip(f"é{form}")) for source in split["source"]}
        for name, split in splits.items()
    }
    assert not words["train"] & words["validation"]
    assert (len(splits["train"]), len(splits["validation"])) == (32, 8)
    targets = [*splits["train"]["target"], *splits["validation"]["target"]]
    assert sorted(targets) == sorted(line.split("\t")[1] for line in lines)
