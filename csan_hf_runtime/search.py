# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Greedy search, beam search and sampling in numpy, which compute nothing for sentences that are
done.

Tokens are those of transformers' `generate`, whose rules these follow. Shapes: S sentences that are
not done, of B; K beams of each; R = S · K rows; C candidates of a sentence; V vocabulary; T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

Rule = Callable[[np.ndarray, np.ndarray, np.ndarray], None]
"""Changes, in place, the scores [R, V] of what follows tokens [R, T]; the third argument is the
number [R] of each row's sentence."""

Stop = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Tells which [S, C] of the hypotheses [S, C, T] of sentences [S] have ended."""

Choose = Callable[[np.ndarray], np.ndarray]
"""Chooses a token [S] for each row of scores [S, V]."""

_LOW = -1.0e9  # score of what cannot be
_CACHED = 2**17  # numbers that a processor's cache holds


class Decoder(Protocol):
    """The model with the sources that are being translated."""

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """Logits [R, V] of what follows [R, T]."""

    def keep(self, rows: np.ndarray, sentences: np.ndarray | None) -> None:
        """Goes on with some rows, in this order, of some sentences; None = of all."""


class Hypothesis(NamedTuple):
    """Tokens after the prompt, their end included, and the logarithms of their probabilities.

    These are the model's, before any rule; 0 where they were not asked for."""

    tokens: np.ndarray
    log_probabilities: np.ndarray


@dataclass(frozen=True)
class Beams:
    """Settings of beam search, as transformers names them.

    Attributes:
        count: Beams K of a sentence.
        returned: The best hypotheses that are returned.
        ends: Tokens that end a sentence.
        length_penalty: A score is divided by the number of tokens to this power.
        early_stopping: True: done with K hypotheses; False: when the best open one, were it to end
            now, is none of the best K; "never": when it can become none of them.
    """

    count: int
    returned: int
    ends: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False


