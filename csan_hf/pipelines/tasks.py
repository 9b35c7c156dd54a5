# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The names by which `transformers.pipeline` knows the translation pipeline."""

from __future__ import annotations

import os
from typing import Any

from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, pipeline
from transformers.pipelines import PIPELINE_REGISTRY

from ..models.translation import TranslationPipeline
from .text_pipeline import TextTranslationPipeline

TASK = "csan-translation"
"""The name by which `transformers.pipeline` knows `TextTranslationPipeline` once csan_hf is
imported.
"""


def translation_pipeline(
    model: str | os.PathLike | PreTrainedModel,
    *,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    trust_remote_code: bool = False,
    **kwargs: Any,
) -> TextTranslationPipeline:
    """Builds a translation pipeline for any sequence-to-sequence model.

    ```python
    translation_pipeline("Helsinki-NLP/opus-mt-de-en")("Guten Morgen.")
    translation_pipeline("facebook/m2m100_418M", src_lang="de", tgt_lang="fr")("Guten Morgen.")
    translation_pipeline("google-t5/t5-small", src_lang="en", tgt_lang="de")("Good morning.")
    ```

    Args:
        model: A folder, a name on the Hub, or a model in memory, which needs `tokenizer=`.
        src_lang: Language of the texts, where the model has several, in the model's code.
        tgt_lang: Language of the translations, likewise.
        trust_remote_code: Whether code in the checkpoint may run; csan_hf's own families need none.
        **kwargs: Passed to `transformers.pipeline` (`tokenizer`, `device`, `dtype`, `revision`...)
            and to `TextTranslationPipeline`; arguments of `generate` are defaults of every call.

    Raises:
        OSError: There is no such model.
        ValueError: See `TextTranslationPipeline`.
    """
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    return pipeline(  # type: ignore
        TASK,
        model=model,
        src_lang=src_lang,
        tgt_lang=tgt_lang,
        trust_remote_code=trust_remote_code,
        trust_target_tokenizer=trust_remote_code,
        **kwargs,
    )


def register() -> None:
    """Makes `transformers.pipeline` build a `TextTranslationPipeline`, as "csan-translation", and
    as "translation" for checkpoints that bring a `TranslationPipeline`.
    """
    TranslationPipeline.for_texts = TextTranslationPipeline
    entry = {"impl": TextTranslationPipeline, "pt": (AutoModelForSeq2SeqLM,), "type": "text"}
    PIPELINE_REGISTRY.supported_tasks.setdefault(TASK, entry)
