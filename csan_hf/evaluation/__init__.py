# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Scores on text, and translation of lists of sentences."""

from .loading import evaluation_view
from .scores import score_by_length, score_translations
from .translate import translate, translate_stream

__all__ = ["evaluation_view", "score_by_length", "score_translations", "translate", "translate_stream"]
