# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Scores by the length of n-grams: whether a system gets longer phrases right."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import sacrebleu.metrics
from tqdm.auto import tqdm

from .metrics.corpus_metric import check_segments, in_parts
from .metrics.sacrebleu_tokenizers import check_sacrebleu_tokenizer


@dataclass(frozen=True)
class NgramScore:
    """How well a system does with the n-grams of one length.

    Attributes:
        order: n.
        matches: n-grams of the hypotheses that occur in the reference, each at most as often as there.
        total: n-grams of the hypotheses.
        bleu: BLEU of n-grams up to this length instead of 4.
    """

    order: int
    matches: int
    total: int
    bleu: float

    @property
    def accuracy(self) -> float:
        """Matches per 100 n-grams of the hypotheses; 0 if there are no n-grams of this length."""
        return 100 * self.matches / self.total if self.total else 0.0


def score_by_ngram(
    hypotheses: Collection[str],
    references: Collection[str],
    *,
    orders: int = 8,
    tokenize: str | None = None,
    progress: bool = False,
) -> list[NgramScore]:
    """Scores n-grams of length 1 to `orders`.

    The difference in `bleu` between two systems is the "gap of BLEU" of Yang et al. (EMNLP 2018, Figure 4; NAACL
    2019, Figure 3).

    Args:
        hypotheses: Detokenised translations.
        references: A reference each.
        orders: The longest n-grams.
        tokenize: sacreBLEU's tokenizer; None picks 13a.
        progress: Shows a bar on standard error.

    Raises:
        ValueError: If the numbers of sentences differ or are zero, orders is below 1, or sacreBLEU has no such
            tokenizer here.
    """
    check_segments(hypotheses, references)
    check_sacrebleu_tokenizer(tokenize)
    if orders < 1:
        raise ValueError(f"orders is {orders}; it must be at least 1.")
    options = {"force": True} if tokenize is None else {"force": True, "tokenize": tokenize}
    scorer = sacrebleu.metrics.BLEU(max_ngram_order=orders, **options)
    sums = np.zeros(2 + 2 * orders, dtype=np.int64)
    with tqdm(total=len(hypotheses), desc="n-grams", unit="sentence", disable=not progress, delay=1) as bar:
        for ours, theirs in in_parts([hypotheses, references], 1000):
            sums += np.array(scorer._extract_corpus_statistics(ours, [theirs]), dtype=np.int64).sum(axis=0)
            bar.update(len(ours))
    score = scorer._compute_score_from_stats(sums.tolist())
    return [
        NgramScore(
            order,
            int(score.counts[order - 1]),
            int(score.totals[order - 1]),
            float(
                sacrebleu.metrics.BLEU.compute_bleu(
                    score.counts[:order],
                    score.totals[:order],
                    sys_len=score.sys_len,
                    ref_len=score.ref_len,
                    smooth_method="exp",
                    max_ngram_order=order,
                ).score
            ),
        )
        for order in range(1, orders + 1)
    ]
