# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Masks, energies and keys of a call written out for all pairs, for the eager and the sdpa backend."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from .attention_call import AttentionCall, open_fully_masked_rows, restrict, sum_energies
from .key_area import KeyArea, pad_heads, repeat_over_area, visible_heads, within_window
from .locality import DenseCells


@dataclass
class DenseMasks:
    """What layers share if their queries see the same keys.

    Attributes:
        cells: The cells of the call.
        hidden: Keys that a query does not see, [B or 1, H or 1, I, N*J]; None: it sees all. The rows of queries that
            see no key are opened, so that no softmax is of an empty row; their output is replaced by zeros.
        fully_masked: The queries that see no key, [B or 1, H or 1, I, 1]; None: there are none.
    """

    cells: DenseCells
    hidden: torch.Tensor | None
    fully_masked: torch.Tensor | None


def dense_masks(call: AttentionCall, chunk: slice | None = None) -> DenseMasks:
    """Masks of the call, or of a chunk of its queries."""
    _, heads, queries, _ = call.query.shape
    cells = DenseCells(heads, queries, call.key.shape[2], call.positions, call.query.device, chunk)
    visible, fully_masked = _visibility(call, cells)
    return DenseMasks(cells, None if visible is None else ~visible, fully_masked)


def _visibility(call: AttentionCall, cells: DenseCells) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    visible = None
    if call.area.window is not None or call.area.causal:
        visible = within_window(cells.distance, call.area)[None, None]
    visible = restrict(visible, call, cells)
    if call.key_padding_mask is not None:
        padding = call.key_padding_mask[:, None, None, :]
        visible = padding if visible is None else visible & padding
    fully_masked = None
    if visible is not None and (call.key_padding_mask is not None or call.visibility_terms):
        visible, fully_masked = open_fully_masked_rows(visible)
    return _over_heads(visible, call), fully_masked


def _over_heads(visible: torch.Tensor | None, call: AttentionCall) -> torch.Tensor | None:
    """Repeat a mask [B, H or 1, I, J] over the N heads of the area and close the slots without a head."""
    heads = visible_heads(call.query.shape[1], call.area, call.query.device)
    if heads is None:
        return None if visible is None else repeat_over_area(visible, call.area)
    if visible is None:
        return heads[None, :, None, :, None].expand(-1, -1, -1, -1, call.key.shape[2]).flatten(3, 4)
    return (visible.unsqueeze(-2) & heads[None, :, None, :, None]).flatten(-2)


def dense_energies(call: AttentionCall, cells: DenseCells) -> torch.Tensor | None:
    """The terms' energies repeated over the heads of the area, broadcastable to [B, H, I, N*J]."""
    energies = sum_energies(call, cells)
    if energies is None or call.area.head_area == 1:
        return energies
    return repeat_over_area(energies.expand(*energies.shape[:-1], call.key.shape[2]), call.area)


def keys_of_area(states: torch.Tensor, area: KeyArea) -> torch.Tensor:
    """Each head's keys and its neighbours', one head after the other: [B, H, J, D] -> [B, H, N * J, D]."""
    if area.head_area == 1:
        return states
    padded = pad_heads(states, area)
    if torch.compiler.is_compiling():
        heads = states.shape[1]
        return torch.cat([padded[:, slot : slot + heads] for slot in range(area.head_area)], dim=2)
    return _OverlappingHeads.apply(padded, area.head_area)


class _OverlappingHeads(torch.autograd.Function):
    """A view in which the keys of a head and its neighbours follow one another; backward adds them up again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(padded: torch.Tensor, area: int) -> torch.Tensor:
        """[B, H + N - 1, J, D] -> [B, H, N * J, D], nothing copied: a head's keys overlap with its neighbour's."""
        padded = padded.contiguous()
        batch, padded_heads, length, width = padded.shape
        shape = (batch, padded_heads - area + 1, area * length, width)
        return padded.as_strided(shape, padded.stride(), padded.storage_offset())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, int], output: torch.Tensor) -> None:
        """What the backward needs; apart from the forward, so that torch.func can transform both."""
        ctx.area = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The transpose: every head gets what those that see it hand back."""
        heads, slots = grad.shape[1], grad.unflatten(2, (ctx.area, -1)).unbind(2)
        total = F.pad(slots[0], (0, 0, 0, 0, 0, ctx.area - 1))
        for slot, part in enumerate(slots[1:], start=1):
            total[:, slot : slot + heads] += part
        return total, None
