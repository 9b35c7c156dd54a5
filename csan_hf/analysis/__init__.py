# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What a model does with a sentence: where it is local, word alignments, and pictures of both."""

from .alignment import Alignment, align, align_stream, channel_ranks, channel_shares
from .attention_statistics import (
    AttentionStatistics,
    LearnedWindows,
    area_usage,
    attention_statistics,
    learned_windows,
)
from .coverage import uncovered_sentences
from .heat_map import draw_heat_map, plot_heat_map
from .locality_picture import AttentionReach, attention_reaches, draw_locality, grid_reach
from .tokenized_text import TokenizedText

__all__ = [
    "Alignment",
    "AttentionReach",
    "AttentionStatistics",
    "LearnedWindows",
    "TokenizedText",
    "align",
    "align_stream",
    "area_usage",
    "attention_reaches",
    "attention_statistics",
    "channel_ranks",
    "channel_shares",
    "draw_heat_map",
    "draw_locality",
    "grid_reach",
    "learned_windows",
    "plot_heat_map",
    "uncovered_sentences",
]
