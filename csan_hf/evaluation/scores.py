# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Scores of a corpus by several metrics."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from .metrics import DEFAULT_METRICS, load_metrics


def score_translations(
    hypotheses: Collection[str],
    references: Collection[str],
    *,
    sources: Collection[str] | None = None,
    metrics: Iterable[str] = DEFAULT_METRICS,
    tokenize: str | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Scores translations against one reference each; files are read a part at a time.

    Args:
        hypotheses: Detokenised translations: a list, or a `csan_hf.text_files.TextFile`.
        references: As many references, in the same order.
        sources: The source sentences, for metrics that need them, such as COMET.
        metrics: Names in the table of metrics.
        tokenize: sacreBLEU's tokenizer: `13a` (the default), `zh`, `ja-mecab`, `ko-mecab`, `char`,
            `intl`, `none`...
        progress: Shows bars on standard error.

    Returns:
        For each metric what `CorpusMetric.results` gives: the score under its name and its signature; for BLEU also
        `bleu_precisions` (four n-gram precisions), `brevity_penalty` and `length_ratio` (hypothesis over
        reference tokens).

    Raises:
        ValueError: If the numbers of sentences differ or are zero, or there is no such metric.
    """
    scores: dict[str, Any] = {}
    for metric in load_metrics(metrics, tokenize=tokenize):
        scores |= metric.results(hypotheses, references, sources, progress=progress)
    return scores
