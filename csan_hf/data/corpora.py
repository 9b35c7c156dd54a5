# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""One loader for every kind of parallel corpus: built-in, local files, or the Hub; one language
pair or several.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets import Dataset, DatasetDict, IterableDataset
from datasets.arrow_writer import ArrowWriter

from csan_hf_runtime.keys import Affects, at_least, check_bounds, declare, declared_keys
from csan_hf_runtime.text_files import (
    VARIANTS,
    check_file_name,
    check_folder_or_name,
    check_parallel,
    read_lines,
)

from .documents import Rows, lines_alone, pieces_of_documents
from .joining import LINE_FEED, joined, random_counts
from .numbers import load_numbers
from .patterns import find_parts, find_references, find_unlabelled
from .readers import Pair, Part, file_format, pair_of, read_pairs, table_rows

BUILT_IN: dict[str, Callable[..., DatasetDict]] = {"numbers": load_numbers}
"""Corpora that are made, not read: functions of two languages and of the keywords train_size,
validation_size, test_size and seed that return these splits, columns source and target."""
_SHUFFLED_AT_ONCE = 10_000
_SAMPLE_SIZE = 100_000  # pairs of an endless stream that a vocabulary is learned from
_BYTES_OF_A_TOKEN = 3  # or more, of byte-level BPE
_TEXT = datasets.Features({name: datasets.Value("string") for name in ("source", "target")})
ALONE = "_alone"  # ends the name of the split that has a test set's lines as pairs of their own
SHARED = ("train", "validation")  # splits that several pairs of languages have together
Languages = tuple[str, str]


