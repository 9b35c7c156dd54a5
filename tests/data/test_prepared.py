# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import errno

import pytest
from datasets import DatasetDict

from csan_hf.commands.train import prepare
from csan_hf.data import (
    DataArguments,
    TokenizerPair,
    load_translation_dataset,
    prepare_corpus,
    train_tokenizers,
)
from csan_hf.data import prepared as module
from csan_hf.data.prepared import cache_folder, clear_cache, kept_corpora
from csan_hf.hub.public_files import public_recipe

SETTINGS = {"vocab_size": 300}


def learn(splits):
    return train_tokenizers(splits, **SETTINGS)


@pytest.fixture
def folder(tmp_path):
    for split, count in (("train", 30), ("val", 3)):
        for language in ("en", "de"):
            lines = [f"{language} {number} {'word ' * (number % 4)}" for number in range(count)]
            (tmp_path / f"{split}.{language}").write_text("\n".join(lines) + "\n")
    return tmp_path


def arguments(folder, **options):
    files = {"train": "train.{lang}", "validation": "val.{lang}"}
    return DataArguments(
        data_dir=str(folder), cache_dir=str(folder / "cache"), **{**files, **options}
    )


@pytest.fixture
def reads(monkeypatch):
    """How often a corpus was read."""
    calls = []

    def load(*args, **options):
        calls.append(args)
        return load_translation_dataset(*args, **options)

    monkeypatch.setattr(module, "load_translation_dataset", load)
    return calls


def test_a_corpus_is_prepared_once(folder, reads):
    first = prepare_corpus(arguments(folder), None, SETTINGS, learn)
    again = prepare_corpus(arguments(folder), None, SETTINGS, learn)
    resumed = prepare_corpus(arguments(folder), first.tokenizers, {}, learn)
    assert len(reads) == 1
    for corpus in (again, resumed):
        assert corpus.splits["train"][:] == first.splits["train"][:]
        assert corpus.report == first.report == str(first.report)
        assert corpus.tokenizers.digest() == first.tokenizers.digest()
    assert "train: 30 of 30 pairs" in first.report


@pytest.mark.parametrize(
    "change", ["file", "data", "settings", "tokenizers", "code"], ids=lambda change: change
)
def test_what_a_corpus_depends_on_prepares_it_anew(change, folder, reads, monkeypatch):
    first = prepare_corpus(arguments(folder), None, SETTINGS, learn)
    options, settings, tokenizers = {}, SETTINGS, None
    if change == "file":
        (folder / "val.de").write_text("a\nb\nc\n")
    elif change == "data":
        options = {"max_source_length": 9}
    elif change == "settings":
        settings = {"vocab_size": 310}
    elif change == "tokenizers":
        tokenizers = train_tokenizers(DatasetDict(train=first.splits["train"]), kind="characters")
    else:
        monkeypatch.setattr(module, "_digest_of_code", lambda: "other")
    prepare_corpus(arguments(folder, **options), tokenizers, settings, learn)
    assert len(reads) == 2


def test_a_moved_corpus_is_found(folder, reads, tmp_path_factory):
    args = arguments(folder)
    prepare_corpus(args, None, SETTINGS, learn)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for file in folder.glob("*.??"):
        file.rename(elsewhere / file.name)
    moved = arguments(elsewhere)
    moved.cache_dir = args.cache_dir
    prepare_corpus(moved, None, SETTINGS, learn)
    assert len(reads) == 1


def test_what_was_interrupted_is_done_again(folder, monkeypatch):
    def fail(*args, **options):
        raise KeyboardInterrupt

    args = arguments(folder)
    with monkeypatch.context() as patch:
        patch.setattr(module, "tokenize_dataset", fail)
        with pytest.raises(KeyboardInterrupt):
            prepare_corpus(args, None, SETTINGS, learn)
    cache = cache_folder(args.cache_dir)
    [tokenizers] = kept_corpora(cache)
    assert tokenizers[0].parent.name == "tokenizers"
    # What a process that was killed leaves
    [lock] = cache.glob("unfinished/*.lock")
    (lock.with_suffix("") / "corpora").mkdir(parents=True)
    assert len(prepare_corpus(args, None, SETTINGS, learn).splits["train"]) == 30
    assert len(kept_corpora(cache)) == 2
    clear_cache(cache)
    assert kept_corpora(cache) == []


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"train_size": 7},
        {"validation": None, "validation_size": 5},
        {"language_pairs": ["en-de", "de-en"]},
        {"join": 2, "join_test": [2], "test": "val.{lang}"},
        {"test": {"both": ["val.{lang}", "val.{lang}"]}},
    ],
    ids=str,
)
def test_text_is_the_same_in_memory_and_mapped_into_it(options, folder, tmp_path_factory):
    args = arguments(folder, **options)
    mapped, mapped_report = load_translation_dataset(args, work_dir=tmp_path_factory.mktemp("work"))
    held, report = load_translation_dataset(args)
    assert str(mapped_report) == str(report)
    assert [*mapped] == [*held]
    for split, rows in held.items():
        assert mapped[split][:] == rows[:]


