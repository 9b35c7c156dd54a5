# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translations that begin with a given text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_WORD_STARTS = ("Ġ", "▁")  # of byte-level BPE and of SentencePiece
_LAST_CHARACTER = "\U0010ffff"


@dataclass(frozen=True)
class Prefix:
    """How a translation begins: tokens, and characters of a word of which the model chooses the
    tokens.

    The text may end within a word, whose tokens are others than those of the whole word: of "Die
    Za" the model may take "Zahl" as one token.

    Attributes:
        tokens: The tokens of all words but the last.
        characters: The last word as in the vocabulary; "" where words are not cut into tokens.
        steps: For each end of the characters the tokens that may follow -> the characters that
            then remain.
    """

    tokens: Sequence[int]
    characters: str = ""
    steps: dict[str, dict[int, str]] = field(default_factory=dict)

    def allowed(self, ids: Sequence[int]) -> list[int]:
        """The tokens that may follow `ids`; none = any."""
        if len(ids) < len(self.tokens):
            return [self.tokens[len(ids)]]
        remaining = self.characters
        for token in ids[len(self.tokens) :]:
            if remaining:
                remaining = self.steps[remaining].get(token, "")
        return list(self.steps[remaining]) if remaining else []


class PrefixPieces:
    """The pieces of words that a translation may begin with.

    Args:
        tokens: The numbers of the target's tokens, without special ones.
        cuts_words: Whether they are pieces of words.
    """

    def __init__(self, tokens: Mapping[str, int], *, cuts_words: bool) -> None:
        self._cuts_words = cuts_words
        self._tokens = tokens
        self._pieces = sorted(tokens)

    def prefix_of(self, ids: Sequence[int], pieces: Sequence[str]) -> Prefix:
        """Returns the tokens of a text, the last word as characters.

        Args:
            ids: The tokens of the text.
            pieces: The same as the vocabulary writes them.
        """
        if not self._cuts_words:
            return Prefix(ids)
        starts = [place for place, piece in enumerate(pieces) if piece.startswith(_WORD_STARTS)]
        last = starts[-1] if starts else 0
        if not all(piece in self._tokens for piece in pieces[last:]):
            return Prefix(ids)  # a letter that the vocabulary does not have
        characters = "".join(pieces[last:])
        return Prefix(ids[:last], characters, self._steps(characters))

    def _steps(self, characters: str) -> dict[str, dict[int, str]]:
        """The steps of a `Prefix`; tokens after which the rest cannot be made are left out."""
        steps: dict[str, dict[int, str]] = {}
        for place in reversed(range(len(characters))):
            remaining = characters[place:]
            first = bisect_left(self._pieces, remaining)
            end = bisect_left(self._pieces, remaining + _LAST_CHARACTER)
            following = {self._tokens[piece]: "" for piece in self._pieces[first:end]}
            for length in range(1, len(remaining)):
                token = self._tokens.get(remaining[:length])
                if token is not None and steps[remaining[length:]]:
                    following[token] = remaining[length:]
            steps[remaining] = following
        return steps
