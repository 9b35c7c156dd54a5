# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Tokenizers: training, saving, and turning a corpus into token ids.

The usual ones are byte-level BPE. The text is put into a Unicode form first, NFC by default; from
there on nothing is lost: `decode(encode(text)) == NFC(text)` for every string, spaces and line
breaks included, but for what hardly any training text had of special spaces, which become plain
ones, and of invisible marks, which go. Others are for character-level transduction, such as
grapheme-to-phoneme conversion, where a word goes in as letters and comes out as phones. All consist
of standard parts only, so `AutoTokenizer.from_pretrained` loads them where csan_hf is not
installed."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from datasets import Dataset, DatasetDict
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.convert_slow_tokenizer import SentencePieceExtractor
from transformers.utils import logging

from csan_hf.source_tokenizer import SourceTokenizer
from csan_hf_runtime.keys import at_least, check_bounds, declare, declared_keys
from csan_hf_runtime.text_files import VARIANTS

from ..models.translation import (
    TARGET_TOKENIZER_SUBFOLDER,
    language_id,
    load_target_tokenizer,
)
from .batching import example_lengths
from .corpora import DataArguments, FilterReport
from .joining import LINE_FEED

logger = logging.get_logger(__name__)

PAD_TOKEN, EOS_TOKEN, UNK_TOKEN = "<pad>", "</s>", "<unk>"
SPECIAL_TOKENS = (PAD_TOKEN, EOS_TOKEN, UNK_TOKEN)
"""The special tokens of all tokenizers; their ids are their places here: 0, 1 and 2."""

TokenKind = Literal["bpe", "characters", "symbols"]
UnicodeForm = Literal["NFC", "NFD", "NFKC", "NFKD"]
Case = Literal["keep", "lower"]

# What copied text has in the place of spaces and between letters: no-break, thin and wide spaces;
# soft hyphens, zero-width spaces and joiners, marks of the direction of writing
_SPACES = (
    "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u202f\u205f\u3000"
)
_INVISIBLE_MARKS = (
    "\u00ad\u061c\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e"
    "\u2060\u2061\u2062\u2063\u2064\u2066\u2067\u2068\u2069\ufeff"
)
_SPACE_OR_MARK = re.compile(f"[{_SPACES}{_INVISIBLE_MARKS}]")
# Signs of fewer than one training text in so many are slips of copying, and a model learns nothing
# of them. What a script needs (French no-break spaces, Persian non-joiners) is in one text of ten
_RARE = 1_000

