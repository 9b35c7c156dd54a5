# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""How many tokens a model has position embeddings for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import nn
from transformers import PreTrainedModel

if TYPE_CHECKING:
    from csan_hf.data import TokenizerPair


def fixed_positions(model: PreTrainedModel) -> int | None:
    """Returns for how many tokens a model has position embeddings; None where it makes them for any
    number.
    """
    for name, module in model.named_modules():
        is_learned = getattr(module, "kind", None) == "learned"  # of CSAN
        is_table = is_learned or isinstance(module, nn.Embedding)
        if is_table and "position" in name.rpartition(".")[2]:
            return getattr(model.config, "max_position_embeddings", None)
    return None


def check_positions(model: PreTrainedModel, lengths: Iterable[int]) -> None:
    """Raises `ValueError` if a model has too few position embeddings for sentences of so many
    tokens.
    """
    limit = fixed_positions(model)
    longest = max(lengths, default=0)
    if limit is not None and longest > limit:
        raise ValueError(
            f"A sentence has {longest} tokens, and {type(model).__name__} has positions for "
            f"{limit} (max_position_embeddings): shorten the sentence, or leave it out."
        )


def pairs_within_positions(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sources: Sequence[str],
    targets: Sequence[str] | None = None,
) -> list[int]:
    """Returns the numbers of the sentence pairs, or sources alone, for which a model has position
    embeddings.
    """
    limit = fixed_positions(model)
    if limit is None or not sources:
        return list(range(len(sources)))
    sides = [tokenizers.source(list(sources), verbose=False)]
    if targets is not None:
        sides.append(tokenizers.target(text_target=list(targets), verbose=False))
    lengths = [list(map(len, side["input_ids"])) for side in sides]  # [sides, pairs]
    return np.flatnonzero(np.max(lengths, axis=0) <= limit).tolist()
