# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Greedy search, beam search and sampling in numpy, which compute nothing for sentences that are
done.

Tokens are those of transformers' `generate`, whose rules these follow. Shapes: S sentences that are
not done, of B; K beams of each; R = S · K rows; C candidates of a sentence; V vocabulary; T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from .constraints import Constraints

Rule = Callable[[np.ndarray, np.ndarray, np.ndarray], None]
"""Changes, in place, the scores [R, V] of what follows tokens [R, T]; the third argument is the
number [R] of each row's sentence."""

Stop = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Tells which [S, C] of the hypotheses [S, C, T] of sentences [S] have ended."""

Choose = Callable[[np.ndarray], np.ndarray]
"""Chooses a token [S] for each row of scores [S, V]."""

LOW = -1.0e9
"""The score of a hypothesis that is not to be chosen."""
_MISSING = 1.0e4  # taken off the score of a hypothesis that had to end, for each token it lacks
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
        end_count: Number of the tokens that end a sentence.
        length_penalty: A score is divided by the number of tokens to this power.
        early_stopping: True: done with K hypotheses; False: when the best open one, were it to end
            now, is none of the best K; "never": when it can become none of them.
    """

    count: int
    returned: int
    end_count: int
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
            sums = take(probabilities, order).cumsum(axis=1)
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
            chosen_values = logits[np.arange(len(chosen)), chosen] - log_sums(logits)
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
class _Hypotheses:
    """N hypotheses of each sentence.

    Attributes:
        tokens: [S, N, T].
        values: Log-probabilities of the tokens [S, N, T - prompt].
        scores: [S, N], sums of what the rules make of these; `LOW` where there is none.
    """

    tokens: np.ndarray
    values: np.ndarray
    scores: np.ndarray

    def take(self, places: np.ndarray) -> _Hypotheses:
        """Those at `places` [S, M]."""
        return _Hypotheses(
            tokens=take(self.tokens, places),
            values=take(self.values, places),
            scores=take(self.scores, places),
        )


def beam_search(
    decoder: Decoder,
    tokens: np.ndarray,
    *,
    beams: Beams,
    limits: np.ndarray,
    stop: Stop,
    rules: Sequence[Rule] = (),
    constraints: Constraints | None = None,
) -> list[list[Hypothesis]]:
    """Returns the best hypotheses for each of the prompts [B, T].

    Args:
        decoder: The model, with K rows for each prompt.
        tokens: The prompts.
        beams: The settings.
        limits: The most tokens [B] of a hypothesis, its prompt included; `stop` must know them.
        stop: Tells what has ended.
        rules: Change the log-probabilities.
        constraints: Phrases that the hypotheses must hold. One that lacks some of them, or its end,
            at its greatest length is returned only where no hypothesis has all.
    """
    batch, prompt = tokens.shape
    count = beams.count
    kept = count * max(2, 1 + beams.end_count)
    # At first all beams of a sentence are alike: only one may go on
    first_scores = np.full((batch, count), LOW, np.float32)
    first_scores[:, 0] = 0.0
    opened = _Hypotheses(
        tokens=np.repeat(tokens[:, None], count, axis=1),
        values=np.zeros((batch, count, 0), np.float32),
        scores=first_scores,
    )
    # The best K of each sentence with their scores, divided by the length penalty, the best first
    nothing = Hypothesis(np.zeros(0, np.int64), np.zeros(0, np.float32))
    ended: list[list[tuple[float, Hypothesis]]] = [
        [(-math.inf, nothing)] * count for _ in range(batch)
    ]
    sentences = np.arange(batch)
    while len(sentences):
        step = _continuations(decoder, opened, kept, rules, sentences, constraints)
        candidates = step.hypotheses
        length = candidates.tokens.shape[2] - prompt
        stops = stop(candidates.tokens, sentences)
        # Scores of the hypotheses that go on
        continued = candidates.scores + stops * np.float32(LOW)
        if constraints is None:
            onward = in_order(continued, count)
            scores = take(continued, onward)
        else:
            scores, onward = constraints.choose(continued)
        opened = replace(candidates.take(onward), scores=scores)
        rows = take(step.rows, onward)
        final = candidates.scores / np.float32(length**beams.length_penalty)
        final = final - step.missing * np.float32(_MISSING)
        # None that lacks phrases takes the place, among the best K, of one that has all
        ranks = (step.missing <= 1).cumsum(axis=1)
        for row, place in np.argwhere(stops & (ranks <= count)):
            ids = candidates.tokens[row, place, prompt:].copy()
            hypothesis = Hypothesis(ids, candidates.values[row, place].copy())
            best = ended[sentences[row]]
            best.append((final[row, place], hypothesis))
            best.sort(key=itemgetter(0), reverse=True)
            del best[count:]
        is_done = stops.all(axis=1) | _is_done(
            opened.scores,
            np.array([ended[sentence][-1][0] for sentence in sentences]),
            beams,
            length=length,
            limits=limits[sentences] - prompt,
        )
        if not is_done.any():
            decoder.keep(rows.reshape(-1), None)
            continue
        left = (~is_done).nonzero()[0]
        sentences = sentences[left]
        opened = _Hypotheses(
            tokens=opened.tokens[left], values=opened.values[left], scores=opened.scores[left]
        )
        if constraints is not None:
            constraints.select(left)
        if len(left):
            decoder.keep(rows[left].reshape(-1), left)
    results = []
    for best in ended:
        results.append([hypothesis for _, hypothesis in best[: beams.returned]])
    return results


