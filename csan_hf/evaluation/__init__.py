# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Scores on text (in `scores` and `metrics`), translation of lists of sentences, and alignment."""

from csan_hf.pipelines.torch_engine import torch_engine

from .corpus_translation import translate, translate_stream
from .word_alignment import align, align_stream

__all__ = [
    "align",
    "align_stream",
    "torch_engine",
    "translate",
    "translate_stream",
]
