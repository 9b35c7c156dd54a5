# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""csan_hf: sequence-to-sequence models with local attention for Hugging Face transformers.

Importing the package registers its models with the Auto classes, so that
`AutoModelForSeq2SeqLM.from_pretrained` finds them without `trust_remote_code`, and its translation
pipeline as `pipeline("csan-translation", ...)`."""

from typing import TYPE_CHECKING, Any

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
from .own_code import save_methods
from .pipelines import EnsembleForConditionalGeneration, TranslationPipeline, translation_pipeline

if TYPE_CHECKING:
    from .hub import convert_marian

if version.parse(torch.__version__) < version.parse("2.12"):
    logging.get_logger(__name__).warning_once(
        f"csan_hf is tested with torch 2.12 and newer, and this is {torch.__version__}: here "
        "torch.compile fails for decoders with relative positions, biases or a static cache."
    )

for family in FAMILIES.values():
    family.register()
CsanConfig.after_saving = save_methods
pipelines.register()


def __getattr__(name: str) -> Any:
    """Imports the conversion, which few need, when it is used."""
    if name == "convert_marian":
        from .hub import convert_marian

        return convert_marian
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
    "convert_marian",
    "local_attention",
    "translation_pipeline",
]