@dataclass
class DataArguments:
    """Which corpus, in which languages, and what is kept of it.

    The text comes from `dataset` ("numbers", or a name on the Hub, of which `train`, `validation`
    and `test` may name the splits), or from files, of which `train`, `validation` and `test` are
    the patterns. In a pattern, "{lang}" stands for the language, "{source_lang}" and
    "{target_lang}" for these languages, and one "*" for any text: such files are read in the order
    of their names, those of `train` as a list in its order. The extension decides the format: .csv,
    .tsv, .jsonl and .parquet hold both languages in one file, .dict words and their phones (CMU's
    and MFA's dictionaries, columns "0" and "1"); everything else is plain text, one sentence per
    line and one file per language. All but parquet may be compressed (.gz, .bz2, .xz, from
    Python 3.14 on .zst), whether the pattern says so or not.
    `validation` and each of `test` may be a list: its further patterns are files with one more
    reference per line, in plain text.

    Args:
        dataset: 'numbers' (built-in), or a dataset name on the Hub or a local dataset folder.
        dataset_config: Configuration of the Hub dataset.
        dataset_revision: Branch, tag or commit of the Hub dataset.
        data_dir: Folder that the file patterns start from.
        train: File pattern ('train.{lang}.gz', 'part-*.{lang}.gz') or Hub split of the training
            data; a list of patterns; or a dictionary from pattern to weight: corpora mixed in these
            shares, the smaller ones repeated.
        validation: File pattern or Hub split of the validation data; or a list, whose further
            patterns are plain-text files with more references.
        test: File pattern or Hub split of the test data (the split is then called 'test'), or
            several as a dictionary from name to pattern: '{"test_2016": "test_2016.{lang}"}'; a
            pattern may be a list, as in validation.
        unlabelled: File pattern, or a list of them, of source texts without translations, which
            training.teachers translate into further training pairs: plain text, each line a source,
            or tables, of which the source column is read. Sources that stand in the training,
            validation or a test set, in any case, are left out.
        streaming: Read files or a Hub dataset as a stream. With train_size: take that many pairs,
            drawn through a shuffle buffer of 10,000. Without: store nothing and read pass after
            pass, up to training.max_steps.
        buffer_size: With streaming and no train_size: pairs that each process reads at a time, to
            make batches of similar lengths and shuffle them.
        language_pairs: Several language pairs in one model, such as [de-en, en-de], instead of
            source_lang and target_lang. With several target languages each source begins with a tag
            that names its own, such as >>de<<.
        temperature: Sample several language_pairs in proportion to size ** (1 / temperature),
            repeating the small ones: 1 keeps the proportions, 5 is usual for many languages
            (default: every sentence pair once).
        source_lang: Source language, what {lang} stands for.
        target_lang: Target language, what {lang} stands for.
        source_column: Column of the source text (default: the name of the language).
        target_column: Column of the target text (default: the name of the language).
        train_size: Number of training pairs, of each pair of languages, that 'numbers' makes
            (default 30,000), or that are drawn at random from another corpus (default: all).
        validation_size: Number of validation pairs that 'numbers' makes (default 1,000), or that
            are taken from the start of another set (default: all). Without a validation set they
            are drawn at random from the training set; sources that differ in case or Unicode form
            alone stay together.
        test_size: Number of pairs per test set, as in validation_size.
        documents: The files are plain text of documents: a sentence or a paragraph in each line, a
            blank line between documents. Training and validation pairs are neighbouring lines of
            one document, from one to all, every doubling equally often, several with at most three
            bytes for each token of max_source_length or max_target_length. Pairs of test sets are
            whole documents, which are not cut, and TEST_alone has their lines, each a pair of its
            own. Sizes such as validation_size count documents.
        join: Join up to this many neighbouring pairs of the training and the validation set into
            one, each number equally often: longer texts from a corpus of sentences. They are lines
            where tokenizer.line_token or the network knows lines.
        join_test: Further test sets: [2, 4] adds TEST_x2 and TEST_x4, which join 2 and 4
            neighbouring pairs into one.
        separator: Stands between joined pairs; a line feed = they are lines.
        data_seed: Seed of the 'numbers' corpus and of random selections.
        max_source_length: Tokens of a source with </s>: longer training pairs are dropped, other
            sources truncated.
        max_target_length: Tokens of a target with </s>: longer training pairs are dropped, other
            targets truncated.
        max_length_ratio: Drop training pairs whose lengths in tokens differ by more than this
            factor.
        cache_dir: Folder of tokenized corpora, which other runs on the same data use again
            (default: csan_hf in the cache of datasets; `csan-hf prepare` shows and clears it).

    Raises:
        ValueError: A value that is out of range or contradicts another; the message names the
            field.
    """

    dataset: str | None = None
    dataset_config: str | None = None
    dataset_revision: str | None = None
    data_dir: str | None = declare(None, Affects.NOTHING)
    train: dict[str, float] | list[str] | str | None = declare(None, Affects.TRAINING)
    validation: str | list[str] | None = None
    test: dict[str, str | list[str]] | str | None = declare(None, Affects.SCORES)
    unlabelled: list[str] | str | None = declare(None, Affects.TRAINING)
    streaming: bool = declare(False, Affects.TRAINING)
    buffer_size: int = declare(100_000, at_least(1), Affects.TRAINING)
    language_pairs: list[str] | None = None
    temperature: float | None = declare(None, at_least(1), Affects.TRAINING)
    source_lang: str = "en"
    target_lang: str = "de"
    source_column: str | None = None
    target_column: str | None = None
    train_size: int | None = declare(None, at_least(1), Affects.TRAINING)
    validation_size: int | None = declare(None, at_least(1))
    test_size: int | None = declare(None, at_least(1), Affects.SCORES)
    documents: bool = False
    join: int = declare(1, at_least(1))
    join_test: list[int] | None = declare(None, Affects.SCORES)
    separator: str = declare(" ", "it follows from tokenizer.line_token and the network")
    data_seed: int = declare(0, at_least(0))
    max_source_length: int | None = declare(256, at_least(2), Affects.TRAINING)
    max_target_length: int | None = declare(256, at_least(2), Affects.TRAINING)
    max_length_ratio: float | None = declare(None, at_least(1), Affects.TRAINING)
    cache_dir: str | None = declare(None, Affects.NOTHING)

    def __post_init__(self) -> None:
        for name in self.test_patterns:
            check_file_name(name, "test: the test set")  # its hypotheses' file has this name
        check_bounds(declared_keys(type(self)), vars(self))
        for contradiction in self._contradictions():
            raise ValueError(contradiction)

    def _contradictions(self) -> Iterator[str]:
        """Yields what cannot be, and what to do instead; the first is raised."""
        is_made = self.dataset in BUILT_IN
        names = ("train", "validation", "test", "data_dir", "dataset_config", "dataset_revision")
        settings = [name for name in names if getattr(self, name)]
        if self.dataset is None and not (self.train or self.validation or self.test):
            built_in = ", ".join(map(repr, BUILT_IN))
            yield (
                f"no corpus: set dataset ({built_in} or a name on the Hub), or file patterns such "
                "as train"
            )
        if is_made and settings:
            yield (
                f"dataset is {self.dataset!r}, which is made, not read: leave out "
                f"{', '.join(settings)}"
            )
        if self.streaming and (is_made or not (self.dataset or self.train)):
            yield "streaming reads files or a dataset on the Hub: set train or dataset"
        if self.dataset and isinstance(self.train, list | dict):
            yield "train has several patterns, of files; of a dataset on the Hub name one split"
        if isinstance(self.train, dict) and not min(self.train.values(), default=1) > 0:
            yield f"train is {self.train}; its weights must be above 0"
        if {*SHARED} & {*self.test_patterns}:
            yield "test has an entry called train or validation; give the test set another name"
        yield from self._contradictions_of_several()

    def _contradictions_of_several(self) -> Iterator[str]:
        """Those of several languages, and of joined pairs."""
        counts = self.join_test or []
        if self.documents:
            yield from self._contradictions_of_documents()
        if any(source == target for source, target in self.pairs):
            languages = f"source_lang and target_lang are both {self.source_lang!r}"
            yield f"{languages}; choose two different languages"
        if self.temperature and (self.is_endless or not self.language_pairs):
            yield "temperature mixes several language_pairs, whose sizes a stream does not tell"
        if self.language_pairs and (self.source_column or self.target_column):
            yield "language_pairs finds columns by language: leave out source_column, target_column"
        has_several_sources = len({source for source, _ in self.pairs}) > 1
        for pattern in self.unlabelled_patterns:
            has_language = "{lang}" in pattern or "{source_lang}" in pattern
            if has_several_sources and not file_format(pattern) and not has_language:
                yield (
                    f"unlabelled is {pattern!r}, and there are several source languages: write "
                    "{lang} where the language stands"
                )
        if self.unlabelled and self.join > 1:
            yield (
                "unlabelled leaves out texts that the corpus has, which join hides: leave out "
                "join or unlabelled"
            )
        if self.is_endless and self.join > 1:
            yield (
                "join needs a corpus that is read as a whole: leave out streaming, or set "
                "train_size"
            )
        if any(count < 2 for count in counts) or len({*counts}) < len(counts):
            yield f"join_test must hold different numbers from 2 on, got {counts}"
        for name in self.test_patterns:
            made = [f"{name}_x{count}" for count in counts]
            if self.documents:
                made.append(f"{name}{ALONE}")
            for taken in self.test_patterns.keys() & {*made}:
                yield f"test has the entries {name} and {taken}, which is made of {name}; rename it"

    def _contradictions_of_documents(self) -> Iterator[str]:
        if self.dataset:
            yield "documents are read from files: set train, validation and test, not dataset"
        if self.further_references:
            yield "documents have one reference: name one file of each validation and test set"
        if self.join > 1 or self.join_test:
            yield "documents are joined lines already: leave out join and join_test"

    @property
    def pairs(self) -> list[Languages]:
        """The pairs of languages, source first."""
        if not self.language_pairs:
            return [(self.source_lang, self.target_lang)]
        pairs: list[Languages] = []
        for text in self.language_pairs:
            source, _, target = text.partition("-")
            is_pair = source and target and "-" not in target and source != target
            if not is_pair or (source, target) in pairs:
                raise ValueError(
                    f"language_pairs: {text!r} must be SOURCE-TARGET, such as de-en, of two "
                    "languages, each pair once"
                )
            pairs.append((source, target))
        return pairs

    @property
    def is_endless(self) -> bool:
        """Whether training pairs are read again and again, as a stream."""
        return self.streaming and self.train_size is None

    @property
    def columns(self) -> tuple[str, str]:
        """Names of the source and the target column."""
        return self.source_column or self.source_lang, self.target_column or self.target_lang

    @property
    def length_limits(self) -> dict[str, int | None]:
        """Most tokens of a source and of a target; None = no limit."""
        return {"source": self.max_source_length, "target": self.max_target_length}

    @property
    def test_patterns(self) -> dict[str, str | list[str]]:
        """Name of every test split -> its pattern, or that and those of further references."""
        if isinstance(self.test, str):
            return {"test": self.test}
        return self.test or {}

    @property
    def unlabelled_patterns(self) -> list[str]:
        """The patterns of `unlabelled`."""
        patterns = self.unlabelled or []
        return [patterns] if isinstance(patterns, str) else patterns

    @property
    def further_references(self) -> dict[str, list[str]]:
        """Name of every split of several references -> patterns of the files of all but the
        first.
        """
        named = {"validation": self.validation, **self.test_patterns}
        return {
            split: patterns[1:]
            for split, patterns in named.items()
            if isinstance(patterns, list) and len(patterns) > 1
        }

    @property
    def split_patterns(self) -> dict[str, Any]:
        """Name of every split -> its file pattern or Hub split; of training perhaps several."""
        named = {"validation": self.validation, **self.test_patterns}
        patterns: dict[str, Any] = {"train": self.train} if self.train else {}
        for split, pattern in named.items():
            if pattern:
                patterns[split] = pattern[0] if isinstance(pattern, list) else pattern
        return patterns

    @property
    def split_names(self) -> dict[str, Any]:
        """Name of every split of the loaded corpus -> its pattern; with several pairs each has test
        splits.
        """
        patterns: dict[str, Any] = {}
        for pair in self.pairs:
            for name, pattern in self.split_patterns.items():
                patterns |= dict.fromkeys(self.split_makers(name, pair), pattern)
        return patterns

    def split_makers(self, name: str, pair: Languages) -> dict[str, Callable[[Dataset], Dataset]]:
        """Name of each split that is made of one -> the function that makes it of its pairs."""
        split = self.name_split(name, pair)
        if name in SHARED:
            return {split: self._training_texts}
        splits: dict[str, Callable[[Dataset], Dataset]] = {split: lambda rows: rows}
        if self.documents:
            splits[f"{split}{ALONE}"] = lines_alone
        for count in self.join_test or ():
            splits[f"{split}_x{count}"] = partial(
                joined, counts=itertools.repeat(count), separator=self.separator
            )
        return splits

    def _training_texts(self, rows: Dataset) -> Dataset:
        if self.documents:
            return self.pieces(rows)
        if self.join > 1:
            return joined(rows, random_counts(self.join, self.data_seed), self.separator)
        return rows

    def pieces(self, rows: Rows) -> Rows:
        """Cuts the documents of a data set or a stream into the pieces of training."""
        limits = [limit for limit in self.length_limits.values() if limit is not None]
        longest = _BYTES_OF_A_TOKEN * min(limits) if limits else None
        return pieces_of_documents(rows, longest=longest, seed=self.data_seed)

    def name_split(self, name: str, pair: Languages) -> str:
        """The name in the loaded corpus of the split that one pair of languages has."""
        return name if not self.language_pairs or name in SHARED else f"{name}_{pair[0]}-{pair[1]}"

    def of_pair(self, pair: Languages) -> DataArguments:
        """The arguments of one of the pairs."""
        return dataclasses.replace(
            self,
            language_pairs=None,
            temperature=None,
            source_lang=pair[0],
            target_lang=pair[1],
        )

    def size_of(self, split: str) -> int | None:
        """The number of pairs to keep of a split, None for all; of an endless one a sample's."""
        train_size = _SAMPLE_SIZE if self.is_endless else self.train_size
        return {"train": train_size, "validation": self.validation_size}.get(split, self.test_size)


