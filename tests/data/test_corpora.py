# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import gzip
import json
from collections import Counter

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from csan_hf.data import DataArguments, TokenizerPair, load_translation_dataset, train_tokenizer
from csan_hf.data.corpora import check_files, language_tags, parse_language_pairs
from csan_hf.data.tokenization import add_language_tags, tokenize_dataset
from csan_hf_runtime.text_files import VARIANTS

ENGLISH = ["one", "two", "", "four", "five"]
GERMAN = ["eins", "zwei", "drei", " ", "fünf"]


def write(path, lines, compress=False):
    data = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if compress else data)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "train.en.gz", ENGLISH, compress=True)
    write(tmp_path / "train.de", GERMAN)
    for name in ("val", "test_a", "test_b"):
        write(tmp_path / f"{name}.en", ENGLISH[:4])
        write(tmp_path / f"{name}.de", GERMAN[:4])
    return tmp_path


def arguments(folder, **options):
    return DataArguments(
        data_dir=str(folder), **{"train": "train.{lang}", "validation": "val.{lang}", **options}
    )


def test_text_files(folder):
    tests = {"test_a": "test_a.{lang}", "test_b": "test_b.{lang}.gz"}
    data, report = load_translation_dataset(arguments(folder, test=tests))
    assert list(data) == ["train", "validation", "test_a", "test_b"]
    assert data["train"][:] == {
        "source": ["one", "two", "five"],
        "target": ["eins", "zwei", "fünf"],
    }
    # line n of a test set stays line n, empty or not
    assert data["validation"][:] == {"source": ENGLISH[:4], "target": GERMAN[:4]}
    assert report.dropped == {"train": {"with an empty side": 2}}
    assert report.noted["test_b"] == {"with an empty side": 2}
    assert report.kept == {"train": 3, "validation": 4, "test_a": 4, "test_b": 4}
    assert str(report).splitlines()[0] == "train: 3 of 5 pairs; dropped: 2 with an empty side"


def test_a_target_of_several_references_holds_all(folder):
    write(folder / "more.de", ["ein", "zwo", "", "vier"])
    tests = {"both": ["test_a.{lang}", "more.{lang}"]}
    args = arguments(folder, validation=["val.{lang}", "more.de"], test=tests, join_test=[2])
    check_files(args)
    data, _ = load_translation_dataset(args)
    variants = [f"eins{VARIANTS}ein", f"zwei{VARIANTS}zwo", f"drei{VARIANTS}", f" {VARIANTS}vier"]
    assert data["validation"]["target"][:] == data["both"]["target"][:] == variants
    assert data["both_x2"]["target"][0] == f"eins zwei{VARIANTS}ein zwo"
    tokenizer = train_tokenizer(GERMAN, 300)
    tokenized, _ = tokenize_dataset(data, TokenizerPair(tokenizer, tokenizer), args)
    assert tokenized["both"]["labels"][0] == tokenizer("eins")["input_ids"], "the loss has one"
    write(folder / "more.de", ["ein"])
    with pytest.raises(ValueError, match=r"line 2 of .*test_a.de has no partner in .*more.de"):
        load_translation_dataset(args, ["both"])
    missing = arguments(folder, test={"both": ["test_a.{lang}", "missing.{lang}"]})
    with pytest.raises(ValueError, match=r"no file for both of language 'de'.*missing\.de"):
        check_files(missing)


