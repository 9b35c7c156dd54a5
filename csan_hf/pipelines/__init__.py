# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translation pipelines: sentences with `TranslationPipeline`, texts of any length with
`TextTranslationPipeline`.
"""

from ..models.translation import TranslationPipeline
from .ensemble import EnsembleForConditionalGeneration
from .tasks import TASK, register, translation_pipeline
from .text_pipeline import TextTranslationPipeline

__all__ = [
    "TASK",
    "EnsembleForConditionalGeneration",
    "TextTranslationPipeline",
    "TranslationPipeline",
    "register",
    "translation_pipeline",
]
