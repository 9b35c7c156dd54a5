# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translation of many sentences at once, fast and in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from csan_hf.pipelines import TextTranslationPipeline

from .loading import evaluation_view

if TYPE_CHECKING:
    from csan_hf.data import TokenizerPair


WINDOW_LINES = 2048
"""Sentences that `translate_stream` sorts by length at a time, in each process."""
WINDOW_CHARACTERS = 2**22


def translate(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sentences: Sequence[str],
    *,
    max_batch_tokens: int = 4096,
    progress: bool = False,
    processes: PartialState | None = None,
    **generate_arguments: Any,
) -> list[str]:
    """Translates any number of sentences, longest first, and returns them in the order given.

    Each is translated as `csan_hf.pipelines.TextTranslationPipeline` does: nothing of it is cut, but one that is
    longer than the model takes is split and put together again; and where no length was set, a translation may have
    twice the source's tokens and 50.

    Args:
        model: A sequence-to-sequence model; it translates in evaluation mode, and is left in the mode that it has.
        tokenizers: Its source and target tokenizers.
        sentences: Source sentences or texts. A blank one gives an empty translation.
        max_batch_tokens: Source tokens in a batch, padding included; beams are not counted.
        progress: Shows a bar on standard error.
        processes: The processes that share the work, each of which calls this with the same sentences. Of R processes
            each translates every R-th batch; the batches, and hence the translations, are those of a single process.
            None: this process translates all.
        generate_arguments: For `generate`, such as `num_beams` and `max_length`, and the `src_lang`,
            `tgt_lang` and `prefix` of `TranslationPipeline`; None means the default.

    Raises:
        ValueError: If `num_beams` is less than 1, or if a language is unknown or missing.
        ImportError: If a sentence is too long for the model, and the sentence splitter is not installed.
    """
    total = len(sentences) if processes is None else None  # a process counts its own share alone
    work = (model, tokenizers, max_batch_tokens, progress, processes, generate_arguments)
    [translations] = _translate_windows([sentences], total, *work)
    return translations


def translate_stream(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sentences: Iterable[str],
    *,
    max_batch_tokens: int = 4096,
    progress: bool = False,
    processes: PartialState | None = None,
    **generate_arguments: Any,
) -> Iterator[list[str]]:
    """Translates sentences as they come, in memory that does not grow with their number; see also `translate`.

    A window of `WINDOW_LINES` sentences for each process, less where they are very long, is read and translated at a
    time; its sentences go together by length. Errors of the iteration over `sentences` are passed on.

    Yields:
        The translations of a window, in order.
    """
    windows = _windows(sentences, WINDOW_LINES * (1 if processes is None else processes.num_processes))
    work = (model, tokenizers, max_batch_tokens, progress, processes, generate_arguments)
    return _translate_windows(windows, None, *work)


def _windows(sentences: Iterable[str], lines: int) -> Iterator[list[str]]:
    window: list[str] = []
    characters = 0
    for sentence in sentences:
        window.append(sentence)
        characters += len(sentence)
        if len(window) == lines or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


def _translate_windows(
    windows: Iterable[Sequence[str]],
    total: int | None,
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    max_batch_tokens: int,
    progress: bool,
    processes: PartialState | None,
    generate_arguments: dict[str, Any],
) -> Iterator[list[str]]:
    shown = progress and (processes is None or processes.is_main_process)
    with tqdm(total=total, desc="translating", unit="sentence", disable=not shown) as bar:
        for sentences in windows:
            view = evaluation_view(model) if any(module.training for module in model.modules()) else model
            translator: Any = TextTranslationPipeline(
                model=view, tokenizer=tokenizers.source, target_tokenizer=tokenizers.target, device=model.device
            )
            options = {name: value for name, value in generate_arguments.items() if value is not None}
            count = translator.token_counter(**options)
            splits = translator.split(sentences, **options)
            segments = [segment for split in splits for segment in split.segments]
            batches = list(batches_by_length([count(segment) for segment in segments], max_batch_tokens))
            bar.update(len(sentences) - len(segments))  # blank ones; below 0 where long ones are split
            if processes is not None:
                batches = batches[processes.process_index :: processes.num_processes]
            found: list[tuple[int, str]] = []
            for batch in batches:
                results = translator.translate_segments([segments[n] for n in batch], batch_size=len(batch), **options)
                found += [(n, result[0]["translation_text"].strip()) for n, result in zip(batch, results, strict=True)]
                bar.update(len(batch))
            if processes is not None:
                found = gather_object(found)
            texts = iter(text for _, text in sorted(found))
            yield [split.join(list(islice(texts, len(split.segments)))).strip() for split in splits]


def batches_by_length(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Groups sentence numbers, longest first, so that a padded batch holds at most `max_tokens` tokens."""
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda n: (-lengths[n], n)):
        # The first of a batch is its longest, hence its padded width.
        if batch and lengths[batch[0]] * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