def language_tags(pairs: Sequence[Languages]) -> list[str]:
    """Returns a tag for each target language, ">>de<<" as in Marian's models; none if there is one
    target language.

    The tag stands before a source. `TranslationPipeline` writes it when it is given
    `tgt_lang="de"`."""
    targets = list(dict.fromkeys(target for _, target in pairs))
    return [f">>{target}<<" for target in targets] if len(targets) > 1 else []


@dataclass
class FilterReport:
    """Counts of pairs by split: those `read`, and by reason those `dropped`, and `noted` (odd, but
    kept).
    """

    read: Counter[str] = field(default_factory=Counter)
    dropped: dict[str, Counter[str]] = field(default_factory=partial(defaultdict, Counter))
    noted: dict[str, Counter[str]] = field(default_factory=partial(defaultdict, Counter))

    @property
    def kept(self) -> dict[str, int]:
        """Pairs that were read and not dropped."""
        return {split: read - self.dropped[split].total() for split, read in self.read.items()}

    def drop(self, split: str, reason: str, pairs: int) -> None:
        """Counts pairs that were removed; 0 leaves no trace."""
        self.dropped[split] += Counter({reason: pairs})

    def note(self, split: str, remark: str, pairs: int) -> None:
        """Counts pairs that are kept although something is odd about them; 0 leaves no trace."""
        self.noted[split] += Counter({remark: pairs})

    def __str__(self) -> str:
        lines = []
        kept = self.kept
        for split, read in self.read.items():
            line = f"{split}: {kept[split]:,} of {read:,} pairs"
            for label, counts in (("dropped", self.dropped[split]), ("kept", self.noted[split])):
                if counts:
                    reasons = ", ".join(f"{pairs:,} {reason}" for reason, pairs in counts.items())
                    line += f"; {label}: {reasons}"
            lines.append(line)
        return "\n".join(lines)