def test_neighbouring_pairs_are_joined_to_longer_texts(folder):
    write(folder / "long.en", [f"word {number}" for number in range(9)])
    write(folder / "long.de", [f"Wort {number}" for number in range(9)])
    options = {"train": "long.{lang}", "validation": "long.{lang}", "test": {"far": "long.{lang}"}}
    args = DataArguments(data_dir=str(folder), **options, join=3, join_test=[2, 4])
    data, _ = load_translation_dataset(args)
    assert [*data] == [*args.split_names] == ["train", "validation", "far", "far_x2", "far_x4"]
    assert data["far_x4"]["source"] == [
        "word 0 word 1 word 2 word 3",
        "word 4 word 5 word 6 word 7",
    ]
    assert data["far_x2"]["target"][-1] == "Wort 6 Wort 7", "the last alone is too short"
    counts = [len(text.split()) // 2 for text in data["train"]["source"]]
    assert sum(counts) > 6
    assert {*counts} <= {1, 2, 3}
    assert len({*counts}) > 1
    assert (
        " ".join(data["train"]["source"]).split()
        == " ".join(f"word {n}" for n in range(sum(counts))).split()
    )
    assert [text.replace("word", "Wort") for text in data["train"]["source"]] == data["train"][
        "target"
    ][:]
    assert load_translation_dataset(args)[0]["train"][:] == data["train"][:], "the same again"
    again, _ = load_translation_dataset(args, splits=["far_x4"])
    assert again["far_x4"][:] == data["far_x4"][:]
    assert [*again] == ["far_x4"]
    for wrong in ([1], [3, 3]):
        with pytest.raises(ValueError, match="join_test must hold different numbers from 2 on"):
            DataArguments(dataset="numbers", join_test=wrong)
    with pytest.raises(ValueError, match="test has an entry of a name that join_test makes"):
        DataArguments(test={"far": "a.{lang}", "far_x2": "b.{lang}"}, join_test=[2])
    for split, settings in (("far_x12", {"join_test": [2, 12]}), ("train", {"join": 10**9})):
        with pytest.raises(
            ValueError,
            match=f"{split} is empty: fewer pairs than data.join or data.join_test joins",
        ):
            load_translation_dataset(DataArguments(data_dir=str(folder), **options, **settings))
    too_long = DataArguments(data_dir=str(folder), **options, join_test=[12])
    assert [*load_translation_dataset(too_long, splits=["far"])[0]] == ["far"]


def test_the_languages_choose_the_direction_and_splits_can_be_chosen(folder):
    args = arguments(
        folder, source_lang="de", target_lang="en", test="test_a.{lang}", train="missing.{lang}"
    )
    data, _ = load_translation_dataset(args, splits=["test"])
    assert list(data) == ["test"]
    assert data["test"]["source"][:2] == ["eins", "zwei"]
    with pytest.raises(ValueError, match=r"no split 'test_a', only train, validation, test"):
        load_translation_dataset(args, splits=["test_a"])


def test_sizes_select(folder):
    args = arguments(folder, train_size=2, validation_size=2, test="test_a.{lang}", test_size=10)
    data, report = load_translation_dataset(args)
    assert data.num_rows == {"train": 2, "validation": 2, "test": 4}
    assert data["validation"]["source"][:] == ENGLISH[:2]
    assert set(data["train"]["source"]) < {"one", "two", "five"}
    assert report.dropped["train"] == {"with an empty side": 2, "beyond train_size": 1}
    assert load_translation_dataset(args)[0]["train"][:] == data["train"][:]


def test_a_validation_set_is_drawn_of_the_training_set(folder):
    args = arguments(folder, validation=None, validation_size=2)
    whole = load_translation_dataset(arguments(folder, validation=None))[0]["train"]["source"]
    splits, _ = load_translation_dataset(args)
    drawn = [*splits["validation"]["source"]]
    assert len(drawn) == 2
    assert {*whole} - {*drawn} == {*splits["train"]["source"]} != {*whole}
    assert [*load_translation_dataset(args, ["validation"])[0]["validation"]["source"]] == drawn
    with pytest.raises(
        ValueError,
        match=r"train.*: validation_size is 99, and there are \d+ pairs: set a lower one",
    ):
        load_translation_dataset(arguments(folder, validation=None, validation_size=99))


@pytest.mark.parametrize(
    ("train", "numbers"),
    [
        ("part-*.{lang}", "0123"),
        ("part-*.{lang}.gz", "0123"),
        ("ended.{lang}.*", "67"),
        (["part-b.{lang}", "part-a.{lang}"], "2301"),
        (["part-*.{lang}", "table-*.tsv"], "012345"),
    ],
    ids=str,
)
def test_several_files_are_read_one_after_the_other(train, numbers, folder):
    for name, lines, compress in (("a", "01", False), ("b", "23", True)):
        ending = ".gz" if compress else ""
        for language in ("en", "de"):
            texts = [f"{language}{number}" for number in lines]
            write(folder / f"part-{name}.{language}{ending}", texts, compress)
    for language in ("en", "de"):
        write(folder / f"ended.{language}.1", [f"{language}6"])
        write(folder / f"ended.{language}.2.gz", [f"{language}7"], compress=True)
    write(folder / "table-4.tsv", ["en\tde", "en4\tde4", "en5\tde5"])
    args = arguments(folder, train=train)
    check_files(args)
    data, _ = load_translation_dataset(args)
    assert data["train"]["target"][:] == [f"de{number}" for number in numbers]
    assert data["train"]["source"][:] == [f"en{number}" for number in numbers]


def test_a_part_without_its_partner_is_named(folder):
    for name in ("part-1.en", "part-2.en", "part-1.de"):
        write(folder / name, ["a"])
    with pytest.raises(ValueError, match=r"no file for train of language 'de'.*'part-2\.\{lang\}'"):
        check_files(arguments(folder, train="part-*.{lang}"))
    with pytest.raises(ValueError, match="train has several patterns, of files; of a dataset on"):
        DataArguments(dataset="numbers_of_mine", train=["a", "b"])


def test_a_missing_file_names_what_was_tried(folder):
    with pytest.raises(
        ValueError,
        match=r"no file for train of language 'fr'.*tried .*train\.fr and .*train\.fr\.gz",
    ):
        load_translation_dataset(arguments(folder, source_lang="fr"))
    with pytest.raises(ValueError, match=r"no file for test: .*tried .*x\.tsv and .*x\.tsv\.gz"):
        load_translation_dataset(arguments(folder, test="x.tsv"))
    with pytest.raises(
        ValueError, match=r"validation is 'val\.en': plain text needs one file per language"
    ):
        load_translation_dataset(arguments(folder, validation="val.en"))


def test_empty_splits_are_refused(folder):
    for name in ("val.en", "val.de"):
        write(folder / name, [])
    with pytest.raises(ValueError, match=r"val\.en and .*val\.de: the split 'validation' is empty"):
        load_translation_dataset(arguments(folder))
    write(folder / "train.de", [" "] * 5)
    with pytest.raises(
        ValueError, match=r"the split 'train' is empty: every pair has an empty side"
    ):
        load_translation_dataset(arguments(folder))


def test_tables(tmp_path):
    (tmp_path / "train.csv").write_text('en,de\n"one, two","eins, zwei"\n')
    (tmp_path / "val.jsonl").write_text(
        json.dumps({"translation": {"en": "two", "de": "zwei"}}) + "\n"
    )
    pq.write_table(pa.table({"english": ["three"], "german": ["drei"]}), tmp_path / "test.parquet")
    args = arguments(tmp_path, train="train.csv", validation="val.jsonl")
    check_files(args)
    data, _ = load_translation_dataset(args)
    assert data["train"][0] == {"source": "one, two", "target": "eins, zwei"}
    assert data["validation"][0] == {"source": "two", "target": "zwei"}
    args = DataArguments(
        test=str(tmp_path / "test.parquet"), source_lang="de", source_column="german", target_column="english",
        target_lang="en",
    )  # fmt: skip
    assert load_translation_dataset(args)[0]["test"][0] == {"source": "drei", "target": "three"}


def test_numbers():
    args = DataArguments(
        dataset="numbers", train_size=40, validation_size=5, test_size=6, data_seed=3
    )
    data, report = load_translation_dataset(args)
    assert data.num_rows == report.kept == {"train": 40, "validation": 5, "test": 6}
    assert load_translation_dataset(args, splits=["test"])[0]["test"][:] == data["test"][:]


@pytest.fixture
def hub(monkeypatch):
    """Stands in for the Hub: a flat data set, and one with translations."""
    flat = {
        "train": datasets.Dataset.from_dict({"en": ENGLISH, "de": GERMAN}),
        "test": datasets.Dataset.from_dict({"en": ENGLISH, "de": GERMAN}),
        "challenge": datasets.Dataset.from_dict({"en": ["x"], "de": ["y"]}),
        "broken": datasets.Dataset.from_dict({"en": ["x", None], "de": ["y", "z"]}),
    }
    nested = {"train": datasets.Dataset.from_dict({"translation": [{"en": "one", "de": "eins"}]})}
    calls = []

    def load(name, config=None, **options):
        calls.append((name, config, options))
        return datasets.DatasetDict({"flat": flat, "nested": nested}[name])

    monkeypatch.setattr(datasets, "load_dataset", load)
    return calls


def test_hub_names(hub):
    args = DataArguments(dataset="flat", dataset_config="de-en", dataset_revision="main")
    data, report = load_translation_dataset(args)
    assert hub[0][:2] == ("flat", "de-en")
    assert hub[0][2]["revision"] == "main"
    assert list(data) == ["train", "test"]
    assert data["train"]["target"][:] == ["eins", "zwei", "fünf"]
    assert report.noted["test"] == {"with an empty side": 2}
    chosen = DataArguments(dataset="flat", test={"hard": "challenge"}, validation="test")
    assert list(load_translation_dataset(chosen)[0]) == ["validation", "hard", "train"]
    assert (
        load_translation_dataset(DataArguments(dataset="nested"))[0]["train"][0]["target"] == "eins"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"dataset": "flat", "target_lang": "fr"},
            r"flat, split train, row 0: there is no column 'fr' among",
        ),
        (
            {"dataset": "flat", "test": "exam"},
            r"test: dataset 'flat' has no split 'exam', only train, test",
        ),
        (
            {"dataset": "flat", "test": "broken"},
            r"flat, split broken, row 1: 'en' is None; text is needed",
        ),
    ],
)
def test_hub_mistakes(hub, options, message):
    with pytest.raises(ValueError, match=message):
        load_translation_dataset(DataArguments(**options))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        # The second is of datasets before 4.7
        ("", "(a file is empty|Please pass `features` or at least one example)"),
        ("{bad\n", "JSON parse error"),
    ],
    ids=["an empty file", "not JSON"],
)
def test_a_damaged_data_set_is_named(tmp_path, monkeypatch, content, reason):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/train.jsonl").write_text(content)
    args = DataArguments(source_lang="de", target_lang="en", dataset=str(tmp_path / "corpus"))
    with pytest.raises(ValueError, match=rf"dataset '.*corpus' cannot be read: {reason}"):
        load_translation_dataset(args)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no corpus: set dataset"),
        ({"data_dir": "somewhere"}, "no corpus: set dataset"),
        (
            {"dataset": "numbers", "train": "x"},
            "dataset is 'numbers', which is made, not read: leave out train",
        ),
        ({"dataset": "numbers", "dataset_config": "x"}, "leave out dataset_config"),
        ({"dataset": "numbers", "target_lang": "en"}, "source_lang and target_lang are both 'en'"),
        ({"dataset": "numbers", "train_size": 0}, "train_size is 0; it must be at least 1"),
        (
            {"dataset": "numbers", "max_source_length": 1},
            "max_source_length is 1; it must be at least 2",
        ),
        (
            {"dataset": "numbers", "max_length_ratio": 0.5},
            "max_length_ratio is 0.5; it must be at least 1",
        ),
        ({"train": "x", "test": {"train": "y"}}, "test has an entry called train or validation"),
    ],
)
def test_contradictions_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DataArguments(**options)