DEFAULT_VOCABULARY_SIZE = 8000


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    *,
    kind: TokenKind = "bpe",
    unicode_form: UnicodeForm = "NFC",
    case: Case = "keep",
    model_max_length: int | None = None,
    split_digits: bool = True,
    has_lines: bool = False,
    show_progress: bool = False,
) -> PreTrainedTokenizerFast:
    """Trains a tokenizer with pad "<pad>" = 0, eos "</s>" = 1 and unk "<unk>" = 2 that ends every
    text with "</s>".

    Special tokens that stand in a text ("</s>" typed by a user) are encoded as ordinary characters.
    `decode(encode( text))` is the text in its Unicode form; of "symbols", with one space between
    them; as far as tokens were seen. With `has_lines` a line feed is the token 3, and the tokens of
    a line are those of the line alone.

    Args:
        texts: Training sentences.
        vocab_size: Tokens, special ones and the 256 bytes of "bpe" included. A small corpus may
            give fewer, of a larger one the most frequent are taken.
        kind: What a token is: a piece of byte-level BPE ("bpe"), a character, white space included
            ("characters"), or what white space separates ("symbols").
        unicode_form: Unicode form of "bpe" and "characters"; "symbols" stay as they are. NFD takes
            Korean syllables and accented letters apart. NFKC makes one of signs that look alike, in
            translations, too: of full-width letters, of ² and 2.
        case: "lower" takes capital letters for small ones, and ’ for ', except with "symbols".
        model_max_length: Tokens, "</s>" included, to which `truncation=True` cuts; None for no
            limit.
        split_digits: Make every digit a token of its own, with "bpe".
        has_lines: Make the line feed a token.
        show_progress: Draw the progress bars of `tokenizers`.

    Raises:
        ValueError: `vocab_size` has no room for the bytes and the special tokens.
    """
    check_vocabulary_size("vocab_size", vocab_size, kind, has_lines=has_lines)
    trainer: Any = trainers.WordLevelTrainer()
    if kind == "bpe":
        trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        tokenizer = _bpe(split_digits, unicode_form, has_lines)
    else:
        tokenizer = _symbols(has_lines) if kind == "symbols" else _characters(unicode_form)
    trainer.vocab_size = vocab_size
    trainer.special_tokens = list(SPECIAL_TOKENS)
    if has_lines:
        trainer.special_tokens = [*SPECIAL_TOKENS, LINE_FEED]
        texts = chain.from_iterable(text.split(LINE_FEED) for text in texts)
    trainer.show_progress = show_progress
    if kind == "symbols":
        tokenizer.train_from_iterator(_noting_words(texts), trainer)
    else:
        if case == "lower":
            lowered = [normalizers.Lowercase(), normalizers.Replace("’", "'")]
            tokenizer.normalizer = normalizers.Sequence([tokenizer.normalizer, *lowered])
        counts: Counter[str] = Counter()
        tokenizer.train_from_iterator(_counting_signs(texts, counts), trainer)
        steps = [*_folding(counts), tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.post_processor = _ending_with(EOS_TOKEN, SPECIAL_TOKENS.index(EOS_TOKEN))
    if has_lines:
        tokenizer = _with_ordinary_line_token(tokenizer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD_TOKEN,
        eos_token=EOS_TOKEN,
        unk_token=UNK_TOKEN,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        model_max_length=model_max_length,
    )


def _with_ordinary_line_token(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with a line token that is text, as trainers give numbers to special ones."""
    rules = json.loads(tokenizer.to_str())
    for token in rules["added_tokens"]:
        token["special"] = token["content"] != LINE_FEED
    return Tokenizer.from_str(json.dumps(rules))


def _noting_words(texts: Iterable[str]) -> Iterator[str]:
    """Yields the texts, and warns where most of them are one word."""
    counts: Counter[bool] = Counter()
    for text in texts:
        counts[len(text.split()) > 1] += 1
        yield text
    if counts[True] < counts[False]:
        logger.warning(
            "Most texts are one symbol. Symbols, such as phones, are separated by spaces: k æ t, "
            "not kæt."
        )


def _counting_signs(texts: Iterable[str], counts: Counter[str]) -> Iterator[str]:
    """Yields the texts, and counts those with each special space or mark, and all as ""."""
    for text in texts:
        counts.update({"", *_SPACE_OR_MARK.findall(text)})
        yield text


def _folding(counts: Counter[str]) -> Iterator[normalizers.Normalizer]:
    """Reads special spaces as plain ones, and invisible marks as nothing, but for usual ones."""
    for signs, replacement in ((_SPACES, " "), (_INVISIBLE_MARKS, "")):
        folded = [sign for sign in signs if counts[sign] * _RARE < counts[""]]
        if folded:
            yield normalizers.Replace(Regex(f"[{''.join(folded)}]"), replacement)


def _ending_with(eos: str, number: int) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(
        f"$A {eos}", f"$A {eos} $B {eos}", special_tokens=[(eos, number)]
    )


def _bpe(split_digits: bool, unicode_form: str, has_lines: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    # A space before the text makes its first word the same token as in the middle of a sentence. It
    # is put there by the normalizer and taken away by the decoder, whatever the text begins with;
    # ByteLevel's own option would put none before a text that begins with a space, and the decoder
    # could not tell the two apart.
    form = getattr(normalizers, unicode_form)()
    tokenizer.normalizer = normalizers.Sequence([form, normalizers.Prepend(" ")])
    digits = [pre_tokenizers.Digits(individual_digits=True)] if split_digits else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    steps: list[Any] = [decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]
    if has_lines:  # each of which has that space
        steps.append(decoders.Replace(f"{LINE_FEED} ", LINE_FEED))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _characters(unicode_form: str) -> Tokenizer:
    tokenizer = _symbols(has_lines=False)
    tokenizer.normalizer = getattr(normalizers, unicode_form)()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _symbols(has_lines: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNK_TOKEN))
    # Without a decoder, tokens are put together with a space between them
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if has_lines:  # which have none at their ends
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace(Regex("^"), " "),
                decoders.Fuse(),
                decoders.Replace(Regex(f" ?{LINE_FEED} ?"), LINE_FEED),
                decoders.Strip(" ", 1, 0),
            ]
        )
    return tokenizer


def check_vocabulary_size(
    name: str, size: int, kind: TokenKind = "bpe", *, has_lines: bool = False
) -> None:
    """Raises a `ValueError` if a vocabulary has no room for bytes, special tokens and the end of a
    line.
    """
    smallest = len(SPECIAL_TOKENS)
    parts = f"{smallest} special tokens"
    if has_lines:
        smallest += 1
        parts += " and the end of a line"
    if kind == "bpe":
        smallest += 256
        parts = f"256 bytes and {parts}"
    if size < smallest:
        raise ValueError(f"{name} is {size}; it must be at least {smallest}: {parts}")


@dataclass(frozen=True)
class TokenizerPair:
    """The tokenizers of the source and of the target language; the same object where the vocabulary
    is joint. `line_token` is their token for the line feeds of a text.
    """

    source: PreTrainedTokenizerBase
    target: PreTrainedTokenizerBase
    line_token: str = LINE_FEED

    @property
    def is_joint(self) -> bool:
        """Whether one tokenizer serves both languages."""
        return self.source is self.target

    @property
    def line_token_id(self) -> int:
        """The number of the line token.

        Raises:
            ValueError: The vocabularies have no such token.
        """
        number = _number_between_lines(self.source, self.line_token)
        if number is None or number != _number_between_lines(self.target, self.line_token):
            raise ValueError(
                f"{self.line_token!r} must be one token, with the same number in both "
                "vocabularies, that leaves the lines beside it as they are: set "
                "tokenizer.line_token to such a token."
            )
        return number

    def decode(self, rows: np.ndarray) -> list[str]:
        """The texts of target tokens [B, T], without special ones; each line is decoded alone."""
        mark = _number_between_lines(self.target, self.line_token)
        if mark is None:
            return self.target.batch_decode(rows, skip_special_tokens=True)
        texts = []
        for ids in rows:
            lines = [line[line != mark] for line in np.split(ids, np.flatnonzero(ids == mark))]
            texts.append(LINE_FEED.join(self.target.batch_decode(lines, skip_special_tokens=True)))
        return texts

    def with_languages(self, src_lang: str | None, tgt_lang: str | None) -> TokenizerPair:
        """Returns copies; multilingual ones mark texts with these languages; None = theirs.

        Raises:
            ValueError: They do not know a language.
        """
        pair: Any = copy.deepcopy(self)
        for tokenizer in (pair.source, pair.target):
            if not hasattr(tokenizer, "src_lang"):
                continue
            for language in filter(None, (src_lang, tgt_lang)):
                language_id(tokenizer, language)
            tokenizer.src_lang = src_lang or tokenizer.src_lang
            tokenizer.tgt_lang = tgt_lang or tokenizer.tgt_lang
        return pair

    def digest(self) -> str:
        """A digest of how the tokenizers cut text."""
        digest = hashlib.sha256()
        digest.update(self.line_token.encode())
        for tokenizer in (self.source, self.target):
            if tokenizer.is_fast:
                rules = tokenizer.backend_tokenizer.to_str()
            else:
                rules = f"{type(tokenizer).__name__} {sorted(tokenizer.get_vocab().items())}"
            digest.update(rules.encode())
        return digest.hexdigest()

    def save_pretrained(self, directory: str | Path) -> None:
        """Writes the source (or joint) tokenizer into a directory, a separate target one into
        `target_tokenizer`; the source's, which makes no labels, is then a `SourceTokenizer`.
        """
        directory = Path(directory)
        source = self.source
        if type(source) in (PreTrainedTokenizerFast, SourceTokenizer):
            source = copy.copy(source)  # others may use the object as it is
            source.__class__ = PreTrainedTokenizerFast if self.is_joint else SourceTokenizer
        source.save_pretrained(directory)
        subfolder = directory / TARGET_TOKENIZER_SUBFOLDER
        if not self.is_joint:
            self.target.save_pretrained(subfolder)
        elif subfolder.exists():
            shutil.rmtree(subfolder)  # of separate tokenizers: it would be loaded, too

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        target: str | Path | None = None,
        *,
        subfolder: str = "",
        trust_remote_code: bool = False,
        **kwargs: Any,
    ) -> TokenizerPair:
        """Loads what `save_pretrained` wrote, from a folder or the Hub, or a model of
        SentencePiece, a file.

        Args:
            name_or_path: Folder, Hub name or file.
            target: The same of the target tokenizer, where it is not found beside the source's.
            subfolder: Folder within `name_or_path`.
            trust_remote_code: Whether code beside a tokenizer may run.
            **kwargs: For `AutoTokenizer.from_pretrained` (revision, token, cache_dir, ...).

        Raises:
            OSError: There is no tokenizer, or its files are damaged.
            ValueError: The tokenizer needs code that is not trusted, or SentencePiece's is of words
                or has user-defined symbols.
            ImportError: SentencePiece's needs the packages sentencepiece and protobuf.
        """
        kwargs["trust_remote_code"] = trust_remote_code
        name = str(name_or_path)
        source = _load_tokenizer(name, subfolder=subfolder, **kwargs)
        if target is not None:
            return cls(source, _load_tokenizer(str(target), **kwargs))
        if Path(name).is_file():
            return cls(source, source)
        try:
            target_tokenizer = _load_tokenizer(name, is_target=True, subfolder=subfolder, **kwargs)
        except OSError:
            if Path(name).is_dir():
                raise
            # Without a connection it is not known whether there is one
            del kwargs["trust_remote_code"]  # of no use here
            config, _ = PreTrainedConfig.get_config_dict(name, subfolder=subfolder, **kwargs)
            if not config.get("share_encoder_decoder_embeddings", True):
                raise
            target_tokenizer = None
        return cls(source, source if target_tokenizer is None else target_tokenizer)


Tokenizers = TokenizerPair | PreTrainedTokenizerBase
"""The tokenizers of two languages, or one for both."""


def _number_between_lines(tokenizer: PreTrainedTokenizerBase, token: str) -> int | None:
    """The number of a token between two lines that are cut as if alone; None if it is not one."""
    texts = ["a", f"a{token}b", "b"]
    before, together, after = tokenizer(texts, add_special_tokens=False)["input_ids"]
    number = together[len(before)] if len(before) < len(together) else None
    return number if together == [*before, number, *after] else None


_FILES = ("*token*", "vocab*", "*.model", "*.spm")
"""Patterns of files of which nearly every tokenizer has one."""


def _load_tokenizer(
    name: str,
    *,
    trust_remote_code: bool,
    subfolder: str = "",
    is_target: bool = False,
    **kwargs: Any,
) -> Any:
    """Loads the tokenizer of a folder, or the target's; None where that has no folder."""
    load: Callable[..., Any] = AutoTokenizer.from_pretrained
    folder = Path(name, subfolder)
    if is_target:
        load = load_target_tokenizer
        folder = folder / TARGET_TOKENIZER_SUBFOLDER
    try:
        if Path(name).is_file():
            return _read_sentencepiece(name)
        tokenizer = load(name, subfolder=subfolder, trust_remote_code=trust_remote_code, **kwargs)
        if tokenizer is None:
            return None
        # For want of files transformers makes up a tokenizer of a model's own class
        is_small = len(tokenizer) - len(tokenizer.added_tokens_decoder) < 2
        if is_small and type(tokenizer) is not PreTrainedTokenizerFast:
            raise OSError(f"There is no tokenizer in {folder}.")
        is_transformers = type(tokenizer).__module__.startswith("transformers.")
        if is_transformers or isinstance(tokenizer, SourceTokenizer):
            for setting in _NOT_SAVED:
                tokenizer.init_kwargs.pop(setting, None)
        return tokenizer
    # KeyError, TypeError, a bare Exception of tokenizers: whatever the content leads to
    except Exception as error:
        if folder.is_dir() and not any(chain(*map(folder.glob, _FILES))):
            raise OSError(f"There is no tokenizer in {folder}.") from error
        if isinstance(error, OSError | ImportError) or type(error) is ValueError:
            raise  # written for the user
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise OSError(
            f"The tokenizer in {folder} is damaged or missing ({reason}): copy "
            "tokenizer.json and tokenizer_config.json, or SentencePiece's .model, again."
        ) from error


_WHOLE_RUN = -1e6
"""Score of a token of letters that are in no piece: below that of all pieces."""
_NOT_IN_TEXT = -1e9
"""Score of a token of other letters that is no piece: below that of any other way to cut its text.
"""
_UNKNOWN_LETTER = "\ufdd0"  # a noncharacter


def _read_sentencepiece(path: str) -> PreTrainedTokenizerBase:
    """Reads a model of SentencePiece; pieces keep their numbers; without padding "<s>" is that."""
    extractor: Any = SentencePieceExtractor(path)
    trainer = extractor.proto.trainer_spec
    if trainer.model_type == trainer.WORD or trainer.user_defined_symbols:
        raise ValueError(
            f"{path} is a model of SentencePiece of words, or with user_defined_symbols, which the "
            "library tokenizers would cut otherwise: train one without (model_type unigram, bpe or "
            "char)."
        )
    names = {"eos_token": EOS_TOKEN}
    for kind in ("pad", "eos", "unk", "bos"):
        if getattr(trainer, f"{kind}_id") >= 0:
            names[f"{kind}_token"] = getattr(trainer, f"{kind}_piece")
    # The start of a sentence, which no model here uses, has one number on both sides, unlike a
    # token put last
    names.setdefault("pad_token", names.get("bos_token", PAD_TOKEN))
    converted: Any = PreTrainedTokenizerFast(
        tokenizer_object=sentencepiece_tokenizer(extractor),
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        **names,
    )
    converted.backend_tokenizer.post_processor = _ending_with(
        converted.eos_token, converted.eos_token_id
    )
    return converted


def sentencepiece_tokenizer(
    extractor: Any, ids: Mapping[str, int] | None = None, size: int = 0
) -> Tokenizer:
    """Cuts texts as a model of SentencePiece does (unigram, bpe or char), without special tokens.

    Args:
        extractor: `SentencePieceExtractor` of the model's file.
        ids: Numbers of all tokens, pieces of this model or not; None = as in the file.
        size: The first number for pieces that `ids` lacks, above those that it has.
    """
    # transformers' own classes read only one of Unigram and BPE each, or leave out the space before
    # a text
    proto = extractor.proto
    trainer = proto.trainer_spec
    rules = proto.normalizer_spec
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == piece.NORMAL}
    known_letters = {" ", "▁", *"".join(scores)}
    unknown_runs = [token for token in ids or () if known_letters.isdisjoint(token)]
    numbers = dict(ids or {})
    for piece in proto.pieces:
        if piece.piece not in numbers:
            numbers[piece.piece] = size
            size += 1
    if trainer.model_type == trainer.UNIGRAM:
        scores |= dict.fromkeys(unknown_runs, _WHOLE_RUN)
        tokens = [f"unused {number}" for number in range(size)]
        for token, number in numbers.items():
            tokens[number] = token
        # The library would find "</s>" in a text
        vocabulary = [(token, scores.get(token, _NOT_IN_TEXT)) for token in tokens]
        model: Any = models.Unigram(
            vocabulary, unk_id=numbers[trainer.unk_piece], byte_fallback=trainer.byte_fallback
        )
    else:
        model = models.BPE(
            numbers,
            extractor.extract(models.BPE)["merges"],
            unk_token=trainer.unk_piece,
            fuse_unk=True,
            byte_fallback=trainer.byte_fallback,
        )
    tokenizer = Tokenizer(model)
    steps: list[Any] = []
    if "nfkc" in rules.name:
        steps.append(normalizers.NFC())  # the library maps no letter of six bytes or more
    if rules.precompiled_charsmap:
        steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(" +"), " "), normalizers.Strip()]
    if not trainer.byte_fallback:
        unknown_run = _unknown_run(known_letters, unknown_runs)
        steps.append(normalizers.Replace(unknown_run, _UNKNOWN_LETTER))
    tokenizer.normalizer = normalizers.Sequence(steps)
    scheme: Any = "always" if rules.add_dummy_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        prepend_scheme=scheme, split=trainer.split_by_whitespace
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", int(rules.add_dummy_prefix), 0),
        ]
    )
    return tokenizer