Loader = Callable[[], Dataset]
"""Loads a split."""


def load_translation_dataset(
    args: DataArguments, splits: Sequence[str] | None = None, work_dir: Path | None = None
) -> tuple[DatasetDict, FilterReport]:
    """Loads a parallel corpus.

    Pairs with an empty side are dropped from the training split and counted. Validation and test
    splits keep every pair, empty ones too, so that line n of a prediction belongs to line n of the
    corpus; of several references the target holds all, separated by
    `csan_hf_runtime.text_files.VARIANTS`. Several pairs of languages share training and validation,
    and have test splits of their own; see `language_tags`.

    Args:
        args: Which corpus.
        splits: Load only these splits; None for all.
        work_dir: Folder that the text is written to as it is read, and mapped into memory from;
            None = it is held in memory.

    Returns:
        Splits "train", "validation" and the test splits, as far as the corpus has them, with the
        string columns source and target; and the counts.

    Raises:
        ValueError: Something is wrong with the corpus; the message names file, line and reason.
    """
    report = FilterReport()
    parts = defaultdict(list)
    has_tags = bool(language_tags(args.pairs))
    names: list[str] = []
    for pair in args.pairs:
        for name, load in _loaders(args.of_pair(pair), work_dir).items():
            makers = args.split_makers(name, pair)
            names += makers
            wanted = [split for split in makers if splits is None or split in splits]
            if not wanted:
                continue
            split_read = args.name_split(name, pair)
            rows = _finish(name, split_read, load(), args, report)
            for split in wanted:
                texts = makers[split](rows)
                if not len(texts):
                    raise ValueError(
                        f"{split} is empty: fewer pairs than data.join or data.join_test joins"
                    )
                if split == split_read:
                    report.read[split] += len(texts) - len(rows)
                parts[split].append(tagged(texts, pair) if has_tags else texts)
    if unknown := [split for split in splits or () if split not in names]:
        raise ValueError(
            f"the corpus has no split {unknown[0]!r}, only {', '.join(dict.fromkeys(names))}"
        )
    corpus = {split: datasets.concatenate_datasets(rows) for split, rows in parts.items()}
    if args.temperature and "train" in parts:
        weights = [len(rows) ** (1 / args.temperature) for rows in parts["train"]]
        corpus["train"] = _mixed(parts["train"], weights, args.data_seed)
        report.read["train"] += len(corpus["train"]) - sum(map(len, parts["train"]))
    return DatasetDict(corpus), report