def test_test_sets_may_be_json():
    args = DataArguments(train="t.{lang}", test='{"a": "a.{lang}", "b": "b.{lang}"}')
    assert args.test_patterns == {"a": "a.{lang}", "b": "b.{lang}"}
    assert args.split_patterns == {"train": "t.{lang}", **args.test_patterns}
    assert all(
        option.metadata.get("help") for option in DataArguments.__dataclass_fields__.values()
    )


@pytest.mark.parametrize(
    "name",
    [
        "",
        "../x",
        "/etc/x",
        "a\\b",
        "..",
        ".hidden",
        "~",
        "a\nb",
        "x:y",
        "x" * 300,
        "a.",
        "\ud800",
        3,
    ],
)
def test_a_test_set_cannot_be_named_after_another_place(name):
    with pytest.raises(ValueError, match="the test set") as error:
        DataArguments(train="t.{lang}", source_lang="de", target_lang="en", test={name: "x.{lang}"})
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 250
    assert DataArguments(
        train="t", test={"newstest 2014_de-en.v1": "x.{lang}", "日本語": "y"}
    ).test_patterns


def test_a_table_without_the_columns_is_refused_before_it_is_read(tmp_path):
    for name, language, message in (
        ("pairs.csv", "fr", r"pairs\.csv, line 2: there is no column 'fr' among 'en', 'de'"),
        ("pairs.xls", "de", "plain text needs one file per language"),
    ):
        (tmp_path / name).write_text("en,de\none,eins\n")
        with pytest.raises(ValueError, match=message):
            check_files(DataArguments(data_dir=str(tmp_path), train=name, target_lang=language))


