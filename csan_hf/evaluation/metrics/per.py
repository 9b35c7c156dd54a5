# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Phone error rate."""

from __future__ import annotations

from csan_hf.evaluation.metrics import error_rate


class PhoneErrorRate(error_rate.ErrorRate):
    """Edits of phones per 100 phones of the references, as SIGMORPHON counts them in grapheme-to-phoneme conversion.

    A segment is the pronunciation of a word, its phones with spaces between them ("ˈ h aʊ s").
    """

    name = "per"
    label = "PER"
    summary = "Insertions, deletions and replacements per 100 phones of the reference."
    needs = "tokens"
