# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""BLEU of text that is tokenised already."""

from __future__ import annotations

from typing import Any

import sacrebleu.metrics

from csan_hf.evaluation.metrics import corpus_metric


class TokenizedBleu(corpus_metric.SacrebleuMetric):
    """BLEU as `multi-bleu.perl` computes it: tokens are what white space separates, nothing is smoothed.

    The score depends on the tokenizer; compare it only with scores on the same tokens, such as those in papers that
    do not use sacreBLEU.
    """

    name = "tokenized_bleu"
    label = "BLEU (tokens)"
    summary = "BLEU of text that is tokenised already, as multi-bleu.perl computes it."
    citation = "Koehn et al. (2007), Moses: multi-bleu.perl"
    needs = "tokens"

    def __init__(self, **evaluate_arguments: Any) -> None:
        scorer = sacrebleu.metrics.BLEU(tokenize="none", smooth_method="none", force=True)
        super().__init__(scorer, **evaluate_arguments)
