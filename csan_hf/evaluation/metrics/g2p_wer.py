# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Word error rate of grapheme-to-phoneme conversion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from csan_hf.evaluation.metrics import corpus_metric


class GraphemeToPhonemeWordErrorRate(corpus_metric.CorpusMetric):
    """Words whose phones are not exactly the reference's, per 100 words: the score of SIGMORPHON's shared tasks.

    A segment is the pronunciation of a word, its phones with white space between them. `wer` counts edits of what
    white space separates instead, which are phones here.
    """

    name = "g2p_wer"
    label = "G2P WER"
    summary = "Percentage of words whose phones are not exactly the reference's."
    citation = "Ashby et al. (2021), Results of the Second SIGMORPHON Shared Task on Grapheme-to-Phoneme Conversion"
    greater_is_better = False
    needs = "tokens"

    def statistics(
        self, predictions: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> np.ndarray:
        """Returns for each segment whether it is wrong, and 1."""
        pairs = zip(predictions, references, strict=True)
        return np.array([(float(ours.split() != theirs.split()), 1.0) for ours, theirs in pairs])

    def score(self, sums: np.ndarray) -> float:
        """Returns wrong words per 100 words."""
        return float(100 * sums[0] / sums[1])
