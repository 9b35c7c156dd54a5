# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The models, flat: what a checkpoint on the Hub needs stands here, and transformers copies what a
model imports.
"""

from .backend_flash import install_flash_attention
from .configuration_conv_s2s import ConvS2SConfig
from .configuration_csan import CsanConfig
from .configuration_pervasive_attention import PervasiveAttentionConfig
from .configuration_rnnsearch import RnnSearchConfig
from .dense_backward import install_backward
from .functional import local_attention
from .locality import register_locality
from .locality_methods import LOCALITY_METHODS
from .modeling_conv_s2s import ConvS2SForConditionalGeneration, ConvS2SModel, ConvS2SPreTrainedModel
from .modeling_csan import CsanForConditionalGeneration, CsanModel, CsanPreTrainedModel
from .modeling_csan_classification import (
    CsanEncoderModel,
    CsanForSequenceClassification,
    CsanForTokenClassification,
)
from .modeling_pervasive_attention import (
    PervasiveAttentionForConditionalGeneration,
    PervasiveAttentionModel,
    PervasiveAttentionPreTrainedModel,
)
from .modeling_rnnsearch import (
    RnnSearchForConditionalGeneration,
    RnnSearchModel,
    RnnSearchPreTrainedModel,
)
from .short_form import install_short_form

install_backward()
install_short_form()
install_flash_attention()

__all__ = [
    "LOCALITY_METHODS",
    "ConvS2SConfig",
    "ConvS2SForConditionalGeneration",
    "ConvS2SModel",
    "ConvS2SPreTrainedModel",
    "CsanConfig",
    "CsanEncoderModel",
    "CsanForConditionalGeneration",
    "CsanForSequenceClassification",
    "CsanForTokenClassification",
    "CsanModel",
    "CsanPreTrainedModel",
    "PervasiveAttentionConfig",
    "PervasiveAttentionForConditionalGeneration",
    "PervasiveAttentionModel",
    "PervasiveAttentionPreTrainedModel",
    "RnnSearchConfig",
    "RnnSearchForConditionalGeneration",
    "RnnSearchModel",
    "RnnSearchPreTrainedModel",
    "local_attention",
    "register_locality",
]
