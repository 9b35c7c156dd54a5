# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import itertools
import json
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest
from datasets import Dataset, DatasetDict
from system.training.tiny_runs import parse

from csan_hf.data import DataArguments, TokenizerPair, load_translation_dataset, train_tokenizer
from csan_hf.data.corpora import (
    BUILT_IN,
    check_files,
    unlabelled_sources,
    without_known_sources,
)
from csan_hf.data.documents import document_lines, read_documents, read_translations
from csan_hf.data.tokenization import tokenize_dataset
from csan_hf.training import RecipeError
from csan_hf.training.dry_run import dry_run
from csan_hf.training.plan import resolve
from csan_hf_runtime.text_files import VARIANTS, write_lines

ENGLISH = ["one", "two", "", "four", "five"]
GERMAN = ["eins", "zwei", "drei", " ", "fünf"]


@pytest.fixture
def folder(tmp_path):
    write_lines(tmp_path / "train.en.gz", ENGLISH)
    write_lines(tmp_path / "train.de", GERMAN)
    for name in ("val", "test_a", "test_b"):
        write_lines(tmp_path / f"{name}.en", ENGLISH[:4])
        write_lines(tmp_path / f"{name}.de", GERMAN[:4])
    return tmp_path


def arguments(folder, **options):
    return DataArguments(
        data_dir=str(folder), **{"train": "train.{lang}", "validation": "val.{lang}", **options}
    )


def load(args, splits=None):
    data, _ = load_translation_dataset(args, splits)
    return data


def test_text_files(folder):
    tests = {"test_a": "test_a.{lang}", "test_b": "test_b.{lang}.gz"}
    args = arguments(folder, test=tests)
    data, report = load_translation_dataset(args)
    assert list(data) == ["train", "validation", "test_a", "test_b"]
    assert data["train"][:] == {
        "source": ["one", "two", "five"],
        "target": ["eins", "zwei", "fünf"],
    }
    # line n of a test set stays line n, empty or not
    assert data["validation"][:] == {"source": ENGLISH[:4], "target": GERMAN[:4]}
    assert report.noted["test_b"] == report.dropped["train"] == {"with an empty side": 2}
    assert report.kept == {"train": 3, "validation": 4, "test_a": 4, "test_b": 4}
    assert str(report).startswith("train: 3 of 5 pairs; dropped: 2 with an empty side\n")
    german = load(arguments(folder, source_lang="de", target_lang="en", test=tests), ["test_a"])
    assert {split: rows["source"][:2] for split, rows in german.items()} == {"test_a": GERMAN[:2]}
    with pytest.raises(
        ValueError, match=r"no split 'test', only train, validation, test_a, test_b"
    ):
        load(args, ["test"])


def test_a_target_of_several_references_holds_all(folder):
    write_lines(folder / "more.de", ["ein", "zwo", "", "vier"])
    tests = {"both": ["test_a.{lang}", "more.{lang}"]}
    args = arguments(folder, validation=["val.{lang}", "more.de"], test=tests, join_test=[2])
    check_files(args)
    data = load(args)
    variants = [f"eins{VARIANTS}ein", f"zwei{VARIANTS}zwo", f"drei{VARIANTS}", f" {VARIANTS}vier"]
    assert data["validation"]["target"][:] == data["both"]["target"][:] == variants
    assert data["both_x2"]["target"][0] == f"eins zwei{VARIANTS}ein zwo"
    tokenizer = train_tokenizer(GERMAN, 300)
    tokenized, _ = tokenize_dataset(data, TokenizerPair(tokenizer, tokenizer), args)
    assert tokenized["both"]["labels"][0] == tokenizer("eins")["input_ids"], "the loss has one"
    write_lines(folder / "more.de", ["ein"])
    with pytest.raises(ValueError, match=r"line 2 of test_a.\{lang\} has no partner in .*more.de"):
        load(args, ["both"])
    missing = arguments(folder, test={"both": ["test_a.{lang}", "missing.{lang}"]})
    with pytest.raises(ValueError, match=r"no file for both of language 'de'.*missing\.de"):
        check_files(missing)


