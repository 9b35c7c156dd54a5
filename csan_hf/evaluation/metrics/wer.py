"""Word error rate."""

from __future__ import annotations

from csan_hf.evaluation.metrics import error_rate


class WordErrorRate(error_rate.ErrorRate):
    """Edits of words per 100 words of the references; words are what white space separates."""

    name = "wer"
    label = "WER"
    summary = "Insertions, deletions and replacements per 100 words of the reference."
    on_hub = True
