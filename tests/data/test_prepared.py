# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import contextlib
import errno
import os
import shutil
import tempfile
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from csan_hf.data import (
    DataArguments,
    TokenizerArguments,
    TokenizerPair,
    load_translation_dataset,
    prepare_corpus,
    tokenize_dataset,
    train_tokenizer,
    train_tokenizers,
)
from csan_hf.data import prepared as module
from csan_hf.data.prepared import cache_folder, clear_cache, kept_corpora
from csan_hf.hub.public_files import public_recipe
from csan_hf_runtime.command_line import main
from csan_hf_runtime.text_files import write_lines

SETTINGS = {"vocab_size": 300}


def prepared(args, tokenizers=None, settings=SETTINGS):
    def learn(splits):
        return train_tokenizers(splits["train"], TokenizerArguments(**settings))

    return prepare_corpus(args, tokenizers, settings, learn)


@pytest.fixture
def folder(tmp_path):
    for split, count in (("train", 30), ("val", 3)):
        for language in ("en", "de"):
            lines = [f"{language} {number} {'word ' * (number % 4)}" for number in range(count)]
            write_lines(tmp_path / f"{split}.{language}", lines)
    return tmp_path


def arguments(folder, **options):
    files = {"train": "train.{lang}", "validation": "val.{lang}"}
    places = {"data_dir": str(folder), "cache_dir": str(folder / "cache")}
    return DataArguments(**{**files, **places, **options})


@pytest.fixture
def reads(monkeypatch):
    """How often a corpus was read."""
    calls = []

    def load(*args, **options):
        calls.append(args)
        return load_translation_dataset(*args, **options)

    monkeypatch.setattr(module, "load_translation_dataset", load)
    return calls


def test_a_corpus_is_prepared_once_and_found_where_its_files_were_moved(folder, reads):
    args = arguments(folder)
    first = prepared(args)
    again = prepared(args)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    for file in folder.glob("*.??"):
        file.rename(elsewhere / file.name)
    resumed = prepared(arguments(elsewhere, cache_dir=args.cache_dir), first.tokenizers)
    assert len(reads) == 1
    for corpus in (again, resumed):
        assert corpus.splits["train"][:] == first.splits["train"][:]
        assert corpus.report == first.report
        assert corpus.characters == first.characters == "0-9 d-e n-o r w"
        assert corpus.tokenizers.digest() == first.tokenizers.digest()
    assert "train: 30 of 30 pairs" in first.report


@contextlib.contextmanager
def without_right_to_write(folder):
    """Permissions do not bind root, who becomes somebody else."""
    user = os.geteuid()
    folder.chmod(0o555)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o755)


def test_a_cache_is_read_without_the_right_to_write(folder, monkeypatch):
    monkeypatch.chdir(folder)  # somebody else cannot enter the folders above
    folder.chmod(0o755)
    with tempfile.TemporaryDirectory() as name:
        args = arguments(Path(), cache_dir=name)
        prepared(args)
        shutil.rmtree(Path(name, "unfinished"))
        with without_right_to_write(Path(name)):
            assert len(prepared(args).splits["train"]) == 30
            with pytest.raises(OSError, match=rf"lacks this corpus, .*: set another .*: '{name}'"):
                prepared(arguments(Path(), cache_dir=name, max_source_length=9))


def test_a_cache_is_not_cleared_while_a_corpus_is_prepared(folder, monkeypatch):
    args = arguments(folder)

    def clear_first(*words):
        with pytest.raises(ValueError, match="cache is in use: another process prepares a corpus"):
            clear_cache(cache_folder(args.cache_dir))
        return tokenize_dataset(*words)

    monkeypatch.setattr(module, "tokenize_dataset", clear_first)
    assert len(prepared(args).splits["train"]) == 30


def test_a_preparation_that_begins_while_the_cache_is_cleared_waits(folder, monkeypatch):
    args = arguments(folder)
    later_args = arguments(folder, max_source_length=9)
    prepared(args)
    cache = cache_folder(args.cache_dir)
    thread = threading.Thread(target=prepared, args=[later_args])

    def prepare_first(path):
        if thread.ident is None:
            thread.start()
            thread.join(timeout=1)  # or without end, as it waits for this one
        return kept_corpora(path)

    monkeypatch.setattr(module, "kept_corpora", prepare_first)
    clear_cache(cache)
    thread.join()
    assert [path.parent.name for path, _ in kept_corpora(cache)] == ["corpora", "tokenizers"]


def another_file(folder, patch):
    (folder / "val.de").write_text("a\nb\nc\n")


def other_code(folder, patch):
    patch.setattr(module, "_digest_of_code", lambda: "other")