def test_texts_without_translations_are_each_read_once(folder):
    write_lines(folder / "mono_1.en.gz", ["six", "", " seven", "six"])
    write_lines(folder / "mono_2.en", ["eight"])
    write_lines(folder / "mono_1.de", ["acht"])
    write_lines(folder / "words.tsv", ["en\tcount", "nine\t9", "seven\t7"])
    args = arguments(folder, unlabelled=["mono_*.{lang}", "words.tsv"])
    check_files(args)
    assert unlabelled_sources(args) == ["six", "seven", "eight", "nine"]
    pairs = ["en-de", "en-fr"]
    tagged = arguments(folder, language_pairs=pairs, unlabelled="mono_2.{lang}")
    assert unlabelled_sources(tagged) == [">>de<< eight", ">>fr<< eight"]
    with pytest.raises(ValueError, match=r"'mono_2\.en', .*several source languages"):
        arguments(folder, language_pairs=["en-de", "de-en"], unlabelled="mono_2.en")
    of_either = arguments(
        folder, language_pairs=["en-de", "de-en"], unlabelled="mono_1.{source_lang}"
    )
    expected = [">>de<< six", ">>de<< seven", ">>en<< acht"]
    assert unlabelled_sources(of_either) == expected
    assert unlabelled_sources(arguments(folder)) == []
    with pytest.raises(ValueError, match=r"no file for unlabelled .*'nothing\.\{lang\}'"):
        check_files(arguments(folder, unlabelled=["words.tsv", "nothing.{lang}"]))
    with pytest.raises(ValueError, match=r"words\.tsv, line 2: there is no column 'de'"):
        check_files(arguments(folder, source_lang="de", target_lang="en", unlabelled="words.tsv"))


def test_texts_that_stand_in_a_corpus_are_known(folder):
    corpus = DatasetDict(
        train=Dataset.from_dict({"source": ["One", "two\nthree", ">>de<< five"]}),
        test=Dataset.from_dict({"source": ["caf\u00e9"]}),
    )
    sources = ["one", "o\u00adne", "THREE", "two\nThree", "cafe\u0301", ">>fr<< Five", "four"]
    assert without_known_sources(sources, corpus) == ["four"]


@pytest.fixture
def long_texts(folder):
    """Arguments of three splits of nine pairs each."""
    for language, word in (("en", "word"), ("de", "Wort")):
        write_lines(folder / f"long.{language}", [f"{word} {number}" for number in range(9)])
    files = {"train": "long.{lang}", "validation": "long.{lang}", "test": {"far": "long.{lang}"}}
    return partial(arguments, folder, **files)


def test_neighbouring_pairs_are_joined_to_longer_texts(long_texts):
    args = long_texts(join=3, join_test=[2, 4])
    data = load(args)
    assert [*data] == [*args.split_names] == ["train", "validation", "far", "far_x2", "far_x4"]
    assert data["far_x4"]["source"][1] == "word 4 word 5 word 6 word 7"
    assert data["far_x2"]["target"][-1] == "Wort 6 Wort 7", "the last alone is too short"
    sources = data["train"]["source"][:]
    counts = [text.count("word") for text in sources]
    assert max(counts) <= 3
    assert len({*counts}) > 1
    assert sum(counts) > 6
    assert " ".join(sources) == " ".join(f"word {number}" for number in range(sum(counts)))
    assert [text.replace("word", "Wort") for text in sources] == data["train"]["target"][:]
    assert load(args)["train"]["source"][:] == sources, "the same again"
    assert load(args, ["far_x4"])["far_x4"][:] == data["far_x4"][:]
    for split, options in (("far_x12", {"join_test": [2, 12]}), ("train", {"join": 10**9})):
        with pytest.raises(ValueError, match=f"{split} is empty: fewer pairs than data.join or"):
            load(long_texts(**options))
        assert [*load(long_texts(**options), ["far"])] == ["far"]


