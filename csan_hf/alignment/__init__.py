# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Which target word comes from which source word, and which source sentence is left out."""

from .aligned_pairs import Alignment, align_pairs
from .coverage import uncovered_sentences
from .positions import check_positions, pairs_within_positions
from .tokenized_text import TokenizedText, check_fast, tokenize_texts, word_pattern

__all__ = [
    "Alignment",
    "TokenizedText",
    "align_pairs",
    "check_fast",
    "check_positions",
    "pairs_within_positions",
    "tokenize_texts",
    "uncovered_sentences",
    "word_pattern",
]