def _unknown_run(known_letters: set[str], tokens: list[str]) -> Regex:
    """Matches a run of letters of no piece, unless the whole of it is one of the tokens.

    SentencePiece makes one unknown token of it, where the library would find parts of it, or
    "</s>", among its tokens."""
    letter = f"[^{re.escape(''.join(sorted(known_letters)))}]"
    whole_tokens = "|".join(map(re.escape, sorted(tokens)))
    not_a_token = f"(?={letter})(?!(?:{whole_tokens})(?!{letter}))" if tokens else ""
    return Regex(f"(?<!{letter}){not_a_token}{letter}+")


# What transformers would save with a tokenizer of its own: code that was there but did not run, and
# how it was loaded
_NOT_SAVED = ("auto_map", "is_local", "local_files_only")


def add_language_tags(tokenizers: TokenizerPair, tags: Iterable[str]) -> None:
    """Makes each tag one token of the source vocabulary, unless it is one already."""
    # normalized=False leaves the encoding of the text around a tag unchanged; rstrip takes the
    # space after the tag
    new = [AddedToken(tag, rstrip=True, normalized=False, special=False) for tag in tags]
    tokenizers.source.add_tokens(new)


@dataclass(frozen=True)
class TokenizerArguments:
    """Tokenizers to train on a corpus, or existing ones.

    Args:
        vocab_size: Tokens of the joint vocabulary, or of the source's if there are two.
        joint: One vocabulary for both languages.
        kind: Tokens are pieces of byte-level BPE ("bpe"), characters, or what white space separates
            ("symbols").
        target_kind: As `kind`, for a separate target vocabulary; None = `kind`.
        unicode_form: Unicode normalisation form of the text, except with "symbols".
        case: "lower" reads capital letters as small ones, in the source; with a joint vocabulary in
            both languages.
        target_vocab_size: Tokens of a separate target vocabulary; None = `vocab_size`.
        model_max_length: Tokens, "</s>" included, to which `truncation=True` cuts; None = no limit.
        split_digits: Whether every digit is a token of its own, with "bpe".
        line_token: Token that ends a line of a text: a line feed in a new vocabulary, in an
            existing one any token that source and target have under one number. null = that of
            `init_from`, or a line feed with data.documents or a network that attends line by line,
            such as preset lines.
        show_progress: Whether to draw the progress bars of `tokenizers`.
        train_size: Maximum number of pairs to learn from, spread evenly over the training split.
        pretrained: Folder or Hub name of existing tokenizers, or a SentencePiece .model file. They
            are used unchanged; of the other keys only `pretrained_target` and `line_token` count.
        pretrained_target: As `pretrained`, for the target, if it is not in the source's folder.

    Raises:
        ValueError: A vocabulary has no room for bytes and special tokens, or the target's is given
            beside one for both.
    """

    vocab_size: int = DEFAULT_VOCABULARY_SIZE
    joint: bool = True
    kind: TokenKind = "bpe"
    target_kind: TokenKind | None = None
    unicode_form: UnicodeForm = "NFC"
    case: Case = "keep"
    target_vocab_size: int | None = None
    model_max_length: int | None = None
    split_digits: bool = True
    line_token: str | None = None
    show_progress: bool = False
    train_size: int = declare(2_000_000, at_least(1))
    pretrained: str | None = None
    pretrained_target: str | None = None

    def __post_init__(self) -> None:
        check_bounds(declared_keys(type(self)), vars(self))
        if self.pretrained is not None:
            return
        for name in ("target_vocab_size", "target_kind"):
            value = getattr(self, name)
            if self.joint and value is not None:
                raise ValueError(f"{name} is {value}, but the vocabulary is joint; leave it out")
        if self.line_token not in (None, LINE_FEED):
            raise ValueError(
                f"line_token is {self.line_token!r}; in a new vocabulary it is a line feed: leave "
                "it out"
            )
        has_lines = self.line_token is not None
        check_vocabulary_size("vocab_size", self.vocab_size, self.kind, has_lines=has_lines)
        if not self.joint:
            target_size = self.target_vocab_size or self.vocab_size
            target_kind = self.target_kind or self.kind
            check_vocabulary_size(
                "target_vocab_size", target_size, target_kind, has_lines=has_lines
            )


