# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Pervasive Attention: translation by one masked 2D DenseNet over the source × target grid (CoNLL 2018)."""

from .configuration_pervasive_attention import PervasiveAttentionConfig
from .modeling_pervasive_attention import (
    PervasiveAttentionForConditionalGeneration,
    PervasiveAttentionModel,
    PervasiveAttentionPreTrainedModel,
)

__all__ = [
    "PervasiveAttentionConfig",
    "PervasiveAttentionForConditionalGeneration",
    "PervasiveAttentionModel",
    "PervasiveAttentionPreTrainedModel",
]
