# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Tokenizers: training, saving, and turning a corpus into token ids.

The usual ones are byte-level BPE. The text is put into Unicode's NFKC form first; from there on nothing is lost:
`decode(encode(text)) == NFKC(text)` for every string, spaces and line breaks included. They consist of standard
parts only, so `AutoTokenizer.from_pretrained` loads them where csan_hf is not installed. Those of characters and of
symbols are in `csan_hf.data.symbol_tokenizers`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from datasets import Dataset, DatasetDict
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import cached_file

from .report import FilterReport
from .symbol_tokenizers import (
    EOS_TOKEN,
    PAD_TOKEN,
    SPECIAL_TOKENS,
    UNK_TOKEN,
    TokenKind,
    UnicodeForm,
    train_character_tokenizer,
    train_symbol_tokenizer,
)

if TYPE_CHECKING:
    from .corpora import DataArguments

DEFAULT_VOCABULARY_SIZE = 8000
TARGET_SUBFOLDER = "target_tokenizer"
"""Subfolder of the target tokenizer, where it is not the source tokenizer."""


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    *,
    kind: TokenKind = "bpe",
    unicode_form: UnicodeForm = "NFC",
    model_max_length: int | None = None,
    split_digits: bool = True,
    show_progress: bool = False,
) -> PreTrainedTokenizerFast:
    """Trains a tokenizer with pad "<pad>" = 0, eos "</s>" = 1 and unk "<unk>" = 2 that ends every text with "</s>".

    Special tokens that stand in a text ("</s>" typed by a user) are encoded as ordinary characters.

    Args:
        texts: Training sentences.
        vocab_size: Tokens, special ones and the 256 bytes of "bpe" included. A small corpus may give fewer.
        kind: What a token is: a piece of byte-level BPE ("bpe"), a character ("characters"), or what white space
            separates ("symbols").
        unicode_form: Unicode form of "characters": NFD takes Korean syllables and accented letters apart. "bpe" has
            NFKC, "symbols" stay as they are.
        model_max_length: Tokens, "</s>" included, to which `truncation=True` cuts; None for no limit.
        split_digits: Make every digit a token of its own, with "bpe".
        show_progress: Draw the progress bars of `tokenizers`.

    Raises:
        ValueError: There is no such kind or form, `vocab_size` has no room for the bytes and the special tokens, or
            there is no text.
    """
    check_vocabulary_sizes(vocab_size, kind=kind)
    iterator = iter(texts)
    first = list(islice(iterator, 1))
    if not first:
        raise ValueError("there is no text to train a tokenizer on; give at least one sentence")
    texts = chain(first, iterator)
    if kind == "characters":
        tokenizer = train_character_tokenizer(
            texts, vocab_size, unicode_form=unicode_form, show_progress=show_progress
        )
    elif kind == "symbols":
        tokenizer = train_symbol_tokenizer(texts, vocab_size, show_progress=show_progress)
    else:
        tokenizer = _train_bpe(texts, vocab_size, split_digits, show_progress)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS_TOKEN}",
        pair=f"$A {EOS_TOKEN} $B {EOS_TOKEN}",
        special_tokens=[(EOS_TOKEN, SPECIAL_TOKENS.index(EOS_TOKEN))],
    )
    limit = {} if model_max_length is None else {"model_max_length": model_max_length}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD_TOKEN,
        eos_token=EOS_TOKEN,
        unk_token=UNK_TOKEN,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        **limit,
    )


def check_vocabulary_sizes(
    vocab_size: int,
    target_vocab_size: int | None = None,
    *,
    joint: bool = False,
    kind: TokenKind = "bpe",
    target_kind: TokenKind | None = None,
) -> None:
    """Checks the kinds and sizes of vocabularies without training them.

    For the arguments see `train_tokenizers`.

    Raises:
        ValueError: There is no such kind, one has no room for the bytes and the special tokens, or the target's is
            given though there is one for both.
    """
    for name, given in (("target_vocab_size", target_vocab_size), ("target_kind", target_kind)):
        if joint and given is not None:
            raise ValueError(f"{name} is {given}, but the vocabulary is joint; leave it out")
    for name, found in (("kind", kind), ("target_kind", target_kind)):
        if found is not None and found not in get_args(TokenKind):
            raise ValueError(f"{name} is {found!r}; it must be one of {', '.join(get_args(TokenKind))}")
    for name, size, found in (
        ("vocab_size", vocab_size, kind),
        ("target_vocab_size", target_vocab_size, target_kind or kind),
    ):
        bytes_ = len(pre_tokenizers.ByteLevel.alphabet()) if found == "bpe" else 0
        smallest = bytes_ + len(SPECIAL_TOKENS)
        if size is not None and size < smallest:
            of_bytes = f"{bytes_} bytes and " if bytes_ else ""
            raise ValueError(
                f"{name} is {size}; it must be at least {smallest}: {of_bytes}{len(SPECIAL_TOKENS)} special tokens"
            )


