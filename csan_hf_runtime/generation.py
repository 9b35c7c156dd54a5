# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Settings of generation_config.json, and the rules of a search that they set.

Shapes: R rows, T tokens, V vocabulary."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, Literal, Self

import numpy as np

from .prefixes import Prefix
from .search import Rule, Stop, log_sums
from .sentences import UsualSource
from .settings import BeamCount, NonNegative, Positive, Range, Settings
from .text_files import printable

# Beyond these a sum of scores, divided or to a power, is no number of 32 bits
_Factor = Annotated[float, Range(1e-6, 10**6)]
_Exponent = Annotated[float, Range(-10, 10)]

# Settings that change no token, or belong to searches that are never run here
_WITHOUT_EFFECT = {
    "_from_model_config",
    "assistant_confidence_threshold",
    "assistant_lookbehind",
    "bos_token_id",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "return_dict_in_generate",
    "target_lookbehind",
    "transformers_version",
    "use_cache",
}
_TOKENS = (
    "decoder_start_token_id",
    "eos_token_id",
    "bad_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
)
_ANY_LENGTH = range(sys.maxsize)
_WITH_START_TOKEN = ("min_length", "max_length")
_NEUTRAL = {"encoder_repetition_penalty": 1.0, "num_beam_groups": 1, "typical_p": 1.0}


