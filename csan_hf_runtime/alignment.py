# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Alignments of texts with their translations: which word comes from which."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tokenizers import Encoding


@dataclass(frozen=True)
class TokenizedText:
    """A text as the model sees it.

    Attributes:
        text: The text as it was given.
        ids: The T token ids, special tokens such as "</s>" included.
        tokens: The T tokens for a reader: a space is "␣", a byte of an unfinished character is
            "\\xe7"; without torch as the vocabulary writes them.
        words: The text's words, which are what white space separates; the letters, where the
            tokenizer is one of characters.
        word_of_token: For each token the number of its word, or None for special tokens and for
            white space at the end of the text. White space elsewhere belongs to the word that
            follows it.
        starts: For each token where in the text it begins; 0 for special tokens.
    """

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    words: tuple[str, ...]
    word_of_token: tuple[int | None, ...]
    starts: tuple[int, ...] = ()

    @classmethod
    def of_encoding(
        cls,
        text: str,
        prefix: str,
        encoding: Encoding,
        tokens: Sequence[str],
        word: re.Pattern[str],
    ) -> TokenizedText:
        """Makes it of what a tokenizer made of the text.

        Args:
            text: The text.
            prefix: What stood before it, and belongs to no word.
            encoding: Of prefix and text.
            tokens: The tokens for a reader.
            word: What a word is.
        """
        length = len(prefix)
        starts = tuple(max(start - length, 0) for start, _ in encoding.offsets)
        is_outside = []
        for is_special, (_, end) in zip(
            encoding.special_tokens_mask, encoding.offsets, strict=True
        ):
            is_of_prefix = length > 0 and end <= length
            is_outside.append(bool(is_special) or is_of_prefix)
        return cls(
            text=text,
            ids=tuple(encoding.ids),
            tokens=tuple(tokens),
            words=tuple(word.findall(text)),
            word_of_token=tuple(_words_of_tokens(text, word, starts, is_outside)),
            starts=starts,
        )

    def shortened(self, most: int | None) -> TokenizedText:
        """The text with its first tokens alone, `most` of them; None = all."""
        return replace(
            self,
            ids=self.ids[:most],
            tokens=self.tokens[:most],
            word_of_token=self.word_of_token[:most],
            starts=self.starts[:most],
        )

    def is_part_of_word(self) -> list[bool]:
        """For each token whether it belongs to a word."""
        return [word is not None for word in self.word_of_token]

    def words_with_tokens(self) -> list[int]:
        """The numbers of the words that have tokens; a tokenizer may delete characters."""
        return sorted({word for word in self.word_of_token if word is not None})

    def membership(self) -> np.ndarray:
        """Float32 [tokens, words], 1 where a token belongs to a word."""
        words = np.array([-1 if word is None else word for word in self.word_of_token])
        return (words[:, None] == np.arange(len(self.words))).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Alignment:
    """How strongly each of J source tokens is related to each of I target tokens of a sentence
    pair.

    Row i of `matrix`, float32 [I, J], belongs to the prediction of target token i; `measure` says
    what the numbers are, for the label of a picture."""

    source: TokenizedText
    target: TokenizedText
    matrix: np.ndarray
    measure: str = "attention"

    @classmethod
    def of_padded(
        cls,
        source: TokenizedText,
        target: TokenizedText,
        matrix: np.ndarray,
        measure: str = "attention",
    ) -> Alignment:
        """Makes an alignment of the row of a batch, which may be larger than the pair."""
        # A copy: a view would keep the padded weights of the whole batch
        return cls(source, target, matrix[: len(target.ids), : len(source.ids)].copy(), measure)

    def word_matrix(self) -> np.ndarray:
        """Merges tokens into words: the sum over the tokens of a source word, the mean over those
        of a target word.

        With weights that sum to 1 over the source tokens, a row so keeps its sum, but for the part
        on "</s>". The rows and columns of words without tokens (a tokenizer may delete characters)
        are 0.

        Returns:
            float32 [target words, source words].
        """
        rows = self.target.membership()
        rows /= np.maximum(rows.sum(axis=0, keepdims=True), 1)
        return rows.T @ self.matrix @ self.source.membership()

    def links(
        self, *, threshold: float | None = None, symmetric: bool = False
    ) -> list[tuple[int, int]]:
        """Links words. "</s>" is left out: it is never linked and does not count in a row's sum.

        Args:
            threshold: None links each target word to the source word with the highest value in its
                row, the first of equals. A number from 0 to 1 links it to all words whose share of
                the row's positive values, summed, exceeds it: to none, one or several.
            symmetric: Keeps a link only if the target word is also the one with the highest value
                in the source word's column.

        Returns:
            Pairs (source word, target word), counted from 0, in order.

        Raises:
            ValueError: If the threshold is not in [0, 1).
        """
        if threshold is not None and not 0 <= threshold < 1:
            raise ValueError(f"threshold must be at least 0 and less than 1, got {threshold}.")
        # Words without tokens have no values to compare
        columns = self.source.words_with_tokens()
        rows = self.target.words_with_tokens()
        if not columns or not rows:
            return []
        values = self.word_matrix()[np.ix_(rows, columns)]
        if threshold is None:
            linked = np.arange(len(columns)) == values.argmax(axis=1)[:, None]
        else:
            positive = np.maximum(values, 0)
            linked = positive > threshold * positive.sum(axis=1, keepdims=True)
        if symmetric:
            linked &= np.arange(len(rows))[:, None] == values.argmax(axis=0)
        return sorted((columns[column], rows[row]) for row, column in np.argwhere(linked))

    def pharaoh(self, *, threshold: float | None = None, symmetric: bool = False) -> str:
        """Writes the links as "0-0 1-2": source word, target word; "" if there is none."""
        return pharaoh(self.links(threshold=threshold, symmetric=symmetric))


def pharaoh(links: Iterable[tuple[int, int]]) -> str:
    """Writes links in Pharaoh's format: "0-0 1-2"."""
    return " ".join(f"{source}-{target}" for source, target in sorted(set(links)))


def _words_of_tokens(
    text: str, word: re.Pattern[str], starts: Sequence[int], is_outside: Iterable[bool]
) -> list[int | None]:
    """Finds the word of each token by where the token begins in the text.

    The places are those of the text as it was given, so that it does not matter what the tokenizer
    normalises. Several tokens may begin at one place (the bytes of one character). A token
    `is_outside` that stands for nothing in the text.
    """
    ends = [match.end() for match in word.finditer(text)]
    # The word around this place, or else the next one
    numbers = np.searchsorted(ends, starts, side="right").tolist()
    return [
        None if outside or number == len(ends) else number
        for number, outside in zip(numbers, is_outside, strict=True)
    ]