def test_joined_lines_keep_their_places(long_texts, folder):
    """Blank lines of one side, too."""
    for language, word in (("en", "word"), ("de", "")):
        write_lines(folder / f"long.{language}", [f"{word} "] * 3 + ["end"] * 6)
    data = load(long_texts(join=3, join_test=[2], separator="\n"))
    assert data["far_x2"][0] == {"source": "word\nword", "target": "\n"}
    assert {*data["train"]["target"]} <= {"end", "end\nend", "end\nend\nend"}
    assert data["validation"]["target"][0].strip() == ""


# ---- documents

DOCUMENTS = [["one", "two", "three"], ["four"], [f"line {number}" for number in range(40)]]


@pytest.fixture
def documents(folder):
    """Arguments of documents, whose German lines are English ones in capitals."""
    english = "\r\n\r\n \r\n".join("\r\n".join(lines) for lines in DOCUMENTS)
    (folder / "docs.en").write_bytes(english.encode())
    (folder / "docs.de").write_text(english.upper().replace("\r", ""))
    files = dict.fromkeys(("train", "validation", "test"), "docs.{lang}")
    return partial(arguments, folder, **files, documents=True)


def test_documents_are_cut_into_pieces_of_lines(documents):
    args = documents(max_source_length=None, max_target_length=None)
    data, report = load_translation_dataset(args)
    assert data["test"]["source"][:] == ["\n".join(lines) for lines in DOCUMENTS]
    assert data["test_alone"]["source"][:] == [*itertools.chain(*DOCUMENTS)]
    lengths = Counter()
    for seed in range(30):
        pieces = load(documents(data_seed=seed), ["train"])["train"]
        assert "\n".join(pieces["source"]).split("\n") == [*itertools.chain(*DOCUMENTS)]
        assert [piece.upper() for piece in pieces["source"]] == pieces["target"][:]
        lengths.update(piece.count("\n") + 1 for piece in pieces["source"] if "line" in piece)
    assert min(lengths) == 1
    assert max(lengths) == 40, "a whole document"
    assert len(lengths) > 9
    assert data["train"][:] == data["validation"][:] == load(args)["train"][:], "the same again"
    assert report.kept["train"] == len(data["train"])
    short = load(documents(max_source_length=10, max_target_length=6))["train"]["source"]
    assert max(len(piece.replace("\n", "")) for piece in short if "\n" in piece) <= 18


def test_sizes_count_documents(documents):
    data = load(documents(validation=None, validation_size=1, test_size=2))
    assert len(data["test"]) == 2
    lines = {}
    for split in ("train", "validation"):
        pieces = data[split]["source"]
        lines[split] = {*itertools.chain.from_iterable(piece.split("\n") for piece in pieces)}
    assert not lines["train"] & lines["validation"]
    assert lines["validation"] in map(set, DOCUMENTS)


def test_translations_have_the_lines_of_their_references():
    texts = ["one\ntwo", "one", "one\ntwo\nthree\nfour"]
    references = ["a\nb", "a\nb\nc", "a\nb"]
    lines = list(document_lines(texts, references))
    assert lines == ["one", "two", "one", "", "", "one", "two three four"]


def test_translations_of_documents_are_read_with_their_source(tmp_path):
    source = tmp_path / "source"
    source.write_text("\none\n  two\n \n\nthree\n")
    (tmp_path / "reference").write_text("eins\n zwei\n\ndrei\n\n")
    assert read_documents(source, tmp_path / "reference") == (
        ["one\ntwo", "three"],
        ["eins\nzwei", "drei"],
    )
    (tmp_path / "blank").write_text("x\neins\nzwei\n\n\ndrei\n")
    assert read_translations(tmp_path / "blank", source) == ["eins\nzwei", "drei"]
    (tmp_path / "lines").write_text("eins\n\ndrei\n")
    assert read_translations(tmp_path / "lines", source) == ["eins\n", "drei"]
    (tmp_path / "lines").write_text("eins\n")
    with pytest.raises(ValueError, match=r"source has 6 lines and .*lines has 1: line 2 of "):
        read_translations(tmp_path / "lines", source)


