# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Scores on text, and translation of lists of sentences."""

from .lengths import score_by_length
from .scores import score_translations
from .translate import translate, translate_stream
from .view import evaluation_view

__all__ = [
    "evaluation_view",
    "score_by_length",
    "score_translations",
    "translate",
    "translate_stream",
]
