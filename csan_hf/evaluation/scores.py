# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Scores of a corpus by several metrics, by the length of its sentences, and by that of n-grams."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from csan_hf.data.documents import document_lines
from csan_hf.data.joining import LINE_FEED
from csan_hf_runtime.extras import needs_extra
from csan_hf_runtime.text_files import VARIANTS

from .corpus_metric import check_segments
from .metrics import DEFAULT_METRICS, Bleu, load_metrics, metrics_in, tokenizer_of
from .significance import confidence_interval, resample

with needs_extra("train"):
    import sacrebleu.metrics

_GROUPS = 5  # of sentences of similar length
_ORDERS = 8  # of n-grams


def score_translations(
    hypotheses: Collection[str],
    references: Collection[str],
    *,
    sources: Collection[str] | None = None,
    metrics: Iterable[str] = DEFAULT_METRICS,
    tokenize: str | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Scores translations against their references; files are read a part at a time.

    Args:
        hypotheses: Detokenised translations: a list, or a `csan_hf_runtime.text_files.TextFile`.
        references: A reference each, or several, separated by
            `csan_hf_runtime.text_files.VARIANTS`, where the metrics take them.
        sources: The source sentences, for metrics that need them, such as COMET.
        metrics: Names in the table of metrics.
        tokenize: sacreBLEU's tokenizer: `13a`, `zh`, `ja-mecab`, `ko-mecab`, `char`, `intl`,
            `none`...; None = `tokenizer_of(references)`.
        progress: Shows bars on standard error.

    Returns:
        For each metric what `CorpusMetric.results` gives: the score under its name and its
            signature; for BLEU also
        `bleu_precisions`, `brevity_penalty` and `length_ratio` (hypothesis over reference tokens).

    Raises:
        ValueError: If the numbers of sentences differ or are zero, or there is no such metric.
    """
    scores: dict[str, Any] = {}
    for metric in load_metrics(metrics, tokenize=tokenize or tokenizer_of(references)):
        scores |= metric.results(hypotheses, references, sources, progress=progress)
    return scores


def score_lines(
    hypotheses: Collection[str],
    references: Collection[str],
    *,
    sources: Collection[str],
    **options: Any,
) -> dict[str, Any]:
    """Scores documents line by line; the other arguments are those of `score_translations`.

    Returns:
        `lines`: its result, and in `sentences` the number of lines; nothing where each document is
        a line.
    """
    if not any(LINE_FEED in reference for reference in references):
        return {}
    reference_lines = list(document_lines(references, references))
    scores = score_translations(
        list(document_lines(hypotheses, references)),
        reference_lines,
        sources=list(document_lines(sources, references)),
        **options,
    )
    return {"lines": scores | {"sentences": len(reference_lines)}}


def group_by_length(sources: Collection[str]) -> list[np.ndarray]:
    """Returns the numbers of the sentences in at most five groups of similar length in words, short
    ones first.

    Each has about as many sentences, and those of one length stay together.
    """
    lengths = count_words(sources)
    # The longest source of each group but the last
    bounds = np.unique(np.quantile(lengths, np.arange(1, _GROUPS) / _GROUPS, method="lower"))
    number = np.searchsorted(bounds, lengths)
    return [np.flatnonzero(number == group) for group in np.unique(number)]


def score_by_length(
    sources: Collection[str],
    hypotheses: Collection[str],
    references: Collection[str],
    *,
    metrics: Iterable[str] = DEFAULT_METRICS,
    tokenize: str | None = None,
    samples: int = 0,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """Scores translations in groups of similar source length (`group_by_length`); the other
    arguments are those of `score_translations`.

    Args:
        samples: Resamples for 95% confidence intervals; 0 = none.

    Returns:
        One entry a group, short sentences first: `shortest` and `longest` source, in words between
            spaces;
        `sentences`; `reference_words` and `hypothesis_words`, means; each metric's score under its
        name and, with samples, its interval (low, high) under `NAME_interval`.
    """
    check_segments(hypotheses, references, sources)
    lengths = count_words(sources)
    ours = count_words(hypotheses)
    theirs = count_words([reference.partition(VARIANTS)[0] for reference in references])
    counts = {}
    for metric in load_metrics(metrics, tokenize=tokenize or tokenizer_of(references)):
        counts[metric] = metric.segment_counts(hypotheses, references, sources, progress=progress)
    entries = []
    for rows in group_by_length(sources):
        entry: dict[str, Any] = {
            "shortest": int(lengths[rows].min()),
            "longest": int(lengths[rows].max()),
            "sentences": len(rows),
            "reference_words": float(theirs[rows].mean()),
            "hypothesis_words": float(ours[rows].mean()),
        }
        for metric, metric_counts in counts.items():
            entry[metric.name] = metric.score(metric_counts[rows].sum(axis=0))
            if samples:
                resampled = resample(metric, [metric_counts[rows]], samples=samples)
                entry[f"{metric.name}_interval"] = confidence_interval(resampled.draws[:, 0])
        entries.append(entry)
    return entries


def count_words(sentences: Collection[str]) -> np.ndarray:
    """Returns the number of words between spaces of each sentence, [S]."""
    return np.fromiter((len(sentence.split()) for sentence in sentences), np.int64, len(sentences))


def bleu_by_order(
    hypotheses: Collection[str],
    references: Collection[str],
    *,
    tokenize: str | None = None,
    progress: bool = False,
) -> list[float]:
    """Returns BLEU of n-grams up to length 1, 2... 8; the other arguments are those of
    `score_translations`.

    The difference between two systems is the "gap of BLEU" of Yang et al. (EMNLP 2018, Figure 4;
    NAACL 2019, Figure 3)."""
    metric = Bleu(tokenize or tokenizer_of(references))
    scorer = metric.scorer = sacrebleu.metrics.BLEU(
        max_ngram_order=_ORDERS, **metric.scorer_options
    )
    counts = metric.segment_counts(hypotheses, references, progress=progress)
    score = scorer._compute_score_from_stats(counts.sum(axis=0).tolist())
    scores = []
    for order in range(1, _ORDERS + 1):
        score_of_order = scorer.compute_bleu(
            score.counts[:order],
            score.totals[:order],
            score.sys_len,
            score.ref_len,
            smooth_method="exp",
            max_ngram_order=order,
        )
        scores.append(float(score_of_order.score))
    return scores


def score_table(scores_by_split: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Formats the scores of each split as the lines of a table, above the metrics' signatures.

    A column that no split has a value for is left out. The scores of documents' lines, under
    `lines` in a split's entry, have a row of their own.
    """
    rows: dict[str, Mapping[str, Any]] = {}
    for name, entry in scores_by_split.items():
        rows[name] = entry
        if "lines" in entry:
            rows[f"{name}, its lines"] = entry["lines"]
    scores = list(rows.values())
    metrics = list(metrics_in(scores[0])) if scores else []
    columns = {
        "split": list(rows),
        "sentences": [f"{entry['sentences']:,}" for entry in scores],
    }
    for metric in metrics:
        columns[metric.label] = [metric.format(entry[metric.name]) for entry in scores]
    columns["search"] = [
        search_name(entry["num_beams"]) if "num_beams" in entry else "" for entry in scores
    ]
    columns["loss"] = [f"{entry['loss']:.3f}" if "loss" in entry else "" for entry in scores]
    columns["sentences/s"] = [_speed(entry) for entry in scores]
    padded_columns = []
    for title, cells in columns.items():
        if any(cells):
            width = max(map(len, [title, *cells]))
            align = str.ljust if title == "split" else str.rjust
            padded_columns.append([align(text, width) for text in (title, "-" * width, *cells)])
    lines = ["  ".join(row) for row in zip(*padded_columns, strict=True)]
    for metric in metrics:
        signatures = [entry.get(f"{metric.name}_signature") for entry in scores]
        for signature in dict.fromkeys(filter(None, signatures)):
            lines.append(f"{metric.label}: {signature}")
    return lines


def search_name(num_beams: int | None) -> str:
    """Names the search of so many beams, as scores are shown with it."""
    return "greedy" if num_beams in (None, 1) else f"beam {num_beams}"


def _speed(entry: Mapping[str, Any]) -> str:
    """Sentences a second; nothing where no time was taken."""
    if "seconds" not in entry:
        return ""
    return f"{entry['sentences'] / max(entry['seconds'], 0.01):,.1f}"
