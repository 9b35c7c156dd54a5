# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translation of many sentences at once, fast and in order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from accelerate import PartialState
from transformers import PreTrainedModel

from csan_hf.pipelines.text_pipeline import LANGUAGES
from csan_hf.pipelines.torch_engine import torch_engine
from csan_hf_runtime.options import TranslationOptions
from csan_hf_runtime.texts import Translation

from .launched import shared_translator

if TYPE_CHECKING:
    from csan_hf.data import TokenizerPair

_OF_STREAMS = {"prefixes", "terms", "lines_before", "progress"}
_OF_TEXTS = {field.name for field in fields(TranslationOptions)} | _OF_STREAMS


def translate(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sentences: Collection[str],
    **options: Any,
) -> list[str]:
    """Translates any number of sentences, some thousands at a time by length, and returns them in
    the order given.

    Each is translated as `csan_hf.pipelines.TextTranslationPipeline` does: nothing of it is cut,
    but one that is longer than the model takes, or than its training sources were, is split and put
    together again; and where no length was set, a translation may have twice the source's tokens
    and 50.

    Args:
        model: A sequence-to-sequence model; it translates in evaluation mode, and is left in the
            mode that it has.
        tokenizers: Its source and target tokenizers.
        sentences: Source sentences or texts. A blank one gives an empty translation.
        **options: See `translate_stream`.

    Raises:
        ValueError: See `translate_stream`.
    """
    return list(best_texts(translate_stream(model, tokenizers, sentences, **options)))


def best_texts(windows: Iterable[list[list[Translation]]]) -> Iterator[str]:
    """Yields the text of the best translation of each sentence of some windows."""
    for window in windows:
        for translations in window:
            yield translations[0].text


def translate_stream(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sentences: Iterable[str | None],
    *,
    processes: PartialState | None = None,
    **options: Any,
) -> Iterator[list[list[Translation]]]:
    """Translates sentences as they come, in memory that does not grow with their number; see
    `csan_hf_runtime.translator.TextTranslator.stream`.

    Args:
        model: See `translate`.
        tokenizers: See `translate`.
        sentences: The sentences; None = translate what there is.
        processes: The processes that share the work, each of which calls this with the same
            sentences. Of R processes each translates every R-th batch. None: this process
            translates all.
        **options: `prefixes`, `terms`, `lines_before` and `progress` of `TextTranslator.stream`,
            those of `csan_hf_runtime.options.TranslationOptions`, where `src_lang` and `tgt_lang`
            are other names of the languages, `clean_up_tokenization_spaces` (no spaces before
            punctuation), and arguments of `generate`; None means the default.

    Yields:
        The translations of a window, the best first.

    Raises:
        ValueError: An option is impossible, or a language is unknown or missing.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    for name, name_in_transformers in LANGUAGES.items():
        if name_in_transformers in chosen:
            chosen[name] = chosen.pop(name_in_transformers)
    names = chosen.keys() - _OF_TEXTS
    if "do_sample" in chosen:  # by the library, with its random numbers
        names |= chosen.keys() & {"temperature", "top_k", "top_p"}
    arguments = {name: chosen.pop(name) for name in names}
    engine = torch_engine(model, tokenizers, **arguments)
    return shared_translator(engine, processes).stream(sentences, **chosen)
