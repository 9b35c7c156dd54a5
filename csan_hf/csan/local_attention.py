# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Attention over a window of positions and an area of heads, in several backends that agree.

Query (h, i) attends jointly to the keys (s, j) with |s - h| <= n and |j - i| <= m (Yang et al., NAACL 2019, equations
4-6). `local_attention` is the way in; the models also call `attention_with_weights`.

| backend | memory in the length | what it is |
| --- | --- | --- |
| `eager` | quadratic | matrix products and a float32 softmax; the only one that gives attention weights |
| `sdpa` | linear to quadratic (the mask) | torch's fused attention with a mask |
| `blocked` | linear, forward and backward | blocks of queries against their block of keys plus m on either side |
| `flex_attention` | linear | torch's FlexAttention; on CPU it has no backward |
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from .flex_backend import flex_local_attention
from .locality import (
    GaussianBias,
    Locality,
    check_head_area,
    check_window,
    pad_heads,
    relative_positions,
    visible_heads,
    within_locality,
)


@dataclass(frozen=True)
class AttentionCall:
    """One validated call: tensors as in `local_attention`, with the locality and the scale resolved."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    locality: Locality
    bias: torch.Tensor | GaussianBias | None
    key_padding_mask: torch.Tensor | None
    scale: float
    dropout_p: float

    @property
    def bias_requires_grad(self) -> bool:
        """Whether gradients flow into the bias."""
        return self.bias is not None and self.bias.requires_grad


def local_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    window: int | None = None,
    head_area: int = 1,
    head_boundary: str = "mask",
    bias: torch.Tensor | GaussianBias | None = None,
    key_padding_mask: torch.Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    backend: str | None = None,
) -> torch.Tensor:
    """Scaled dot-product attention in which a query sees a window of positions and an area of heads.

    Args:
        query: [B, H, I, D].
        key: [B, H, J, D]. In a causal call with I < J the queries are the last I positions (a decoding step).
        value: [B, H, J, D].
        window: Total width M in tokens, both edges included; odd, `None` = unrestricted.
        head_area: Number N of neighbouring heads attended to jointly; odd, 1 to 2H - 1.
        head_boundary: `"mask"` (heads outside 0..H-1 are not visible) or `"circular"` (wrap modulo H, N <= H).
        bias: Added to the energies, [B, H, I, J] or broadcastable to it, or a `GaussianBias`. It applies to the
            key at its position, whatever the key's head.
        key_padding_mask: [B, J] boolean, True = a real token.
        causal: Whether keys after the query are invisible.
        scale: Factor of the dot products, default 1/sqrt(D).
        dropout_p: Probability of dropping an attention weight.
        backend: `"eager"`, `"sdpa"`, `"blocked"`, `"flex_attention"`, or `None` for the fastest that can run.

    Returns:
        [B, H, I, D]. A query that sees no key yields zeros.

    Raises:
        ValueError: An argument is out of range, or the backend cannot do what is asked (it says why).
    """
    call = _validated(
        query,
        key,
        value,
        Locality(window, head_area, head_boundary, causal),
        bias,
        key_padding_mask,
        scale,
        dropout_p,
    )
    return BACKENDS[choose_backend(call, backend)](call)


def attention_with_weights(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """The eager computation, with its weights.

    Returns:
        The output [B, H, I, D] and the weight of each key position [B, H, I, J], summed over the heads of the area.
        The output is made from these weights, so a gradient reaches them.
    """
    visible, row_visible = _dense_visibility(call)
    keys, values = _area_of(call.key, call.locality), _area_of(call.value, call.locality)
    weights = _softmax_weights(call, call.query, keys, visible, _dense_bias(call))
    joint = _zero_blind_rows(weights, row_visible).unflatten(-1, (call.locality.head_area, -1))  # [B, H, I, N, J]
    sums = joint.sum(dim=-2)
    of_positions = weights = sums.to(values.dtype)
    if call.locality.head_area > 1:
        # A position's weight times each head's share of it: the joint weights again, by way of what is returned
        shares = joint / sums.clamp(min=torch.finfo(sums.dtype).tiny).unsqueeze(-2)
        weights = (of_positions.unsqueeze(-2) * shares).flatten(-2).to(values.dtype)
    return torch.matmul(F.dropout(weights, call.dropout_p, training=True), values), of_positions


def make_call(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    locality: Locality,
    *,
    bias: torch.Tensor | GaussianBias | None = None,
    key_padding_mask: torch.Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> AttentionCall:
    """A validated call for `attention_with_weights` (arguments as in `local_attention`)."""
    return _validated(query, key, value, locality, bias, key_padding_mask, scale, dropout_p)


# --- validation and choice ---------------------------------------------------------------------------------------


def _validated(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    locality: Locality,
    bias: torch.Tensor | GaussianBias | None,
    key_padding_mask: torch.Tensor | None,
    scale: float | None,
    dropout_p: float,
) -> AttentionCall:
    _check_shapes(query, key, value)
    _, num_heads, query_length, head_dim = query.shape
    key_length = key.shape[2]
    check_window(locality.window)
    check_head_area(locality.head_area, num_heads, locality.head_boundary)
    if locality.causal and query_length > key_length:
        raise ValueError(
            f"`causal` attention needs at least as many keys as queries (the queries are the last positions), "
            f"got {query_length} queries and {key_length} keys."
        )
    if locality.window is not None and not locality.causal and query_length != key_length:
        raise ValueError(
            f"`window` without `causal` needs as many keys as queries (self-attention), got {query_length} "
            f"queries and {key_length} keys."
        )
    if key_padding_mask is not None:
        _check_padding_mask(key_padding_mask, key)
    if isinstance(bias, GaussianBias):
        for name in ("center", "width"):
            _check_bias(getattr(bias, name), (query.shape[0], num_heads, query_length), f"bias.{name}")
    elif bias is not None:
        _check_bias(bias, (query.shape[0], num_heads, query_length, key_length), "bias")
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"`dropout_p` must be between 0 and 1, got {dropout_p}.")
    return AttentionCall(
        query,
        key,
        value,
        locality,
        bias,
        key_padding_mask,
        head_dim**-0.5 if scale is None else scale,
        dropout_p,
    )


def _check_shapes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise ValueError(
                f"`{name}` must have 4 dimensions [batch, heads, length, width], got {list(tensor.shape)}."
            )
    if key.shape[:3] != value.shape[:3] or query.shape[:2] != key.shape[:2] or query.shape[3] != key.shape[3]:
        raise ValueError(
            f"`query` {list(query.shape)}, `key` {list(key.shape)} and `value` {list(value.shape)} must agree in "
            f"batch, heads and width, and key and value in length."
        )


def _check_padding_mask(mask: torch.Tensor, key: torch.Tensor) -> None:
    expected = (key.shape[0], key.shape[2])
    if mask.dtype != torch.bool:
        raise ValueError(f"`key_padding_mask` must be boolean (True = a real token), got {mask.dtype}.")
    if tuple(mask.shape) != expected:
        raise ValueError(
            f"`key_padding_mask` must have shape [batch, keys] = {list(expected)}, got {list(mask.shape)}."
        )


def _check_bias(bias: torch.Tensor, expected: tuple[int, ...], name: str) -> None:
    if bias.dtype == torch.bool:
        raise ValueError(f"`{name}` is added to the energies and must be a floating tensor, got torch.bool.")
    fits = bias.dim() == len(expected) or name == "bias"
    sizes = zip(reversed(bias.shape), reversed(expected), strict=False)
    if not fits or bias.dim() > len(expected) or any(size not in (1, wanted) for size, wanted in sizes):
        axes = ", ".join(("batch", "heads", "queries", "keys")[: len(expected)])
        raise ValueError(f"`{name}` must broadcast to [{axes}] = {list(expected)}, got {list(bias.shape)}.")


def choose_backend(call: AttentionCall, backend: str | None) -> str:
    """The backend to run: the one asked for, where it can, or the fastest that can where it is `None`.

    Raises:
        ValueError: Unknown backend, or one that cannot do what is asked.
    """
    if backend is None:
        return _fastest_backend(call)
    if backend not in BACKENDS:
        raise ValueError(f"`backend` must be one of {list(BACKENDS)} or None, got {backend!r}.")
    reason = _CANNOT_RUN.get(backend, lambda _: None)(call)
    if reason is not None:
        raise ValueError(f"backend={backend!r} {reason}")
    return backend


# From here on, blocks of queries beat the masked whole (scripts/benchmark.py, CPU).
_BLOCKED_FROM_LENGTH = 128


def _fastest_backend(call: AttentionCall) -> str:
    window = call.locality.window
    # An exported program has one way for all lengths
    one_way = torch.compiler.is_exporting()
    if window is not None and not one_way and call.query.shape[2] >= max(_BLOCKED_FROM_LENGTH, 2 * window):
        return "blocked"
    # A fused kernel takes no gradient for a bias: the plain computation is then the faster one.
    return "eager" if isinstance(call.bias, GaussianBias) or call.bias_requires_grad else "sdpa"


def _blocked_cannot(call: AttentionCall) -> str | None:
    return None if call.locality.window is not None else "needs a window; use 'sdpa' or 'eager' without one."


def _flex_cannot(call: AttentionCall) -> str | None:
    if call.dropout_p > 0:
        return "has no attention dropout; use 'sdpa', 'blocked' or 'eager', or set the dropout to 0."
    wants_grad = call.query.requires_grad or call.key.requires_grad or call.value.requires_grad
    if call.query.device.type == "cpu" and torch.is_grad_enabled() and (wants_grad or call.bias_requires_grad):
        return "has no backward on CPU; use 'blocked', 'sdpa' or 'eager' for training there."
    return None


# --- pieces shared by the backends -------------------------------------------------------------------------------


def _dense_visibility(call: AttentionCall) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Visible keys [B or 1, H or 1, I, N*J] (`None`: all), and the queries that see any [B, 1, I, 1].

    The rows of queries without any visible key are opened, so that no softmax sees an empty row; their output is
    replaced by zeros afterwards.
    """
    locality, device = call.locality, call.query.device
    query_length, key_length = call.query.shape[2], call.key.shape[2]
    visible = None
    if locality.window is not None or locality.causal:
        distance = relative_positions(query_length, key_length, device)
        visible = within_locality(distance, locality)[None, None]
    row_visible = None
    if call.key_padding_mask is not None:
        padding = call.key_padding_mask[:, None, None, :]
        visible = padding if visible is None else visible & padding
        row_visible = visible.any(dim=-1, keepdim=True)
        visible = visible | ~row_visible
    return _over_heads(visible, call), row_visible


