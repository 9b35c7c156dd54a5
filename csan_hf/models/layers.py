# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Shared by kernels and models: dropout, sinusoids, checks of tokens and masks, embedding, weights
of attention without heads.

Shapes: B sentences, T positions, d width. Checks read shapes and types alone, so that nothing waits
for a GPU; tokens out of range are found where torch finds them, on a CPU."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_DRAWS = 2**16  # values of the 16-bit numbers that `drop` draws
_SMALLEST_DRAWN = 8192  # elements from which on cheap numbers pay for the operations around them


def is_traced() -> bool:
    """Whether torch must see every operation: in a compiled program, or under a transformation of
    `torch.func`.
    """
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def is_plain(states: Tensor) -> bool:
    """Whether torch computes `states` on a CPU and at once: no compiler, tracer, torch.func or
    subclass.
    """
    traced = is_traced() or torch.jit.is_tracing()
    return type(states) is Tensor and states.device.type == "cpu" and not traced


def drop(states: Tensor, probability: float, training: bool = True) -> Tensor:
    """`torch.nn.functional.dropout`; on a CPU with fewer random numbers, the probability rounded to
    1 / 65536.
    """
    if not training or probability == 0.0:
        return states
    dropped = round(probability * _DRAWS)
    if not is_plain(states) or states.numel() < _SMALLEST_DRAWN or not 0 < dropped < _DRAWS:
        # One operation, which compilers and vmap know
        return F.dropout(states, probability, training=True)
    # A draw of 64 bits serves four elements. In place and in integers: booleans cost a CPU more
    # than the draws, and the integers are what autograd keeps
    draws = torch.empty(-(-states.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = draws.view(torch.int16)[: states.numel()].ge_(dropped - _DRAWS // 2)
    return states * kept.view(states.shape) * (_DRAWS / (_DRAWS - dropped))


class SinusoidalPositionalEmbedding(nn.Module):
    """Sinusoids of the positions, sines in the first half and cosines in the second.

    `"sinusoidal"`: Vaswani et al. (2017), section 3.5, counted from 0, in double precision.
    `"m2m_100"`: of fairseq, frequencies 10000^(-i / (d/2 - 1)), counted from `pad_token_id` + 1, in
    single precision, as in M2M100. Positions beyond the table of `num_positions` (at most
    `LONGEST_TABLE`) are computed when they are asked for. `"learned"`: starting as `"sinusoidal"`;
    a text that is longer than their table is refused."""

    LONGEST_TABLE = 16_384

    def __init__(
        self,
        num_positions: int,
        embedding_dim: int,
        kind: str = "sinusoidal",
        pad_token_id: int | None = None,
    ) -> None:
        super().__init__()
        self.num_positions = num_positions
        if kind != "learned":
            self.num_positions = min(num_positions, self.LONGEST_TABLE)
        self.embedding_dim = embedding_dim
        self.kind = kind
        self.first_position = 0
        if kind != "sinusoidal" and pad_token_id is not None:
            self.first_position = pad_token_id + 1
        # On the default device, which may be meta
        weight = torch.empty(self.num_positions, embedding_dim)
        self.weight: Tensor = nn.Buffer(weight, persistent=False)
        if kind == "learned":
            self.weight = nn.Parameter(weight)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Fill the table with the sinusoids."""
        self.weight.copy_(self.create_weight(self.num_positions))

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        if self.kind != "learned":
            # The sinusoids are in no state dict, and after `to_empty` the table holds anything
            self.reset_parameters()
        super()._load_from_state_dict(*args, **kwargs)

    def create_weight(self, end: int) -> Tensor:
        """The sinusoids of positions 0 to `end` - 1, [end, d] float32, on the CPU."""
        return self._sinusoids(torch.arange(end, device="cpu"))

    def forward(
        self, length: int, offset: int | Tensor = 0, first_real: Tensor | None = None
    ) -> Tensor:
        """Embeddings [T, d] of consecutive positions, or [B, T, d] with `first_real`.

        Args:
            length: Number T of positions.
            offset: Place of the first of them (a tensor where a static cache counts them).
            first_real: [B], place of each sentence's first real token: position 0, as are those
                before it.
        """
        positions = torch.arange(length, device=self.weight.device) + offset
        if first_real is not None:
            positions = (positions - first_real.to(positions.device)[:, None]).clamp(min=0)
        is_learned = self.kind == "learned"
        if isinstance(offset, Tensor):
            in_table = is_learned
        else:
            in_table = offset + length <= self.num_positions
            if is_learned and not in_table:
                raise ValueError(
                    f"{offset + length} tokens are more than the {self.num_positions} learned "
                    "positions; split the text."
                )
        if in_table:
            return F.embedding(positions, self.weight)
        return self._sinusoids(positions).to(self.weight)

    def _sinusoids(self, positions: Tensor) -> Tensor:
        """[..., d] float32 for positions [...], on their device."""
        dtype = torch.float64
        if self.kind == "m2m_100" or positions.device.type == "mps":  # mps has no double precision
            dtype = torch.float32
        half = self.embedding_dim // 2
        places = (positions + self.first_position).to(dtype)[..., None]
        if self.kind == "m2m_100":
            steps = torch.arange(half, device=positions.device, dtype=dtype)
            angles = places * torch.exp(steps * -(math.log(10000) / (half - 1)))
        else:
            steps = torch.arange(0, self.embedding_dim, 2, device=positions.device, dtype=dtype)
            angles = places / torch.pow(10000.0, steps / self.embedding_dim)
        return torch.cat([angles.sin(), angles.cos()[..., :half]], dim=-1).float()


def check_tokens(tokens: Tensor, name: str) -> None:
    """Raise `ValueError` unless `tokens` are token numbers [B, T], at least one."""
    received = type(tokens).__name__
    if isinstance(tokens, Tensor):
        is_integer = tokens.dtype in (torch.int64, torch.int32)
        if is_integer and tokens.dim() == 2 and tokens.numel() > 0:
            return
        received = f"{tokens.dtype} {list(tokens.shape)}"
    raise ValueError(
        f"`{name}` must be a tensor [batch, length] of token numbers (int64 or int32), at least "
        f"one, got {received}."
    )


def check_as_many(sources: int, targets: int) -> None:
    """Raise `ValueError` unless there are as many source as target sentences."""
    if sources != targets:
        raise ValueError(
            "Sources and targets must have the same number of sentences, got "
            f"{sources} sources and {targets} targets."
        )


def embed(
    embed_tokens: nn.Embedding,
    input_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    prefix: str = "",
) -> Tensor:
    """Embeddings [B, T, d] of tokens [B, T], or those given.

    In messages `prefix` stands before the names `input_ids` and `inputs_embeds`."""
    name = f"{prefix}input_ids"
    if inputs_embeds is not None and input_ids is None:
        return inputs_embeds
    if input_ids is None or inputs_embeds is not None:
        raise ValueError(f"Exactly one of `{name}` and `{prefix}inputs_embeds` must be given.")
    check_tokens(input_ids, name)
    try:
        return embed_tokens(input_ids)
    except IndexError as error:
        origin = " (they are `labels`, shifted, where only labels are given)" if prefix else ""
        raise ValueError(
            f"`{name}` must be tokens of the vocabulary, 0 to {len(embed_tokens.weight) - 1}, "
            f"got numbers from {input_ids.min()} to {input_ids.max()}{origin}. Check that "
            f"tokenizer and model belong together, or call `resize_{prefix}token_embeddings` for "
            "added tokens."
        ) from error


def padding_mask(mask: Tensor | None, batch: int, length: int | None, name: str) -> Tensor | None:
    """A mask [B, T] of ones and zeros as booleans, True = a real token; None = all are real.

    T may be any where `length` is None; `name` is the mask's in messages."""
    if mask is None:
        return None
    if mask.dim() != 2 or mask.shape[0] != batch or length not in (None, mask.shape[1]):
        expected = "length" if length is None else length
        raise ValueError(
            f"`{name}` must have the shape [batch, length] = [{batch}, {expected}], got "
            f"{list(mask.shape)}."
        )
    # The values are read on a CPU alone, where that makes nothing wait.
    if mask.dtype != torch.bool and is_plain(mask):
        # An additive mask (0 and -inf, or 0 and -10000) would mean the opposite.
        strange = mask[(mask != 0) & (mask != 1)]
        if strange.numel():
            raise ValueError(
                f"`{name}` must hold 1 (a real token) and 0 (padding), got {strange[0].item()}."
            )
    return mask.bool()


def attention_weights(energies: Tensor, mask: Tensor | None) -> Tensor:
    """The softmax in float32 of energies [B, I, J] over the real source tokens.

    Those are given by a mask [B, J], None = all; without a real token the weights are zero."""
    precise = energies.to(torch.promote_types(energies.dtype, torch.float32))
    if mask is None:
        return precise.softmax(dim=-1).to(energies.dtype)
    hidden = ~mask.unsqueeze(1)
    weights = precise.masked_fill(hidden, torch.finfo(precise.dtype).min).softmax(dim=-1)
    return weights.masked_fill(hidden, 0.0).to(energies.dtype)