def _mixed(corpora: list[Any], weights: Iterable[float], seed: int) -> Any:
    """Draws from data sets by their weights, until each was read once; from streams without end."""
    shares = np.fromiter(weights, dtype=float)
    return datasets.interleave_datasets(
        corpora,
        probabilities=list(shares / shares.sum()),
        seed=seed,
        stopping_strategy="all_exhausted",
    )


def tagged(rows: Any, pair: Languages) -> Any:
    """Returns a data set or a stream with the tag of the target language before each source."""
    return rows.map(_add_tag, fn_kwargs={"tag": f">>{pair[1]}<<"}, batched=True)


def _add_tag(batch: dict[str, list[str]], tag: str) -> dict[str, list[str]]:
    # A blank source stays blank: it has no translation
    return {"source": [f"{tag} {text}" if text.strip() else text for text in batch["source"]]}


def unlabelled_sources(args: DataArguments) -> list[str]:
    """Reads `args.unlabelled`: each text once, with the tag that sources of the corpus have.

    Raises:
        ValueError: A file is missing or malformed, or holds no text.
    """
    has_tags = bool(language_tags(args.pairs))
    sources: dict[str, None] = {}
    for pair in args.pairs:
        texts = [row["source"].strip() for row in _read_unlabelled(args.of_pair(pair))]
        rows = Dataset.from_dict({"source": [text for text in texts if text]})
        if has_tags:
            rows = tagged(rows, pair)
        sources |= dict.fromkeys(rows["source"][:])
    if args.unlabelled and not sources:
        raise ValueError(f"unlabelled: there is no text in {args.unlabelled}")
    return list(sources)