# ---- several pairs of languages

WORDS = {"de": ["eins", "zwei", ""], "en": ["one", "two", "three"], "fr": ["un", "deux", "trois"]}


@pytest.fixture
def three_languages(tmp_path):
    for split in ("train", "val", "news"):
        for language, words in WORDS.items():
            (tmp_path / f"{split}.{language}").write_text("".join(f"{word}\n" for word in words))
    return tmp_path


def arguments_of_pairs(three_languages, pairs, **options):
    files = {"train": "train.{lang}", "validation": "val.{lang}", "test": {"news": "news.{lang}"}}
    return DataArguments(data_dir=str(three_languages), language_pairs=pairs, **files, **options)


def test_pairs_are_tagged_and_put_together(three_languages):
    data, report = load_translation_dataset(arguments_of_pairs(three_languages, ["de-en", "en-fr"]))
    assert list(data) == ["train", "validation", "news_de-en", "news_en-fr"]
    untagged, _ = load_translation_dataset(arguments_of_pairs(three_languages, ["de-en", "fr-en"]))
    assert untagged["train"]["source"][:] == ["eins", "zwei", "un", "deux", "trois"], (
        "one language needs no tag"
    )
    assert data["train"][:] == {
        "source": [">>en<< eins", ">>en<< zwei", ">>fr<< one", ">>fr<< two", ">>fr<< three"],
        "target": ["one", "two", "un", "deux", "trois"],
    }
    assert data["news_de-en"]["source"][:] == [">>en<< eins", ">>en<< zwei", ""]
    assert report.read == {"train": 6, "validation": 6, "news_de-en": 3, "news_en-fr": 3}
    assert (report.kept["train"], report.noted["validation"]) == (5, {"with an empty side": 1})
    only, _ = load_translation_dataset(
        arguments_of_pairs(three_languages, ["de-en", "en-fr"]), ["news_en-fr"]
    )
    assert only["news_en-fr"]["source"][0] == ">>fr<< one"
    with pytest.raises(ValueError, match="no split 'news', only train, validation, news_de-en"):
        load_translation_dataset(arguments_of_pairs(three_languages, ["de-en"]), ["news"])


