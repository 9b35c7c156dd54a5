# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""How long the sentences may be that a model is measured on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torch import nn
from transformers import PreTrainedModel

if TYPE_CHECKING:
    from csan_hf.data import TokenizerPair


def position_limit(model: nn.Module) -> int | None:
    """Returns for how many tokens a model has position embeddings; None where it makes them for any number."""
    names = (name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Embedding))
    if not any("position" in name for name in names):
        return None
    return getattr(getattr(model, "config", None), "max_position_embeddings", None)


def check_positions(model: PreTrainedModel, lengths: Iterable[int]) -> None:
    """Checks that a model has position embeddings for sentences; beyond them its tables would be read past their end.

    Args:
        model: The model.
        lengths: The numbers of tokens of sentences.

    Raises:
        ValueError: If it has too few for one of them.
    """
    limit, longest = position_limit(model), max(lengths, default=0)
    if limit is not None and longest > limit:
        raise ValueError(
            f"A sentence has {longest} tokens, and {type(model).__name__} has positions for {limit} "
            "(max_position_embeddings): shorten the sentence, or leave it out."
        )


def pairs_within_positions(
    model: PreTrainedModel, tokenizers: TokenizerPair, sources: Sequence[str], targets: Sequence[str] | None = None
) -> list[int]:
    """Returns the numbers of the sentence pairs for which a model has position embeddings.

    Args:
        model: The model.
        tokenizers: Its tokenizers.
        sources: Source sentences.
        targets: A target sentence each; None = the sources alone count.
    """
    limit = position_limit(model)
    if limit is None or not sources:
        return list(range(len(sources)))
    ids = [tokenizers.source(list(sources), verbose=False)["input_ids"]]
    if targets is not None:
        ids.append(tokenizers.target(text_target=list(targets), verbose=False)["input_ids"])
    pairs = enumerate(zip(*ids, strict=True))
    return [number for number, pair in pairs if all(len(tokens) <= limit for tokens in pair)]
