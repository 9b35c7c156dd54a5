# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Alignments of pairs of a sentence and its translation, read off a model's cross-attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedModel
from transformers.modeling_outputs import Seq2SeqLMOutput, Seq2SeqModelOutput

from csan_hf_runtime.alignment import Alignment, TokenizedText
from csan_hf_runtime.texts import LanguageTags, warn
from csan_hf_runtime.windows import windows_of

from ..models.evaluation_view import evaluation_view
from .positions import fixed_positions
from .tokenized_text import tokenize_texts

if TYPE_CHECKING:
    from csan_hf.data import TokenizerPair

BATCH_CELLS = 2**20
"""Source times target tokens, padding included, of the pairs of a batch, unless one alone has more.
"""
WINDOW_CELLS = 2**27
"""Characters of the sources times those of the targets, of the pairs of a window."""

TokenizedPair: TypeAlias = tuple[TokenizedText, TokenizedText]
Outputs: TypeAlias = Seq2SeqLMOutput | Seq2SeqModelOutput


def align_pairs(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    pairs: Iterable[tuple[str, str]],
    *,
    layer: int = -1,
    batch_size: int = 32,
    total: int | None = None,
    progress: bool = False,
    forward: Callable[..., Outputs] | None = None,
    read: Callable[[str], tuple[str, str]] | None = None,
) -> Iterator[Alignment]:
    """Aligns sentence pairs, in memory that does not grow with their number; see
    `csan_hf.evaluation.align`.

    Args:
        pairs: Source and target sentences.
        total: Number of pairs, for the bar.
        forward: A function to call instead of the model, with the same arguments; it returns
            cross-attentions.
        read: Takes a source and returns its words and what stands before them for the model, which
            is not aligned; None = the tag that it begins with, in a model with several target
            languages.
    """
    model = evaluation_view(model)
    if read is None:
        tags = LanguageTags(tokenizers.source.get_added_vocab())
        read = partial(tags.mark, prefix="", language=None)
    if getattr(model.config, "_attn_implementation", None) not in (None, "eager"):
        # The faster implementations never have the attention weights
        model.set_attn_implementation("eager")

    shorten = partial(_within_positions, positions=fixed_positions(model))
    padding = tokenizers.source.pad_token_id or 0
    with tqdm(total=total, desc="aligning", unit=" sentences", disable=not progress) as bar:
        for window in windows_of(pairs, size_of=_cells, largest=WINDOW_CELLS):
            sources, targets = zip(*window, strict=True)
            # A blank source needs no language
            marked = [read(source) if source.strip() else (source, "") for source in sources]
            texts, prefixes = zip(*marked, strict=True)
            source_texts = shorten(tokenize_texts(tokenizers.source, texts, prefixes=prefixes))
            target_texts = shorten(tokenize_texts(tokenizers.target, targets, target=True))
            tokenized = list(zip(source_texts, target_texts, strict=True))
            alignments = {}
            for numbers in _batches(tokenized, batch_size):
                batch = padded_batch(
                    [torch.tensor(source_texts[number].ids) for number in numbers],
                    [torch.tensor(target_texts[number].ids) for number in numbers],
                    padding,
                )
                weights, measure = _cross_attention(model, forward or model, batch, layer)
                for number, matrix in zip(numbers, weights, strict=True):
                    source, target = tokenized[number]
                    alignments[number] = Alignment.of_padded(source, target, matrix, measure)
                bar.update(len(numbers))
            for number in range(len(tokenized)):
                yield alignments[number]


def _within_positions(texts: Sequence[TokenizedText], positions: int | None) -> list[TokenizedText]:
    """Texts as far as the model has positions."""
    for text in texts:
        if positions is not None and len(text.ids) > positions:
            warn(
                f"A sentence has {len(text.ids)} tokens, and the model positions for {positions}: "
                f"what is behind is not aligned: {text.text.strip()[:60]!r}..."
            )
    return [text.shortened(positions) for text in texts]


def _cells(pair: tuple[str, str]) -> int:
    source, target = pair
    return len(source) * len(target)


def _batches(pairs: Sequence[TokenizedPair], batch_size: int) -> Iterator[list[int]]:
    """Yields the numbers of pairs of similar lengths, the longest first."""
    lengths = [(len(source.ids), len(target.ids)) for source, target in pairs]
    numbers = sorted(range(len(pairs)), key=lambda number: lengths[number], reverse=True)
    while numbers:
        source_length = lengths[numbers[0]][0]
        target_length = max(lengths[number][1] for number in numbers[:batch_size])
        # Every layer and head has a matrix of each pair
        fitting = BATCH_CELLS // (source_length * target_length)
        count = max(1, min(batch_size, fitting))
        yield numbers[:count]
        numbers = numbers[count:]


@torch.inference_mode()
def _cross_attention(
    model: PreTrainedModel,
    forward: Callable[..., Outputs],
    inputs: dict[str, torch.Tensor],
    layer: int,
) -> tuple[np.ndarray, str]:
    """Float32 [B, I, J] for a batch of pairs, padding included, and what the numbers are."""
    on_device = {name: tensor.to(model.device) for name, tensor in inputs.items()}
    layers = forward(**on_device, output_attentions=True).cross_attentions
    if not layers or layers[0] is None:
        raise ValueError(
            f"{type(model).__name__} gives no cross_attentions, which alignments are read from."
        )
    if not -len(layers) <= layer < len(layers):
        raise ValueError(f"layer must be from {-len(layers)} to {len(layers) - 1}, got {layer}.")
    weights = layers[layer]  # [B, H, I, J]
    measure = _measure(model, layer % len(layers), heads=weights.shape[1])
    return weights.float().mean(dim=1).cpu().numpy(), measure


def padded_batch(
    sources: list[torch.Tensor], targets: list[torch.Tensor], padding: int
) -> dict[str, torch.Tensor]:
    """Returns `input_ids` and `attention_mask` [B, J] and `labels` [B, I], padded on the right."""
    masks = [torch.ones_like(source) for source in sources]
    return {
        "input_ids": pad_sequence(sources, batch_first=True, padding_value=padding),
        "attention_mask": pad_sequence(masks, batch_first=True),
        "labels": pad_sequence(targets, batch_first=True, padding_value=-100),
    }


def _measure(model: PreTrainedModel, layer: int, heads: int) -> str:
    aggregation = getattr(model.config, "aggregation", None)  # Pervasive Attention alone has one
    if aggregation == "attention":
        return "attention weight ρ"
    if aggregation is not None:
        return "contribution to the target token's logit"
    label = f"attention weight, decoder layer {layer}"
    return f"{label}, mean of {heads} heads" if heads > 1 else label
