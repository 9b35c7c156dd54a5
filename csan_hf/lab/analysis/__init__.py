# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Statistics of attention and of channels."""

from .attention_statistics import (
    AttentionStatistics,
    LearnedWindows,
    area_usage,
    attention_statistics,
    learned_windows,
)
from .channels import channel_ranks, channel_shares

__all__ = [
    "AttentionStatistics",
    "LearnedWindows",
    "area_usage",
    "attention_statistics",
    "channel_ranks",
    "channel_shares",
    "learned_windows",
]