@dataclass(frozen=True)
class Sampling:
    """Draws tokens, as transformers' `do_sample` does.

    Attributes:
        generator: Gives the random numbers.
        temperature: Below 1 sharpens the probabilities.
        top_k: Draw from so many likeliest tokens; 0 = from all.
        top_p: Draw from the likeliest tokens whose probabilities reach this sum.
    """

    generator: np.random.Generator
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Draws a token for each row of scores [S, V]."""
        scores = scores / self.temperature
        if 0 < self.top_k < scores.shape[1]:
            least = np.partition(scores, -self.top_k)[:, -self.top_k, None]
            scores[scores < least] = -math.inf
        probabilities = np.exp(scores - scores.max(axis=1, keepdims=True)).astype(np.float64)
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        if self.top_p < 1.0:
            order = probabilities.argsort(axis=1)
            sums = _take(probabilities, order).cumsum(axis=1)
            is_left_out = sums <= 1 - self.top_p
            is_left_out[:, -1] = False
            rows, places = is_left_out.nonzero()
            probabilities[rows, order[rows, places]] = 0.0
        sums = probabilities.cumsum(axis=1)
        drawn = self.generator.random((len(sums), 1)) * sums[:, -1:]
        return (sums <= drawn).sum(axis=1)


def greedy(scores: np.ndarray) -> np.ndarray:
    """Returns the likeliest token for each row of scores [S, V]."""
    return scores.argmax(axis=1)


def token_by_token(
    decoder: Decoder,
    tokens: np.ndarray,
    *,
    choose: Choose,
    stop: Stop,
    rules: Sequence[Rule] = (),
    with_scores: bool = True,
) -> list[Hypothesis]:
    """Returns one hypothesis for each of the prompts [B, T].

    Args:
        decoder: The model, with B rows.
        tokens: The prompts.
        choose: `greedy` or `Sampling`.
        stop: Tells what has ended.
        rules: Change the logits.
        with_scores: Whether log-probabilities are computed.
    """
    batch, prompt = tokens.shape
    sentences = np.arange(batch)
    values = np.zeros((batch, 0), np.float32)
    hypotheses: dict[int, Hypothesis] = {}
    while len(sentences):
        logits = decoder.step(tokens)
        scores = logits
        if rules:
            scores = logits.copy()
            for rule in rules:
                rule(tokens, scores, sentences)
        chosen = choose(scores)
        chosen_values = np.zeros(len(sentences), np.float32)
        if with_scores:
            chosen_values = logits[np.arange(len(chosen)), chosen] - _log_sums(logits)
        tokens = np.column_stack([tokens, chosen])
        values = np.column_stack([values, chosen_values])
        is_done = stop(tokens[:, None], sentences)[:, 0]
        if not is_done.any():
            continue
        for row in is_done.nonzero()[0]:
            hypotheses[sentences[row]] = Hypothesis(tokens[row, prompt:], values[row])
        left = (~is_done).nonzero()[0]
        sentences = sentences[left]
        tokens = tokens[left]
        values = values[left]
        if len(left):
            decoder.keep(left, left)
    return [hypotheses[sentence] for sentence in range(batch)]


@dataclass
class _Ended:
    """The best K hypotheses of every sentence that have ended.

    Attributes:
        tokens: [S, K, T].
        values: Log-probabilities of the tokens [S, K, T - prompt].
        scores: [S, K], divided by the length penalty; `_LOW` where there is none.
        lengths: [S, K], tokens after the prompt.
    """

    tokens: np.ndarray
    values: np.ndarray
    scores: np.ndarray
    lengths: np.ndarray

    def add(self, tokens: np.ndarray, values: np.ndarray, scores: np.ndarray, length: int) -> None:
        """Takes in candidates [S, C, T] that are at least as long."""
        beams = self.scores.shape[1]
        all_scores = np.concatenate([self.scores, scores], axis=1)
        best = _in_order(all_scores, beams)
        self.scores = _take(all_scores, best)
        more = [(0, 0), (0, 0), (0, tokens.shape[2] - self.tokens.shape[2])]
        self.tokens = _take(np.concatenate([np.pad(self.tokens, more), tokens], axis=1), best)
        self.values = _take(np.concatenate([np.pad(self.values, more), values], axis=1), best)
        lengths = np.concatenate([self.lengths, np.full(scores.shape, length)], axis=1)
        self.lengths = _take(lengths, best)

    def select(self, rows: np.ndarray) -> _Ended:
        """Those of some sentences."""
        return _Ended(self.tokens[rows], self.values[rows], self.scores[rows], self.lengths[rows])


def beam_search(
    decoder: Decoder,
    tokens: np.ndarray,
    *,
    beams: Beams,
    limits: np.ndarray,
    stop: Stop,
    rules: Sequence[Rule] = (),
) -> list[list[Hypothesis]]:
    """Returns the best hypotheses for each of the prompts [B, T].

    Args:
        decoder: The model, with K rows for each prompt.
        tokens: The prompts.
        beams: The settings.
        limits: The most tokens [B] of a hypothesis, its prompt included; `stop` must know them.
        stop: Tells what has ended.
        rules: Change the log-probabilities.
    """
    batch, prompt = tokens.shape
    count = beams.count
    kept = count * max(2, 1 + beams.ends)
    is_best = np.arange(kept) < count
    tokens = np.repeat(tokens[:, None], count, axis=1)
    values = np.zeros((batch, count, 0), np.float32)
    # At first all beams of a sentence are alike: only one may go on
    scores = np.full((batch, count), _LOW, np.float32)
    scores[:, 0] = 0.0
    ended = _Ended(
        tokens=tokens,
        values=values,
        scores=np.full_like(scores, _LOW),
        lengths=np.zeros(scores.shape, np.int64),
    )
    sentences = np.arange(batch)
    hypotheses: dict[int, list[Hypothesis]] = {}
    while len(sentences):
        # The best continuations of all beams
        rows = tokens.reshape(-1, tokens.shape[2])
        logits = decoder.step(rows)
        log_sums = _log_sums(logits)
        offsets = scores.reshape(-1, 1)
        if rules:
            steps = logits - log_sums[:, None]
            for rule in rules:
                rule(rows, steps, np.repeat(sentences, count))
        else:  # the same, subtracted from the best alone
            steps = logits
            offsets = offsets - log_sums[:, None]
        best_places = _best_places(steps, kept)
        totals = _take(steps, best_places) + offsets
        totals = totals.reshape(len(sentences), -1)
        best_candidates = _in_order(totals, kept)
        best = _take(totals, best_candidates)
        origins = best_candidates // best_places.shape[1]
        chosen = _take(best_places.reshape(totals.shape), best_candidates)
        first_rows = np.arange(len(sentences))[:, None] * count
        origin_rows = first_rows + origins
        chosen_values = logits[origin_rows, chosen] - log_sums[origin_rows]
        candidates = np.concatenate([_take(tokens, origins), chosen[..., None]], axis=2)
        candidate_values = np.concatenate(
            [_take(values, origins), chosen_values[..., None]], axis=2
        )
        length = candidates.shape[2] - prompt
        stops = stop(candidates, sentences)
        # Those that go on, and those that have ended
        continued = best + np.where(stops, np.float32(_LOW), np.float32(0.0))
        onward = _in_order(continued, count)
        scores = _take(continued, onward)
        tokens = _take(candidates, onward)
        values = _take(candidate_values, onward)
        is_final = stops & is_best
        if is_final.any():
            normalised = best / np.float32(length**beams.length_penalty)
            normalised[~is_final] += np.float32(_LOW)
            ended.add(candidates, candidate_values, normalised, length)
        is_done = stops.all(axis=1) | _is_done(
            scores, ended.scores, beams, length=length, limits=limits[sentences] - prompt
        )
        rows_onward = _take(origin_rows, onward)
        if not is_done.any():
            decoder.keep(rows_onward.reshape(-1), None)
            continue
        done = ended.select(is_done)
        for row, sentence in enumerate(sentences[is_done]):
            hypotheses[sentence] = [
                Hypothesis(
                    done.tokens[row, rank, prompt : prompt + done.lengths[row, rank]],
                    done.values[row, rank, : done.lengths[row, rank]],
                )
                for rank in range(beams.returned)
            ]
        left = (~is_done).nonzero()[0]
        sentences = sentences[left]
        tokens = tokens[left]
        values = values[left]
        scores = scores[left]
        ended = ended.select(left)
        if len(left):
            decoder.keep(rows_onward[left].reshape(-1), left)
    return [hypotheses[sentence] for sentence in range(batch)]


def _is_done(
    scores: np.ndarray, ended: np.ndarray, beams: Beams, *, length: int, limits: np.ndarray
) -> np.ndarray:
    """Of which sentences [S] no open beam can still be among the best; see `Beams`."""
    if beams.early_stopping is True:
        return ended.min(axis=1) > _LOW / 2
    reached = np.full_like(limits, length)
    if beams.early_stopping == "never" and beams.length_penalty > 0:
        reached = limits
    best_possible = scores[:, 0] / reached**beams.length_penalty
    return best_possible <= ended.min(axis=1)


def _in_order(scores: np.ndarray, count: int) -> np.ndarray:
    """Places [S, count] of the best of scores [S, N], the best first."""
    return (-scores).argsort(axis=1, kind="stable")[:, :count]


def _take(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Rows [S, N, ...] at `places` [S, M] -> [S, M, ...]."""
    return rows[np.arange(len(rows))[:, None], places]