def _read_unlabelled(args: DataArguments) -> Iterator[Pair]:
    """Yields the texts of `args.unlabelled` in the source language, as both sides of pairs."""
    column, _ = args.columns
    return read_pairs(find_unlabelled(args), (column, column))


def without_known_sources(sources: Sequence[str], corpus: DatasetDict) -> list[str]:
    """Returns the sources that equal no source in any split, and no line of one; the tag of a
    language, case and Unicode form are ignored.
    """
    caseless = [_caseless(_untagged(source)) for source in sources]
    remaining = {*caseless}
    for split in corpus.values():
        for batch in split.select_columns("source").iter(10_000):
            texts = list(map(_untagged, batch["source"]))
            texts += LINE_FEED.join(texts).split(LINE_FEED)
            remaining.difference_update(map(_caseless, texts))
    return [source for source, form in zip(sources, caseless, strict=True) if form in remaining]


def _untagged(source: str) -> str:
    return re.sub(r"^>>\S+<< ", "", source)


def check_files(args: DataArguments) -> None:
    """Raises `ValueError` for missing files and tables without the columns, of which no more than a
    row is read.
    """
    if args.dataset is not None and args.dataset not in BUILT_IN:
        check_folder_or_name(args.dataset, "data")
    for pair in args.pairs:
        of_pair = args.of_pair(pair)
        for split in of_pair.split_patterns:
            find_references(of_pair, split)
            for part in _parts_of(of_pair, split)[:1]:
                if file_format(part[0]) not in ("", ".parquet"):
                    next(read_pairs([part], of_pair.columns, documents=args.documents), None)
        next(_read_unlabelled(of_pair), None)


def _parts_of(args: DataArguments, split: str) -> list[Part]:
    """The files of a split, if it is read from files."""
    return find_parts(args, split, args.split_patterns[split]) if args.dataset is None else []


def content_digests(args: DataArguments) -> list[str]:
    """Digests of what a corpus is read from: its files, and a name of a Hub data set's state."""
    digests = []
    paths: set[Path] = set()
    for pair in args.pairs:
        of_pair = args.of_pair(pair)
        for split in of_pair.split_patterns:
            paths.update(find_references(of_pair, split))
            for part in _parts_of(of_pair, split):
                if split == "train" and args.is_endless:  # too much to read
                    states = [path.stat() for path in part]
                    digests += [f"{state.st_size} {state.st_mtime}" for state in states]
                else:
                    paths.update(part)
    if args.dataset is not None and args.dataset not in BUILT_IN:
        # Its revision on the Hub, or times of local files; nothing is read
        builder = datasets.load_dataset_builder(**_hub_options(args))
        digests.append(builder._relative_data_dir())
    for path in sorted(paths):
        with path.open("rb") as file:
            digests.append(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}")
    return digests


def _loaders(args: DataArguments, work_dir: Path | None) -> dict[str, Loader]:
    """Returns what loads each split of one pair of languages."""
    if args.dataset in BUILT_IN:
        make = partial(_make_corpus, args, BUILT_IN[args.dataset])
        return _loaders_of((*SHARED, "test"), make)
    if args.dataset:
        loaders = _hub_loaders(args, args.dataset, work_dir)
    else:
        loaders = {
            split: partial(_load_files, args, split, pattern, work_dir)
            for split, pattern in args.split_patterns.items()
        }
    if args.validation_size and "train" in loaders and "validation" not in loaders:
        if args.is_endless:
            raise ValueError("a stream has no validation set to draw: set validation")
        loaders |= _loaders_of(SHARED, partial(_split_train, args, loaders["train"]))
    for split in args.further_references:
        loaders[split] = partial(_with_references, args, split, loaders[split])
    return loaders


def _loaders_of(splits: Iterable[str], load: Callable[[], DatasetDict]) -> dict[str, Loader]:
    """Returns loaders of splits that are loaded together, once."""
    load_once = cache(load)

    def load_one(split: str) -> Dataset:
        return load_once()[split]

    return {split: partial(load_one, split) for split in splits}


def _make_corpus(args: DataArguments, make: Callable[..., DatasetDict]) -> DatasetDict:
    sizes = {}
    for split in (*SHARED, "test"):
        size = args.size_of(split)
        if size is not None:
            sizes[f"{split}_size"] = size
    return make(args.source_lang, args.target_lang, **sizes, seed=args.data_seed)


