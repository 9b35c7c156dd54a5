# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Share of segments that equal their reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from csan_hf.evaluation.metrics import corpus_metric


class ExactMatch(corpus_metric.CorpusMetric):
    """Percentage of segments that equal their reference, white space at either end aside.

    Where a segment is one word, as in grapheme-to-phoneme conversion, 100 minus this is what the tables of SIGMORPHON
    call the word error rate.
    """

    name = "exact_match"
    label = "exact match"
    summary = "Percentage of segments that equal their reference."
    on_hub = True

    def statistics(
        self, predictions: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> np.ndarray:
        """Returns for each segment whether it matches, and 1."""
        pairs = zip(predictions, references, strict=True)
        return np.array([(float(ours.strip() == theirs.strip()), 1.0) for ours, theirs in pairs])

    def score(self, sums: np.ndarray) -> float:
        """Returns matches per 100 segments."""
        return float(100 * sums[0] / sums[1])
