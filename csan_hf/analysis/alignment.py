# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Alignments of sentence pairs, read off a translation model's cross-attention."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedModel

from csan_hf.evaluation import translate_stream
from csan_hf.evaluation.loading import evaluation_view

from .aligned_pairs import Alignment, align_pairs
from .tokenized_text import check_fast

if TYPE_CHECKING:
    from csan_hf.data import TokenizerPair


def align(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sources: Sequence[str],
    targets: Sequence[str] | None = None,
    *,
    layer: int = -1,
    batch_size: int = 32,
    progress: bool = False,
    **generate_arguments: Any,
) -> list[Alignment]:
    """Aligns sentence pairs by a model's cross-attention while it predicts the given targets.

    - Pervasive Attention has one alignment: the attention's weights, or the contributions of the
      source tokens to the target token's logit (equation 7), which can be negative.
    - A Transformer (CSAN, Marian...) has one for each head and decoder layer. The mean over the
      heads of one layer is taken, by default of the last. That is only a convention: nothing trains
      a head to align, and another layer often aligns better. Row i is the attention with which
      token i was predicted.

    The model keeps its training mode and attention implementation: alignments are computed on a
    view of it.

    Args:
        model: A sequence-to-sequence model, on any device.
        tokenizers: Its source and target tokenizers, fast ones.
        sources: Source sentences. They and the targets are not cut, however long.
        targets: As many target sentences, or None to let the model translate. A translation is
            tokenized again from its text.
        layer: Decoder layer, counted from 0, or from the last with -1.
        batch_size: Sentence pairs at a time; pairs of similar lengths are put together.
        progress: Shows bars on standard error.
        generate_arguments: For `generate`, where targets is None; None means the generation
            config's value.

    Returns:
        As many alignments as there are sources, in their order.

    Raises:
        ValueError: If the numbers of sentences differ, there is no such layer, a tokenizer is not a
            fast one, the model gives no cross-attention, or a sentence has more tokens than the
            model has positions.
    """
    options = {"layer": layer, "batch_size": batch_size, "progress": progress, **generate_arguments}
    return list(align_stream(model, tokenizers, sources, targets, **options))


def align_stream(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sources: Collection[str],
    targets: Collection[str] | None = None,
    *,
    layer: int = -1,
    batch_size: int = 32,
    progress: bool = False,
    **generate_arguments: Any,
) -> Iterator[Alignment]:
    """Aligns sentence pairs as `align` does, in memory that does not grow with their number.

    A window of `WINDOW_LINES` pairs, less where they are very long, is aligned at a time. The
    arguments are those of `align`; sources and targets may be files
    (`csan_hf.text_files.TextFile`)."""
    if targets is not None and generate_arguments:
        raise ValueError(
            f"{', '.join(generate_arguments)}: leave out, as nothing is generated where targets "
            "are given."
        )
    check_fast(tokenizers.source, tokenizers.target)  # before anything is translated
    translated: Iterable[str] = targets or ()
    if targets is None:
        windows = translate_stream(
            model, tokenizers, sources, progress=progress, **generate_arguments
        )
        translated = chain.from_iterable(windows)
    options: Any = {
        "layer": layer,
        "batch_size": batch_size,
        "total": len(sources),
        "progress": progress,
    }
    return align_pairs(model, tokenizers, zip(sources, translated, strict=True), **options)


def channel_shares(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    batch_size: int = 32,
    progress: bool = False,
) -> list[Alignment]:
    """Says from which source tokens Pervasive Attention's max pooling takes its channels.

    Entry [i, j] is |B_ij| / f, the share of channels whose maximum over the source lies at token j
    when target token i is predicted (section 3.3 of Elbayad et al., 2018). Unlike the contributions
    of `align`, it does not depend on how much a channel matters for the word. A row sums to 1, less
    the share of channels that are 0 at every source token.

    The arguments are those of `align`.

    Raises:
        ValueError: If the numbers of sentences differ, or nothing in the model pools by maximum
            alone.
    """
    if getattr(model.config, "aggregation", None) != "max":
        raise ValueError(
            "Shares of channels need a Pervasive Attention model with aggregation='max', got a "
            f"{type(model).__name__} with {getattr(model.config, 'aggregation', None)!r}."
        )
    view = evaluation_view(model)
    shift: Any = view.prepare_decoder_input_ids_from_labels

    def pooled(labels: torch.Tensor, **inputs: torch.Tensor) -> Any:
        return view.base_model(
            decoder_input_ids=shift(labels), **inputs
        )  # without a word to predict: the shares

    pairs = zip(sources, targets, strict=True)
    options: Any = {
        "batch_size": batch_size,
        "total": len(sources),
        "progress": progress,
        "forward": pooled,
    }
    found = align_pairs(view, tokenizers, pairs, **options)
    return [replace(alignment, measure="share of channels") for alignment in found]


def channel_ranks(shares: Iterable[Alignment], number: int = 10) -> np.ndarray:
    """Returns how concentrated the channels of `channel_shares` are.

    Returns:
        float64 [R], R = `number`: the share of channels of the source token that has the most of
            them, of the one
        with the second most, …; the mean over all target tokens. Sentences with fewer tokens have 0
        in the others.
    """
    ranks, rows = np.zeros(number), 0
    for alignment in shares:
        ordered = -np.sort(-alignment.matrix.astype(np.float64), axis=1)[:, :number]
        ranks[: ordered.shape[1]] += ordered.sum(axis=0)
        rows += len(ordered)
    return ranks / rows
