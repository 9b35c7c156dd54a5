"""Corpus scores on detokenised text, through sacreBLEU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF


def score_translations(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str | None = None
) -> dict[str, Any]:
    """Scores translations against one reference each.

    Args:
        hypotheses: detokenised translations.
        references: as many references, in the same order.
        tokenize: sacreBLEU's tokenizer: ``13a`` (the default), ``zh``, ``ja-mecab``, ``ko-mecab``, ``char``,
            ``intl``, ``none``...

    Returns:
        ``bleu`` and ``chrf`` (chrF2) from 0 to 100, and their sacreBLEU signatures ``bleu_signature`` and
        ``chrf_signature``. For BLEU also ``bleu_precisions`` (four n-gram precisions), ``brevity_penalty`` and
        ``length_ratio`` (hypothesis over reference tokens).

    Raises:
        ValueError: if the numbers of sentences differ or are zero.
    """
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses and {len(references)} references: there must be one for each.")
    if not hypotheses:
        raise ValueError("There is nothing to score: 0 hypotheses.")
    # `force` silences the warning about text that looks tokenised, which numbers and dates set off.
    bleu = BLEU(force=True) if tokenize is None else BLEU(tokenize=tokenize, force=True)
    chrf = CHRF()
    bleu_score = bleu.corpus_score(list(hypotheses), [list(references)])
    chrf_score = chrf.corpus_score(list(hypotheses), [list(references)])
    return {
        "bleu": float(bleu_score.score),
        "bleu_signature": str(bleu.get_signature()),
        "chrf": float(chrf_score.score),
        "chrf_signature": str(chrf.get_signature()),
        "bleu_precisions": [float(value) for value in bleu_score.precisions],
        "brevity_penalty": float(bleu_score.bp),
        "length_ratio": float(bleu_score.ratio),
    }
