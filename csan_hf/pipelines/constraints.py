# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Beam search with phrases that a translation must hold: dynamic beam allocation (Post & Vilar,
NAACL 2018).

The hypotheses of a sentence with C tokens of phrases are in banks 0 to C, by how many of these they
hold, and the beams are divided among the banks. Shapes are those of `search`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

LOW = -1.0e9
"""The score of a hypothesis that is not to be chosen."""

Phrases: TypeAlias = Sequence[Sequence[int]]
"""The tokens of each phrase of a sentence."""


class Progress(NamedTuple):
    """What a hypothesis holds of the phrases of its sentence.

    Attributes:
        phrases: The phrases.
        lengths: Tokens of each phrase: all of them, if the hypothesis holds it, or else those that
            it ends with.
        met: Tokens of whole phrases, and of the one that the hypothesis has most of.
    """

    phrases: Phrases
    lengths: Sequence[int]
    met: int = 0

    def after(self, token: int) -> Progress:
        """The progress with one more token."""
        lengths = []
        whole = 0
        begun = 0
        for phrase, length in zip(self.phrases, self.lengths, strict=True):
            if length < len(phrase):
                ending = [*phrase[:length], token]
                while ending != list(phrase[: len(ending)]):
                    del ending[0]
                length = len(ending)
            lengths.append(length)
            if length == len(phrase):
                whole += length
            else:
                begun = max(begun, length)
        return Progress(self.phrases, lengths, whole + begun)

    @property
    def total(self) -> int:
        """Tokens of all phrases."""
        return sum(map(len, self.phrases))


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
    """

    def __init__(self, phrases: Sequence[Phrases], beams: int, ends: Sequence[int]) -> None:
        self._beams = beams
        self._ends = list(ends)
        self._of_beams = [
            [Progress(of_sentence, [0] * len(of_sentence))] * beams for of_sentence in phrases
        ]
        self._of_candidates: list[list[Progress]] = []

    def candidates(self, total: Tensor, kept: int) -> tuple[Tensor, Tensor, Tensor]:
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
        flat = total.flatten(1)
        proposals = self._proposals(total, kept)
        width = max(map(len, proposals))
        padded = [row + [-1] * (width - len(row)) for row in proposals]
        places = torch.tensor(padded, device=total.device)
        scores = flat.gather(1, places.clamp(min=0)).masked_fill(places < 0, -torch.inf)
        scores, order = scores.sort(dim=1, descending=True, stable=True)
        places = places.clamp(min=0).gather(1, order)
        return scores, places, self._follow(places, total.shape[-1])

    def _forbid_ends(self, total: Tensor) -> None:
        """Takes its ends from each beam that lacks tokens."""
        lacks = []
        for beams in self._of_beams:
            needed = beams[0].total
            lacks.append([progress.met < needed for progress in beams])
        is_open = torch.tensor(lacks, device=total.device)
        ends = total[..., self._ends].masked_fill(is_open[..., None], -torch.inf)
        total[..., self._ends] = ends

    def _proposals(self, total: Tensor, kept: int) -> list[list[int]]:
        """The places of the candidates of each sentence, each once."""
        vocabulary = total.shape[-1]
        first_places = torch.arange(self._beams, device=total.device) * vocabulary
        best_of_beams = total.argmax(-1) + first_places
        best_of_all = total.flatten(1).topk(kept).indices
        proposals = torch.cat([best_of_all, best_of_beams], dim=1).tolist()
        for row, beams in zip(proposals, self._of_beams, strict=True):
            for beam, progress in enumerate(beams):
                for phrase, length in zip(progress.phrases, progress.lengths, strict=True):
                    if length < len(phrase):
                        row.append(beam * vocabulary + phrase[length])
        return [list(dict.fromkeys(row)) for row in proposals]

    def _follow(self, places: Tensor, vocabulary: int) -> Tensor:
        """Keeps the progress of candidates; returns how many tokens they lack [S, C]."""
        self._of_candidates = []
        missing = []
        for beams, row in zip(self._of_beams, places.tolist(), strict=True):
            candidates = []
            missing_tokens = []
            needed = beams[0].total
            for place in row:
                beam, token = divmod(place, vocabulary)
                progress = beams[beam].after(token)
                candidates.append(progress)
                has_no_end = needed > 0 and token not in self._ends
                missing_tokens.append(needed - progress.met + has_no_end)
            self._of_candidates.append(candidates)
            missing.append(missing_tokens)
        return torch.tensor(missing, device=places.device)

    def choose(self, scores: Tensor) -> tuple[Tensor, Tensor]:
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
        onward = torch.tensor(chosen, device=scores.device)
        is_filled = onward < 0
        onward = onward.clamp(min=0)
        self._of_beams = [
            [candidates[number] for number in row]
            for candidates, row in zip(self._of_candidates, onward.tolist(), strict=True)
        ]
        return scores.gather(1, onward).masked_fill(is_filled, LOW), onward

    def select(self, rows: Tensor) -> None:
        """Goes on with some sentences."""
        self._of_beams = [self._of_beams[row] for row in rows.tolist()]
