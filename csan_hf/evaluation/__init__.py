"""Scores on text, and translation of lists of sentences."""

from .lengths import score_by_length
from .scores import score_translations
from .translate import translate, translate_batch

__all__ = [
    "score_by_length",
    "score_translations",
    "translate",
    "translate_batch",
]
