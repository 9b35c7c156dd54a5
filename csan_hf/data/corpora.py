# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""One loader for every kind of parallel corpus: built-in, local files, or the Hub."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import datasets
from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict

from csan_hf.text_files import check_file_name, check_folder_or_name

from .language_pairs import arguments_of_pair, merge_language_pairs, parse_language_pairs
from .numbers import load_numbers
from .readers import file_format, pairs_of_table, read_table, read_text_pair, table_rows
from .report import FilterReport

BUILT_IN = "numbers"
_SHUFFLED_AT_ONCE = 10_000
_NUMBERS_SIZES = {"train": 30_000, "validation": 1_000, "test": 1_000}


@dataclass
class DataArguments:
    """Which corpus, in which languages, and what is kept of it.

    The text comes from `dataset` ("numbers", or a name on the Hub, of which `train`, `validation` and `test` may name
    the splits), or from files, of which `train`, `validation` and `test` are the patterns. In a pattern, "{lang}"
    stands for the language, "{source_lang}" and "{target_lang}" for these languages. The extension decides the
    format: .csv, .tsv, .jsonl and .parquet hold both languages in one file; everything else is plain text, one
    sentence per line and one file per language. All but parquet may end in .gz.

    Raises:
        ValueError: A value that is out of range or contradicts another; the message names the field.
    """

    dataset: str | None = field(
        default=None,
        metadata={"help": "'numbers' (built-in), or a dataset name on the Hub or a local dataset folder."},
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of the Hub dataset."})
    dataset_revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of the Hub dataset."})
    data_dir: str | None = field(default=None, metadata={"help": "Folder that the file patterns start from."})
    train: str | None = field(
        default=None, metadata={"help": "File pattern ('train.{lang}.gz') or Hub split of the training data."}
    )
    validation: str | None = field(
        default=None, metadata={"help": "File pattern or Hub split of the validation data."}
    )
    test: dict | str | None = field(
        default=None,
        metadata={
            "help": "File pattern or Hub split of the test data (the split is then called 'test'), or several as a "
            'dictionary from name to pattern: \'{"test_2016": "test_2016.{lang}"}\'.'
        },
    )
    streaming: bool = field(
        default=False,
        metadata={
            "help": "Read a Hub dataset as a stream and stop after train_size pairs (drawn through a shuffle buffer "
            "of 10,000): the rest is not downloaded."
        },
    )
    language_pairs: list[str] | None = field(
        default=None,
        metadata={
            "help": "Several pairs in one corpus, such as [de-en, en-de], instead of source_lang and target_lang; if "
            "there are several target languages, each source begins with a tag such as >>de<< that names its own."
        },
    )
    source_lang: str = field(default="en", metadata={"help": "Source language, what {lang} stands for."})
    target_lang: str = field(default="de", metadata={"help": "Target language, what {lang} stands for."})
    source_column: str | None = field(
        default=None, metadata={"help": "Column of the source text (default: the name of the language)."}
    )
    target_column: str | None = field(
        default=None, metadata={"help": "Column of the target text (default: the name of the language)."}
    )
    train_size: int | None = field(
        default=None,
        metadata={
            "help": "Number of training pairs that 'numbers' makes (default 30,000), or that are drawn at random from "
            "another corpus (default: all)."
        },
    )
    validation_size: int | None = field(
        default=None,
        metadata={
            "help": "Number of validation pairs that 'numbers' makes (default 1,000), or that are taken from the "
            "start of another set (default: all)."
        },
    )
    test_size: int | None = field(default=None, metadata={"help": "Pairs per test set: as validation_size."})
    data_seed: int = field(default=0, metadata={"help": "Seed of the 'numbers' corpus and of selections."})
    max_source_length: int | None = field(
        default=256,
        metadata={"help": "Tokens of a source, </s> included: longer training pairs are dropped, other sources cut."},
    )
    max_target_length: int | None = field(
        default=256,
        metadata={"help": "Tokens of a target, </s> included: longer training pairs are dropped, other targets cut."},
    )
    max_length_ratio: float | None = field(
        default=None, metadata={"help": "Drop training pairs whose lengths in tokens differ by more than this factor."}
    )

    def __post_init__(self) -> None:
        if isinstance(self.test, str) and self.test.lstrip().startswith('{"'):
            self.test = _parse_test(self.test)
        self._check_numbers()
        self._check_source()
        self._check_languages()
        reserved = {"train", "validation"} & set(self.test_patterns)
        if reserved:
            raise ValueError(f"test has an entry called {reserved.pop()!r}; give the test set another name")
        for name, pattern in self.test_patterns.items():
            check_file_name(name, "test: the test set")  # its hypotheses' file has this name
            if not isinstance(pattern, str):
                raise ValueError(f"test: {name!r} is {str(pattern)[:80]!r}; a file pattern or a split is needed")

    def _check_numbers(self) -> None:
        least = {"train_size": 1, "validation_size": 1, "test_size": 1, "max_source_length": 2, "max_target_length": 2}
        least |= {"max_length_ratio": 1, "data_seed": 0}
        for name, minimum in least.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ValueError(f"{name} is {value}; it must be at least {minimum}")

    def _check_source(self) -> None:
        patterns = {name: getattr(self, name) for name in ("train", "validation", "test", "data_dir")}
        given = [name for name, value in patterns.items() if value]
        if self.dataset is None and not set(given) - {"data_dir"}:
            raise ValueError("no corpus: set dataset ('numbers' or a name on the Hub), or file patterns such as train")
        if self.dataset == BUILT_IN and given:
            raise ValueError(f"dataset is 'numbers', which has no files: leave out {', '.join(given)}")
        if self.dataset == BUILT_IN and (self.dataset_config or self.dataset_revision):
            raise ValueError(
                "dataset is 'numbers', which has no configurations: leave out dataset_config, dataset_revision"
            )

        if self.streaming and (self.dataset in (None, BUILT_IN) or self.train_size is None):
            raise ValueError("streaming reads a dataset on the Hub, of which train_size pairs are taken: set both")

    def _check_languages(self) -> None:
        if self.source_lang == self.target_lang:
            raise ValueError(
                f"source_lang and target_lang are both {self.source_lang!r}; choose two different languages"
            )
        if self.language_pairs is not None:
            parse_language_pairs(self.language_pairs)
            if not self.language_pairs:
                raise ValueError("language_pairs is empty; name a pair such as de-en")
            if self.source_column or self.target_column:
                raise ValueError("language_pairs finds columns by language: leave out source_column, target_column")

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of languages, source first."""
        return parse_language_pairs(self.language_pairs or [f"{self.source_lang}-{self.target_lang}"])

    @property
    def columns(self) -> tuple[str, str]:
        """Names of the source and the target column."""
        return self.source_column or self.source_lang, self.target_column or self.target_lang

    @property
    def test_patterns(self) -> dict[str, str]:
        """Name of every test split -> its pattern."""
        if not self.test:
            return {}
        return dict(self.test) if isinstance(self.test, dict) else {"test": self.test}

    @property
    def split_patterns(self) -> dict[str, str]:
        """Name of every split -> its file pattern or Hub split."""
        named = {"train": self.train, "validation": self.validation, **self.test_patterns}
        return {split: pattern for split, pattern in named.items() if pattern}

    @property
    def split_names(self) -> dict[str, str]:
        """Name of every split of the loaded corpus -> its pattern; with several pairs each has test splits."""
        if not self.language_pairs:
            return self.split_patterns
        tests = {
            f"{name}_{source}-{target}": pattern
            for source, target in self.pairs
            for name, pattern in self.test_patterns.items()
        }
        return {**{s: p for s, p in self.split_patterns.items() if s in ("train", "validation")}, **tests}

    def size_of(self, split: str) -> int | None:
        """The number of pairs to keep of a split, None for all."""
        return {"train": self.train_size, "validation": self.validation_size}.get(split, self.test_size)


def _parse_test(text: str) -> dict[str, str]:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"test is {text!r}, which is not a JSON dictionary ({error})") from error


def load_translation_dataset(
    args: DataArguments, splits: Sequence[str] | None = None
) -> tuple[DatasetDict, FilterReport]:
    """Loads a parallel corpus.

    Pairs with an empty side are dropped from the training split and counted. Validation and test splits keep every
    pair, empty ones too, so that line n of a prediction belongs to line n of the corpus.

    Args:
        args: Which corpus.
        splits: Load only these splits; None for all.

    Returns:
        Splits "train", "validation" and the test splits, as far as the corpus has them, with the string columns
        source and target; and the counts.

    Raises:
        ValueError: Something is wrong with the corpus; the message names file, line and reason.
    """
    if args.language_pairs:
        return _load_pairs(args, splits)
    loaders = _numbers_loaders(args) if args.dataset == BUILT_IN else None
    loaders = loaders or (_hub_loaders(args) if args.dataset else _file_loaders(args))
    wanted = list(loaders) if splits is None else list(splits)
    if unknown := [split for split in wanted if split not in loaders]:
        raise ValueError(f"the corpus has no split {unknown[0]!r}, only {', '.join(loaders)}")
    report = FilterReport()
    return DatasetDict({split: _finish(split, *loaders[split](), args, report) for split in wanted}), report


def _load_pairs(args: DataArguments, splits: Sequence[str] | None) -> tuple[DatasetDict, FilterReport]:
    loaded = {}
    for pair in args.pairs:
        suffix = f"_{pair[0]}-{pair[1]}"
        wanted = None if splits is None else [split.removesuffix(suffix) for split in splits if _is_of(split, suffix)]
        if wanted is None or wanted:
            loaded[pair] = load_translation_dataset(arguments_of_pair(args, pair), wanted)
    if not loaded:
        raise ValueError(
            f"the corpus has no split {', '.join(splits or ())}; test splits end in a pair of languages, as test_de-en"
        )
    return merge_language_pairs(args.pairs, loaded)


def _is_of(split: str, suffix: str) -> bool:
    return split in ("train", "validation") or split.endswith(suffix)


def check_files(args: DataArguments) -> None:
    """Raises `ValueError` for missing files and tables without the columns, of which no more than a row is read."""
    if args.dataset:
        if args.dataset != BUILT_IN:
            check_folder_or_name(args.dataset, "data")
        return
    for pair in args.pairs:
        each = arguments_of_pair(args, pair)
        for split, pattern in each.split_patterns.items():
            paths = _find_files(each, split, pattern)
            if file_format(pattern) not in ("", ".parquet"):
                next(table_rows(paths[0], each.columns), None)


Loader = Callable[[], "tuple[Dataset, str]"]
"""Loads a split; also says where it came from, for messages."""


def _numbers_loaders(args: DataArguments) -> dict[str, Loader]:
    sizes = {f"{split}_size": args.size_of(split) or default for split, default in _NUMBERS_SIZES.items()}
    make = cache(lambda: load_numbers(args.source_lang, args.target_lang, **sizes, seed=args.data_seed))

    def load(split: str) -> tuple[Dataset, str]:
        return make()[split], BUILT_IN

    return {split: partial(load, split) for split in _NUMBERS_SIZES}


def _file_loaders(args: DataArguments) -> dict[str, Loader]:
    def loader(split: str, pattern: str) -> Loader:
        def load() -> tuple[Dataset, str]:
            paths = _find_files(args, split, pattern)
            pairs = read_table(paths[0], *args.columns) if file_format(pattern) else read_text_pair(*paths)
            return _as_dataset(*pairs), " and ".join(map(str, paths))

        return load

    return {split: loader(split, pattern) for split, pattern in args.split_patterns.items()}


def _find_files(args: DataArguments, split: str, pattern: str) -> list[Path]:
    """The file of a table, or those of two languages."""
    if file_format(pattern):
        return [_find_file(args, split, pattern, None)]
    if "{lang}" not in pattern:
        raise ValueError(
            f"{split} is {pattern!r}: plain text needs one file per language, write {{lang}} where the language "
            "stands (one file for both languages is a .csv, .tsv, .jsonl or .parquet)"
        )
    return [_find_file(args, split, pattern, lang) for lang in (args.source_lang, args.target_lang)]


def _find_file(args: DataArguments, split: str, pattern: str, lang: str | None) -> Path:
    """The file of a pattern, with or without .gz."""
    name = pattern if lang is None else pattern.replace("{lang}", lang)
    name = name.replace("{source_lang}", args.source_lang).replace("{target_lang}", args.target_lang)
    path = Path(args.data_dir or "").expanduser() / Path(name).expanduser()
    other = path.with_name(path.name.removesuffix(".gz") if path.name.endswith(".gz") else path.name + ".gz")
    for candidate in (path, other):
        if candidate.is_file():
            return candidate
    language = f" of language {lang!r}" if lang else ""
    raise ValueError(
        f"no file for {split}{language}: {split} is {pattern!r}, tried {path} and {other}; "
        "check data_dir, the pattern and the languages"
    )


def _as_dataset(source: list[str], target: list[str]) -> Dataset:
    text = datasets.Value("string")
    schema = datasets.Features({"source": text, "target": text})
    return Dataset.from_dict({"source": source, "target": target}, features=schema)


def _hub_loaders(args: DataArguments) -> dict[str, Loader]:
    name = str(args.dataset)
    options = {"data_dir": args.data_dir, "revision": args.dataset_revision, "streaming": args.streaming}
    given = {key: value for key, value in options.items() if value}
    try:
        loaded = datasets.load_dataset(name, args.dataset_config, **given)
    except (datasets.exceptions.DatasetGenerationError, StopIteration) as error:  # the latter of an empty file
        raise ValueError(f"dataset {name!r} cannot be read: {error.__cause__ or 'a file is empty'}") from error
    if not isinstance(loaded, DatasetDict | IterableDatasetDict):
        raise ValueError(f"dataset {name!r} has no named splits; only datasets with splits can be used")
    wanted = args.split_patterns
    for split in ("train", "validation", "test"):
        if split in loaded and not (split == "test" and args.test_patterns):
            wanted.setdefault(split, split)
    for split, stored in wanted.items():
        if stored not in loaded:
            raise ValueError(f"{split}: dataset {name!r} has no split {stored!r}, only {', '.join(loaded)}")
    return {split: _hub_loader(args, split, f"{name}, split {at}", loaded[at]) for split, at in wanted.items()}


def _hub_loader(args: DataArguments, split: str, where: str, rows: Dataset | IterableDataset) -> Loader:
    def load() -> tuple[Dataset, str]:
        whole = _take(args, split, rows) if isinstance(rows, IterableDataset) else rows
        return _as_dataset(*pairs_of_table(where, whole.with_format("arrow")[:], args.columns)), where

    return load


def _take(args: DataArguments, split: str, stream: IterableDataset) -> Dataset:
    """Reads as many pairs of a stream as are wanted of its split."""
    if split == "train":
        stream = stream.shuffle(seed=args.data_seed, buffer_size=_SHUFFLED_AT_ONCE)
    size = args.size_of(split)
    return Dataset.from_list(list(stream if size is None else stream.take(size)))


def _finish(split: str, rows: Dataset, where: str, args: DataArguments, report: FilterReport) -> Dataset:
    """Drops or counts empty pairs, and keeps as many pairs as asked for."""
    report.start(split, len(rows))
    if not len(rows):
        raise ValueError(f"{where}: the split {split!r} is empty")
    filled = _filled(rows)
    if split != "train":
        size = args.size_of(split)
        if size is not None and size < len(rows):
            report.drop(split, "beyond the size asked for", len(rows) - size)
            rows, filled = rows.select(range(size)), [index for index in filled if index < size]
        report.note(split, "with an empty side", len(rows) - len(filled))
        return rows
    report.drop(split, "with an empty side", len(rows) - len(filled))
    if not filled:
        raise ValueError(f"{where}: the split {split!r} is empty: every pair has an empty side")
    chosen = filled
    if args.train_size is not None and args.train_size < len(filled):
        chosen = sorted(random.Random(args.data_seed).sample(filled, args.train_size))
        report.drop(split, "beyond train_size", len(filled) - len(chosen))
    return rows if len(chosen) == len(rows) else rows.select(chosen)


def _filled(rows: Dataset) -> list[int]:
    """Indices of the pairs with text on both sides."""
    columns = rows.select_columns(["source", "target"])[:]  # at once: a column alone is decoded row by row
    pairs = zip(columns["source"], columns["target"], strict=True)
    return [index for index, (left, right) in enumerate(pairs) if left.strip() and right.strip()]
