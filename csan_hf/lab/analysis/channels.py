# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Which source tokens the channels of Pervasive Attention take their maximum from."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import Seq2SeqModelOutput

from csan_hf.alignment import Alignment, align_pairs
from csan_hf.data import TokenizerPair
from csan_hf.models.evaluation_view import evaluation_view


def channel_shares(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
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
    view: Any = evaluation_view(model)

    def pooled(labels: torch.Tensor, **inputs: torch.Tensor) -> Seq2SeqModelOutput:
        """Runs the model without a word to predict: its `cross_attentions` are then the shares."""
        decoder_input_ids = view.prepare_decoder_input_ids_from_labels(labels)
        return view.base_model(decoder_input_ids=decoder_input_ids, **inputs)

    alignments = align_pairs(
        view,
        tokenizers,
        zip(sources, targets, strict=True),
        total=len(sources),
        progress=progress,
        forward=pooled,
    )
    return [replace(alignment, measure="share of channels") for alignment in alignments]


def channel_ranks(shares: Iterable[Alignment], number: int = 10) -> np.ndarray:
    """Returns how concentrated the channels of `channel_shares` are.

    Returns:
        float64 [R], R = `number`: the share of channels of the source token that has the most of
            them, then of the token with the second most, …; the mean over all target tokens.
            Sentences with fewer tokens have 0 in the last places.
    """
    ranks = np.zeros(number)
    rows = 0
    for alignment in shares:
        ordered = -np.sort(-alignment.matrix.astype(np.float64), axis=1)[:, :number]
        ranks[: ordered.shape[1]] += ordered.sum(axis=0)
        rows += len(ordered)
    return ranks / rows