def test_a_tag_is_one_token_and_changes_no_other():
    tokenizer = train_tokenizer(["eins zwei drei"] * 9, 300)
    plain = tokenizer("eins zwei")["input_ids"]
    size = len(tokenizer)
    for _ in range(2):  # the second time it is there
        add_language_tags(
            TokenizerPair(tokenizer, tokenizer), language_tags([("de", "en"), ("en", "de")])
        )
    assert len(tokenizer) == size + 2
    assert tokenizer(">>de<< eins zwei")["input_ids"] == [size + 1, *plain]
    assert tokenizer("eins zwei")["input_ids"] == plain


@pytest.mark.parametrize("pairs", [["de"], ["de-de"], ["a-b", "a-b"]])
def test_pairs_that_are_none(pairs):
    with pytest.raises(
        ValueError, match=rf"language_pairs: '{pairs[0]}' must be SOURCE-TARGET, such as de-en"
    ):
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
    with pytest.raises(ValueError, match="streaming reads files or a dataset on the Hub"):
        DataArguments(dataset="numbers", streaming=True)


# ---- mixtures


@pytest.fixture
def corpora(folder):
    """Two corpora of 10 and of 30 pairs, in two pairs of languages."""
    for name, count in (("real", 10), ("synthetic", 30)):
        for language in ("en", "de"):
            write(folder / f"{name}.{language}", [f"{name} {number}" for number in range(count)])
    for source, count in (("de", 10), ("fr", 160)):
        for language in (source, "en"):
            write(folder / f"{source}-en.{language}", [f"{source} {n}" for n in range(count)])
    return folder