def _train_bpe(texts: Iterable[str], vocab_size: int, split_digits: bool, show_progress: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    # A space before the text makes its first word the same token as in the middle of a sentence. It is put there by
    # the normalizer and taken away by the decoder, whatever the text begins with; ByteLevel's own option would put
    # none before a text that begins with a space, and the decoder could not tell the two apart.
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Prepend(" ")])
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), byte_level] if split_digits else [byte_level]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=show_progress,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@dataclass(frozen=True)
class TokenizerPair:
    """The tokenizers of the source and of the target language; the same object where the vocabulary is joint."""

    source: PreTrainedTokenizerBase
    target: PreTrainedTokenizerBase

    @property
    def is_joint(self) -> bool:
        """Whether one tokenizer serves both languages."""
        return self.source is self.target

    def save_pretrained(self, directory: str | Path) -> None:
        """Writes the source (or joint) tokenizer into a directory, a separate target one into `target_tokenizer`."""
        directory = Path(directory)
        self.source.save_pretrained(directory)
        subfolder = directory / TARGET_SUBFOLDER
        if not self.is_joint:
            self.target.save_pretrained(subfolder)
        elif subfolder.exists():  # of an earlier run with separate tokenizers: it would be loaded, too
            shutil.rmtree(subfolder)

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, **kwargs: Any) -> TokenizerPair:
        """Loads what `save_pretrained` wrote, from a folder or the Hub.

        `kwargs` are for `AutoTokenizer.from_pretrained` (revision, token, cache_dir, ...).

        Raises:
            OSError: There is no tokenizer, or its files are damaged.
        """
        name = str(name_or_path)
        if Path(name).is_file():
            raise OSError(
                f"{name} is a file, not a folder of a tokenizer: load it with the class that it is for, such as "
                "transformers.T5Tokenizer for SentencePiece, and name a folder of its save_pretrained."
            )
        source = _load_tokenizer(name, **kwargs)
        where = {key: kwargs[key] for key in _LOCATION_OPTIONS if key in kwargs}
        present = cached_file(
            name,
            "tokenizer_config.json",
            subfolder=TARGET_SUBFOLDER,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            **where,
        )
        if present is None:
            return cls(source, source)
        return cls(source, _load_tokenizer(name, subfolder=TARGET_SUBFOLDER, **kwargs))


def _load_tokenizer(name: str, *, subfolder: str = "", **kwargs: Any) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(name, subfolder=subfolder, **kwargs)
    except (OSError, ImportError):  # say what is missing
        raise
    except Exception as error:  # KeyError, TypeError, a bare Exception of tokenizers: whatever the content leads to
        place = Path(name, subfolder)
        if place.is_dir() and not any(place.glob("*token*")):
            raise FileNotFoundError(f"There is no tokenizer in {place}: no tokenizer.json.") from error
        if type(error) is ValueError:  # written for the user
            raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise OSError(
            f"The tokenizer in {place} is damaged or incomplete ({reason}): copy tokenizer.json and "
            "tokenizer_config.json again."
        ) from error


_LOCATION_OPTIONS = ("cache_dir", "force_download", "token", "revision", "local_files_only", "repo_type")


def train_tokenizers(
    dataset: Dataset | DatasetDict,
    vocab_size: int = DEFAULT_VOCABULARY_SIZE,
    joint: bool = True,
    *,
    kind: TokenKind = "bpe",
    target_kind: TokenKind | None = None,
    unicode_form: UnicodeForm = "NFC",
    target_vocab_size: int | None = None,
    model_max_length: int | None = None,
    split_digits: bool = True,
    show_progress: bool = False,
    pretrained: str | None = None,
) -> TokenizerPair:
    """Trains the tokenizers of a corpus on its training split, or loads existing ones.

    Args:
        dataset: Columns source and target; of a `DatasetDict` the split "train".
        vocab_size: Tokens of the joint vocabulary or of the source's.
        joint: One vocabulary for both languages.
        kind: What a token is; see `train_tokenizer`.
        target_kind: The same of a separate target vocabulary; None for `kind`.
        unicode_form: Unicode form of "characters": NFD takes Korean syllables and accented letters apart.
        target_vocab_size: Tokens of a separate target vocabulary; None for `vocab_size`.
        model_max_length: Tokens, "</s>" included, to which `truncation=True` cuts; None for no limit.
        split_digits: Whether every digit is a token of its own, with "bpe".
        show_progress: Whether to draw the progress bars of `tokenizers`.
        pretrained: Folder or Hub name of existing tokenizers, which are used unchanged; all else is ignored then.

    Raises:
        ValueError: There is no training split, or `train_tokenizer` refuses what is asked for.
        OSError: `pretrained` cannot be found.
    """
    if pretrained is not None:
        return TokenizerPair.from_pretrained(pretrained)
    if isinstance(dataset, DatasetDict):
        if "train" not in dataset:
            raise ValueError(f"there is no split 'train' to train tokenizers on, only {', '.join(dataset)}")
        dataset = dataset["train"]
    check_vocabulary_sizes(vocab_size, target_vocab_size, joint=joint, kind=kind, target_kind=target_kind)

    def train(columns: list[str], size: int, kind: TokenKind) -> PreTrainedTokenizerFast:
        return train_tokenizer(
            _texts(dataset, columns),
            size,
            kind=kind,
            unicode_form=unicode_form,
            model_max_length=model_max_length,
            split_digits=split_digits,
            show_progress=show_progress,
        )

    if joint:
        tokenizer = train(["source", "target"], vocab_size, kind)
        return TokenizerPair(tokenizer, tokenizer)
    source = train(["source"], vocab_size, kind)
    return TokenizerPair(source, train(["target"], target_vocab_size or vocab_size, target_kind or kind))


