"""Scores by the length of the source: whether a model keeps up with long sentences, or writes all alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .scores import score_translations


def score_by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    groups: int = 5,
    tokenize: str | None = None,
) -> list[dict[str, Any]]:
    """Scores translations in groups of sentences whose sources have about the same length.

    Args:
        sources: source sentences.
        hypotheses: their detokenised translations.
        references: a reference each.
        groups: most groups; each has about as many sentences, sentences of one length stay together.
        tokenize: sacreBLEU's tokenizer; see `score_translations`.

    Returns:
        One entry a group, short sentences first: ``shortest`` and ``longest`` source, in words between spaces;
        ``sentences``; ``reference_words`` and ``hypothesis_words``, means; ``bleu`` and ``chrf`` of the group.

    Raises:
        ValueError: if the numbers of sentences differ or are zero, or if groups is below 1.
    """
    if not len(sources) == len(hypotheses) == len(references):
        raise ValueError(
            f"{len(sources)} sources, {len(hypotheses)} hypotheses and {len(references)} references: there must be "
            "one of each."
        )
    if not sources:
        raise ValueError("There is nothing to score: 0 sentences.")
    if groups < 1:
        raise ValueError(f"groups is {groups}; it must be at least 1.")
    lengths = _words(sources)
    # The longest source of each group but the last
    bounds = np.unique(np.quantile(lengths, np.arange(1, groups) / groups, method="lower"))
    number = np.searchsorted(bounds, lengths)
    return [
        _score_group(np.flatnonzero(number == group), lengths, hypotheses, references, tokenize)
        for group in np.unique(number)
    ]


def _score_group(
    rows: np.ndarray,
    lengths: np.ndarray,
    hypotheses: Sequence[str],
    references: Sequence[str],
    tokenize: str | None,
) -> dict[str, Any]:
    ours, theirs = [hypotheses[row] for row in rows], [references[row] for row in rows]
    scores = score_translations(ours, theirs, tokenize=tokenize)
    return {
        "shortest": int(lengths[rows].min()),
        "longest": int(lengths[rows].max()),
        "sentences": len(rows),
        "reference_words": float(_words(theirs).mean()),
        "hypothesis_words": float(_words(ours).mean()),
        "bleu": scores["bleu"],
        "chrf": scores["chrf"],
    }


def _words(sentences: Sequence[str]) -> np.ndarray:
    return np.array([len(sentence.split()) for sentence in sentences])