def test_a_vocabulary_is_learned_from_pairs_taken_evenly(folder):
    splits, _ = load_translation_dataset(arguments(folder))
    sample = DatasetDict(train=splits["train"].select(range(0, 30, 3)))
    of_sample = train_tokenizers(sample, 300)
    assert train_tokenizers(splits, 300, train_size=10).digest() == of_sample.digest()


def test_a_pair_of_tokenizers_is_the_same_once_it_was_saved(folder, tmp_path_factory):
    splits, _ = load_translation_dataset(arguments(folder))
    pair = train_tokenizers(splits, 300, joint=False)
    kind, digest = type(pair.source), pair.digest()
    saved = tmp_path_factory.mktemp("saved")
    pair.save_pretrained(saved)
    assert type(pair.source) is kind, "others may use it as it is"
    assert TokenizerPair.from_pretrained(saved).digest() == digest


def test_the_command_prepares_shows_and_clears(folder, reads, capsys):
    cache = str(folder / "cache")
    options = {"--data.data_dir": str(folder), "--cache_dir": cache, "--vocab_size": "300"}
    sizes = {f"--data.{name}_size": "null" for name in ("train", "validation", "test")}
    files = {"--data.train": "train.{lang}", "--data.validation": "val.{lang}"}
    options |= {"--data.dataset": "null", **sizes, **files}
    arguments = ["numbers", *(word for pair in options.items() for word in pair)]
    for _ in range(2):
        assert prepare(arguments) == 0
        assert "train: 30 of 30 pairs" in capsys.readouterr().out
    assert len(reads) == 1
    assert prepare(["--cache_dir", cache]) == 0
    assert "MB  corpora/" in capsys.readouterr().out
    assert prepare(["--cache_dir", cache, "--clear"]) == 0
    assert capsys.readouterr().out.endswith("Removed.\n")
    assert kept_corpora(cache_folder(cache)) == []
    assert prepare(["--train_size", "3"]) == 2
    assert "--train_size belongs to a recipe" in capsys.readouterr().err
    assert prepare(["--help"]) == 0
    assert "usage: csan-hf prepare RECIPE" in capsys.readouterr().out


def test_clearing_removes_what_is_of_the_cache_alone(folder, capsys):
    cache = folder / "cache"
    prepare_corpus(arguments(folder), None, SETTINGS, learn)
    text = cache / "corpora" / "europarl" / "text.en"
    text.parent.mkdir()
    text.write_text("a\n")
    assert prepare(["--cache_dir", str(cache), "--clear", "recipe.yaml"]) == 2
    assert "--clear takes no value" in capsys.readouterr().err
    assert len(kept_corpora(cache)) == 2
    clear_cache(cache)
    assert kept_corpora(cache) == []
    assert text.is_file()


@pytest.mark.parametrize(
    "file", ["corpora/*/train/*.arrow", "corpora/*/report.txt", "tokenizers/*/tokenizer.json"]
)
def test_a_damaged_corpus_is_named(file, folder):
    prepare_corpus(arguments(folder), None, SETTINGS, learn)
    [path] = (folder / "cache").glob(file)
    if path.suffix == ".arrow":
        path.write_bytes(path.read_bytes()[:900])
    else:
        path.unlink()
    kind, _, _ = file.partition("/")
    with pytest.raises(ValueError, match=f"cache/{kind}/[0-9a-f]+ is damaged (?s:.*): remove it"):
        prepare_corpus(arguments(folder), None, SETTINGS, learn)


def test_a_full_disk_is_named(folder, monkeypatch):
    def fail(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "tokenize_dataset", fail)
    with pytest.raises(OSError, match=f"No space left on device: '{folder / 'cache'}'"):
        prepare_corpus(arguments(folder), None, SETTINGS, learn)


def test_where_corpora_are_kept_is_not_published():
    recipe = {"data": {"train": "train.{lang}", "cache_dir": "scratch/cache"}}
    assert public_recipe(recipe) == {"data": {"train": "train.{lang}"}}
    assert recipe["data"]["cache_dir"] == "scratch/cache"


def test_paths_of_a_mixture_are_not_published():
    recipe = {"data": {"train": {"/home/me/real.{lang}": 2.0, "synthetic.{lang}": 1.0}}}
    public = {"data": {"train": {"real.{lang}": 2.0, "synthetic.{lang}": 1.0}}}
    assert public_recipe(recipe) == public


@pytest.mark.parametrize("streaming", [False, True])
def test_a_data_set_that_changed_is_prepared_anew(streaming, folder, reads):
    files = folder / "dataset"
    files.mkdir()
    options = {"train": None, "validation": None, "dataset": str(files), "streaming": streaming}
    options |= {"data_dir": None, "train_size": 30, "cache_dir": str(folder / "cache")}
    for count in (30, 31):
        (files / "train.jsonl").write_text('{"en": "a", "de": "b c"}\n' * count)
        for _ in range(2):
            args = DataArguments(source_column="en", target_column="de", **options)
            prepare_corpus(args, None, SETTINGS, learn)
    assert len(reads) == 2
