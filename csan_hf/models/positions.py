# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Sinusoids of positions, for both families."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class SinusoidalPositionalEmbedding(nn.Module):
    """Sinusoids of the positions, sines in the first half and cosines in the second.

    `"marian"`: Vaswani et al. (2017), section 3.5, positions counted from 0, computed in double precision.
    `"m2m_100"`: those of tensor2tensor and fairseq, with frequencies 10000^(-i / (d/2 - 1)), the first position being
    `pad_token_id` + 1; computed in single precision, as transformers' M2M100 does.

    The table is kept for `num_positions`, at most `LONGEST_TABLE`: a config asks for any number of
    positions, and most are never used. What lies beyond is computed when it is asked for.
    """

    LONGEST_TABLE = 16_384
    weight: torch.Tensor

    def __init__(
        self, num_positions: int, embedding_dim: int, kind: str = "marian", pad_token_id: int | None = None
    ) -> None:
        super().__init__()
        self.num_positions, self.embedding_dim = min(num_positions, self.LONGEST_TABLE), embedding_dim
        self.kind = kind
        self.first_position = 0 if pad_token_id is None or kind == "marian" else pad_token_id + 1
        # Made where the model is being made, which may be the meta device, and filled there unless it is
        weight = torch.empty(self.num_positions, self.embedding_dim).copy_(self.create_weight(self.num_positions))
        self.register_buffer("weight", weight, persistent=False)

    def create_weight(self, end: int) -> torch.Tensor:
        """The sinusoids of positions 0 to `end` - 1, [end, d] float32, on the CPU."""
        return self._sinusoids(torch.arange(end, device="cpu"))

    def forward(
        self, length: int, offset: int | torch.Tensor = 0, first_real: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Embeddings of consecutive positions.

        Args:
            length: Number T of positions.
            offset: Place of the first of them (a tensor where a static cache counts them).
            first_real: [B], place of each sentence's first real token, its position 0; None = 0. Places before it
                are padding and get position 0, too.

        Returns:
            [T, d], or [B, T, d] with `first_real`.
        """
        end = None if isinstance(offset, torch.Tensor) else offset + length
        if end is not None and end <= self.num_positions and first_real is None:
            return self.weight[offset:end]
        positions = torch.arange(length, device=self.weight.device) + offset
        if first_real is not None:
            positions = (positions - first_real.to(positions.device)[:, None]).clamp(min=0)
        if end is not None and end <= self.num_positions:
            return F.embedding(positions, self.weight)
        return self._sinusoids(positions).to(self.weight)

    def _sinusoids(self, positions: torch.Tensor) -> torch.Tensor:
        """[..., d] float32 for positions [...], on their device."""
        single = self.kind == "m2m_100" or positions.device.type == "mps"  # which has no double precision
        exact = torch.float32 if single else torch.float64
        if self.kind == "m2m_100":
            half = self.embedding_dim // 2
            steps = torch.arange(half, device=positions.device, dtype=exact)
            frequencies = torch.exp(steps * -(math.log(10000) / (half - 1)))
            angles = (positions + self.first_position).to(exact)[..., None] * frequencies
        else:
            steps = torch.arange(0, self.embedding_dim, 2, device=positions.device, dtype=exact)
            angles = positions.to(exact)[..., None] / torch.pow(10000.0, steps / self.embedding_dim)
        return torch.cat([angles.sin(), angles.cos()[..., : self.embedding_dim // 2]], dim=-1).float()