def _texts(dataset: Dataset, columns: list[str]) -> Iterator[str]:
    for batch in dataset.select_columns(columns).iter(batch_size=1_000):
        for column in columns:
            yield from batch[column]


def tokenize_dataset(
    dataset: DatasetDict, tokenizers: TokenizerPair, args: DataArguments, *, num_proc: int | None = None
) -> tuple[DatasetDict, FilterReport]:
    """Turns sentences into token ids, and filters the training split by length.

    The training split loses the pairs with a side longer than `args.max_source_length` or `args.max_target_length`
    tokens ("</s>" included) and those whose lengths differ by more than `args.max_length_ratio`. No other split loses
    a pair, so that predictions match references line by line: a longer source is cut for the model, and so is a
    longer target for the loss. The text columns stay whole.

    Returns:
        The dataset with the added columns input_ids, attention_mask and labels, and the counts.

    Raises:
        ValueError: No training pair is left.
    """
    report = FilterReport()
    result = {
        split: _tokenize_split(split, rows, tokenizers, args, report, num_proc) for split, rows in dataset.items()
    }
    return DatasetDict(result), report


def _tokenize_split(
    split: str,
    rows: Dataset,
    tokenizers: TokenizerPair,
    args: DataArguments,
    report: FilterReport,
    num_proc: int | None,
) -> Dataset:
    training = split == "train"
    limits = (args.max_source_length, args.max_target_length)
    rows = rows.map(
        _encode,
        batched=True,
        num_proc=num_proc,
        desc=f"Tokenizing {split}",
        fn_kwargs={"tokenizers": tokenizers, "limits": (None, None) if training else limits},
    )
    added = ["source_length", "target_length"]
    # As an arrow table: iterating over a column of a dataset decodes its rows one by one.
    columns = rows.select_columns(added).with_format("arrow")[:].to_pydict()
    lengths = list(zip(columns["source_length"], columns["target_length"], strict=True))
    rows = rows.remove_columns(added)
    report.start(split, len(rows))
    if not training:
        for side, limit, place in (("source", limits[0], 0), ("target", limits[1], 1)):
            longer = sum(limit is not None and pair[place] > limit for pair in lengths)
            report.note(split, f"with a {side} cut to {limit} tokens", longer)
        return rows
    reasons = [_reason_to_drop(source, target, args) for source, target in lengths]
    for reason in sorted({reason for reason in reasons if reason is not None}):
        report.drop(split, reason, reasons.count(reason))
    if not report.kept[split]:
        raise ValueError(
            f"no training pair is left: max_source_length={args.max_source_length}, "
            f"max_target_length={args.max_target_length}, max_length_ratio={args.max_length_ratio} drop all "
            f"{len(rows):,}; raise them ({report})"
        )
    return rows.select([index for index, reason in enumerate(reasons) if reason is None]) if report.dropped else rows


def _encode(
    batch: dict[str, list[str]], tokenizers: TokenizerPair, limits: tuple[int | None, int | None]
) -> dict[str, list[Any]]:
    # verbose=False: a text beyond model_max_length is cut below, so transformers need not warn
    source = tokenizers.source(batch["source"], verbose=False)["input_ids"]
    target = tokenizers.target(text_target=batch["target"], verbose=False)["input_ids"]
    cut = [_truncate(ids, limits[0]) for ids in source]
    return {
        "input_ids": cut,
        "attention_mask": [[1] * len(ids) for ids in cut],
        "labels": [_truncate(ids, limits[1]) for ids in target],
        "source_length": [len(ids) for ids in source],
        "target_length": [len(ids) for ids in target],
    }


def _truncate(ids: list[int], limit: int | None) -> list[int]:
    """The first `limit` ids, the last of them replaced by the text's own last id ("</s>")."""
    return ids if limit is None or len(ids) <= limit else [*ids[: limit - 1], ids[-1]]


def _reason_to_drop(source: int, target: int, args: DataArguments) -> str | None:
    if args.max_source_length is not None and source > args.max_source_length:
        return f"with a source longer than {args.max_source_length} tokens"
    if args.max_target_length is not None and target > args.max_target_length:
        return f"with a target longer than {args.max_target_length} tokens"
    if args.max_length_ratio is not None and max(source, target) > args.max_length_ratio * min(source, target):
        return f"with a length ratio above {args.max_length_ratio:g}"
    return None
