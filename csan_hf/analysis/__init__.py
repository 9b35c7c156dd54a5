# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Where a model is local, which word it takes from which, statistics, and pictures of all these."""

from csan_hf.alignment import Alignment, TokenizedText, uncovered_sentences

from .attention_statistics import (
    AttentionStatistics,
    LearnedWindows,
    area_usage,
    attention_statistics,
    learned_windows,
)
from .channels import channel_ranks, channel_shares
from .heat_map import draw_heat_map, plot_heat_map
from .locality_picture import AttentionReach, attention_reaches, draw_locality, grid_reach
from .word_alignment import align, align_stream

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
