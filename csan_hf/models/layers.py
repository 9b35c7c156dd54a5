# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Shared by kernels and models: dropout, sinusoids, checks of tokens and masks, embedding.

Shapes: B sentences, T positions, d width. Checks read shapes and types alone, so that nothing waits
for a GPU; tokens out of range are found where torch finds them, on a CPU."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.utils import logging

logger = logging.get_logger(__name__)

_DRAWS = 2**16
_FEWEST = 8192  # elements from which on the cheaper numbers pay for the operations around them


def is_plain(states: torch.Tensor) -> bool:
    """Whether torch computes `states` on a CPU and at once: for no compiler, tracer, torch.func or
    subclass.
    """
    traced = (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
    )
    return type(states) is torch.Tensor and states.device.type == "cpu" and not traced


def drop(states: torch.Tensor, probability: float, training: bool = True) -> torch.Tensor:
    """`torch.nn.functional.dropout`; on a CPU with fewer random numbers, the probability rounded to
    1 / 65536.
    """
    if not training or probability == 0.0:
        return states
    if (
        not is_plain(states)
        or states.numel() < _FEWEST
        or not 0.5 < probability * _DRAWS < _DRAWS - 0.5
    ):
        return F.dropout(
            states, probability, training=True
        )  # one operation that compilers and vmap know
    scale = _DRAWS / max(_DRAWS - round(probability * _DRAWS), 1)
    # A draw of 64 bits serves four elements. In place and in integers: booleans cost a CPU more
    # than the draws
    draws = torch.empty(-(-states.numel() // 4), dtype=torch.int64, device=states.device).random_(
        -(2**63), None
    )
    kept = draws.view(torch.int16)[: states.numel()].ge_(round(probability * _DRAWS) - _DRAWS // 2)
    return states * kept.view(states.shape) * scale  # the integers are what autograd keeps


class SinusoidalPositionalEmbedding(nn.Module):
    """Sinusoids of the positions, sines in the first half and cosines in the second.

    `"marian"`: Vaswani et al. (2017), section 3.5, positions counted from 0, in double precision.
    `"m2m_100"`: of fairseq, frequencies 10000^(-i / (d/2 - 1)), counted from `pad_token_id` + 1, in
    single precision, as in M2M100. Positions beyond the table of `num_positions` (at most
    `LONGEST_TABLE`) are computed when they are asked for. `"bart"`: learned, starting as those of
    `"marian"`; a text that is longer than their table is refused."""

    LONGEST_TABLE = 16_384

    def __init__(
        self,
        num_positions: int,
        embedding_dim: int,
        kind: str = "marian",
        pad_token_id: int | None = None,
    ) -> None:
        super().__init__()
        self.num_positions, self.embedding_dim = (
            min(num_positions, self.LONGEST_TABLE),
            embedding_dim,
        )
        self.kind = kind
        self.first_position = 0 if pad_token_id is None or kind == "marian" else pad_token_id + 1
        # Made where the model is being made, which may be the meta device, and filled there unless
        # it is
        weight = torch.empty(self.num_positions, self.embedding_dim).copy_(
            self.create_weight(self.num_positions)
        )
        self.weight: torch.Tensor = (
            nn.Parameter(weight) if kind == "bart" else nn.Buffer(weight, persistent=False)
        )

    def create_weight(self, end: int) -> torch.Tensor:
        """The sinusoids of positions 0 to `end` - 1, [end, d] float32, on the CPU."""
        return self._sinusoids(torch.arange(end, device="cpu"))

    def forward(
        self, length: int, offset: int | torch.Tensor = 0, first_real: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Embeddings [T, d] of consecutive positions, or [B, T, d] with `first_real`.

        Args:
            length: Number T of positions.
            offset: Place of the first of them (a tensor where a static cache counts them).
            first_real: [B], place of each sentence's first real token, its position 0, as of those
                before it.
        """
        end = None if isinstance(offset, torch.Tensor) else offset + length
        if self.kind == "bart" and (end or 0) > self.num_positions:
            raise ValueError(
                f"{end} tokens are more than the {self.num_positions} learned positions; split the "
                "text."
            )
        positions = torch.arange(length, device=self.weight.device) + offset
        if first_real is not None:
            positions = (positions - first_real.to(positions.device)[:, None]).clamp(min=0)
        if self.kind == "bart" or (end is not None and end <= self.num_positions):
            return F.embedding(positions, self.weight)
        return self._sinusoids(positions).to(self.weight)

    def _sinusoids(self, positions: torch.Tensor) -> torch.Tensor:
        """[..., d] float32 for positions [...], on their device."""
        single = (
            self.kind == "m2m_100" or positions.device.type == "mps"
        )  # which has no double precision
        exact, half = torch.float32 if single else torch.float64, self.embedding_dim // 2
        places = (positions + self.first_position).to(exact)[..., None]
        if self.kind == "m2m_100":
            steps = torch.arange(half, device=positions.device, dtype=exact)
            angles = places * torch.exp(steps * -(math.log(10000) / (half - 1)))
        else:
            steps = torch.arange(0, self.embedding_dim, 2, device=positions.device, dtype=exact)
            angles = places / torch.pow(10000.0, steps / self.embedding_dim)
        return torch.cat([angles.sin(), angles.cos()[..., :half]], dim=-1).float()


def check_tokens(tokens: Any, name: str) -> None:
    """Raise `ValueError` unless `tokens` are token numbers [B, T], at least one."""
    is_tensor = isinstance(tokens, torch.Tensor)
    if (
        not is_tensor
        or tokens.dim() != 2
        or 0 in tokens.shape
        or tokens.dtype not in (torch.int64, torch.int32)
    ):
        got = f"{tokens.dtype} {list(tokens.shape)}" if is_tensor else type(tokens).__name__
        wanted = "a tensor [batch, length] of token numbers (int64 or int32), at least one"
        raise ValueError(f"`{name}` must be {wanted}, got {got}.")


def check_as_many(sources: int, targets: int) -> None:
    """Raise `ValueError` unless there are as many source as target sentences."""
    if sources != targets:
        both = f"{sources} sources and {targets} targets"
        raise ValueError(f"Sources and targets must have the same number of sentences, got {both}.")


def embed(
    embed_tokens: Any, input_ids: Any, inputs_embeds: Any, names: tuple[str, str]
) -> torch.Tensor:
    """Embeddings [B, T, d] of tokens [B, T], or ready-made ones; `names` are what the caller calls
    these two.
    """
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError(f"Exactly one of `{names[0]}` and `{names[1]}` must be given.")
    if inputs_embeds is not None:
        return inputs_embeds
    check_tokens(input_ids, names[0])
    try:
        return embed_tokens(input_ids)
    except IndexError as error:
        origin = (
            " (they are `labels`, shifted, where only labels are given)"
            if names[0].startswith("decoder")
            else ""
        )
        raise ValueError(
            f"`{names[0]}` must be tokens of the vocabulary, 0 to {len(embed_tokens.weight) - 1}, "
            f"got numbers from {input_ids.min()} to {input_ids.max()}{origin}. Check that "
            "tokenizer and model belong together, or call `resize_token_embeddings` for added "
            "tokens."
        ) from error


def padding_mask(mask: torch.Tensor, batch: int, length: int | None, name: str) -> torch.Tensor:
    """A mask [B, T] (any T with `length` None) of ones and zeros of any type as booleans, True = a
    real token.
    """
    if (
        mask.dim() != 2
        or mask.shape[0] != batch
        or (length is not None and mask.shape[1] != length)
    ):
        expected = f"[{batch}, {'length' if length is None else length}]"
        raise ValueError(
            f"`{name}` must have the shape [batch, length] = {expected}, got {list(mask.shape)}."
        )
    # The values are read on a CPU alone, where that makes nothing wait.
    if mask.dtype != torch.bool and mask.device.type == "cpu" and not torch.compiler.is_compiling():
        # An additive mask (0 and -inf, or 0 and -10000) would mean the opposite.
        strange = mask[(mask != 0) & (mask != 1)]
        if strange.numel():
            raise ValueError(
                f"`{name}` must hold 1 (a real token) and 0 (padding), got {strange[0].item()}."
            )
        if ((mask[:, 1:] > mask[:, :-1]).sum(dim=1) + mask[:, :1].sum(dim=1) > 1).any():
            logger.warning_once(
                f"`{name}` has padding between real tokens; positions and windows count neighbours."
            )
    return mask.bool()
