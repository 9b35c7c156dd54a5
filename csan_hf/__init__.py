"""csan_hf: sequence-to-sequence models with local attention for Hugging Face transformers.

Importing the package registers its models with the Auto classes, so that `AutoModelForSeq2SeqLM.from_pretrained`
finds them without `trust_remote_code`, and its translation pipeline as `pipeline("csan-translation", ...)`.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from . import pipelines
from .csan import (
    CsanConfig,
    CsanForConditionalGeneration,
    CsanForSequenceClassification,
    CsanForTokenClassification,
    CsanModel,
    local_attention,
)
from .pervasive_attention import (
    PervasiveAttentionConfig,
    PervasiveAttentionForConditionalGeneration,
    PervasiveAttentionModel,
)
from .pipelines import TranslationPipeline

__version__ = "0.1.0"

AutoConfig.register(CsanConfig.model_type, CsanConfig, exist_ok=True)
AutoModel.register(CsanConfig, CsanModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(CsanConfig, CsanForConditionalGeneration, exist_ok=True)
AutoModelForSequenceClassification.register(CsanConfig, CsanForSequenceClassification, exist_ok=True)
AutoModelForTokenClassification.register(CsanConfig, CsanForTokenClassification, exist_ok=True)
AutoConfig.register(PervasiveAttentionConfig.model_type, PervasiveAttentionConfig, exist_ok=True)
AutoModel.register(PervasiveAttentionConfig, PervasiveAttentionModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(PervasiveAttentionConfig, PervasiveAttentionForConditionalGeneration, exist_ok=True)
pipelines.register()

__all__ = [
    "CsanConfig",
    "CsanForConditionalGeneration",
    "CsanForSequenceClassification",
    "CsanForTokenClassification",
    "CsanModel",
    "PervasiveAttentionConfig",
    "PervasiveAttentionForConditionalGeneration",
    "PervasiveAttentionModel",
    "TranslationPipeline",
    "__version__",
    "local_attention",
]