@pytest.mark.parametrize(
    ("change", "options", "settings"),
    [
        (another_file, {}, {}),
        (other_code, {}, {}),
        (None, {"max_source_length": 9}, {}),
        (None, {}, {"settings": {"vocab_size": 310}}),
        (None, {}, {"tokenizers": TokenizerPair(*[train_tokenizer(["a"], 300)] * 2)}),
    ],
)
def test_what_a_corpus_depends_on_prepares_it_anew(
    change, options, settings, folder, reads, monkeypatch
):
    prepared(arguments(folder))
    if change is not None:
        change(folder, monkeypatch)
    prepared(arguments(folder, **options), **settings)
    assert len(reads) == 2


def test_what_was_interrupted_is_done_again(folder, monkeypatch):
    args = arguments(folder)
    full = OSError(errno.ENOSPC, "No space left on device")
    for error in (KeyboardInterrupt(), full):
        with monkeypatch.context() as patch:
            patch.setattr(module, "tokenize_dataset", Mock(side_effect=error))
            with pytest.raises(type(error)) as raised:
                prepared(args)
    assert f"No space left on device: '{folder / 'cache'}'" in str(raised.value)
    cache = cache_folder(args.cache_dir)
    [(tokenizers, _)] = kept_corpora(cache)
    assert tokenizers.parent.name == "tokenizers"
    # What a process that was killed leaves
    lock = next(cache.glob("unfinished/[!.]*.lock"))
    (lock.with_suffix("") / "corpora").mkdir(parents=True)
    assert len(prepared(args).splits["train"]) == 30
    assert len(kept_corpora(cache)) == 2
    text = cache / "corpora" / "europarl"
    text.mkdir()
    clear_cache(cache)
    assert kept_corpora(cache) == []
    assert text.is_dir(), "not of the cache"


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
    rows = load_translation_dataset(arguments(folder))[0]["train"]
    of_sample = train_tokenizers(rows.select(range(0, 30, 3)), TokenizerArguments(300))
    of_rows = train_tokenizers(rows, TokenizerArguments(300, train_size=10))
    assert of_rows.digest() == of_sample.digest()


def test_the_command_prepares_shows_and_clears(folder, reads, capsys):
    def run(words):
        code = main(["prepare", *words.split()])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    cache = f"--cache_dir {folder}/cache"
    words = f"numbers --vocab_size 300 --data.data_dir {folder} {cache}"
    words += " --data.train train.{lang} --data.validation val.{lang}"
    for name in ("dataset", "train_size", "validation_size", "test_size"):
        words += f" --data.{name} null"
    for _ in range(2):
        code, printed = run(words)
        assert code == 0
        assert "train: 30 of 30 pairs" in printed
    assert len(reads) == 1
    assert "MB  corpora/" in run(cache)[1]
    for wrong, message in (
        ("--train_size 3", "--train_size belongs to a recipe"),
        ("--clear recipe.yaml", "--clear removes every corpus"),
    ):
        code, printed = run(f"{cache} {wrong}")
        assert code == 2
        assert message in printed
        assert len(kept_corpora(folder / "cache")) == 2
    assert run(f"{cache} --clear")[1].endswith("Removed.\n")
    assert kept_corpora(folder / "cache") == []
    assert "csan-hf prepare RECIPE" in run("--help")[1]


@pytest.mark.parametrize(
    "file",
    [
        "corpora/*/train/*.arrow",
        "corpora/*/report.txt",
        "corpora/*/characters.json",
        "tokenizers/*/tokenizer.json",
    ],
)
def test_a_damaged_corpus_is_named(file, folder):
    prepared(arguments(folder))
    [path] = (folder / "cache").glob(file)
    if path.suffix == ".arrow":
        path.write_bytes(path.read_bytes()[:900])
    else:
        path.unlink()
    kind, _, _ = file.partition("/")
    with pytest.raises(ValueError, match=f"cache/{kind}/[0-9a-f]+ is damaged (?s:.*): remove it"):
        prepared(arguments(folder))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_data_set_that_changed_is_prepared_anew(streaming, folder, reads):
    files = folder / "dataset"
    files.mkdir()
    stored = {"dataset": str(files), "train": None, "validation": None, "data_dir": None}
    for count in (30, 31):
        (files / "train.jsonl").write_text('{"en": "a", "de": "b c"}\n' * count)
        for _ in range(2):
            prepared(arguments(folder, **stored, streaming=streaming, train_size=30))
    assert len(reads) == 2


def test_neither_the_cache_nor_paths_of_a_mixture_are_published():
    recipe = {"data": {"train": {"/me/real.{lang}": 2.0, "made.{lang}": 1.0}, "cache_dir": "x"}}
    public = {"data": {"train": {"real.{lang}": 2.0, "made.{lang}": 1.0}}}
    assert public_recipe(recipe) == public
    assert recipe["data"]["cache_dir"] == "x"
