# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translation edit rate by sacreBLEU."""

from __future__ import annotations

from typing import Any

import sacrebleu.metrics

from csan_hf.evaluation.metrics import corpus_metric


class Ter(corpus_metric.SacrebleuMetric):
    """TER (Snover et al., 2006): edits of words, shifts of phrases included, per 100 reference words."""

    name = "ter"
    label = "TER"
    summary = "Insertions, deletions, replacements and shifts per 100 words of the reference (sacreBLEU)."
    citation = "Snover et al. (2006), A Study of Translation Edit Rate with Targeted Human Annotation"
    greater_is_better = False
    upper_bound = None
    on_hub = True

    def __init__(self, **evaluate_arguments: Any) -> None:
        super().__init__(sacrebleu.metrics.TER(), **evaluate_arguments)
