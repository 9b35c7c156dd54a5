# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A corpus read, filtered and cut into tokens once, and found again by what it depends on.

A corpus's folder in the cache is named after a digest of the files' contents, the section data,
the tokenizers and the code of this package's `data`; it is written under another name first. One
process prepares while others on the same corpus wait. What teachers say of it is kept likewise."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import importlib.metadata
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets import Dataset, DatasetDict
from filelock import FileLock, Timeout
from transformers.utils import logging

from csan_hf_runtime import __version__, text_files
from csan_hf_runtime.characters import characters_of, has_all_bytes, write_ranges
from csan_hf_runtime.sentences import sentences_of
from csan_hf_runtime.text_files import write_json

from .batching import example_lengths
from .corpora import DataArguments, content_digests, load_translation_dataset
from .tokenization import TokenizerPair, tokenize_dataset

logger = logging.get_logger(__name__)

_CORPORA = "corpora"
_TOKENIZERS = "tokenizers"
_COLUMNS = "columns"
_WORK = "unfinished"
_LOCK = ".lock"
_NO_ROWS = "no_rows"
_REPORT = "report.txt"
_CHARACTERS = "characters.json"
_MOST_COUNTED = 10_000  # sources of which the sentences are counted
_NAME = "[0-9a-f]" * 32  # of a folder that is the cache's, for `glob`


@dataclass(frozen=True)
class PreparedCorpus:
    """A corpus as a training needs it.

    Attributes:
        tokenizers: The tokenizers.
        splits: See `tokenize_dataset`; mapped into memory from the cache.
        report: Counts of the pairs that were read and kept.
        characters: Ranges of the training sources' characters, where the source vocabulary is of
            bytes and the training split is read as a whole; else None.
    """

    tokenizers: TokenizerPair
    splits: DatasetDict
    report: str
    characters: str | None

    def usual_source(self, language: str) -> dict[str, int | str]:
        """Returns the tokens and sentences that 99 % of the training sources have at most, and
        their language.
        """
        train = self.splits["train"]
        lengths, _ = example_lengths(train)
        sample = train.select(range(0, len(train), math.ceil(len(train) / _MOST_COUNTED)))
        sentences = [len(sentences_of(text, language)) for text in sample["source"]]
        return {
            "tokens": int(np.quantile(lengths, 0.99, method="higher")),
            "sentences": int(np.quantile(sentences, 0.99, method="higher")),
            "language": language,
        }


def cache_folder(cache_dir: str | None) -> Path:
    """The folder of prepared corpora, by `DataArguments.cache_dir`."""
    if cache_dir is None:
        return Path(datasets.config.HF_DATASETS_CACHE) / "csan_hf"
    return Path(cache_dir).expanduser()


def prepare_corpus(
    args: DataArguments,
    tokenizers: TokenizerPair | None,
    settings: Mapping[str, Any],
    learn: Callable[[DatasetDict], TokenizerPair],
) -> PreparedCorpus:
    """Returns a corpus cut into tokens, from the cache where it is there.

    Args:
        args: The corpus.
        tokenizers: Existing tokenizers, or None for those that `learn` makes of the text.
        settings: What `learn` depends on beside the text.
        learn: Function from the splits to new tokenizers.

    Raises:
        ValueError: Something is wrong with the corpus.
        OSError: The cache cannot be written.
    """
    cache = cache_folder(args.cache_dir)
    fields = dataclasses.asdict(args)
    # None of these changes the prepared pairs
    for name in ("cache_dir", "data_dir", "buffer_size", "unlabelled"):
        del fields[name]
    corpus = _digest(fields, content_digests(args), _digest_of_code())
    learned = cache / _TOKENIZERS / _digest(corpus, settings)

    def folder_of(pair: TokenizerPair) -> Path:
        return cache / _CORPORA / _digest(corpus, pair.digest())

    def find() -> PreparedCorpus | None:
        """Reads the corpus, if it is there; the right to write is not needed."""
        pair = tokenizers
        if pair is None and learned.is_dir():
            pair = _read_tokenizers(learned)
        if pair is None or not folder_of(pair).is_dir():
            return None
        return _read_corpus(folder_of(pair), pair)

    def prepare(work_dir: Path) -> PreparedCorpus:
        pair = tokenizers
        splits, report = load_translation_dataset(args, work_dir=work_dir)
        if pair is None:
            if not learned.is_dir():
                learn(splits).save_pretrained(work_dir / _TOKENIZERS)
                _move(work_dir / _TOKENIZERS, learned)
            pair = _read_tokenizers(learned)
        folder = folder_of(pair)
        if not folder.is_dir():
            tokenized, report = tokenize_dataset(splits, pair, args, report)
            tokenized.save_to_disk(work_dir / _CORPORA)
            (work_dir / _CORPORA / _REPORT).write_text(str(report), encoding="utf-8")
            characters = None if args.is_endless else _source_characters(tokenized, pair)
            write_json(work_dir / _CORPORA / _CHARACTERS, characters)
            _move(work_dir / _CORPORA, folder)
        return _read_corpus(folder, pair)

    prepared = find()
    if prepared is None:
        work_dir = cache / _WORK / corpus
        with _alone(cache, work_dir):
            prepared = find() or prepare(work_dir)  # another process may have been first
    return prepared