def shares(rows):
    """How many of the sources are of each corpus or language; all of each must be there."""
    counts = Counter(text.split()[-2] for text in rows)
    for name, size in SIZES.items():
        if counts[name]:
            assert len({text for text in rows if f"{name} " in text}) == size
    return counts


SIZES = {"real": 10, "synthetic": 30, "de": 10, "fr": 160}


@pytest.mark.parametrize(("weight", "share"), [(1, 0.5), (3, 0.75)])
def test_corpora_are_mixed_by_their_weights(weight, share, corpora):
    args = arguments(corpora, train={"real.{lang}": weight, "synthetic.{lang}": 1})
    check_files(args)
    rows = load_translation_dataset(args)[0]["train"]["source"][:]
    counts = shares(rows)
    assert counts["real"] / len(rows) == pytest.approx(share, abs=0.1)
    assert rows == load_translation_dataset(args)[0]["train"]["source"][:]


@pytest.mark.parametrize(("temperature", "share"), [(None, 10 / 170), (2, 0.2), (100, 0.5)])
def test_pairs_of_languages_are_mixed_by_a_temperature(temperature, share, corpora):
    args = arguments(
        corpora,
        train="{source_lang}-{target_lang}.{lang}",
        validation=None,
        language_pairs=["de-en", "fr-en"],
        temperature=temperature,
    )
    rows = load_translation_dataset(args)[0]["train"]["source"][:]
    assert shares(rows)["de"] / len(rows) == pytest.approx(share, abs=0.07)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"train": {"a.{lang}": 0}}, "train is .*; its weights must be above 0"),
        ({"train": {}, "streaming": True}, "train has no patterns; leave it out"),
        ({"train": []}, "train has no patterns; leave it out"),
        ({"temperature": 5}, "temperature mixes several language_pairs"),
        ({"temperature": 0.5, "language_pairs": ["a-b", "b-a"]}, "it must be at least 1"),
        ({"temperature": 5, "language_pairs": ["a-b"], "streaming": True}, "a stream does not"),
    ],
    ids=str,
)
def test_mixtures_that_cannot_be(options, words, folder):
    with pytest.raises(ValueError, match=words):
        arguments(folder, **options)


@pytest.mark.parametrize("streaming", [False, True])
def test_an_empty_corpus_of_a_mixture_is_named(streaming, corpora):
    for language in ("en", "de"):
        write(corpora / f"none.{language}", [])
    patterns = {"real.{lang}": 1, "none.{lang}": 1}
    mixture = arguments(corpora, train=patterns, streaming=streaming)
    with pytest.raises(ValueError, match=r"the corpus 'none.* is empty"):
        load_translation_dataset(mixture)
