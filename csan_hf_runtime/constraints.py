# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Beam search with phrases that a translation must hold: dynamic beam allocation (Post & Vilar,
NAACL 2018).

The hypotheses of a sentence with C tokens of phrases are in banks 0 to C, by how many of these they
hold, and the beams are divided among the banks. Shapes are those of `search`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple, TypeAlias

import numpy as np

from .search import LOW, best_places, in_order, take

Phrases: TypeAlias = Sequence[Sequence[int]]
"""The tokens of each phrase of a sentence."""


@dataclass(frozen=True)
class Endings:
    """How far a word may go on behind a phrase.

    Attributes:
        letters: Of tokens that continue a word, how many letters they add to it.
        most: For each phrase of each sentence the most letters that may follow it in its word;
            None = any number.
    """

    letters: Mapping[int, int]
    most: Sequence[Sequence[int | None]]


class PhraseState(NamedTuple):
    """The part of a phrase that a hypothesis holds.

    Attributes:
        tokens: The phrase.
        most_letters: See `Endings`.
        length: Tokens of the phrase that the hypothesis ends with, while it does not hold it.
        age: Tokens behind the phrase; None = the hypothesis does not hold it.
        room: Letters that may still follow in the phrase's word; None = any number.
    """

    tokens: Sequence[int]
    most_letters: int | None = None
    length: int = 0
    age: int | None = None
    room: int | None = None

    def after(self, token: int, letters: int) -> PhraseState:
        """The state with one more token, which adds so many letters to the word before it."""
        if self.age is None:
            if not self.length and token != self.tokens[0]:
                return self
            return self._ending_with([*self.tokens[: self.length], token])
        room = None
        if self.room is not None and letters:
            room = self.room - letters
            if room < 0:
                return self.lost()
        return self._replace(age=self.age + 1, room=room)

    def _ending_with(self, tokens: list[int]) -> PhraseState:
        while tokens != list(self.tokens[: len(tokens)]):
            del tokens[0]
        return self._replace(length=len(tokens))

    @property
    def is_complete(self) -> bool:
        """Whether the hypothesis ends with the phrase."""
        return self.age is None and self.length == len(self.tokens)

    def held(self) -> PhraseState:
        """The phrase at the end of the hypothesis is what the hypothesis holds of it."""
        return self._replace(length=0, age=0, room=self.most_letters)

    def lost(self) -> PhraseState:
        """The phrase is not there, or what is there is another one's."""
        return self._replace(length=0, age=None, room=None)

    def refused(self) -> PhraseState:
        """The phrase at the end of the hypothesis is partly another one's."""
        return self._ending_with([*self.tokens[1 : self.length]])

    def shared(self, length: int) -> int:
        """How many of the last tokens of the hypothesis are those of the phrase that it holds."""
        if self.age is None:
            return 0
        return max(min(length - self.age, len(self.tokens)), 0)


class Progress:
    """The phrases of its sentence that a hypothesis holds: each of its tokens serves one phrase,
    of two that overlap the longer.

    A phrase that is held stays where it is: of [1, 2] and [2, 1] the tokens 1 2 1 1 2 have met
    three, though 2 1 and the last 1 2 are both there.

    Attributes:
        states: That of each phrase.
        met: Tokens of whole phrases, and of the one that the hypothesis has most of.
        total: Tokens of all phrases.
    """

    def __init__(self, states: Sequence[PhraseState]) -> None:
        self.states = states
        self.total = sum(len(state.tokens) for state in states)
        held = [state for state in states if state.age is not None]
        begun = 0
        for state in states:
            if state.length > begun:
                shared = sum(phrase.shared(state.length) for phrase in held)
                begun = max(begun, state.length - shared)
        self.met = begun + sum(len(state.tokens) for state in held)

    def after(self, token: int, letters: int = 0) -> Progress:
        """The progress with one more token, which adds so many letters to the word before it."""
        states = [state.after(token, letters) for state in self.states]
        complete = [number for number, state in enumerate(states) if state.is_complete]
        complete.sort(key=lambda number: -len(states[number].tokens))
        for number in complete:
            state = states[number]
            length = len(state.tokens)
            overlapping = [place for place, other in enumerate(states) if other.shared(length)]
            if any(len(states[place].tokens) >= length for place in overlapping):
                states[number] = state.refused()
                continue
            for place in overlapping:
                states[place] = states[place].lost()
            states[number] = state.held()
        return Progress(states)


