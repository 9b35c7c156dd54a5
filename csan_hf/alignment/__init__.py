# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Which target word comes from which source word, and which source sentence is left out."""

from csan_hf_runtime.alignment import Alignment, TokenizedText
from csan_hf_runtime.coverage import uncovered_sentences

from .aligned_pairs import align_pairs
from .positions import check_positions, pairs_within_positions
from .tokenized_text import check_fast, tokenize_texts

__all__ = [
    "Alignment",
    "TokenizedText",
    "align_pairs",
    "check_fast",
    "check_positions",
    "pairs_within_positions",
    "tokenize_texts",
    "uncovered_sentences",
]