def test_documents_go_with_others_of_the_same_lines(documents, folder):
    german = (folder / "docs.de").read_text()
    (folder / "docs.de").write_text(german.replace("TWO\n", ""))
    message = r"document 1: .*en has 3 lines from line 1 on and .*de has 2 lines from line 1 on"
    with pytest.raises(ValueError, match=message):
        load(documents())
    (folder / "docs.de").write_text(german.replace("FOUR\n", ""))
    with pytest.raises(ValueError, match=r"document 2: .*1 lines from line 6 .*40 lines from"):
        load(documents())
    (folder / "docs.de").write_text(german + "\n\nmore")
    with pytest.raises(ValueError, match=r"document 4: .*en has 0 lines and .*de has 1 lines from"):
        load(documents())
    (folder / "both.tsv").write_text("en\tde\na\tb\n")
    with pytest.raises(ValueError, match=r"both\.tsv: documents are read from plain text"):
        check_files(documents(test="both.tsv"))


def test_sizes_select(folder):
    args = arguments(folder, train_size=2, validation_size=2, test="test_a.{lang}", test_size=10)
    data, report = load_translation_dataset(args)
    assert data.num_rows == {"train": 2, "validation": 2, "test": 4}
    assert data["validation"]["source"][:] == ENGLISH[:2]
    assert set(data["train"]["source"]) < {"one", "two", "five"}
    assert report.dropped["train"] == {"with an empty side": 2, "beyond train_size": 1}
    numbers = {"dataset": "numbers", "train_size": 4, "validation_size": 5, "test_size": 6}
    data, report = load_translation_dataset(DataArguments(**numbers))
    assert data.num_rows == report.kept == {"train": 4, "validation": 5, "test": 6}


def make_spelled(
    source_lang, target_lang, *, train_size=30, validation_size=3, test_size=3, seed=0
):
    """A corpus as somebody else would add it: words, and their letters."""
    sizes = {"train": train_size, "validation": validation_size, "test": test_size}
    splits = {}
    for split, size in sizes.items():
        words = [f"{source_lang} {split} {seed} {number}" for number in range(size)]
        letters = [f"{target_lang} {' '.join(word)}" for word in words]
        splits[split] = Dataset.from_dict({"source": words, "target": letters})
    return DatasetDict(splits)


def test_a_new_corpus_is_one_entry(tmp_path, monkeypatch):
    monkeypatch.setitem(BUILT_IN, "spelled", make_spelled)
    words = f"--dataset spelled --test_size 5 --data.data_seed 7 --data.cache_dir {tmp_path}"
    recipe = parse(f"{words} --vocab_size 300 --output_dir {tmp_path}/run")
    assert "  spelled (built in), en to de: train default, " in dry_run(recipe)
    corpus = resolve(recipe).prepare_corpus()
    assert corpus.splits.num_rows == {"train": 30, "validation": 3, "test": 5}
    assert corpus.splits["test"]["source"][4] == "en test 7 4"
    assert corpus.splits["validation"]["target"][0].startswith("de e n   v a l")
    with pytest.raises(RecipeError, match="dataset is 'spelled', which is made, not read: leave"):
        resolve(parse(f"{words} --data.train x --output_dir {tmp_path}/run"))


def test_a_validation_set_is_drawn_of_the_training_set(folder):
    without = partial(arguments, folder, validation=None)
    whole = load(without())["train"]["source"][:]
    splits = load(without(validation_size=2))
    drawn = splits["validation"]["source"][:]
    assert len(drawn) == 2
    # In their order, in which neighbours may be joined
    assert [text for text in whole if text not in drawn] == splits["train"]["source"][:] != whole
    again = load(without(validation_size=2), ["validation"])
    assert again["validation"]["source"][:] == drawn
    with pytest.raises(ValueError, match="validation_size is 99, and there are 3 training pairs"):
        load(without(validation_size=99))