def train_tokenizers(dataset: Dataset, args: TokenizerArguments) -> TokenizerPair:
    """Trains the tokenizers of a corpus on its training pairs, columns source and target."""
    step = math.ceil(len(dataset) / args.train_size)
    if step > 1:
        dataset = dataset.select(range(0, len(dataset), step))
    train: Callable[..., PreTrainedTokenizerFast] = partial(
        train_tokenizer,
        unicode_form=args.unicode_form,
        model_max_length=args.model_max_length,
        split_digits=args.split_digits,
        has_lines=args.line_token is not None,
        show_progress=args.show_progress,
    )
    columns = ["source", "target"] if args.joint else ["source"]
    source = train(_texts(dataset, columns), args.vocab_size, kind=args.kind, case=args.case)
    if args.joint:
        return TokenizerPair(source, source)
    target_texts = _texts(dataset, ["target"])
    target_size = args.target_vocab_size or args.vocab_size
    target = train(target_texts, target_size, kind=args.target_kind or args.kind)
    return TokenizerPair(source, target)


def _texts(dataset: Dataset, columns: list[str]) -> Iterator[str]:
    for batch in dataset.select_columns(columns).iter(batch_size=1_000):
        for column in columns:
            yield from batch[column]


def tokenize_dataset(
    dataset: DatasetDict,
    tokenizers: TokenizerPair,
    args: DataArguments,
    report: FilterReport | None = None,
) -> tuple[DatasetDict, FilterReport]:
    """Turns sentences into token ids, and filters the training split by length.

    The training split loses the pairs with a side longer than `args.max_source_length` or
    `args.max_target_length` tokens ("</s>" included) and those whose lengths differ by more than
    `args.max_length_ratio`. No other split loses a pair, so that predictions match references line
    by line: a longer source is cut for the model, and so is a longer target for the loss, which of
    several references is the first. The text columns stay whole, and documents of test sets are not
    cut.

    Args:
        dataset: The splits, columns source and target.
        tokenizers: The tokenizers.
        args: The limits.
        report: Counts of the pairs while they were loaded, which go on; None = new ones.

    Returns:
        The dataset with the added columns input_ids, attention_mask and labels, and the counts.

    Raises:
        ValueError: No training pair is left.
    """
    report = report or FilterReport()
    result = {}
    for split, text in dataset.items():
        training = split == "train"
        is_whole = training or (args.documents and split != "validation")
        limits = {} if is_whole else args.length_limits
        rows = text.map(
            _encode,
            batched=True,
            desc=f"Tokenizing {split}",
            fn_kwargs={"tokenizers": tokenizers, "limits": limits},
        )
        # Of arrow tables: a column of a dataset is decoded row by row
        columns = rows.select_columns(_COUNTS).with_format("numpy")[:]
        result[split] = rows = rows.remove_columns(_COUNTS)
        if split not in report.read:
            report.read[split] += len(rows)
        remark = "with letters or signs that the source vocabulary does not have"
        report.note(split, remark, int(columns["has_unknown"].sum()))
        if training:
            kept, reasons = _pairs_within(columns, args)
            for reason, pairs in reasons.items():
                report.drop(split, reason, pairs)
            if len(kept) < len(rows):
                result[split] = rows.select(kept)
            continue
        for side, limit in limits.items():
            longer = 0 if limit is None else int((columns[f"{side}_length"] > limit).sum())
            report.note(split, f"with a {side} cut to {limit} tokens", longer)
    if "train" in result and not report.kept["train"]:
        raise ValueError(
            f"no training pair is left: max_source_length={args.max_source_length}, "
            f"max_target_length={args.max_target_length}, max_length_ratio={args.max_length_ratio} "
            f"drop all; raise them ({report})"
        )
    for split, pairs in _pairs_in_training(result).items():
        report.note(split, "that the training split has, too", pairs)
    return DatasetDict(result), report