def bank_sizes(beams: int, counts: Sequence[int]) -> list[int]:
    """Divides beams among banks of so many candidates: evenly, the remainder to the last one; what
    a bank cannot fill goes to the one before it, from the first bank to the last one.
    """
    sizes = [beams // len(counts)] * len(counts)
    sizes[-1] += beams % len(counts)
    for bank in 2 * [*reversed(range(len(counts)))]:
        surplus = max(sizes[bank] - counts[bank], 0)
        sizes[bank] -= surplus
        sizes[bank - 1] += surplus
    return sizes


class Constraints:
    """The progress of the hypotheses of S sentences towards the phrases that they must hold.

    Args:
        phrases: The phrases of each sentence.
        beams: K.
        ends: Tokens that end a hypothesis.
        endings: What may follow a phrase in its word; None = anything.
    """

    def __init__(
        self,
        phrases: Sequence[Phrases],
        beams: int,
        ends: Sequence[int],
        endings: Endings | None = None,
    ) -> None:
        self._beams = beams
        self._ends = list(ends)
        self._letters: Mapping[int, int] = {} if endings is None else endings.letters
        self._of_beams = []
        for number, of_sentence in enumerate(phrases):
            most = repeat(None) if endings is None else endings.most[number]
            start = Progress(list(map(PhraseState, of_sentence, most)))
            self._of_beams.append([start] * beams)
        self._of_candidates: list[list[Progress]] = []

    def candidates(self, total: np.ndarray, kept: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Candidates of the next step: the best `kept`, the best of each beam, and those that begin
        or continue a phrase. Only beams that hold all phrases may end.

        Args:
            total: Scores [S, K, V] of all continuations; those of ends that are too early are lost.
            kept: How many of the best are taken.

        Returns:
            Scores [S, C], the best first, their places [S, C] among the K · V of a sentence, and
            how many tokens of phrases, and of an end after phrases, they lack [S, C].
        """
        self._forbid_ends(total)
        proposals = self._proposals(total, kept)
        width = max(map(len, proposals))
        padded = [row + [-1] * (width - len(row)) for row in proposals]
        places = np.array(padded)
        scores = take(total.reshape(len(total), -1), places)
        scores[places < 0] = -np.inf
        order = in_order(scores, width)
        places = take(places, order).clip(min=0)
        return take(scores, order), places, self._follow(places, total.shape[-1])

    def _forbid_ends(self, total: np.ndarray) -> None:
        """Takes its ends from each beam that lacks tokens."""
        for row, beams in enumerate(self._of_beams):
            for beam, progress in enumerate(beams):
                if progress.met < progress.total:
                    total[row, beam, self._ends] = -np.inf

    def _proposals(self, total: np.ndarray, kept: int) -> list[list[int]]:
        """The places of the candidates of each sentence, each once."""
        vocabulary = total.shape[-1]
        best_of_beams = total.argmax(axis=2) + np.arange(self._beams) * vocabulary
        best_of_all = best_places(total.reshape(len(total), -1), kept)
        proposals = np.concatenate([best_of_all, best_of_beams], axis=1).tolist()
        for row, beams in zip(proposals, self._of_beams, strict=True):
            for beam, progress in enumerate(beams):
                for state in progress.states:
                    if state.age is None:
                        row.append(beam * vocabulary + state.tokens[state.length])
        return [list(dict.fromkeys(row)) for row in proposals]

    def _follow(self, places: np.ndarray, vocabulary: int) -> np.ndarray:
        """Keeps the progress of candidates; returns how many tokens they lack [S, C]."""
        self._of_candidates = []
        missing = []
        for beams, row in zip(self._of_beams, places.tolist(), strict=True):
            candidates = []
            missing_tokens = []
            needed = beams[0].total
            for place in row:
                beam, token = divmod(place, vocabulary)
                progress = beams[beam].after(token, self._letters.get(token, 0))
                candidates.append(progress)
                has_no_end = needed > 0 and token not in self._ends
                missing_tokens.append(needed - progress.met + has_no_end)
            self._of_candidates.append(candidates)
            missing.append(missing_tokens)
        return np.array(missing)

    def choose(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which candidates go on: of each bank its best, in the order of all.

        Args:
            scores: Those [S, C] of the candidates, `LOW` and less for those that cannot go on.

        Returns:
            Scores and numbers [S, K] of those that do; scores are `LOW` where there are fewer.
        """
        chosen = []
        for candidates, row in zip(self._of_candidates, scores.tolist(), strict=True):
            banks = [progress.met for progress in candidates]
            going_on = [number for number, score in enumerate(row) if score > LOW / 2]
            counts = [0] * (1 + candidates[0].total)
            for number in going_on:
                counts[banks[number]] += 1
            sizes = bank_sizes(self._beams, counts)
            numbers = []
            for number in going_on:
                if sizes[banks[number]] > 0:
                    sizes[banks[number]] -= 1
                    numbers.append(number)
            chosen.append(numbers + [-1] * (self._beams - len(numbers)))
        onward = np.array(chosen)
        chosen_scores = take(scores, onward)
        chosen_scores[onward < 0] = LOW
        onward = onward.clip(min=0)
        self._of_beams = []
        for candidates, row in zip(self._of_candidates, onward.tolist(), strict=True):
            self._of_beams.append([candidates[number] for number in row])
        return chosen_scores, onward

    def select(self, rows: np.ndarray) -> None:
        """Goes on with some sentences."""
        self._of_beams = [self._of_beams[row] for row in rows.tolist()]