def _split_train(args: DataArguments, load: Loader) -> DatasetDict:
    """The training pairs, without a validation set drawn at random, and the set."""
    rows = load()
    size = args.validation_size or 0
    # Of a pair with an empty side "", as training leaves it out
    words = [
        _caseless(source) if target.strip() else ""
        for source, target in zip(rows["source"][:], rows["target"][:], strict=True)
    ]
    counts = Counter(words)
    pairs = len(rows) - counts[""]
    if pairs <= size:
        raise ValueError(
            f"validation_size is {size}, and there are {pairs} training pairs to draw from: "
            f"choose a lower one, such as --validation_size {max(1, pairs // 10)}"
        )
    # A source of several pairs, such as a word of several pronunciations, is on one side
    sources = [source for source in counts if source]
    random.Random(args.data_seed).shuffle(sources)
    held_out: set[str] = set()
    for source in sources:
        if counts[source] <= size:
            held_out.add(source)
            size -= counts[source]
    if not held_out:
        raise ValueError(
            f"validation_size is {args.validation_size}, and each source has more pairs than that: "
            "choose a higher one"
        )
    is_held_out = np.array([word in held_out for word in words])
    train = rows.select(np.flatnonzero(~is_held_out))
    return DatasetDict(train=train, validation=rows.select(np.flatnonzero(is_held_out)))


def _caseless(text: str) -> str:
    """The text without case, Unicode form, widths of white space and invisible characters, which
    tokenizers may ignore; of no particular tokenizer, so that all systems are compared on the same
    validation set.
    """
    visible = re.sub("[\u00ad\u200b-\u200f\u2060\ufeff]", "", text)
    compatible = unicodedata.normalize("NFKD", visible).casefold().replace("’", "'")
    return " ".join(unicodedata.normalize("NFKC", compatible).split())


def _with_references(args: DataArguments, split: str, load: Loader) -> Dataset:
    """A split whose targets hold the further references, too."""
    rows = load()
    targets = rows["target"][:]
    for path in find_references(args, split):
        references = list(read_lines(path))
        check_parallel((args.split_patterns[split], path), (targets, references))
        targets = [VARIANTS.join(variants) for variants in zip(targets, references, strict=True)]
    return rows.remove_columns("target").add_column("target", targets)


def _load_files(
    args: DataArguments,
    split: str,
    patterns: str | list[str] | dict[str, float],
    work_dir: Path | None,
) -> Dataset:
    if split == "train" and args.streaming:
        return _as_dataset(_sample(args, split, stream_of_pair(args)), str(args.train), work_dir)
    if isinstance(patterns, dict):
        corpora = [_load_files(args, split, pattern, work_dir) for pattern in patterns]
        return _mixed(corpora, patterns.values(), args.data_seed)
    parts = find_parts(args, split, patterns)
    where = " and ".join(map(str, parts[0]))
    pairs = read_pairs(parts, args.columns, documents=args.documents)
    return _as_dataset(pairs, where, work_dir)


def _sample(args: DataArguments, split: str, stream: IterableDataset) -> IterableDataset:
    """As many pairs of a stream as are wanted."""
    if split == "train":
        stream = stream.shuffle(seed=args.data_seed, buffer_size=_SHUFFLED_AT_ONCE)
    size = args.size_of(split)
    return stream if size is None else stream.take(size)


def _as_dataset(pairs: Iterable[Pair], where: str, work_dir: Path | None) -> Dataset:
    """The pairs in memory, or in a file of `work_dir` that is mapped into it."""
    remaining = iter(pairs)
    first = next(remaining, None)
    if first is None:
        raise ValueError(f"{where}: there are no pairs")
    if work_dir is None:
        return Dataset.from_list([first, *remaining], features=_TEXT)
    path = work_dir / f"{len(list(work_dir.iterdir()))}.arrow"
    with ArrowWriter(features=_TEXT, path=str(path)) as writer:
        for pair in itertools.chain([first], remaining):
            writer.write(pair)
        writer.finalize()
    return Dataset.from_file(str(path))


def _hub_loaders(args: DataArguments, name: str, work_dir: Path | None) -> dict[str, Loader]:
    loaded = _load_hub_dataset(args)
    stored_splits = args.split_patterns
    for split in (*SHARED, "test"):
        if split in loaded and not (split == "test" and args.test_patterns):
            stored_splits.setdefault(split, split)
    loaders: dict[str, Loader] = {}
    for split, stored in stored_splits.items():
        if stored not in loaded:
            raise ValueError(
                f"{split}: dataset {name!r} has no split {stored!r}, only {', '.join(loaded)}"
            )
        where = f"{name}, split {stored}"
        loaders[split] = partial(_load_rows, args, split, where, loaded[stored], work_dir)
    return loaders


