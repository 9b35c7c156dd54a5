# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Local attention through torch's FlashAttention: sliding windows on a GPU, in half precision.

An area of N heads is N sliding windows, each a head of its own for the kernel. With the output o_n
of a window and the logarithm l_n of its softmax's sum, the area has l = log Σ exp(l_n) and the
output o = Σ exp(l_n - l) o_n. Its weights are exp(q·k - l), and the kernel's backward pass, which
computes them from l and takes Σ weight · gradient from o, gives the gradients of each window.

No checkpoint carries this file: without csan_hf its models run by the other backends.

Shapes: as in `attention_call`; R = B * T rows, S segments of rows.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .attention_call import AttentionCall
from .backends import BACKENDS, LIMITS

forward_kernel: Any = torch.ops.aten._flash_attention_forward
backward_kernel: Any = torch.ops.aten._flash_attention_backward
_WIDEST_HEAD = 128  # wider ones have no backward pass on some cards
_WIDTH_STEP = 8


def install_flash_attention() -> None:
    """Let models of csan_hf attend locally by FlashAttention."""
    BACKENDS["flash"] = flash_attention
    LIMITS["flash"] = flash_cannot_run


def flash_attention(call: AttentionCall) -> Tensor:
    """The output [B, H, T, D] of a call. What padding gets is arbitrary: it sees other padding."""
    area = call.area
    batch, heads, length, _ = call.query.shape
    reach = -1 if area.half_window is None else area.half_window  # -1 = all
    bounds = call.share("flash segments", lambda: _bounds_of_segments(call))
    hidden = area.visible_heads(heads, call.query.device)
    if hidden is not None:
        hidden = ~hidden.T.unsqueeze(-1)  # [N, H, 1]
    output: Tensor = _Windows.apply(
        _rows_of(call.query),
        _neighbours_of(call.key, call),
        _neighbours_of(call.value, call),
        hidden,
        (bounds, bounds, length, length),
        {
            "scale": call.scale,
            "window_size_left": reach,
            "window_size_right": 0 if area.causal else reach,
        },
    )
    return output.unflatten(0, (batch, length)).transpose(1, 2)


def _rows_of(states: Tensor) -> Tensor:
    """[B, H, T, D] -> [R, H, D]."""
    return states.transpose(1, 2).flatten(0, 1)


def _neighbours_of(states: Tensor, call: AttentionCall) -> Tensor:
    """[B, H, T, D] -> [R, N * H, D]: place n * H + h is the neighbour h + n - (N - 1) / 2 of head
    h.
    """
    padded = _rows_of(call.area.pad_heads(states))
    heads = states.shape[1]
    return torch.cat([padded[:, n : n + heads] for n in range(call.area.head_area)], dim=1)


def flash_cannot_run(call: AttentionCall) -> str | None:
    """The reason why FlashAttention cannot run the call, or None."""
    if not has_kernel(call.query):
        return "is FlashAttention: it needs a GPU from Ampere on, and bfloat16 or float16."
    if call.terms or call.dropout_p > 0:
        return "knows windows and areas of heads alone: no other method, no attention dropout."
    queries, width = call.query.shape[2:]
    if queries != call.key.shape[2]:
        return "needs as many queries as keys."
    if width > _WIDEST_HEAD or width % _WIDTH_STEP or width != call.value.shape[-1]:
        return (
            f"needs keys and values of one width, up to {_WIDEST_HEAD} and a multiple of "
            f"{_WIDTH_STEP}."
        )
    if not call.share("flash padding", lambda: _padding_is_outside(call)):
        return "needs padding before or after the tokens of a text, not between them."
    return None


def has_kernel(query: Tensor) -> bool:
    """Whether torch has FlashAttention for the query's device and type."""
    return (
        query.is_cuda
        and torch.version.hip is None  # whose kernel has other shapes
        and query.dtype in (torch.bfloat16, torch.float16)
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def _padding_is_outside(call: AttentionCall) -> bool:
    """Whether each text's tokens stand side by side; waits for the device."""
    padding = call.key_padding_mask
    if padding is None:
        return True
    begins = (padding[:, 1:] > padding[:, :-1]).sum(dim=-1) + padding[:, :1].sum(dim=-1)
    return bool((begins <= 1).all())


def _bounds_of_segments(call: AttentionCall) -> Tensor:
    """Where segments begin and end among the rows, [S + 1] int32: the padding before each text, its
    tokens, and the padding after it.
    """
    batch, _, length, _ = call.query.shape
    starts = torch.arange(batch + 1, device=call.query.device) * length
    padding = call.key_padding_mask
    if padding is None:
        return starts.int()
    first = starts[:-1] + padding.int().argmax(dim=-1)
    end = first + padding.sum(dim=-1)
    segments = torch.stack([starts[:-1], first, end], dim=-1).flatten()
    return torch.cat([segments, starts[-1:]]).int()


class _Windows(torch.autograd.Function):
    """The output [R, H, D] of queries [R, H, D] for keys and values [R, N * H, D].

    `hidden` [N, H, 1] are neighbours that do not exist. `places` are the kernel's bounds of
    segments of queries, those of keys, and the greatest lengths of both; here queries and keys
    have the same. `options` are the kernel's."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        hidden: Tensor | None,
        places: tuple[Tensor, Tensor, int, int],
        options: dict[str, Any],
    ) -> Tensor:
        area = key.shape[1] // query.shape[1]
        # 0.0, False, False: no dropout, causal by the window alone, no mask for debugging
        # `state` is of the random numbers of dropout; the last result is the mask
        output, sums, *state, _ = forward_kernel(
            query.repeat(1, area, 1), key, value, *places, 0.0, False, False, **options
        )
        if area > 1:
            output, sums = _join(output, sums.unflatten(0, (area, -1)), hidden)
        ctx.settings = (area, hidden, places, options)
        ctx.save_for_backward(query, key, value, output, sums, *state)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, sums, *state = ctx.saved_tensors
        area, hidden, places, options = ctx.settings
        grad, query, output = (rows.repeat(1, area, 1) for rows in (grads[0], query, output))
        sums = sums.expand(area, -1, -1)
        if hidden is not None:
            sums = sums.masked_fill(hidden, torch.inf)  # exp(q·k - ∞): weights of 0
        of_query, of_key, of_value = backward_kernel(
            grad,
            query,
            key,
            value,
            output,
            sums.flatten(0, 1),
            *places,
            0.0,
            False,
            *state,
            **options,
        )
        of_query = of_query.unflatten(1, (area, -1)).sum(dim=1)
        return of_query, of_key, of_value, None, None, None


def _join(outputs: Tensor, sums: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
    """The output [R, H, D] and the logarithms of the sums [H, R] of areas, from those of their
    windows, [R, N * H, D] and [N, H, R].
    """
    if hidden is not None:
        sums = sums.masked_fill(hidden, -torch.inf)  # sums of 0
    joint = sums.logsumexp(dim=0)
    shares = (sums - joint).exp().movedim(-1, 0).unsqueeze(-1)  # [R, N, H, 1]
    output = (outputs.unflatten(1, (len(sums), -1)) * shares).sum(dim=1)
    return output.to(outputs.dtype), joint
