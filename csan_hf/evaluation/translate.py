"""Translation of many sentences at once, fast and in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from .view import evaluation_view

if TYPE_CHECKING:
    from csan_hf.data import TokenizerPair


WINDOW_LINES = 2048
"""Sentences that `translate_stream` sorts by length at a time, in each process."""
WINDOW_CHARACTERS = 2**22


def _batches_by_length(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Groups sentence numbers, longest first, so that a padded batch holds at most ``max_tokens`` tokens."""
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda n: (-lengths[n], n)):
        # The first of a batch is its longest, hence its padded width.
        if batch and lengths[batch[0]] * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _longest_input(tokenizers: TokenizerPair) -> int | None:
    """Returns how many source tokens the tokenizer lets through, or None where it has no limit."""
    limit = tokenizers.source.model_max_length
    return limit if limit is not None and limit < 1_000_000 else None  # transformers writes 1e30 for "none"


def _length_arguments(model: PreTrainedModel, arguments: dict[str, Any]) -> dict[str, Any]:
    """Sees to it that generation does not stop at transformers' 20 tokens because nobody gave a length."""
    config = model.generation_config
    given = any(arguments.get(key) is not None for key in ("max_length", "max_new_tokens"))
    if given or config.max_length is not None or config.max_new_tokens is not None:
        return arguments
    return {**arguments, "max_length": min(256, getattr(model.config, "max_position_embeddings", None) or 256)}


@torch.inference_mode()
def translate_batch(
    model: PreTrainedModel, tokenizers: TokenizerPair, sentences: Sequence[str], **generate_arguments: Any
) -> list[str]:
    """Translates one batch.

    Args:
        model: a sequence-to-sequence model, on any device.
        tokenizers: its source and target tokenizers.
        sentences: B source sentences, none of them blank.
        generate_arguments: for ``generate``, such as ``num_beams`` and ``max_length``; None means the
            generation config's value.

    Returns:
        B translations.
    """
    inputs = tokenizers.source(
        list(sentences),
        padding=True,
        truncation=_longest_input(tokenizers) is not None,
        max_length=_longest_input(tokenizers),
        return_tensors="pt",
    )
    arguments = {name: value for name, value in generate_arguments.items() if value is not None}
    generate: Any = model.generate
    output = generate(
        input_ids=inputs["input_ids"].to(model.device),
        attention_mask=inputs["attention_mask"].to(model.device),
        **_length_arguments(model, arguments),
    )
    return [text.strip() for text in tokenizers.target.batch_decode(output, skip_special_tokens=True)]


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

    Args:
        model: a sequence-to-sequence model; it translates in evaluation mode, and is left in the mode that it has.
        tokenizers: its source and target tokenizers.
        sentences: source sentences. A blank one gives an empty translation.
        max_batch_tokens: source tokens in a batch, padding included; beams count on top.
        progress: shows a bar on standard error.
        processes: those that share the work, each of them calling this with the same sentences. Of R processes each
            translates every R-th batch; the batches, and hence the translations, are those of a single process.
            None: this process does it all.
        generate_arguments: for ``generate``; None means the generation config's value.

    Returns:
        As many translations as there are sentences, in every process.

    Raises:
        ValueError: if ``max_batch_tokens`` is less than 1.
    """
    total = len(sentences) if processes is None else None  # a process counts its own share alone
    with tqdm(total=total, desc="translating", unit="sentence", disable=not _shows(progress, processes)) as bar:
        return _translate(model, tokenizers, sentences, max_batch_tokens, processes, bar, generate_arguments)


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
    """Translates sentences as they come, in memory that does not grow with their number.

    A window of `WINDOW_LINES` sentences for each process, less where they are very long, is read and translated at a
    time. Sentences go together by length within a window.

    Args:
        model: see `translate`, also for what is not named here.
        tokenizers: its source and target tokenizers.
        sentences: source sentences, any number of them.
        max_batch_tokens: source tokens in a batch.
        progress: shows a counter on standard error.
        processes: those that share the work, each of them calling this with the same sentences.
        generate_arguments: for ``generate``.

    Yields:
        The translations of a window, in order.

    Raises:
        ValueError: if ``max_batch_tokens`` is less than 1, or where the sentences come from.
    """
    lines = WINDOW_LINES * (1 if processes is None else processes.num_processes)
    with tqdm(desc="translating", unit="sentence", disable=not _shows(progress, processes)) as bar:
        for window in _windows(sentences, lines):
            yield _translate(model, tokenizers, window, max_batch_tokens, processes, bar, generate_arguments)


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


def _shows(progress: bool, processes: PartialState | None) -> bool:
    return progress and (processes is None or processes.is_main_process)


def _translate(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sentences: Sequence[str],
    max_batch_tokens: int,
    processes: PartialState | None,
    bar: tqdm,
    generate_arguments: dict[str, Any],
) -> list[str]:
    if max_batch_tokens < 1:
        raise ValueError(f"max_batch_tokens must be at least 1, got {max_batch_tokens}.")
    if any(module.training for module in model.modules()):
        model = evaluation_view(model)
    numbers = [number for number, sentence in enumerate(sentences) if sentence.strip()]
    encoded = tokenizers.source([sentences[number] for number in numbers])["input_ids"] if numbers else []
    lengths = [len(ids) for ids in encoded]
    batches = [[numbers[place] for place in batch] for batch in _batches_by_length(lengths, max_batch_tokens)]
    bar.update(len(sentences) - len(numbers))
    if processes is not None:
        batches = batches[processes.process_index :: processes.num_processes]
    found: list[tuple[int, str]] = []
    for batch in batches:
        texts = [sentences[number] for number in batch]
        found += zip(batch, translate_batch(model, tokenizers, texts, **generate_arguments), strict=True)
        bar.update(len(batch))
    if processes is not None:
        found = gather_object(found)
    translations = [""] * len(sentences)
    for number, text in found:
        translations[number] = text
    return translations