@pytest.mark.parametrize(
    ("train", "numbers"),
    [
        ("part-*.{lang}", "0123"),
        ("part-*.{lang}.gz", "0123"),
        (["part-a.{lang}.xz", "packed.{lang}", "packed-*.{lang}"], "0189"),
        ("ended.{lang}.*", "67"),
        (["part-b.{lang}", "part-a.{lang}"], "2301"),
        (["part-*.{lang}", "table-*.tsv"], "012345"),
    ],
    ids=str,
)
def test_several_files_are_read_one_after_the_other(train, numbers, folder):
    for name, lines in {
        "part-a.{}": "01",
        "part-b.{}.gz": "23",
        "ended.{}.1": "6",
        "ended.{}.2.gz": "7",
        "packed.{}.xz": "8",
        "packed-1.{}.bz2": "9",
    }.items():
        for language in ("en", "de"):
            write_lines(folder / name.format(language), [f"{language}{line}" for line in lines])
    write_lines(folder / "table-4.tsv", ["en\tde", "en4\tde4", "en5\tde5"])
    args = arguments(folder, train=train)
    check_files(args)
    data = load(args)
    assert data["train"]["target"][:] == [f"de{number}" for number in numbers]
    assert data["train"]["source"][:] == [f"en{number}" for number in numbers]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"source_lang": "fr"},
            r"no file for train of language 'fr'.*tried .*train\.fr alone and with \.gz, \.bz2",
        ),
        ({"test": "x.tsv"}, r"no file for test: .*tried .*x\.tsv alone and with \.gz"),
        ({"validation": "val.en"}, r"validation is 'val\.en': plain text needs one file per"),
        ({"test": "x.xls"}, "plain text needs one file per language"),
        ({"train": "part-*.{lang}"}, r"no file for train of language 'de'.*'part-2\.\{lang\}'"),
        ({"test": "pairs.csv"}, r"pairs\.csv, line 2: there is no column 'en' among 'fr', 'de'"),
        ({"validation": "none.{lang}"}, r"none\.en and .*none\.de: there are no pairs"),
        ({"train": "blank.{lang}"}, "the split 'train' is empty: every pair has an empty side"),
        ({"train": {"train.{lang}": 1, "none.{lang}": 1}}, r"none\..*: there are no pairs"),
        (
            {"train": {"train.{lang}": 1, "none.{lang}": 1}, "streaming": True},
            r"none\..*: there are no pairs",
        ),
    ],
    ids=str,
)
def test_what_is_wrong_with_files_is_named(options, message, folder):
    (folder / "pairs.csv").write_text("fr,de\nun,eins\n")
    for name in ("part-1.en", "part-2.en", "part-1.de", "blank.en", "blank.de"):
        write_lines(folder / name, [" "])
    for name in ("none.en", "none.de"):
        write_lines(folder / name, [])
    args = arguments(folder, **options)
    with pytest.raises(ValueError, match=message):
        load(args)
    if "no pairs" not in message and "empty" not in message:  # seen before a file is read
        with pytest.raises(ValueError, match=message):
            check_files(args)


@pytest.fixture
def hub(monkeypatch):
    """Stands in for the Hub: a flat data set, and one with translations; what was asked for."""
    pairs = {"en": ENGLISH, "de": GERMAN}
    splits = {
        "flat": {
            "train": pairs,
            "test": pairs,
            "challenge": {"en": ["x"], "de": ["y"]},
            "broken": {"en": ["x", None], "de": ["y", "z"]},
        },
        "nested": {"train": {"translation": [{"en": "one", "de": "eins"}]}},
    }
    calls = []

    def load_dataset(path, name, revision, **options):
        calls.append((path, name, revision))
        tables = splits[path].items()
        return {split: datasets.Dataset.from_dict(table) for split, table in tables}

    builder = SimpleNamespace(config=())
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda **_: builder)
    return calls