class _Continuations(NamedTuple):
    """The candidates of a step.

    Attributes:
        hypotheses: C of each sentence, the best first.
        rows: The rows [S, C] that they continue.
        missing: Tokens [S, C] that they lack of phrases, and of an end after phrases.
    """

    hypotheses: _Hypotheses
    rows: np.ndarray
    missing: np.ndarray


def _continuations(
    decoder: Decoder,
    opened: _Hypotheses,
    count: int,
    rules: Sequence[Rule],
    sentences: np.ndarray,
    constraints: Constraints | None,
) -> _Continuations:
    """Continues each sentence's beams by a token."""
    beams = opened.scores.shape[1]
    tokens = opened.tokens.reshape(-1, opened.tokens.shape[2])
    logits = decoder.step(tokens)
    sums = log_sums(logits)
    offsets = opened.scores.reshape(-1, 1)
    if rules or constraints is not None:
        steps = logits - sums[:, None]
        for rule in rules:
            rule(tokens, steps, sentences.repeat(beams))
    else:  # the same, subtracted from the best alone
        steps = logits
        offsets = offsets - sums[:, None]
    if constraints is None:
        best_of_rows = best_places(steps, count)
        totals = (take(steps, best_of_rows) + offsets).reshape(len(sentences), -1)
        best = in_order(totals, count)
        scores = take(totals, best)
        chosen = take(best_of_rows.reshape(totals.shape), best)
        origins = best // best_of_rows.shape[1]
        missing = np.zeros_like(best)
    else:
        totals = (steps + offsets).reshape(len(sentences), beams, -1)
        scores, best, missing = constraints.candidates(totals, count)
        origins, chosen = np.divmod(best, logits.shape[1])
    rows = np.arange(len(sentences))[:, None] * beams + origins
    values = logits[rows, chosen] - sums[rows]
    continued = opened.take(origins)
    hypotheses = _Hypotheses(
        tokens=np.concatenate([continued.tokens, chosen[..., None]], axis=2),
        values=np.concatenate([continued.values, values[..., None]], axis=2),
        scores=scores,
    )
    return _Continuations(hypotheses, rows, missing)


def _is_done(
    scores: np.ndarray, least: np.ndarray, beams: Beams, *, length: int, limits: np.ndarray
) -> np.ndarray:
    """Whether each sentence [S] is done: no open beam can still be among the best that have ended,
    whose least score is `least` [S]; see `Beams`.
    """
    if beams.early_stopping is True:
        return least > LOW / 2
    reached = np.full_like(limits, length)
    if beams.early_stopping == "never" and beams.length_penalty > 0:
        reached = limits
    best_possible = scores[:, 0] / reached**beams.length_penalty
    return best_possible <= least


def in_order(scores: np.ndarray, count: int) -> np.ndarray:
    """Places [S, count] of the best of scores [S, N], the best first."""
    return (-scores).argsort(axis=1, kind="stable")[:, :count]


def take(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Rows [S, N, ...] at `places` [S, M] -> [S, M, ...]."""
    return rows[np.arange(len(rows))[:, None], places]


def log_sums(logits: np.ndarray) -> np.ndarray:
    """Returns the logarithms [R] of the sums of the exponentials of logits [R, V]."""
    sums = np.empty(len(logits), np.float32)
    count = max(1, _CACHED // logits.shape[1])
    for start in range(0, len(logits), count):
        rows = slice(start, start + count)
        largest = logits[rows].max(axis=1)
        exponentials = logits[rows] - largest[:, None]
        np.exp(exponentials, out=exponentials)
        sums[rows] = largest + np.log(exponentials.sum(axis=1))
    return sums


def best_places(scores: np.ndarray, count: int) -> np.ndarray:
    """Places [R, count] of the best of scores [R, V], in any order; all places, where V is less."""
    rows, size = scores.shape
    if size < 64 * count:
        return _best_of_few(scores, min(count, size))
    # The best stand in the columns with the largest maxima
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
    candidates = take(scores, places)
    candidates[is_beyond] = -math.inf
    best = _best_of_few(candidates, count)
    if take(is_beyond, best).any():  # fewer scores than that are finite
        return _best_of_few(scores, count)
    return take(places, best)


def _best_of_few(scores: np.ndarray, count: int) -> np.ndarray:
    return scores.argpartition(-count, axis=1)[:, -count:]
