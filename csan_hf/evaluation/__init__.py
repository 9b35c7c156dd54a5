"""Scores on text, translation of lists of sentences, and files written whole or not at all."""

from .files import write_json, write_lines, write_text
from .lengths import score_by_length
from .scores import score_translations
from .translate import translate, translate_batch

__all__ = [
    "score_by_length",
    "score_translations",
    "translate",
    "translate_batch",
    "write_json",
    "write_lines",
    "write_text",
]