def kept_dataset(cache: Path, key: object, make: Callable[[Path], Dataset]) -> Dataset | None:
    """Returns a data set from the cache, made if it is missing; None if it has no rows.

    Args:
        cache: Folder of prepared corpora.
        key: All that its content depends on.
        make: Makes it; takes a folder for temporary files.

    Raises:
        OSError: The cache cannot be written.
    """
    name = _digest(key, __version__)
    folder = cache / _COLUMNS / name
    if not folder.is_dir():
        work_dir = cache / _WORK / name
        with _alone(cache, work_dir):
            if not folder.is_dir():  # another process may have been first
                dataset = make(work_dir)
                (work_dir / _COLUMNS).mkdir()
                if len(dataset):
                    dataset.save_to_disk(work_dir / _COLUMNS)
                else:  # the library cannot save what has no rows
                    (work_dir / _COLUMNS / _NO_ROWS).touch()
                _move(work_dir / _COLUMNS, folder)
    if (folder / _NO_ROWS).exists():
        return None
    with _reading(folder):
        return Dataset.load_from_disk(str(folder))


def _read_tokenizers(folder: Path) -> TokenizerPair:
    with _reading(folder):
        return TokenizerPair.from_pretrained(folder)


def _read_corpus(folder: Path, tokenizers: TokenizerPair) -> PreparedCorpus:
    with _reading(folder):
        return PreparedCorpus(
            tokenizers,
            splits=DatasetDict.load_from_disk(str(folder)),
            report=(folder / _REPORT).read_text(encoding="utf-8"),
            characters=json.loads((folder / _CHARACTERS).read_bytes()),
        )


def _source_characters(splits: DatasetDict, tokenizers: TokenizerPair) -> str | None:
    """Returns the ranges of the characters of all training sources, for a vocabulary of bytes."""
    backend = getattr(tokenizers.source, "backend_tokenizer", None)
    if backend is None or not has_all_bytes(backend) or "train" not in splits:
        return None
    characters: set[str] = set()
    for batch in splits["train"].select_columns("source").iter(1_000):
        characters.update(characters_of(backend, "\n".join(batch["source"])))
    return write_ranges(characters)


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Says what to do about a folder of the cache that a library cannot read."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"{folder} is damaged ({error}): remove it, and it is made anew"
        ) from error


@contextlib.contextmanager
def _alone(cache: Path, work_dir: Path) -> Iterator[None]:
    """Holds the lock of a corpus and an empty `work_dir`, which is removed at the end."""
    lock = FileLock(f"{work_dir}{_LOCK}")
    try:
        work_dir.parent.mkdir(parents=True, exist_ok=True)
        while not lock.is_locked:
            try:
                with FileLock(work_dir.with_name(_LOCK)):  # which `clear_cache` holds
                    lock.acquire(timeout=0)
            except Timeout:
                logger.warning_once("Another process prepares this corpus; waiting for it.")
                time.sleep(0.1)
        shutil.rmtree(work_dir, ignore_errors=True)  # of a process that was killed
        work_dir.mkdir()
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            error.filename = str(cache)  # data.cache_dir, which the system does not name
        if error.errno in (errno.EACCES, errno.EROFS) and not lock.is_locked:
            reason = "it lacks this corpus, and cannot be written to: set another data.cache_dir"
            raise OSError(error.errno, reason, str(cache)) from error
        raise
    finally:
        if lock.is_locked:
            shutil.rmtree(work_dir, ignore_errors=True)
            lock.release()


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)


def _digest(*values: object) -> str:
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _digest_of_code() -> str:
    """A digest of what makes, reads, filters and cuts text."""
    text_code = Path(text_files.__file__)
    files = [*Path(__file__).parent.glob("*.*"), text_code, text_code.with_name("characters.py")]
    contents = [path.read_bytes() for path in sorted(files)]
    contents.append(importlib.metadata.version("num2words").encode())
    return hashlib.sha256(b"".join(contents)).hexdigest()


# ---- what the cache holds


def kept_corpora(cache: Path) -> list[tuple[Path, int]]:
    """The folders of a cache, with their bytes."""
    kept = []
    for kind in (_CORPORA, _TOKENIZERS, _COLUMNS, _WORK):
        for folder in sorted((cache / kind).glob(f"{_NAME}/")):
            files = filter(Path.is_file, folder.rglob("*"))
            kept.append((folder, sum(file.stat().st_size for file in files)))
    return kept


def clear_cache(cache: Path) -> None:
    """Removes all that the cache holds; processes that use it keep what they have.

    Raises:
        ValueError: Another process prepares a corpus.
    """
    if not cache.is_dir():
        return
    (cache / _WORK).mkdir(exist_ok=True)
    with FileLock(cache / _WORK / _LOCK), contextlib.ExitStack() as locks:
        for path in (cache / _WORK).glob(f"{_NAME}{_LOCK}"):
            try:
                locks.enter_context(FileLock(path, timeout=0))
            except Timeout:
                raise ValueError(
                    f"{cache} is in use: another process prepares a corpus there. Wait for it, "
                    "then clear the cache."
                ) from None
        for folder, _ in kept_corpora(cache):
            shutil.rmtree(folder)
