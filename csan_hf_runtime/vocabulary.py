# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Vocabularies: what texts are cut into, and put together from, whatever tokenizer does it; and
those that are read from tokenizer.json and tokenizer_config.json, as transformers reads them.
"""

from __future__ import annotations

import difflib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

from tokenizers import Encoding, Tokenizer, models

from .alignment import TokenizedText
from .characters import has_all_bytes, unseen_characters
from .prefixes import Prefix, PrefixPieces
from .sentences import is_wide
from .settings import LARGEST, Range, Settings

_SPECIAL = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
# Their pieces that the model lacks have numbers beyond its vocabulary, see `save_vocabularies`
_WITH_UNKNOWN_PIECES = ("MarianTokenizer", "M2M100Tokenizer")
_LANGUAGE = re.compile(r"__(?P<m2m100>[a-z]{2,3})__|[a-z]{2,3}_\w{2,4}")  # "de_DE" of NLLB, mBART


@dataclass(frozen=True)
class NamedToken(Settings):
    """A special token with its properties."""

    content: str


@dataclass(frozen=True)
class TokenizerSettings(Settings):
    """Settings of tokenizer_config.json."""

    tokenizer_class: str = ""
    split_special_tokens: bool = False
    model_max_length: Annotated[int, Range(1, 10**31)] | None = None  # none is written as 1e30
    tgt_lang: str | None = None
    bos_token: str | NamedToken | None = None
    eos_token: str | NamedToken | None = None
    unk_token: str | NamedToken | None = None
    sep_token: str | NamedToken | None = None
    pad_token: str | NamedToken | None = None
    cls_token: str | NamedToken | None = None
    mask_token: str | NamedToken | None = None


class Vocabulary(ABC):
    """The tokens of one side.

    Attributes:
        kind: The name of the tokenizer's class.
        most_tokens: Tokens of the longest text that it allows; None = any number.
        added: Tokens that were added to the vocabulary.
        special: Numbers of the special tokens.
        padding: The token of padding.
        unknown: The token of what the vocabulary does not have, if it has one.
        languages: Tokens by the codes of the languages of a multilingual model.
        source_language: The language of texts where none is asked for, if it is known.
        target_language: That of translations.
        no_languages: Tokens that a decoder may start with which are no language.
        cuts_words: Whether tokens are pieces of words.
        word: What a word is in alignments: what white space separates, or each letter of a
            tokenizer of characters.
    """

    kind: str
    most_tokens: int | None
    added: Iterable[str]
    special: set[int]
    padding: int
    unknown: int | None
    languages: Mapping[str, int]
    source_language: str | None
    target_language: str | None
    no_languages: set[int | None]
    cuts_words: bool
    word: re.Pattern[str]

    @abstractmethod
    def numbers(self) -> Mapping[str, int]:
        """Returns the tokens with their numbers."""

    @abstractmethod
    def name_of(self, token: int) -> str:
        """Returns a token as the vocabulary writes it."""

    @abstractmethod
    def encode(
        self, text: str, *, language: str | None = None, most_tokens: int | None = None
    ) -> list[int]:
        """Returns the tokens of a source, with special ones.

        Args:
            text: The source.
            language: Its language, in a multilingual model; None = `source_language`.
            most_tokens: Tokens to which it is cut.
        """

    @abstractmethod
    def encode_alone(self, text: str) -> list[int]:
        """Returns the tokens of a text, without special ones."""

    @abstractmethod
    def decode(self, ids: Sequence[int], *, keep_special: bool = False) -> str:
        """Returns the text of tokens."""

    @abstractmethod
    def unknown_pieces(
        self, texts: Sequence[str], trained_on: str | None = None
    ) -> list[list[str]]:
        """Returns, for each text, what the vocabulary does not have; of one of bytes, which has
        all, what is not in the ranges of characters `trained_on`.
        """

    @cached_property
    def not_text(self) -> set[int]:
        """Special tokens, without those of unknown letters."""
        return self.special - {self.unknown}

    @abstractmethod
    def holds(self, token: str) -> bool:
        """Whether a text is one token."""

    def language_id(self, language: str) -> int:
        """Returns the token of a language of a multilingual model.

        Raises:
            ValueError: The model does not know the language.
        """
        if language in self.languages:
            return self.languages[language]
        close = [code for code in self.languages if code.startswith(language)]
        close = close or difflib.get_close_matches(language, self.languages, cutoff=0.0)
        raise ValueError(
            f"{self.kind} has no language {language!r}. Did you mean "
            f"{' or '.join(map(repr, close))}?"
        )

    def prefix_of(self, text: str) -> Prefix:
        """Returns how a translation begins that begins with a text."""
        ids = self.encode_alone(text)
        return self._prefix_pieces.prefix_of(ids, list(map(self.name_of, ids)))

    @cached_property
    def _prefix_pieces(self) -> PrefixPieces:
        numbers = self.numbers().items()
        tokens = {piece: token for piece, token in numbers if token not in self.special}
        return PrefixPieces(tokens, cuts_words=self.cuts_words)

    def within_text(self, term: str) -> list[int]:
        """Returns the tokens of a target term after others: as a rule with the space before it.

        Raises:
            ValueError: The vocabulary lacks letters of it, or all that it has.
        """
        space = "" if is_wide(term[0]) else " "
        tokens = self.encode_alone(f".{space}{term}")[len(self.encode_alone(".")) :]
        if self.unknown in tokens:
            raise ValueError(
                f"The term {term!r} has letters or signs that the target vocabulary does not have."
            )
        if not self.decode(tokens).strip():
            raise ValueError(
                f"The term {term!r} has no letters or signs that the model writes: leave it out."
            )
        return tokens

    @cached_property
    def continuing_letters(self) -> dict[int, int]:
        """Tokens that continue a word -> the letters that they add to it."""
        letters = {}
        word: list[int] = []  # a token that the others stand behind
        for token in sorted(set(self.numbers().values()) - self.not_text):
            if not word and self.decode([token], keep_special=True).strip().isalpha():
                word = [token]
            text = self.decode([*word, token], keep_special=True)
            added = text.removeprefix(self.decode(word, keep_special=True))
            if match := re.match(r"\w+", added):
                letters[token] = match.end()
        return letters


class VocabularyFile(Vocabulary):
    """A vocabulary that is read from files, without transformers.

    Args:
        directory: Folder of tokenizer.json and tokenizer_config.json.
        size: Tokens that the model has; others, which a tokenizer.json may number from there on,
            are unknown to it.
        settings: Stand for tokenizer_config.json where there is none.

    Attributes:
        settings: What tokenizer_config.json holds.

    Raises:
        OSError: A file is missing, damaged or of another model.
        ValueError: A setting of tokenizer_config.json is wrong.
    """

    def __init__(
        self, directory: Path, *, size: int, settings: TokenizerSettings | None = None
    ) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        except Exception as error:  # of tokenizers, a bare one
            raise OSError(
                f"The tokenizer in {directory} is damaged or missing ({error}): export the model "
                "again."
            ) from error
        config_file = directory / "tokenizer_config.json"
        if settings is None or config_file.is_file():
            settings = TokenizerSettings.read(config_file)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.settings = settings
        self._tokenizer.encode_special_tokens = settings.split_special_tokens
        self.kind = settings.tokenizer_class
        longest = settings.model_max_length
        self.most_tokens = longest if longest is not None and longest <= LARGEST else None
        self.target_language = settings.tgt_lang
        self._size = size
        count = self._tokenizer.get_vocab_size()
        if count > size and self.kind not in _WITH_UNKNOWN_PIECES:
            raise OSError(
                f"{directory / 'tokenizer.json'} has {count} tokens, more than the {size} of "
                "config.json (vocab_size, decoder_vocab_size): one is another model's. Copy "
                "exports as whole folders."
            )
        added = self._tokenizer.get_added_tokens_decoder()
        self.added = {token.content: number for number, token in added.items()}
        self._named = {name: self._number(f"{name}_token", config_file) for name in _SPECIAL}
        self.special = {number for number, token in added.items() if token.special}
        self.special |= {number for number in self._named.values() if number is not None}
        self.languages, self.source_language = self._languages()
        self.special |= set(self.languages.values())
        self.padding = self._named["pad"] or 0
        self.unknown = self._named["unk"]
        self.no_languages = {None, self._named["eos"], self._named["bos"], self._named["pad"]}
        self.cuts_words = isinstance(self._tokenizer.model, models.BPE | models.Unigram)
        self.word = word_pattern(self._tokenizer)

    def _number(self, name: str, config_file: Path) -> int | None:
        """The number of the token that a setting names."""
        token = getattr(self.settings, name)
        if token is None:
            return None
        content = token.content if isinstance(token, NamedToken) else token
        number = self._tokenizer.token_to_id(content)
        if number is None:
            raise ValueError(
                f"{config_file}: {name} must be a token of tokenizer.json, got {content!r}."
            )
        return number

    def _languages(self) -> tuple[dict[str, int], str | None]:
        """The languages, and the one with whose token texts of a multilingual model are marked."""
        for mark in self._tokenizer.encode("").ids:
            match = _LANGUAGE.fullmatch(self.name_of(mark))
            if match:
                break
        else:
            return {}, None
        languages = {}
        for token, number in self._tokenizer.get_vocab().items():
            other = _LANGUAGE.fullmatch(token)
            # "__de__" is no special token in some models, and "ab_cd" may be a piece of a word
            if other and (other["m2m100"] or number in self.special):
                languages[other["m2m100"] or token] = number
        return languages, match["m2m100"] or match[0]

    def normalize(self, text: str) -> str:
        """Returns a text as it is read: in its Unicode form, in small letters or as it is."""
        normalizer = self._tokenizer.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def numbers(self) -> Mapping[str, int]:
        """See `Vocabulary`."""
        return self._tokenizer.get_vocab()

    def holds(self, token: str) -> bool:
        """See `Vocabulary`."""
        return self._tokenizer.token_to_id(token) not in (None, self.unknown)

    def encode(
        self, text: str, *, language: str | None = None, most_tokens: int | None = None
    ) -> list[int]:
        """See `Vocabulary`."""
        if most_tokens is None:
            encoding = self._tokenizer.encode(text)
        else:
            # Not by a setting of the tokenizer, which other threads use
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
            encoding.truncate(most_tokens - self._tokenizer.num_special_tokens_to_add(False))
            encoding = self._tokenizer.post_process(encoding)
        return self._in_language(encoding, language)

    def _in_language(self, encoding: Encoding, language: str | None) -> list[int]:
        """The tokens of a text, marked with a language."""
        ids = self._known(encoding.ids)
        if language is None or not self.languages:
            return ids
        mark = self.language_id(language)
        marks = set(self.languages.values())
        places = zip(ids, encoding.special_tokens_mask, strict=True)
        return [mark if is_mark and token in marks else token for token, is_mark in places]

    def tokenized(self, text: str, prefix: str = "", language: str | None = None) -> TokenizedText:
        """Returns a text with its tokens and their words.

        Args:
            text: The text.
            prefix: What stands before it, and belongs to no word.
            language: As in `encode`.
        """
        encoding = self._tokenizer.encode(prefix + text)
        made = TokenizedText.of_encoding(text, prefix, encoding, encoding.tokens, self.word)
        return replace(made, ids=tuple(self._in_language(encoding, language)))

    def _known(self, ids: list[int]) -> list[int]:
        """The tokens as the model has them."""
        unknown = self.unknown
        if max(ids, default=0) < self._size:
            return ids
        if unknown is None:
            raise ValueError(
                f"The tokenizer makes the token {max(ids)}, beyond the {self._size} of the model."
            )
        return [token if token < self._size else unknown for token in ids]

    def encode_alone(self, text: str) -> list[int]:
        """See `Vocabulary`."""
        return self._known(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], *, keep_special: bool = False) -> str:
        """See `Vocabulary`."""
        shown = ids if keep_special else [token for token in ids if token not in self.special]
        return self._tokenizer.decode(shown, skip_special_tokens=False)

    def name_of(self, token: int) -> str:
        """See `Vocabulary`."""
        return self._tokenizer.id_to_token(token) or ""

    def unknown_pieces(
        self, texts: Sequence[str], trained_on: str | None = None
    ) -> list[list[str]]:
        """See `Vocabulary`."""
        if has_all_bytes(self._tokenizer):
            return unseen_characters(self._tokenizer, texts, trained_on)
        unknown = self.unknown
        if unknown is None:
            return [[] for _ in texts]
        unknown_pieces = []
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        for text, encoding in zip(texts, encodings, strict=True):
            places = zip(self._known(encoding.ids), encoding.offsets, strict=True)
            pieces = [text[start:end] for token, (start, end) in places if token == unknown]
            unknown_pieces.append(pieces)
        return unknown_pieces


def word_pattern(tokenizer: Tokenizer | None) -> re.Pattern[str]:
    """Returns what a word is in alignments, see `Vocabulary`; None = of a slow tokenizer."""
    is_of_characters = tokenizer is not None and r"[\s\S]" in repr(tokenizer.pre_tokenizer)
    return re.compile(r"\S" if is_of_characters else r"\S+")
