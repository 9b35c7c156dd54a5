# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translations that begin with a given text."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from tokenizers import models
from transformers import LogitsProcessor, PreTrainedTokenizerBase

from csan_hf.pipelines.texts import target_ids
from csan_hf_runtime.windows import PrefixLines

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


class PrefixReader(PrefixLines):
    """Reads how translations begin, one for each sentence.

    Args:
        texts: The beginnings.
        tokenizer: The target's.
    """

    def __init__(self, texts: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(texts)
        self._tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._cuts_words = isinstance(getattr(backend, "model", None), models.BPE | models.Unigram)
        special = {*tokenizer.all_special_tokens}
        vocabulary = tokenizer.get_vocab()
        self._ids = {piece: token for piece, token in vocabulary.items() if piece not in special}
        self._pieces = sorted(self._ids)

    def prefix_of(self, text: str) -> Prefix:
        """Returns the tokens of a text, the last word as characters."""
        ids = target_ids(self._tokenizer, text)
        if not self._cuts_words:
            return Prefix(ids)
        pieces = self._tokenizer.convert_ids_to_tokens(ids)
        starts = [place for place, piece in enumerate(pieces) if piece.startswith(_WORD_STARTS)]
        last = starts[-1] if starts else 0
        if not all(piece in self._ids for piece in pieces[last:]):
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
            following = {self._ids[piece]: "" for piece in self._pieces[first:end]}
            for length in range(1, len(remaining)):
                token = self._ids.get(remaining[:length])
                if token is not None and steps[remaining[length:]]:
                    following[token] = remaining[length:]
            steps[remaining] = following
        return steps


class ForcedPrefixes(LogitsProcessor):
    """Lets the hypotheses of each sentence of a batch begin with a given text.

    Args:
        prefixes: How the translation of each sentence begins.
        start: Tokens that stand before it: the start of the decoder, a language.
    """

    def __init__(self, prefixes: Sequence[Prefix], start: int) -> None:
        self.prefixes = prefixes
        self.start = start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Leaves of the scores [B · beams, V] those of the tokens allowed."""
        if input_ids.shape[1] < self.start:
            return scores
        beams = input_ids.shape[0] // len(self.prefixes)
        for row, ids in enumerate(input_ids[:, self.start :].tolist()):
            allowed = self.prefixes[row // beams].allowed(ids)
            if allowed:
                kept = scores[row, allowed]
                scores[row] = -math.inf
                scores[row, allowed] = kept
        return scores
