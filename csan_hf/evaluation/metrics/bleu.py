# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""BLEU by sacreBLEU, on text as people write it."""

from __future__ import annotations

from typing import Any

import numpy as np
import sacrebleu.metrics

from csan_hf.evaluation.metrics import corpus_metric, sacrebleu_tokenizers


class Bleu(corpus_metric.SacrebleuMetric):
    """BLEU (Papineni et al., 2002) on detokenised text, as sacreBLEU's command line computes it.

    Args:
        tokenize: sacreBLEU's tokenizer: `13a` (the default), `zh`, `ja-mecab`, `ko-mecab`, `char`, …
        evaluate_arguments: For `evaluate.Metric`.

    Raises:
        ValueError: If sacreBLEU has no such tokenizer, or the package that it needs is not installed.
    """

    name = "bleu"
    label = "BLEU"
    summary = "Shared 1- to 4-grams with the reference, times a penalty for brevity (sacreBLEU)."
    citation = "Papineni et al. (2002), BLEU; Post (2018), A Call for Clarity in Reporting BLEU Scores"
    uses_tokenizer = True
    on_hub = True

    def __init__(self, tokenize: str | None = None, **evaluate_arguments: Any) -> None:
        sacrebleu_tokenizers.check_sacrebleu_tokenizer(tokenize)
        # `force` silences the warning about text that looks tokenised, which numbers and dates set off.
        options = {"force": True} if tokenize is None else {"force": True, "tokenize": tokenize}
        super().__init__(sacrebleu.metrics.BLEU(**options), **evaluate_arguments)
        # A sentence of less than 4 words has no 4-grams that could match
        self._sentence_scorer = sacrebleu.metrics.BLEU(**options, effective_order=True)

    def segment_score(self, counts: np.ndarray) -> float:
        """Returns sacreBLEU's sentence BLEU: n-grams longer than the sentence do not count against it."""
        return float(self._sentence_scorer._compute_score_from_stats(counts.tolist()).score)

    def details(self, sums: np.ndarray) -> dict[str, Any]:
        """Returns the four precisions, the brevity penalty and the ratio of hypothesis to reference tokens."""
        score = self.scorer._compute_score_from_stats(sums.tolist())
        return {
            "bleu_precisions": [float(value) for value in score.precisions],
            "brevity_penalty": float(score.bp),
            "length_ratio": float(score.ratio),
        }
