# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translation by several processes of one machine, each with a model of its own."""

import os
from concurrent.futures import Future
from typing import Any

import torch

from csan_hf.own_code import import_modules
from csan_hf.pipelines import TextTranslationPipeline
from csan_hf_cli import IMPORTS
from csan_hf_runtime.pool import ProcessPool

from .loading import load_translation_model

_translator: TextTranslationPipeline  # of a process of the pool


class TranslationPool(ProcessPool):
    """A `TextTranslationPipeline` on the CPU in each of several processes.

    Args:
        count: See `ProcessPool`.
        names: What each of them loads, see `load_translation_model`.
        **options: More of its arguments.
    """

    def __init__(self, count: int, names: list[str], **options: Any) -> None:
        super().__init__(count, _load, names, {**options, "device": "cpu", "progress": False})

    def translate_segments(
        self, segments: list[str], **options: Any
    ) -> "Future[list[list[dict[str, Any]]]]":
        """Calls `TextTranslationPipeline.translate_segments` in one of the processes."""
        return self.submit(_translate_segments, segments, options)


def _load(threads: int, names: list[str], options: dict[str, Any]) -> None:
    global _translator
    torch.set_num_threads(threads)
    import_modules(os.environ.get(IMPORTS, "").split(","))
    model, tokenizers = load_translation_model(names, **options)
    _translator = TextTranslationPipeline(
        model=model,
        tokenizer=tokenizers.source,
        target_tokenizer=tokenizers.target,
        device=model.device,
    )


def _translate_segments(segments: list[str], options: dict[str, Any]) -> list[list[dict[str, Any]]]:
    return _translator.translate_segments(segments, **options)
