# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""csan_hf: sequence-to-sequence models with local attention for Hugging Face transformers.

Importing the package registers its models with the Auto classes, so that
`AutoModelForSeq2SeqLM.from_pretrained` finds them without `trust_remote_code`, and its translation
pipeline as `pipeline("csan-translation", ...)`."""

import torch
from packaging import version
from transformers.utils import logging

from csan_hf_runtime import __version__

from . import pipelines, source_tokenizer  # noqa: F401
from .families import FAMILIES
from .models import (
    ConvS2SConfig,
    ConvS2SForConditionalGeneration,
    ConvS2SModel,
    CsanConfig,
    CsanForConditionalGeneration,
    CsanForSequenceClassification,
    CsanForTokenClassification,
    CsanModel,
    PervasiveAttentionConfig,
    PervasiveAttentionForConditionalGeneration,
    PervasiveAttentionModel,
    RnnSearchConfig,
    RnnSearchForConditionalGeneration,
    RnnSearchModel,
    local_attention,
)
from .own_code import save_own_methods
from .pipelines import EnsembleForConditionalGeneration, TranslationPipeline

if version.parse(torch.__version__) < version.parse("2.12"):
    logging.get_logger(__name__).warning_once(
        f"csan_hf is tested with torch 2.12 and newer, and this is {torch.__version__}: here "
        "torch.compile fails for decoders with relative positions, biases or a static cache."
    )

for family in FAMILIES.values():
    family.register()
CsanConfig.after_saving = save_own_methods
pipelines.register()

__all__ = [
    "ConvS2SConfig",
    "ConvS2SForConditionalGeneration",
    "ConvS2SModel",
    "CsanConfig",
    "CsanForConditionalGeneration",
    "CsanForSequenceClassification",
    "CsanForTokenClassification",
    "CsanModel",
    "EnsembleForConditionalGeneration",
    "PervasiveAttentionConfig",
    "PervasiveAttentionForConditionalGeneration",
    "PervasiveAttentionModel",
    "RnnSearchConfig",
    "RnnSearchForConditionalGeneration",
    "RnnSearchModel",
    "TranslationPipeline",
    "__version__",
    "local_attention",
]