def _over_heads(visible: torch.Tensor | None, call: AttentionCall) -> torch.Tensor | None:
    """Repeat a mask [B, 1, I, J] over the N heads of the area and close the slots without a head."""
    area = call.locality.head_area
    if area == 1:
        return visible
    heads = visible_heads(call.query.shape[1], call.locality, call.query.device)
    if visible is None:
        if heads is None:
            return None
        return heads[None, :, None, :, None].expand(-1, -1, -1, -1, call.key.shape[2]).flatten(3, 4)
    visible = visible.unsqueeze(-2)
    if heads is None:
        return visible.expand(*visible.shape[:-2], area, -1).flatten(-2)
    return (visible & heads[None, :, None, :, None]).flatten(-2)


def _dense_bias(call: AttentionCall) -> torch.Tensor | None:
    """The bias repeated over the heads of the area, broadcastable to [B, H, I, N*J]."""
    bias = call.bias
    if bias is None:
        return None
    if isinstance(bias, GaussianBias):
        bias = bias.dense(call.key.shape[2])
    area = call.locality.head_area
    if area == 1:
        return bias
    bias = bias.expand(*bias.shape[:-1], call.key.shape[2]).unsqueeze(-2)
    return bias.expand(*bias.shape[:-2], area, -1).flatten(-2)


