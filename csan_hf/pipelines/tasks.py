# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The names by which `transformers.pipeline` knows the translation pipeline."""

from __future__ import annotations

import os
import re
from typing import Any

import transformers.pipelines
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, pipeline
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import PipelineRegistry

from .texts import TextTranslationPipeline

TASK = "csan-translation"
"""The name by which `transformers.pipeline` knows `TextTranslationPipeline` once csan_hf is
imported.
"""

_TRANSLATION = "translation"
_PAIR = re.compile(r"translation_(.+)_to_(.+)")
# What version 4 loaded where no model was named
_DEFAULTS = {
    ("en", target): {"model": ("google-t5/t5-base", "a9723ea")} for target in ("fr", "de", "ro")
}
_refusal: list[str] = []  # transformers' message for the task, while it is withdrawn


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
        **kwargs,
    )


def register() -> None:
    """Makes `transformers.pipeline("csan-translation", model=...)` build a
    `TextTranslationPipeline`.
    """
    PIPELINE_REGISTRY.supported_tasks.setdefault(TASK, _entry())


def _entry() -> dict[str, Any]:
    return {
        "impl": TextTranslationPipeline,
        "pt": (AutoModelForSeq2SeqLM,),
        "type": "text",
        "default": _DEFAULTS,
    }


def restore_translation_tasks() -> None:
    """Makes transformers' own `pipeline("translation")` and `pipeline("translation_xx_to_yy")` work
    as in version 4.

    ```python
    restore_translation_tasks()
    pipeline("translation_en_to_de", model="google-t5/t5-small")("Good morning.")
    ```

    transformers 5 refuses these names before it asks its registry. This makes it build
    `TextTranslationPipeline` for them in this process, until `remove_translation_tasks` is called.
    A checkpoint that brings a pipeline of its own still needs `trust_remote_code=True`."""
    if not _refusal:
        _refusal.append(transformers.pipelines.REMOVED_TASKS.pop(_TRANSLATION, ""))
        PIPELINE_REGISTRY.supported_tasks[_TRANSLATION] = _entry()
        # The registry's table holds only fixed names
        PIPELINE_REGISTRY.check_task = _check_task  # type: ignore[method-assign]


def remove_translation_tasks() -> None:
    """Undoes `restore_translation_tasks`; does nothing where that was not called."""
    if _refusal:
        PIPELINE_REGISTRY.supported_tasks.pop(_TRANSLATION, None)
        del PIPELINE_REGISTRY.check_task
        if refusal := _refusal.pop():
            transformers.pipelines.REMOVED_TASKS[_TRANSLATION] = refusal


def _check_task(task: str) -> tuple[str, dict, Any]:
    """`PipelineRegistry.check_task` with the tasks that name two languages, as version 4 had it."""
    if pair := _PAIR.fullmatch(task):
        return _TRANSLATION, PIPELINE_REGISTRY.supported_tasks[_TRANSLATION], (pair[1], pair[2])
    return PipelineRegistry.check_task(PIPELINE_REGISTRY, task)
