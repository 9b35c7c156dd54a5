# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Alignment error rate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from csan_hf.evaluation.alignment_files import parse_links
from csan_hf.evaluation.metrics import corpus_metric


class AlignmentErrorRate(corpus_metric.CorpusMetric):
    """AER (Och and Ney, 2003) = 100 · (1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|)), counted over all sentences.

    A are the links found, S the sure links of the gold alignment and P the possible ones, of which the sure ones are
    part. A prediction is "0-0 1-2"; a reference, too, or with possible links "0-0 1p2" (`parse_links`).
    """

    name = "aer"
    label = "AER"
    summary = "Links that are missing or too many, beside a gold alignment."
    citation = "Och and Ney (2003), A Systematic Comparison of Various Statistical Alignment Models"
    greater_is_better = False
    needs = "alignments"

    def statistics(
        self, predictions: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> np.ndarray:
        """Returns |A ∩ S|, |A ∩ P|, |A|, |S| and |P| of each sentence."""
        rows = []
        for number, (found, gold) in enumerate(zip(predictions, references, strict=True), 1):
            links, truth = parse_links(found, line=number), parse_links(gold, line=number)
            hits = len(links.sure & truth.sure), len(links.sure & truth.possible)
            rows.append((*hits, len(links.sure), len(truth.sure), len(truth.possible)))
        return np.array(rows, dtype=np.float64)

    def score(self, sums: np.ndarray) -> float:
        """Returns the rate; 0 where there is neither a link found nor a sure one."""
        sure_hits, possible_hits, found, sure, _ = sums
        return float(100 * (1 - (sure_hits + possible_hits) / (found + sure))) if found + sure else 0.0

    def details(self, sums: np.ndarray) -> dict[str, float]:
        """Returns precision |A ∩ P| / |A| and recall |A ∩ S| / |S|, from 0 to 100."""
        sure_hits, possible_hits, found, sure, _ = sums
        return {
            "alignment_precision": float(100 * possible_hits / found) if found else 0.0,
            "alignment_recall": float(100 * sure_hits / sure) if sure else 0.0,
        }