def test_hub_names(hub):
    args = DataArguments(dataset="flat", dataset_config="de-en", dataset_revision="main")
    data, report = load_translation_dataset(args)
    assert hub == [("flat", "de-en", "main")]
    assert list(data) == ["train", "test"]
    assert data["train"]["target"][:] == ["eins", "zwei", "fünf"]
    assert report.noted["test"] == {"with an empty side": 2}
    chosen = DataArguments(dataset="flat", test={"hard": "challenge"}, validation="test")
    assert list(load(chosen)) == ["validation", "hard", "train"]
    assert load(DataArguments(dataset="nested"))["train"]["target"][:] == ["eins"]
    for options, message in (
        ({"target_lang": "fr"}, "flat, split train, row 0: there is no column 'fr' among"),
        ({"test": "exam"}, "test: dataset 'flat' has no split 'exam', only train, test"),
        ({"test": "broken"}, "flat, split broken, row 1: 'en' is None; text is needed"),
    ):
        with pytest.raises(ValueError, match=message):
            load(DataArguments(dataset="flat", **options))


@pytest.fixture
def library_set(tmp_path, monkeypatch):
    """A function that writes a file of a data set and returns the arguments that read it."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "corpus").mkdir()

    def write(name, content, **options):
        (tmp_path / "corpus" / name).write_text(content)
        return DataArguments(dataset=str(tmp_path / "corpus"), **options)

    return write


@pytest.mark.parametrize("options", [{}, {"streaming": True, "train_size": 4}])
def test_the_librarys_csv_is_text(options, library_set):
    args = library_set("train.csv", "en,de\nnull,1\nNone,2.0\nNA,\n007,4\n", **options)
    rows = load(args)["train"]
    pairs = dict(zip(rows["source"], rows["target"], strict=True))
    assert pairs == {"null": "1", "None": "2.0", "007": "4"}
    (Path(args.dataset) / "train.csv").unlink()
    for content, reason in (
        ("", "(a file is empty|Please pass `features`)"),
        ("{bad\n", "JSON parse error"),
    ):
        with pytest.raises(ValueError, match=f"dataset '.*corpus' cannot be read: {reason}"):
            load(library_set("train.jsonl", content))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": None, "data_dir": "somewhere"}, "no corpus: set dataset"),
        ({"train": "x", "dataset_config": "y"}, "made, not read: leave out train, dataset_config"),
        ({"target_lang": "en"}, "source_lang and target_lang are both 'en'"),
        ({"train_size": 0}, "train_size must be at least 1, got 0"),
        ({"max_source_length": 1}, "max_source_length must be at least 2, got 1"),
        ({"dataset": None, "test": {"train": "y"}}, "test has an entry called train or validation"),
        (
            {"dataset": None, "test": {"../x": "y"}},
            r"the test set '\.\./x' cannot be the name of a",
        ),
        ({"join_test": [1]}, "join_test must hold different numbers from 2 on"),
        ({"join_test": [3, 3]}, "join_test must hold different numbers from 2 on"),
        (
            {"dataset": None, "test": {"far": "a", "far_x2": "b"}, "join_test": [2]},
            "test has the entries far and far_x2, which is made of far; rename it",
        ),
        (
            {"dataset": None, "test": {"far": "a", "far_alone": "b"}, "documents": True},
            "test has the entries far and far_alone, which is made of far; rename it",
        ),
        ({"dataset": "of_mine", "train": ["a", "b"]}, "train has several patterns, of files"),
        ({"dataset": None, "train": {"a.{lang}": 0}}, "train is .*; its weights must be above 0"),
        ({"temperature": 5}, "temperature mixes several language_pairs"),
        ({"temperature": 0.5, "language_pairs": ["a-b", "b-a"]}, "temperature must be at least 1"),
        (
            {"dataset": "of_mine", "temperature": 5, "language_pairs": ["a-b"], "streaming": True},
            "a stream does not",
        ),
        ({"documents": True}, "documents are read from files"),
        ({"dataset": None, "test": {"a": ["b", "c"]}, "documents": True}, "have one reference"),
        ({"dataset": None, "test": "a", "documents": True, "join": 2}, "leave out join"),
        ({"language_pairs": ["de-de"]}, "language_pairs: 'de-de' must be SOURCE-TARGET"),
    ],
    ids=str,
)
def test_contradictions_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DataArguments(**{"dataset": "numbers", **options})


# ---- several pairs of languages

WORDS = {"de": ["eins", "zwei", ""], "en": ["one", "two", "three"], "fr": ["un", "deux", "trois"]}


@pytest.fixture
def three_languages(tmp_path):
    for split in ("train", "val", "news"):
        for language, words in WORDS.items():
            write_lines(tmp_path / f"{split}.{language}", words)
    return tmp_path


def arguments_of_pairs(three_languages, pairs, **options):
    files = {"train": "train.{lang}", "validation": "val.{lang}", "test": {"news": "news.{lang}"}}
    return DataArguments(data_dir=str(three_languages), language_pairs=pairs, **files, **options)


def test_pairs_are_tagged_and_put_together(three_languages):
    args = arguments_of_pairs(three_languages, ["de-en", "en-fr"])
    data, report = load_translation_dataset(args)
    assert list(data) == ["train", "validation", "news_de-en", "news_en-fr"]
    assert data["train"][:] == {
        "source": [">>en<< eins", ">>en<< zwei", ">>fr<< one", ">>fr<< two", ">>fr<< three"],
        "target": ["one", "two", "un", "deux", "trois"],
    }
    assert data["news_de-en"]["source"][:] == [">>en<< eins", ">>en<< zwei", ""]
    assert report.read == {"train": 6, "validation": 6, "news_de-en": 3, "news_en-fr": 3}
    assert (report.kept["train"], report.noted["validation"]) == (5, {"with an empty side": 1})
    assert load(args, ["news_en-fr"])["news_en-fr"]["source"][0] == ">>fr<< one"
    with pytest.raises(ValueError, match="no split 'news', only train, validation, news_de-en"):
        load(args, ["news"])
    data = load(arguments_of_pairs(three_languages, ["de-en", "fr-en"]))
    assert data["train"]["source"][:] == ["eins", "zwei", "un", "deux", "trois"], "of one target"


def test_a_stream_gives_as_many_pairs_as_are_asked_for(library_set):
    lines = [json.dumps({"en": f"en {number}", "de": f"{number}"}) for number in range(50)]
    for name in ("train.jsonl", "test.jsonl"):
        args = library_set(name, "\n".join(lines), streaming=True, train_size=7, test_size=3)
    data = load(args)
    assert data["test"]["target"][:] == ["0", "1", "2"]
    targets = data["train"]["target"][:]
    assert len(set(targets)) == 7
    assert targets != sorted(targets, key=int), "shuffled"
    assert load(args)["train"]["target"][:] == targets


# ---- mixtures

SIZES = {"real": 10, "synthetic": 30, "de": 10, "fr": 160}
PAIRS = {
    "train": "{source_lang}-{target_lang}.{lang}",
    "validation": None,
    "language_pairs": ["de-en", "fr-en"],
}


@pytest.mark.parametrize(
    ("options", "name", "share"),
    [
        ({"train": {"real.{lang}": 1, "synthetic.{lang}": 1}}, "real", 0.5),
        ({"train": {"real.{lang}": 3, "synthetic.{lang}": 1}}, "real", 0.75),
        ({**PAIRS}, "de", 10 / 170),
        ({**PAIRS, "temperature": 2}, "de", 0.2),
        ({**PAIRS, "temperature": 100}, "de", 0.5),
    ],
)
def test_corpora_and_pairs_of_languages_are_mixed(options, name, share, folder):
    for corpus, size in SIZES.items():
        languages = {"de": ("de-en.de", "de-en.en"), "fr": ("fr-en.fr", "fr-en.en")}
        for file in languages.get(corpus, (f"{corpus}.en", f"{corpus}.de")):
            write_lines(folder / file, [f"{corpus} {number}" for number in range(size)])
    args = arguments(folder, **options)
    check_files(args)
    corpus, report = load_translation_dataset(args)
    rows = corpus["train"]["source"][:]
    assert rows == load(args)["train"]["source"][:]
    counts = Counter(text.split()[-2] for text in rows)
    assert counts[name] / len(rows) == pytest.approx(share, abs=0.1 if name == "real" else 0.07)
    assert len({*rows}) == sum(SIZES[corpus] for corpus in counts), "all of each are there"
    assert report.read["train"] == len(rows)
