# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Local attention through torch's FlexAttention: one fused kernel that skips the blocks nobody sees."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .attention_call import AttentionCall
from .key_area import gather_head_area, visible_heads, within_window
from .locality_terms import count_from


class _OneCell:
    """A single cell, as FlexAttention asks for it; the place p of a key is the one of slot p // J at p % J."""

    def __init__(self, call: AttentionCall, b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, p: torch.Tensor):
        self.call, self.index = call, (b, h, i, p % call.key.shape[2])

    def _start(self, start: int | torch.Tensor) -> int | torch.Tensor:
        return start[self.index[0]] if isinstance(start, torch.Tensor) and start.dim() == 1 else start

    @property
    def query_position(self) -> torch.Tensor:
        """[]."""
        return count_from(self._start(self.call.positions.query_start), self.index[2])

    @property
    def key_position(self) -> torch.Tensor:
        """[]."""
        return count_from(self._start(self.call.positions.key_start), self.index[3])

    @property
    def distance(self) -> torch.Tensor:
        """[]."""
        return self.index[3] - (self.index[2] + (self.call.key.shape[2] - self.call.query.shape[2]))

    @property
    def head(self) -> torch.Tensor:
        """[]."""
        return self.index[1]

    def of_query(self, values: torch.Tensor) -> torch.Tensor:
        """[]."""
        return values[self._within(values.shape)]

    def of_pair(self, values: torch.Tensor) -> torch.Tensor:
        """[]."""
        return values[self._within((1,) * (4 - values.dim()) + values.shape)[4 - values.dim() :]]

    def look_up(self, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """[]."""
        return table[(*self._within(table.shape[:3]), index)]

    def sum_by(self, weights: torch.Tensor, index: torch.Tensor, size: int) -> torch.Tensor:
        """Never asked for: the kernel does not give weights."""
        raise NotImplementedError

    def _within(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """The cell's index into a tensor that broadcasts to [B, H, I, J] (or a prefix of it)."""
        return tuple(at if size != 1 else at * 0 for at, size in zip(self.index, shape, strict=False))


def flex_local_attention(call: AttentionCall) -> torch.Tensor:
    """[B, H, I, D]; zeros for a query that sees no key.

    The neighbouring heads' keys are laid behind each other.
    """
    batch, num_heads, query_length, _ = call.query.shape
    keys = gather_head_area(call.key, call.area).flatten(2, 3).contiguous()
    values = gather_head_area(call.value, call.area).flatten(2, 3).contiguous()
    block_mask = create_block_mask(
        _visibility(call), batch, num_heads, query_length, keys.shape[2], device=str(call.query.device)
    )
    output = _kernel(call.query.device.type)(
        call.query, keys, values, score_mod=_score(call), block_mask=block_mask, scale=call.scale
    )
    return output


def flex_cannot_run(call: AttentionCall) -> str | None:
    """Why not, or None."""
    if call.dropout_p > 0:
        return "has no attention dropout; use 'sdpa', 'blocked' or 'eager', or set the dropout to 0."
    if call.value_terms:
        return "does not give the attention weights that a value term needs; use 'eager', or 'blocked' with a window."
    wants_grad = call.query.requires_grad or call.key.requires_grad or call.value.requires_grad
    if call.query.device.type == "cpu" and torch.is_grad_enabled() and (wants_grad or call.terms_require_grad):
        return "has no backward on CPU; use 'blocked', 'sdpa' or 'eager' for training there."
    return None


@functools.cache
def _kernel(device_type: str) -> Callable[..., torch.Tensor]:
    # Uncompiled, FlexAttention writes out all energies: right on a CPU without a compiler, wasteful on a GPU.
    kernel: Any = flex_attention if device_type == "cpu" else torch.compile(flex_attention, dynamic=True)
    return kernel


def _visibility(call: AttentionCall) -> Callable[..., torch.Tensor]:
    key_length = call.key.shape[2]
    heads = visible_heads(call.query.shape[1], call.area, call.query.device)

    def visible(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        cell = _OneCell(call, b, h, i, place)
        seen = within_window(cell.distance, call.area)
        for term in call.visibility_terms:
            seen = seen & term.visible(cell)
        if heads is not None:
            seen = seen & heads[h, place // key_length]
        if call.key_padding_mask is not None:
            seen = seen & call.key_padding_mask[b, place % key_length]
        return seen

    return visible


def _score(call: AttentionCall) -> Callable[..., torch.Tensor] | None:
    if not call.energy_terms:
        return None

    def added(energy, b, h, i, place):  # type: ignore[no-untyped-def]
        cell = _OneCell(call, b, h, i, place)
        for term in call.energy_terms:
            energy = energy + term.energy(cell)
        return energy

    return added