def _pairs_in_training(splits: Mapping[str, Dataset]) -> Counter[str]:
    """Counts the pairs of each other split that the training split has, too; of several references
    one is enough.
    """
    rows_of: dict[tuple[str, str], set[tuple[str, int]]] = defaultdict(set)
    for split, rows in splits.items():
        if split == "train":
            continue
        for number, row in enumerate(rows.select_columns(["source", "target"])):
            for reference in row["target"].split(VARIANTS):
                rows_of[row["source"], reference].add((split, number))
    shared: set[tuple[str, int]] = set()
    if "train" in splits and rows_of:
        for batch in splits["train"].select_columns(["source", "target"]).iter(10_000):
            for pair in zip(batch["source"], batch["target"], strict=True):
                shared |= rows_of.pop(pair, set())
    return Counter(split for split, _ in shared)


def tokenize_rows(
    rows: Sequence[dict[str, str]], tokenizers: TokenizerPair, args: DataArguments
) -> Dataset:
    """Turns training pairs into a split as `tokenize_dataset` does."""
    if not rows:  # the tokenizers take no empty list
        names = ("source", "target", "input_ids", "attention_mask", "labels")
        return Dataset.from_dict({name: [] for name in names})
    texts = {name: [row[name] for row in rows] for name in ("source", "target")}
    columns: dict[str, list[Any]] = {**texts, **_encode(texts, tokenizers, limits={})}
    kept, _ = _pairs_within({name: np.array(columns.pop(name)) for name in _COUNTS}, args)
    return Dataset.from_dict(columns).select(kept)


