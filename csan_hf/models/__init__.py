# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The models, flat: what a checkpoint on the Hub needs stands here, and transformers copies what a model imports."""

from .backends import local_attention
from .configuration_csan import CsanConfig
from .configuration_pervasive_attention import PervasiveAttentionConfig
from .locality import register_locality
from .modeling_csan import CsanForConditionalGeneration, CsanModel, CsanPreTrainedModel
from .modeling_csan_classification import CsanForSequenceClassification, CsanForTokenClassification
from .modeling_pervasive_attention import (
    PervasiveAttentionForConditionalGeneration,
    PervasiveAttentionModel,
    PervasiveAttentionPreTrainedModel,
)

__all__ = [
    "CsanConfig",
    "CsanForConditionalGeneration",
    "CsanForSequenceClassification",
    "CsanForTokenClassification",
    "CsanModel",
    "CsanPreTrainedModel",
    "PervasiveAttentionConfig",
    "PervasiveAttentionForConditionalGeneration",
    "PervasiveAttentionModel",
    "PervasiveAttentionPreTrainedModel",
    "local_attention",
    "register_locality",
]
