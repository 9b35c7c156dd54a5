# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Texts and their translations, whatever translates them: letters, languages, splits, batches."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypedDict

logger = logging.getLogger(__name__)


class Token(TypedDict):
    """A token as the vocabulary writes it, with the logarithm of its probability."""

    token: str
    log_probability: float


class Word(TypedDict):
    """A word of a translation with its tokens, and the sum of their log-probabilities."""

    word: str
    log_probability: float
    tokens: list[Token]


class SentenceTranslation(NamedTuple):
    """A translation of a line or sentence that was translated by itself.

    Attributes:
        source_text: What was translated.
        translation_text: Its translation.
        log_probability: The sum of the natural logarithms of the probabilities of its tokens, the
            end included, languages excluded; 0 where it was not asked for.
        score: Their mean.
        words: Its words, where they were asked for.
        alignment: Pairs of a source word and a word of it, counted from 0, where they were asked
            for.
    """

    source_text: str
    translation_text: str
    log_probability: float = 0.0
    score: float = 0.0
    words: Sequence[Word] = ()
    alignment: Sequence[tuple[int, int]] = ()


class Translation(NamedTuple):
    """A translation of a text: see `SentenceTranslation`, of which it is made.

    Words are those of all sentences, and alignments count over the whole text."""

    text: str
    log_probability: float = 0.0
    words: Sequence[Word] = ()
    alignment: Sequence[tuple[int, int]] = ()
    sentences: Sequence[SentenceTranslation] = ()


def warn(message: str) -> None:
    """Logs a warning."""
    logger.warning(message)


warn_once = lru_cache(maxsize=10_000)(warn)
"""Logs a warning, unless it was logged before."""


def first_of_each_text(translations: Iterable[Translation]) -> list[Translation]:
    """Of translations that are one text, of other tokens, the first, which is the best."""
    by_text: dict[str, Translation] = {}
    for translation in translations:
        by_text.setdefault(translation.text, translation)
    return list(by_text.values())


def checked_texts(name: str, texts: Iterable[str]) -> list[str]:
    """Returns texts, those of a generator too, as a list.

    Raises:
        TypeError: They are one text, or something else; the message begins with `name`.
        ValueError: One holds half of a surrogate pair.
    """
    if isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Iterable):
        raise TypeError(
            f"{name} must be a list of texts, got one {type(texts).__name__}: {texts!r:.80}"
        )
    listed = list(texts)
    for number, text in enumerate(listed, 1):
        if not isinstance(text, str):
            raise TypeError(
                f"{name} must be texts, got {type(text).__name__} as number {number}: {text!r:.80}"
            )
        if half := re.search(r"[\ud800-\udfff]", text):
            raise ValueError(
                f"{name}, number {number}: {half[0]!a} at character {half.start()}, half of a "
                f"surrogate pair; replace or remove it: {text!a:.80}"
            )
    return listed


class LanguageTags:
    """The tags ">>de<<" with which the sources of a model with several target languages begin.

    Args:
        tokens: The tokens that were added to the source vocabulary.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tags = {}
        for token in tokens:
            match = re.fullmatch(r">>(.+)<<", token)
            if match:
                self._tags[match[1]] = token

    def knows(self, language: str) -> bool:
        """Whether there is a tag of a language."""
        return language in self._tags

    def leading(self, text: str, language: str | None = None) -> str:
        """Returns the tag that a text begins with, or nothing; with a language only that one's."""
        for name, tag in self._tags.items():
            if language in (None, name) and text.startswith(tag):
                return tag
        return ""

    def mark(self, text: str, prefix: str, language: str | None) -> tuple[str, str]:
        """Returns a text without the tag of its target language, and what stands before it.

        A tag within a text is text, unless the text begins with it and no language is given. The
        two, joined, are what the model reads. A blank text needs no language.

        Raises:
            ValueError: There is neither a language nor a tag that the model knows.
        """
        if language in self._tags:
            text = text.removeprefix(self._tags[language])
            names = "|".join(map(re.escape, self._tags))
            text = re.sub(f">>(?=(?:{names})<<)", "> >", text)
            return text, f"{self._tags[language]} {prefix}"
        if self._tags and text.strip() and (language or not self.leading(prefix + text)):
            first = next(iter(self._tags.values()))
            raise ValueError(
                f"The model translates into {', '.join(self._tags)}: give one of them as the "
                f"target language, got {language!r}, or begin texts with its tag, such as {first}."
            )
        tag = self.leading(text)
        if tag and not prefix:
            untagged = text.removeprefix(tag).lstrip(" ")
            return untagged, text.removesuffix(untagged)
        return text, prefix


@dataclass(frozen=True)
class SourceReader:
    """Tells what of a source is its text, and what stands before it where the model reads it.

    Attributes:
        tags: Of a model with several target languages.
        target_lang: The language of the translations.
        usual_prefix: What stands before sources without a tag.
        prefix: What stands before all sources, instead; None = nothing else.
    """

    tags: LanguageTags
    target_lang: str | None
    usual_prefix: str
    prefix: str | None = None

    def __call__(self, source: str) -> tuple[str, str]:
        """Returns text and prefix, see `LanguageTags.mark`."""
        text, mark = self.tags.mark(source, self.prefix or "", self.target_lang)
        if not mark and self.prefix is None:
            mark = self.usual_prefix
        return text, mark


def batches_by_length(
    lengths: Sequence[int], max_tokens: int, max_sentences: int | None = None
) -> Iterator[list[int]]:
    """Groups sentence numbers, longest first, so that a padded batch holds at most `max_tokens`
    tokens; or so many sentences, whatever their tokens.
    """
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda n: (-lengths[n], n)):
        # The first of a batch is its longest, hence its padded width.
        is_full = len(batch) == max_sentences
        if batch and max_sentences is None:
            is_full = lengths[batch[0]] * (len(batch) + 1) > max_tokens
        if is_full:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def words_of(
    ids: Iterable[int],
    log_probabilities: Iterable[float],
    *,
    decode: Callable[[list[int]], str],
    name_of: Callable[[int], str],
    ends: set[int],
) -> list[Word]:
    """The words that tokens make, what white space separates; NaN and `ends` belong to none."""
    words: list[Word] = []
    text_ids: list[int] = []
    for token, value in zip(ids, log_probabilities, strict=True):
        if math.isnan(value) or token in ends:
            continue
        text_ids.append(token)
        texts = decode(text_ids).split()
        while len(words) < max(len(texts), 1):
            words.append({"word": "", "log_probability": 0.0, "tokens": []})
        words[-1]["log_probability"] += value
        words[-1]["tokens"].append({"token": name_of(token), "log_probability": value})
    for word, text in zip(words, decode(text_ids).split(), strict=False):
        word["word"] = text
    return words