def _zero_blind_rows(output: torch.Tensor, row_visible: torch.Tensor | None) -> torch.Tensor:
    return output if row_visible is None else output.masked_fill(~row_visible, 0.0)


def exact_energies(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The products of queries [..., I, D] and keys [..., J, D] in float32 or better; finite for float16, too."""
    energies = torch.matmul(query, key.transpose(-1, -2))
    if energies.dtype == torch.float16:
        limits = torch.finfo(torch.float16)
        energies = energies.clamp(limits.min, limits.max)
    return energies.to(torch.promote_types(energies.dtype, torch.float32))


def _softmax_weights(
    call: AttentionCall,
    query: torch.Tensor,
    key: torch.Tensor,
    visible: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """Weights [..., I, J] of keys [..., J, D] for queries [..., I, D], float32."""
    energies = exact_energies(query * call.scale, key).float()
    if bias is not None:
        energies = energies + bias
    if visible is not None:
        energies = energies.masked_fill_(~visible, float("-inf"))  # in place: nobody else holds the energies
    return torch.softmax(energies, dim=-1)


def _additive_mask(visible: torch.Tensor | None, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    if bias is None:
        return visible
    bias = bias.to(dtype)
    return bias if visible is None else bias.masked_fill(~visible, float("-inf"))


# --- backends ----------------------------------------------------------------------------------------------------


def _eager(call: AttentionCall) -> torch.Tensor:
    return attention_with_weights(call)[0]


def _sdpa(call: AttentionCall) -> torch.Tensor:
    locality = call.locality
    query, key, value = call.query, call.key, call.value
    unmasked = locality.head_area == 1 and call.key_padding_mask is None and call.bias is None
    if unmasked and locality.window is None and (not locality.causal or query.shape[2] == key.shape[2]):
        return F.scaled_dot_product_attention(
            query, key, value, dropout_p=call.dropout_p, is_causal=locality.causal, scale=call.scale
        )
    visible, row_visible = _dense_visibility(call)
    dtype = query.dtype
    if call.bias is not None:
        # The bias and the softmax are float32 whatever the model's precision.
        query, key, value = query.float(), key.float(), value.float()
    mask = _additive_mask(visible, _dense_bias(call), query.dtype)
    keys, values = _area_of(key, locality), _area_of(value, locality)
    with torch.autocast(query.device.type, enabled=False):
        output = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, dropout_p=call.dropout_p, scale=call.scale
        )
    return _zero_blind_rows(output.to(dtype), row_visible)


@dataclass(frozen=True)
class _Blocks:
    """How R blocks of `size` queries meet their keys: block r sees `span` keys from position r * size - left."""

    count: int
    size: int
    left: int
    span: int


# Queries per block: small enough to waste little on the edges, large enough for efficient matrix products.
_BLOCK_SIZE = 32


def _blocked(call: AttentionCall) -> torch.Tensor:
    call = _without_unreachable_keys(call)
    locality = call.locality
    query_length, key_length = call.query.shape[2], call.key.shape[2]
    m = min(locality.half_window or 0, key_length - 1)
    size = _BLOCK_SIZE if 4 * m <= 3 * _BLOCK_SIZE else m
    if not torch.compiler.is_compiling() or query_length == 1:
        size = min(size, query_length)  # compiled, one size serves sentences of all lengths
    blocks = _Blocks(-(-query_length // size), size, m, size + (m if locality.causal else 2 * m))

    padded_length = blocks.count * size - query_length
    query = F.pad(call.query, (0, 0, 0, padded_length)).unflatten(2, (blocks.count, size))
    # `shift`: position of the first query among the keys (decoding steps have earlier keys, at most m of them).
    shift = key_length - query_length
    left = m - shift
    right = (blocks.count - 1) * size + blocks.span - left - key_length
    keys = _key_blocks(call.key, locality, blocks, left, right)
    values = _key_blocks(call.value, locality, blocks, left, right)
    visible, row_visible = _blocked_visibility(call, blocks, left, right)
    bias = _blocked_bias(call, blocks, shift)
    weights = _softmax_weights(call, query, keys, visible, bias).to(values.dtype)
    output = torch.matmul(F.dropout(weights, call.dropout_p, training=True), values)
    output = _zero_blind_rows(output, row_visible)
    return output.flatten(2, 3)[:, :, :query_length]


def _without_unreachable_keys(call: AttentionCall) -> AttentionCall:
    """Drop the keys before the first query's window (a decoding step over a longer history)."""
    assert call.locality.half_window is not None  # `_blocked_cannot` refused it
    shift = call.key.shape[2] - call.query.shape[2]
    drop = max(0, shift - call.locality.half_window)
    if drop == 0:
        return call
    bias = call.bias
    if isinstance(bias, GaussianBias):
        bias = GaussianBias(bias.center, bias.width, bias.key_offset + drop)
    elif bias is not None and bias.shape[-1] > 1:
        bias = bias[..., drop:]
    mask = None if call.key_padding_mask is None else call.key_padding_mask[:, drop:]
    return replace(call, key=call.key[:, :, drop:], value=call.value[:, :, drop:], bias=bias, key_padding_mask=mask)


def _area_of(states: torch.Tensor, locality: Locality) -> torch.Tensor:
    """Each head's keys and its neighbours' behind each other: [B, H, J, D] -> [B, H, N * J, D]."""
    if locality.head_area == 1:
        return states
    padded = pad_heads(states, locality)
    if torch.compiler.is_compiling():
        heads = states.shape[1]
        return torch.cat([padded[:, slot : slot + heads] for slot in range(locality.head_area)], dim=2)
    return _OverlappingHeads.apply(padded, locality.head_area)


def _key_blocks(states: torch.Tensor, locality: Locality, blocks: _Blocks, left: int, right: int) -> torch.Tensor:
    """The keys of each block: [B, H, J, D] -> [B, H, R, N * span, D]."""
    padded = F.pad(pad_heads(states, locality), (0, 0, left, max(right, 0)))
    if right < 0:
        padded = padded[:, :, :right]
    return _OverlappingBlocks.apply(padded, locality.head_area, blocks)


class _OverlappingHeads(torch.autograd.Function):
    """A view in which each head's keys and its neighbours' stand behind each other; backward adds them up again."""

    @staticmethod
    def forward(ctx: Any, padded: torch.Tensor, area: int) -> torch.Tensor:
        """[B, H + N - 1, J, D] -> [B, H, N * J, D], nothing copied: a head's keys overlap with its neighbour's."""
        ctx.area = area
        padded = padded.contiguous()
        batch, padded_heads, length, width = padded.shape
        shape = (batch, padded_heads - area + 1, area * length, width)
        return padded.as_strided(shape, padded.stride(), padded.storage_offset())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The transpose: every head gets what those that see it hand back."""
        heads, slots = grad.shape[1], grad.unflatten(2, (ctx.area, -1)).unbind(2)
        total = F.pad(slots[0], (0, 0, 0, 0, 0, ctx.area - 1))
        for slot, part in enumerate(slots[1:], start=1):
            total[:, slot : slot + heads] += part
        return total, None


class _OverlappingBlocks(torch.autograd.Function):
    """Copies overlapping windows of heads and positions; backward adds them up again.

    torch's own backward of `unfold` scatters element by element, which costs more than the attention itself.
    """

    @staticmethod
    def forward(ctx: Any, padded: torch.Tensor, area: int, blocks: _Blocks) -> torch.Tensor:
        """[B, H + N - 1, (R - 1) * size + span, D] -> [B, H, R, N * span, D]."""
        ctx.area, ctx.blocks, ctx.shape = area, blocks, padded.shape
        windows = padded.unfold(1, area, 1).unfold(2, blocks.span, blocks.size)  # [B, H, R, D, N, span]
        return windows.permute(0, 1, 2, 4, 5, 3).contiguous().flatten(3, 4)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """The transpose of the copy, a slice per neighbouring head and per block that a span reaches into."""
        area, blocks = ctx.area, ctx.blocks
        batch, padded_heads, length, width = ctx.shape
        heads = padded_heads - area + 1
        reach = -(-blocks.span // blocks.size)
        total = grad.new_zeros(batch, padded_heads, blocks.count + reach - 1, blocks.size, width)
        grad = grad.unflatten(3, (area, blocks.span))
        for slot in range(area):
            for block in range(reach):
                start = block * blocks.size
                part = grad[:, :, :, slot, start : start + blocks.size]
                total[:, slot : slot + heads, block : block + blocks.count, : part.shape[3]] += part
        return total.flatten(2, 3)[:, :, :length], None, None


def _blocked_visibility(
    call: AttentionCall, blocks: _Blocks, left: int, right: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Visible keys [B or 1, H or 1, R, size, N * span], and the queries that see any, [B or 1, 1, R, size, 1]."""
    device, key_length = call.query.device, call.key.shape[2]
    distance = torch.arange(blocks.span, device=device)[None, :] - (
        torch.arange(blocks.size, device=device)[:, None] + blocks.left
    )
    band = within_locality(distance, call.locality)
    real = call.key_padding_mask
    if real is None:
        real = torch.ones(1, key_length, dtype=torch.bool, device=device)
    real = F.pad(real, (left, max(right, 0)))
    if right < 0:
        real = real[:, :right]
    real = real.unfold(1, blocks.span, blocks.size)  # [B or 1, R, span]
    visible = (band[None, None] & real[:, :, None, :])[:, None]  # [B or 1, 1, R, size, span]
    row_visible = visible.any(dim=-1, keepdim=True)
    visible = visible | ~row_visible
    if call.locality.head_area > 1:
        visible = visible.unsqueeze(-2)
        heads = visible_heads(call.query.shape[1], call.locality, device)
        if heads is None:
            visible = visible.expand(*visible.shape[:-2], call.locality.head_area, -1)
        else:
            visible = visible & heads[None, :, None, None, :, None]
        visible = visible.flatten(-2)
    # Rows past the last query are cut off: only padding can leave a real query blind.
    return visible, row_visible if call.key_padding_mask is not None else None


def _blocked_bias(call: AttentionCall, blocks: _Blocks, shift: int) -> torch.Tensor | None:
    """The bias of each block's keys, broadcastable to [B, H, R, size, N * span], float32 for a Gaussian."""
    bias = call.bias
    if bias is None:
        return None
    device = call.query.device
    starts = torch.arange(blocks.count, device=device) * blocks.size + shift - blocks.left
    positions = starts[:, None] + torch.arange(blocks.span, device=device)[None, :]  # [R, span]
    if isinstance(bias, GaussianBias):
        center = _query_blocks(bias.center, blocks, call.query.shape[2])
        width = _query_blocks(bias.width, blocks, call.query.shape[2])
        blocked = bias.energies(positions[:, None, :].float(), center.unsqueeze(-1), width.unsqueeze(-1))
    else:
        blocked = _band_of(bias, blocks, positions, call.query.shape[2], call.key.shape[2])
    area = call.locality.head_area
    if area > 1:
        blocked = blocked.unsqueeze(-2)
        blocked = blocked.expand(*blocked.shape[:-2], area, -1).flatten(-2)
    return blocked


def _query_blocks(per_query: torch.Tensor, blocks: _Blocks, query_length: int) -> torch.Tensor:
    """[B, H, I or 1] -> [B, H, R or 1, size or 1]; the added queries repeat the value 1, which is always safe."""
    if per_query.shape[-1] == 1 and query_length != 1:
        return per_query.unsqueeze(-1)
    padded = F.pad(per_query, (0, blocks.count * blocks.size - per_query.shape[-1]), value=1.0)
    return padded.unflatten(-1, (blocks.count, blocks.size))


def _band_of(
    bias: torch.Tensor, blocks: _Blocks, positions: torch.Tensor, query_length: int, key_length: int
) -> torch.Tensor:
    """The part of a dense bias that each block sees: broadcastable to [B, H, R, size, span]."""
    bias = bias.expand(*bias.shape[:-2], query_length, key_length)
    rows = torch.arange(blocks.count * blocks.size, device=bias.device).clamp(max=query_length - 1)
    rows = rows.view(blocks.count, blocks.size, 1)
    return bias[..., rows, positions.clamp(0, key_length - 1)[:, None, :]]


def _flex(call: AttentionCall) -> torch.Tensor:
    return flex_local_attention(
        call.query, call.key, call.value, call.locality, call.bias, call.key_padding_mask, call.scale
    )


BACKENDS: dict[str, Callable[[AttentionCall], torch.Tensor]] = {
    "eager": _eager,
    "sdpa": _sdpa,
    "blocked": _blocked,
    "flex_attention": _flex,
}

# Each predicate gives the reason why the backend cannot run the call, or None.
_CANNOT_RUN: dict[str, Callable[[AttentionCall], str | None]] = {
    "blocked": _blocked_cannot,
    "flex_attention": _flex_cannot,
}
