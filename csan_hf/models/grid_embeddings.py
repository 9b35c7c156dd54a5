# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Token and position embeddings. Shapes: B sentences, T tokens, d width."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .configuration_pervasive_attention import PervasiveAttentionConfig
from .input_checks import embed
from .positions import SinusoidalPositionalEmbedding


class LearnedPositionalEmbedding(nn.Embedding):
    """One trained vector for each position."""

    def forward(self, length: int, offset: int = 0) -> torch.Tensor:  # type: ignore[override]
        """Embeddings [length, d] of the positions from `offset` on.

        Raises:
            ValueError: There are fewer positions than that.
        """
        if offset + length > self.num_embeddings:
            raise ValueError(
                f"A sentence of {offset + length} tokens exceeds max_position_embeddings={self.num_embeddings} of the "
                "learned positions; shorten it (truncation, max_length), or train with "
                'position_embeddings="sinusoidal" or None.'
            )
        return self.weight[offset : offset + length]


def make_position_embedding(config: PervasiveAttentionConfig, width: int) -> nn.Module | None:
    """The position embedding that a config asks for."""
    if config.position_embeddings == "learned":
        return LearnedPositionalEmbedding(config.max_position_embeddings, width)
    if config.position_embeddings == "sinusoidal":
        return SinusoidalPositionalEmbedding(config.max_position_embeddings, width)
    return None


def embed_with_positions(
    embed_tokens: nn.Embedding,
    positions: nn.Module | None,
    input_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    names: tuple[str, str],
    mask: torch.Tensor | None = None,
    past: int = 0,
) -> torch.Tensor:
    """Embeddings [B, T, d]: of tokens, or ready-made ones; sqrt(1/2) (token + position) where there are positions.

    Args:
        embed_tokens: The token embedding.
        positions: The position embedding.
        input_ids: [B, T].
        inputs_embeds: [B, T, d] instead.
        names: What the caller calls these two.
        mask: [B, past + T], True = a real token: positions count real tokens alone. None = all are real.
        past: Tokens before these.
    """
    embeddings = embed(embed_tokens, input_ids, inputs_embeds, names)
    if positions is None:
        return embeddings
    length = embeddings.shape[1]
    if mask is None:
        vectors = positions(length, past)
    else:
        ranks = (mask.long().cumsum(dim=1) - 1).clamp(min=0)[:, past:]
        vectors = F.embedding(ranks, positions(past + length))
    return math.sqrt(0.5) * (embeddings + vectors.to(embeddings.dtype))
