# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Edits per 100 units of the reference, which word and phone error rate are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import rapidfuzz
from rapidfuzz.distance import Levenshtein

from csan_hf.evaluation.metrics import corpus_metric


class ErrorRate(corpus_metric.CorpusMetric):
    """Insertions, deletions and replacements of units, at their fewest, per 100 units of the references.

    Units are what white space separates. The rate exceeds 100 where hypotheses are much too long. A segment without
    any reference unit counts its insertions; if no segment has one, the rate is 0 without insertions, else 100.
    """

    greater_is_better = False
    upper_bound = None
    citation = "Levenshtein (1966), Binary codes capable of correcting deletions, insertions and reversals"

    def statistics(
        self, predictions: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> np.ndarray:
        """Returns edits and reference units of each segment."""
        pairs = ((ours.split(), theirs.split()) for ours, theirs in zip(predictions, references, strict=True))
        return np.array([(Levenshtein.distance(ours, theirs), len(theirs)) for ours, theirs in pairs], np.float64)

    def score(self, sums: np.ndarray) -> float:
        """Returns edits per 100 reference units."""
        edits, units = sums
        return float(100 * edits / units if units else 100 * (edits > 0))

    @property
    def signature(self) -> str:
        """The unit that is counted, and the library that counts."""
        return f"nrefs:1|case:mixed|tok:none|rapidfuzz:{rapidfuzz.__version__}"
