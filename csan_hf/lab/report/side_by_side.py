# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Long texts piece by piece: source, reference and translations beside each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from csan_hf.evaluation.metrics import load_metric
from csan_hf.evaluation.pieces import Pair, cut_like

from .systems import System

LOW_CHRF = 20
"""Pieces that score less are marked: so do 94 of 100 paragraphs of a manual beside a random one."""


@dataclass(frozen=True)
class PieceRow:
    """A piece, and of each system its translation with the chrF."""

    source: str
    reference: str
    translations: list[tuple[str, float]]


def compare_pieces(
    systems: Sequence[System], pieces: Sequence[list[Pair]], scores: np.ndarray
) -> dict[int, list[PieceRow]]:
    """Returns the pieces of the texts with the lowest, the median and the highest of the scores, by
    the text's place.
    """
    order = np.argsort(scores, kind="stable").tolist()
    chrf = load_metric("chrf")
    rows_of_texts = {}
    for place in (order[0], order[len(order) // 2], order[-1]):
        references = [reference for _, reference in pieces[place]]
        columns = []
        for system in systems:
            translation = next(islice(system.runs[0], place, None))
            cut = cut_like(translation, references)
            counts = chrf.segment_counts(cut, references)
            columns.append(list(zip(cut, map(chrf.segment_score, counts), strict=True)))
        rows_of_texts[place] = [
            PieceRow(source, reference, list(cells))
            for (source, reference), *cells in zip(pieces[place], *columns, strict=True)
        ]
    return rows_of_texts
