# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Word error rate."""

from __future__ import annotations

from csan_hf.evaluation.metrics import error_rate


class WordErrorRate(error_rate.ErrorRate):
    """Edits of words per 100 words of the references; words are what white space separates."""

    name = "wer"
    label = "WER"
    summary = "Insertions, deletions and replacements per 100 words of the reference."
    on_hub = True