def stream_of_pair(args: DataArguments) -> IterableDataset:
    """Returns the training pairs of one pair of languages as they are read, columns source and
    target.
    """
    if args.dataset:
        stored = args.split_patterns.get("train", "train")
        where = f"{args.dataset}, split {stored}"
        return _stream_of_rows(args, where, _load_hub_dataset(args)[stored])
    patterns = args.split_patterns["train"]
    if isinstance(patterns, dict):
        corpora = []
        for pattern in patterns:
            corpus = stream_of_pair(dataclasses.replace(args, train=pattern))
            if next(iter(corpus), None) is None:  # to be repeated without an end
                raise ValueError(f"{pattern}: there are no pairs")
            corpora.append(corpus.repeat(None))
        return _mixed(corpora, patterns.values(), args.data_seed)
    files = {
        "parts": find_parts(args, "train", patterns),
        "columns": args.columns,
        "documents": args.documents,
    }
    return IterableDataset.from_generator(read_pairs, features=_TEXT, gen_kwargs=files)


def _stream_of_rows(args: DataArguments, where: str, rows: IterableDataset) -> IterableDataset:
    how = {"where": where, "columns": args.columns}
    return rows.map(pair_of, fn_kwargs=how).select_columns(list(_TEXT))


def _hub_options(args: DataArguments) -> dict[str, Any]:
    return {
        "path": args.dataset,
        "name": args.dataset_config,
        "data_dir": args.data_dir,
        "revision": args.dataset_revision,
    }


def _load_hub_dataset(args: DataArguments) -> Any:
    options = _hub_options(args)
    try:
        builder = datasets.load_dataset_builder(**options)
        if hasattr(builder.config, "converters"):
            # Of CSV: pandas would read "null" as nothing, and "007" as 7
            options |= {"converters": dict.fromkeys(args.columns, str), "na_filter": False}
        return datasets.load_dataset(streaming=args.streaming, **options)
    # An empty file raises StopIteration, before datasets 4.7 a DatasetGenerationError
    except (datasets.exceptions.DatasetGenerationError, StopIteration) as error:
        reason = error.__cause__ or "a file is empty"
        raise ValueError(f"dataset {args.dataset!r} cannot be read: {reason}") from error


def _load_rows(
    args: DataArguments,
    split: str,
    where: str,
    rows: Dataset | IterableDataset,
    work_dir: Path | None,
) -> Dataset:
    """Reads a split of a Hub dataset; of a stream as many pairs as are wanted."""
    if isinstance(rows, IterableDataset):
        stream = _sample(args, split, _stream_of_rows(args, where, rows))
        return _as_dataset(stream, where, work_dir)
    numbered_rows = table_rows(rows.with_format("arrow").iter(1_000))
    pairs = (pair_of(row, f"{where}, {place}", args.columns) for place, row in numbered_rows)
    return _as_dataset(pairs, where, work_dir)


def is_filled(source: str, target: str) -> bool:
    """Whether neither side of a pair is blank."""
    return bool(source.strip() and target.strip())


def _finish(
    name: str, split: str, rows: Dataset, args: DataArguments, report: FilterReport
) -> Dataset:
    """Drops or counts empty pairs, and keeps as many pairs as asked for."""
    report.read[split] += len(rows)
    size = args.size_of(name)
    training = name == "train"
    if not training and size is not None and size < len(rows):
        report.drop(split, "beyond the size asked for", len(rows) - size)
        rows = rows.select(range(size))
    flags: list[bool] = []
    for batch in rows.select_columns(list(_TEXT)).iter(10_000):
        flags += map(is_filled, batch["source"], batch["target"])
    filled = np.flatnonzero(flags)
    empty_pairs = len(rows) - len(filled)
    if not training:
        report.note(split, "with an empty side", empty_pairs)
        return rows
    if not len(filled):
        raise ValueError(f"the split {split!r} is empty: every pair has an empty side")
    report.drop(split, "with an empty side", empty_pairs)
    if args.is_endless:
        report.note(split, "as a sample of an endless stream", len(filled))
    if size is not None and size < len(filled):
        report.drop(split, "beyond train_size", len(filled) - size)
        filled = filled[sorted(random.Random(args.data_seed).sample(range(len(filled)), size))]
    return rows if len(filled) == len(rows) else rows.select(filled)