def _log_sums(logits: np.ndarray) -> np.ndarray:
    """Logarithms [R] of the sums of the exponentials of logits [R, V]."""
    sums = np.empty(len(logits), np.float32)
    count = max(1, _CACHED // logits.shape[1])
    for start in range(0, len(logits), count):
        rows = slice(start, start + count)
        largest = logits[rows].max(axis=1)
        exponentials = logits[rows] - largest[:, None]
        np.exp(exponentials, out=exponentials)
        sums[rows] = largest + np.log(exponentials.sum(axis=1))
    return sums


def _best_places(scores: np.ndarray, count: int) -> np.ndarray:
    """Places [R, count] of the best of scores [R, V], in any order; all places, where V is less."""
    rows, size = scores.shape
    if size < 64 * count:
        return _best_of_few(scores, min(count, size))
    # They stand in the columns with the largest maxima
    height = math.isqrt(size // count)
    width = size // height
    whole = height * width
    maxima = scores[:, :whole].reshape(rows, height, width).max(axis=1)
    remainder = maxima[:, : size - whole]
    np.maximum(remainder, scores[:, whole:], out=remainder)
    columns = _best_of_few(maxima, count)
    places = (columns[:, :, None] + width * np.arange(height + 1)).reshape(rows, -1)
    is_beyond = places >= size
    places[is_beyond] = 0
    candidates = _take(scores, places)
    candidates[is_beyond] = -math.inf
    return _take(places, _best_of_few(candidates, count))


def _best_of_few(scores: np.ndarray, count: int) -> np.ndarray:
    return scores.argpartition(-count, axis=1)[:, -count:]