_COUNTS = ["source_length", "target_length", "has_unknown"]
"""Columns of `_encode` that no model needs."""


def _encode(
    batch: dict[str, list[str]], tokenizers: TokenizerPair, limits: dict[str, int | None]
) -> dict[str, list[Any]]:
    mark = tokenizers.line_token
    sources = [text.replace(LINE_FEED, mark) for text in batch["source"]]
    references = [text.partition(VARIANTS)[0].replace(LINE_FEED, mark) for text in batch["target"]]
    # verbose=False: a text beyond model_max_length is cut below, so transformers need not warn
    source = tokenizers.source(sources, verbose=False)["input_ids"]
    target = tokenizers.target(text_target=references, verbose=False)["input_ids"]
    cut = [_truncate(ids, limits.get("source")) for ids in source]
    return {
        "input_ids": cut,
        "attention_mask": [[1] * len(ids) for ids in cut],
        "labels": [_truncate(ids, limits.get("target")) for ids in target],
        "source_length": [len(ids) for ids in source],
        "target_length": [len(ids) for ids in target],
        "has_unknown": [tokenizers.source.unk_token_id in ids for ids in source],
    }


def with_bpe_dropout(dataset: Dataset, tokenizers: TokenizerPair, dropout: float) -> Dataset:
    """Returns a tokenized split whose rows are cut into tokens anew whenever they are read, for
    training.

    Each merge of BPE is left out with probability `dropout` (Provilkov et al., ACL 2020). Where a
    text would have more tokens than the longest of the split, it keeps those that it has. The
    tokenizers stay as they are.

    Raises:
        ValueError: One of the tokenizers is not BPE.
    """
    noisy = copy.deepcopy(tokenizers)
    for tokenizer in (noisy.source, noisy.target):
        model: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
        if not isinstance(model, models.BPE):
            raise ValueError(
                f"bpe_dropout is for tokenizers of BPE, not {type(model or tokenizer).__name__}"
            )
        model.dropout = dropout
    longest = [int(lengths.max()) for lengths in example_lengths(dataset)]
    return dataset.with_transform(partial(_encode_anew, tokenizers=noisy, longest=longest))


