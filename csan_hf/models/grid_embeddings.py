# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Token and position embeddings. Shapes: B sentences, T tokens, d width."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .configuration_pervasive_attention import PervasiveAttentionConfig
from .input_checks import embed


class SinusoidalPositionalEmbedding(nn.Module):
    """Sinusoids of Vaswani et al. (2017), section 3.5, sines in the first half and cosines in the second.

    The table is computed in double precision and kept for `num_positions`, at most `LONGEST_TABLE`: a config asks for
    any number of positions, and most are never used. What lies beyond is computed when it is asked for.
    """

    LONGEST_TABLE = 16_384
    weight: torch.Tensor

    def __init__(self, num_positions: int, embedding_dim: int) -> None:
        super().__init__()
        self.num_positions, self.embedding_dim = min(num_positions, self.LONGEST_TABLE), embedding_dim
        # Made where the model is being made, which may be the meta device, and filled there unless it is
        weight = torch.empty(self.num_positions, embedding_dim).copy_(self.create_weight(self.num_positions))
        self.register_buffer("weight", weight, persistent=False)

    def create_weight(self, end: int, start: int = 0) -> torch.Tensor:
        """The sinusoids of positions `start` to `end` - 1, [end - start, d] float32."""
        half = np.arange(0, self.embedding_dim, 2)
        angles = np.arange(start, end)[:, None] / np.power(10000, half / self.embedding_dim)[None, :]
        cosines = np.cos(angles)[:, : self.embedding_dim // 2]
        return torch.from_numpy(np.concatenate([np.sin(angles), cosines], axis=1)).float()

    def forward(self, length: int, offset: int = 0) -> torch.Tensor:
        """Embeddings [length, d] of the positions from `offset` on."""
        end = offset + length
        if end <= self.num_positions:
            return self.weight[offset:end]
        return self.create_weight(end, offset).to(self.weight)


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
