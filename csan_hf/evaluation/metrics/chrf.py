# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""chrF by sacreBLEU."""

from __future__ import annotations

from typing import Any

import sacrebleu.metrics

from csan_hf.evaluation.metrics import corpus_metric


class Chrf(corpus_metric.SacrebleuMetric):
    """chrF2 (Popović, 2015): F-score of 1- to 6-grams of characters, recall counting twice."""

    name = "chrf"
    label = "chrF"
    summary = "F-score of the character 1- to 6-grams shared with the reference (chrF2, sacreBLEU)."
    citation = "Popović (2015), chrF: character n-gram F-score for automatic MT evaluation"
    on_hub = True

    def __init__(self, **evaluate_arguments: Any) -> None:
        super().__init__(sacrebleu.metrics.CHRF(), **evaluate_arguments)