def _encode_anew(
    batch: dict[str, list[Any]], tokenizers: TokenizerPair, longest: list[int]
) -> dict[str, list[Any]]:
    encoded = _encode(batch, tokenizers, limits={})
    sides = zip(("input_ids", "labels"), longest, strict=True)
    columns = {}
    for name, limit in sides:
        both = zip(encoded[name], batch[name], strict=True)
        columns[name] = [new if len(new) <= limit else old for new, old in both]
    return columns


def _truncate(ids: list[int], limit: int | None) -> list[int]:
    """The first `limit` ids, the last of them replaced by the text's own last id ("</s>")."""
    return ids if limit is None or len(ids) <= limit else [*ids[: limit - 1], ids[-1]]


def _pairs_within(
    lengths: Mapping[str, np.ndarray], args: DataArguments
) -> tuple[np.ndarray, dict[str, int]]:
    """Numbers of the training pairs that are kept, and how many are dropped by reason."""
    is_dropped = {}
    for side, limit in args.length_limits.items():
        if limit is not None:
            reason = f"with a {side} longer than {limit} tokens"
            is_dropped[reason] = lengths[f"{side}_length"] > limit
    if args.max_length_ratio is not None:
        sides = (lengths["source_length"], lengths["target_length"])
        reason = f"with a length ratio above {args.max_length_ratio:g}"
        is_dropped[reason] = np.maximum(*sides) > args.max_length_ratio * np.minimum(*sides)
    is_kept = np.ones(len(lengths["source_length"]), dtype=bool)
    reasons = {}
    for reason, has_reason in is_dropped.items():
        reasons[reason] = int((is_kept & has_reason).sum())
        is_kept &= ~has_reason
    return np.flatnonzero(is_kept), reasons
