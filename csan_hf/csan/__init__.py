# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The CSAN family: what a checkpoint on the Hub needs, and nothing else."""

from .backends import local_attention
from .configuration_csan import CsanConfig
from .locality import register_locality
from .modeling_csan import CsanForConditionalGeneration, CsanModel, CsanPreTrainedModel
from .modeling_csan_classification import CsanForSequenceClassification, CsanForTokenClassification

__all__ = [
    "CsanConfig",
    "CsanForConditionalGeneration",
    "CsanForSequenceClassification",
    "CsanForTokenClassification",
    "CsanModel",
    "CsanPreTrainedModel",
    "local_attention",
    "register_locality",
]
