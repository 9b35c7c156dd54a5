# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Scores by the length of the source: whether a model does as well on long sentences as on short ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from .metrics import DEFAULT_METRICS, load_metrics
from .metrics.corpus_metric import check_segments
from .resampling import confidence_interval, resample


def group_by_length(sources: Collection[str], groups: int = 5) -> list[np.ndarray]:
    """Groups sentences of about the same length, in words between spaces.

    Args:
        sources: The sentences.
        groups: Most groups; each has about as many sentences, sentences of one length stay together.

    Returns:
        The numbers of the sentences of each group, short sentences first.

    Raises:
        ValueError: If groups is below 1.
    """
    if groups < 1:
        raise ValueError(f"groups is {groups}; it must be at least 1.")
    lengths = count_words(sources)
    # The longest source of each group but the last
    bounds = np.unique(np.quantile(lengths, np.arange(1, groups) / groups, method="lower"))
    number = np.searchsorted(bounds, lengths)
    return [np.flatnonzero(number == group) for group in np.unique(number)]


def score_by_length(
    sources: Collection[str],
    hypotheses: Collection[str],
    references: Collection[str],
    *,
    groups: int = 5,
    metrics: Iterable[str] = DEFAULT_METRICS,
    tokenize: str | None = None,
    samples: int = 0,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """Scores translations in groups of sentences whose sources have about the same length.

    Args:
        sources: Source sentences.
        hypotheses: Their detokenised translations.
        references: A reference each.
        groups: Most groups; see `group_by_length`.
        metrics: Names in the table of metrics.
        tokenize: sacreBLEU's tokenizer; see `score_translations`.
        samples: Resamples for 95% confidence intervals; 0 = none.
        progress: Shows bars on standard error.

    Returns:
        One entry a group, short sentences first: `shortest` and `longest` source, in words between spaces;
        `sentences`; `reference_words` and `hypothesis_words`, means; each metric's score under its name and,
        with samples, its interval (low, high) under `NAME_interval`.

    Raises:
        ValueError: If the numbers of sentences differ or are zero, or if groups is below 1.
    """
    check_segments(hypotheses, references, sources)
    parts = group_by_length(sources, groups)
    lengths, ours, theirs = (count_words(lines) for lines in (sources, hypotheses, references))
    entries: list[dict[str, Any]] = [
        {
            "shortest": int(lengths[rows].min()),
            "longest": int(lengths[rows].max()),
            "sentences": len(rows),
            "reference_words": float(theirs[rows].mean()),
            "hypothesis_words": float(ours[rows].mean()),
        }
        for rows in parts
    ]
    for metric in load_metrics(metrics, tokenize=tokenize):
        title = f"{metric.label} by length"
        counts = metric.segment_counts(hypotheses, references, sources, progress=progress, title=title)
        for entry, rows in zip(entries, parts, strict=True):
            entry[metric.name] = metric.score(counts[rows].sum(axis=0))
            if samples:
                resampled = resample(metric, [counts[rows]], samples=samples, progress=progress)
                entry[f"{metric.name}_interval"] = confidence_interval(resampled.draws[:, 0])
    return entries


def count_words(sentences: Collection[str]) -> np.ndarray:
    """Returns the number of words between spaces of each sentence, [S]."""
    return np.fromiter((len(sentence.split()) for sentence in sentences), np.int64, len(sentences))