@dataclass(frozen=True)
class Generation(Settings):
    """Settings of generation_config.json, with transformers' defaults and meaning."""

    decoder_start_token_id: NonNegative | None = None
    eos_token_id: NonNegative | Sequence[NonNegative] | None = None
    max_length: Annotated[int, Range(2)] | None = None  # with the token that it starts with
    max_new_tokens: Positive | None = None
    min_length: NonNegative = 0
    min_new_tokens: NonNegative | None = None
    num_beams: BeamCount = 1
    length_penalty: _Exponent = 1.0
    early_stopping: bool | Literal["never"] = False
    do_sample: bool = False
    temperature: _Factor = 1.0
    top_k: NonNegative = 50
    top_p: Annotated[float, Range(0, 1)] = 1.0
    repetition_penalty: _Factor = 1.0
    no_repeat_ngram_size: NonNegative = 0
    bad_words_ids: Sequence[Sequence[NonNegative]] = ()
    forced_bos_token_id: NonNegative | None = None
    forced_eos_token_id: NonNegative | Sequence[NonNegative] | None = None
    suppress_tokens: Sequence[NonNegative] = ()
    begin_suppress_tokens: Sequence[NonNegative] = ()
    renormalize_logits: bool = False
    usual_source: UsualSource | None = None
    source_characters: str | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], place: str = "") -> Self:
        """See `Settings`; a setting that is unknown here, and may change the tokens, is wrong."""
        settings = super().from_dict(values, place)
        for name, value in cls.unknown_settings(values).items():
            raise ValueError(
                f"{place}{printable(name)} is {value!r:.80}, which graphs are not searched with: "
                "remove it, or translate with the checkpoint that was exported."
            )
        check_lengths(values, place)
        return settings

    @classmethod
    def unknown_settings(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the settings that are unknown here, and may change the tokens."""
        known = _WITHOUT_EFFECT.union(field.name for field in dataclasses.fields(cls))
        unknown = {}
        for name, value in values.items():
            has_effect = value not in (None, False, 0, _NEUTRAL.get(name))
            if name not in known and has_effect:
                unknown[name] = value
        return unknown

    def check_tokens(self, size: int, place: str) -> None:
        """Raises `ValueError`, which begins with `place`, where a setting names a token beyond a
        vocabulary of `size`.
        """
        words = {"bad_words_ids": [*chain.from_iterable(self.bad_words_ids)]}
        for name in _TOKENS:
            tokens = _tokens(words.get(name, getattr(self, name)))
            if beyond := tokens[tokens >= size].tolist():
                raise ValueError(
                    f"{place}{name} must be from 0 to {size - 1}, a token of the vocabulary, got "
                    f"{beyond[0]}."
                )

    @property
    def ends(self) -> np.ndarray:
        """Tokens that end a sentence."""
        return _tokens(self.eos_token_id)

    @property
    def _first_free(self) -> int:
        """The place of the first token that the model chooses."""
        return 1 if self.forced_bos_token_id is None else 2

    def stop(self, limits: np.ndarray) -> Stop:
        """Returns what stops hypotheses at an end, or at the limit of tokens, the first included,
        of their sentence; `limits` [B].
        """
        ends = self.ends

        def has_ended(tokens: np.ndarray, sentences: np.ndarray) -> np.ndarray:
            is_long = tokens.shape[2] >= limits[sentences]
            is_end = (tokens[:, :, -1, None] == ends).any(axis=2)
            return is_end | is_long[:, None]

        return has_ended

    def rules(self, limits: np.ndarray, prefixes: Sequence[Prefix] = ()) -> Iterator[Rule]:
        """Yields the rules in transformers' order; the prompt is one token.

        Args:
            limits: As in `stop`.
            prefixes: How the hypotheses of each sentence begin; none where empty.
        """
        if self.repetition_penalty != 1.0:
            yield self._penalise_repetition
        if self.no_repeat_ngram_size > 0:
            yield self._forbid_repeated_ngrams
        for word in filter(None, self.bad_words_ids):
            if [*word] not in self.ends[:, None].tolist():
                yield _forbidding_word(word)
        least_length = self.min_length
        if self.min_new_tokens is not None:
            least_length = 1 + self.min_new_tokens
        if least_length > 1:
            yield _forbidding(self.ends, lengths=range(least_length))
        if self.forced_bos_token_id is not None:
            yield _forcing(_tokens(self.forced_bos_token_id), lengths=np.ones_like(limits))
        if self.forced_eos_token_id is not None:
            yield _forcing(_tokens(self.forced_eos_token_id), lengths=limits - 1)
        if len(self.suppress_tokens):
            yield _forbidding(_tokens(self.suppress_tokens))
        if len(self.begin_suppress_tokens):
            beginning = range(self._first_free, self._first_free + 1)
            yield _forbidding(_tokens(self.begin_suppress_tokens), lengths=beginning)
        if prefixes:
            yield _forcing_prefixes(prefixes, self._first_free)
        if self.renormalize_logits:
            yield _renormalise

    def _penalise_repetition(
        self, tokens: np.ndarray, scores: np.ndarray, sentences: np.ndarray
    ) -> None:
        repeated = np.take_along_axis(scores, tokens, axis=1)
        penalty = np.float32(self.repetition_penalty)
        penalised = np.where(repeated < 0, repeated * penalty, repeated / penalty)
        np.put_along_axis(scores, tokens, penalised, axis=1)

    def _forbid_repeated_ngrams(
        self, tokens: np.ndarray, scores: np.ndarray, sentences: np.ndarray
    ) -> None:
        length = tokens.shape[1]
        before = self.no_repeat_ngram_size - 1
        if length <= before:
            return
        matches = np.ones((len(tokens), length - before), bool)
        for place in range(before):
            earlier = tokens[:, place : place + length - before]
            matches &= earlier == tokens[:, length - before + place, None]
        rows, places = matches.nonzero()
        scores[rows, tokens[rows, places + before]] = -math.inf


def check_lengths(values: Mapping[str, Any], place: str) -> None:
    """Compares the least length with the greatest; limits of new tokens hold before those with the
    start token.

    Raises:
        ValueError: None is between them; the message begins with `place`.
    """
    least_name = "min_new_tokens" if values.get("min_new_tokens") else "min_length"
    most_name = "max_new_tokens" if values.get("max_new_tokens") else "max_length"
    least = values.get(least_name)
    most = values.get(most_name)
    if least is None or most is None:
        return
    bound = most
    if most_name in _WITH_START_TOKEN:
        bound -= 1
    if least_name in _WITH_START_TOKEN:
        bound += 1
    if least > bound:
        raise ValueError(
            f"{place}{least_name} must be at most {bound}, as {most_name} is {most}, got {least}."
        )


def _renormalise(tokens: np.ndarray, scores: np.ndarray, sentences: np.ndarray) -> None:
    """The rule, after all others, of `renormalize_logits`."""
    scores -= log_sums(scores)[:, None]


def _forcing_prefixes(prefixes: Sequence[Prefix], start: int) -> Rule:
    """Lets the hypotheses of each sentence begin with a given text, after `start` tokens."""

    def force(tokens: np.ndarray, scores: np.ndarray, sentences: np.ndarray) -> None:
        if tokens.shape[1] < start:
            return
        for row, ids in enumerate(tokens[:, start:].tolist()):
            allowed = prefixes[sentences[row]].allowed(ids)
            if allowed:
                kept = scores[row, allowed]
                if (kept == -math.inf).all():  # another rule forbids what must be there
                    kept[:] = 0.0
                scores[row] = -math.inf
                scores[row, allowed] = kept

    return force


def _tokens(value: int | Sequence[int] | None) -> np.ndarray:
    return np.array([] if value is None else value, np.int64).reshape(-1)


def _forbidding(forbidden: np.ndarray, lengths: range = _ANY_LENGTH) -> Rule:
    """Forbids tokens, in hypotheses of some lengths."""

    def forbid(tokens: np.ndarray, scores: np.ndarray, sentences: np.ndarray) -> None:
        if tokens.shape[1] in lengths:
            scores[:, forbidden] = -math.inf

    return forbid


def _forbidding_word(word: Sequence[int]) -> Rule:
    """Forbids the last token of a word after the tokens before it."""
    *before, last = word

    def forbid(tokens: np.ndarray, scores: np.ndarray, sentences: np.ndarray) -> None:
        if tokens.shape[1] < len(before):
            return
        matches = (tokens[:, tokens.shape[1] - len(before) :] == before).all(axis=1)
        scores[matches, last] = -math.inf

    return forbid


def _forcing(forced: np.ndarray, lengths: np.ndarray) -> Rule:
    """Leaves only some tokens to hypotheses of the length [B] of their sentence."""

    def force(tokens: np.ndarray, scores: np.ndarray, sentences: np.ndarray) -> None:
        rows = lengths[sentences] == tokens.shape[1]
        scores[rows] = -math.inf
        scores[np.ix_(rows, forced)] = 0.0

    return force
