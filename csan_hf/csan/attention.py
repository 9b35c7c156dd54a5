# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The attention module of CSAN, the Gaussian's predictor and the sinusoids.

Shapes: B batch, H heads, I queries, J keys, d model width, D = d / H head width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from .configuration_csan import CsanConfig
from .local_attention import attention_with_weights, exact_energies, local_attention, make_call
from .locality import GaussianBias, Locality

# `attn_implementation="blocked"`: local layers run in blocks whatever their length, the others as under "sdpa".
AttentionInterface.register("blocked", sdpa_attention_forward)
AttentionMaskInterface.register("blocked", sdpa_mask)

# Backend of the local layers under each attention implementation; under "sdpa", the library's default, the fastest.
_LOCAL_BACKENDS: dict[str, str | None] = {
    "eager": "eager",
    "sdpa": None,
    "blocked": "blocked",
    "flex_attention": "flex_attention",
}


def check_local_implementation(implementation: str) -> None:
    """Raise `ValueError` unless local layers can run under this attention implementation."""
    if implementation not in _LOCAL_BACKENDS:
        raise ValueError(
            f"attn_implementation={implementation!r} cannot run CSAN's local layers (local_window, head_area or "
            f"localness_window); use one of {list(_LOCAL_BACKENDS)}."
        )


class AttentionMasks(NamedTuple):
    """The same visibility in two forms: what the library's attention functions take, and [B, J] for local layers."""

    full: Any
    padding: torch.Tensor | None


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Full attention that also returns its weights: output [B, I, H, D], weights [B, H, I, J]."""
    energies = exact_energies(query * scaling, key)
    if attention_mask is not None:
        energies = energies + attention_mask
    weights = F.softmax(energies, dim=-1).to(value.dtype)
    output = torch.matmul(F.dropout(weights, p=dropout, training=module.training), value)
    return output.transpose(1, 2).contiguous(), weights


class CsanSinusoidalPositionalEmbedding(nn.Module):
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

    def forward(self, length: int, offset: int | torch.Tensor = 0) -> torch.Tensor:
        """Embeddings [length, d] of the positions from `offset` on (a tensor where a static cache counts them)."""
        if isinstance(offset, torch.Tensor):
            return self._sinusoids(torch.arange(length, device=self.weight.device) + offset).to(self.weight)
        end = offset + length
        if end <= self.num_positions:
            return self.weight[offset:end]
        return self.create_weight(end, offset).to(self.weight)

    def _sinusoids(self, positions: torch.Tensor) -> torch.Tensor:
        """As `create_weight`, for positions [T] that only the device knows."""
        exact = torch.float32 if positions.device.type == "mps" else torch.float64  # which has no double precision
        half = torch.arange(0, self.embedding_dim, 2, device=positions.device, dtype=exact)
        angles = positions.to(exact)[:, None] / torch.pow(10000.0, half / self.embedding_dim)[None, :]
        return torch.cat([angles.sin(), angles.cos()[:, : self.embedding_dim // 2]], dim=1)


class GaussianLocalness(nn.Module):
    """Predicts centre and window of each query's Gaussian (Yang et al., EMNLP 2018, sections 3.1-3.4).

    W_p (`query_proj`), U_p (`center_proj`), U_d (`window_proj`) and W_d (`key_proj`) are the paper's names; the
    window of the `"head"` strategy is 50 · sigmoid(`head_window`).
    """

    def __init__(self, config: CsanConfig, num_heads: int, is_causal: bool) -> None:
        super().__init__()
        d = config.d_model
        self.strategy = config.localness_window
        self.window_size = float(config.localness_window_size)
        self.is_causal = is_causal
        self.query_proj = nn.Linear(d, d, bias=False)
        self.center_proj = nn.Linear(d, num_heads, bias=False)
        if self.strategy in ("layer", "query"):
            self.window_proj = nn.Linear(d, num_heads, bias=False)
        if self.strategy == "layer":
            self.key_proj = nn.Linear(d, d, bias=False)
        if self.strategy == "head":
            self.head_window = nn.Parameter(torch.zeros(num_heads))

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        query_offset: int | torch.Tensor = 0,
    ) -> GaussianBias:
        """The Gaussian of every query.

        Args:
            query: [B, H, I, D], not scaled.
            key: [B, H, J, D]; all keys from position 0 on for the `"layer"` strategy.
            key_padding_mask: [B, J] boolean, True = real; `None` = all real.
            query_offset: Position of the first query (decoding with a cache).
        """
        hidden = torch.tanh(self.query_proj(_merge_heads(query)))  # [B, I, d]
        length = self._visible_length(query, key, key_padding_mask, query_offset)  # L, [B or 1, 1, I or 1]
        center = length * torch.sigmoid(self.center_proj(hidden).transpose(1, 2).float())
        width = self._width(hidden, key, key_padding_mask, length)
        return GaussianBias(center, width, key_offset=self._key_offset(query, key, query_offset))

    def _key_offset(
        self, query: torch.Tensor, key: torch.Tensor, query_offset: int | torch.Tensor
    ) -> int | torch.Tensor:
        # A windowed cache hands over the last keys only: the first of them stands at this position.
        return query_offset + query.shape[2] - key.shape[2] if self.is_causal else 0

    def _visible_length(
        self, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, query_offset: int | torch.Tensor
    ) -> torch.Tensor:
        if self.is_causal:
            positions = torch.arange(query.shape[2], device=query.device, dtype=torch.float32)
            return (positions + (query_offset + 1))[None, None, :]
        if mask is None:
            return torch.full((1, 1, 1), float(key.shape[2]), device=query.device)
        return mask.sum(dim=-1).float()[:, None, None]

    def _width(
        self,
        hidden: torch.Tensor,
        key: torch.Tensor,
        mask: torch.Tensor | None,
        length: torch.Tensor,
    ) -> torch.Tensor:
        if self.strategy == "fixed":
            return torch.full((1, 1, 1), self.window_size, device=hidden.device)
        if self.strategy == "head":
            return 50.0 * torch.sigmoid(self.head_window.float())[None, :, None]
        if self.strategy == "layer":
            hidden = torch.tanh(self.key_proj(self._mean_key(key, mask, hidden.shape[1])))
        return length * torch.sigmoid(self.window_proj(hidden).transpose(1, 2).float())

    def _mean_key(self, key: torch.Tensor, mask: torch.Tensor | None, query_length: int) -> torch.Tensor:
        """Mean of the keys that each query sees: [B, 1, d], or [B, I, d] prefix means in a causal layer."""
        keys = _merge_heads(key)  # [B, J, d]
        real = torch.ones(keys.shape[:2], device=keys.device) if mask is None else mask.float()
        keys = keys * real.to(keys.dtype).unsqueeze(-1)
        if self.is_causal:
            sums = keys.float().cumsum(dim=1)[:, -query_length:]  # the queries are the last positions
            counts = real.cumsum(dim=1)[:, -query_length:]
        else:
            sums, counts = keys.float().sum(dim=1, keepdim=True), real.sum(dim=1, keepdim=True)
        return (sums / counts.clamp(min=1.0).unsqueeze(-1)).to(key.dtype)


def _over_all_positions(weights: torch.Tensor, held: int, query_offset: int | torch.Tensor) -> torch.Tensor:
    """Weights [B, H, I, K] of the keys up to the last query as weights of all positions, zero where they are none.

    Args:
        weights: Of the K keys at hand.
        held: Keys that the cache handed over: fewer than there are positions where it keeps a window, more where it
            is static.
        query_offset: Position of the first query.
    """
    count = weights.shape[-1]
    if isinstance(query_offset, torch.Tensor):
        places = torch.arange(weights.shape[-2] - count, weights.shape[-2], device=weights.device) + query_offset
        everywhere = weights.new_zeros(*weights.shape[:-1], held)
        return everywhere.index_add(-1, places.clamp(min=0), weights)  # what is clamped weighs nothing
    end = query_offset + weights.shape[-2]
    if count == max(held, end):
        return weights
    return F.pad(weights, (end - count, max(held - end, 0)))


def _merge_heads(states: torch.Tensor) -> torch.Tensor:
    """[B, H, T, D] -> [B, T, d]."""
    return states.transpose(1, 2).flatten(2)


class CsanAttention(nn.Module):
    """Multi-head attention, full or local.

    A local layer restricts self-attention to a window of positions and an area of heads (Yang et al., NAACL 2019)
    and may add a learned Gaussian (EMNLP 2018); cross-attention takes the Gaussian alone.
    """

    def __init__(
        self,
        config: CsanConfig,
        num_heads: int,
        *,
        is_causal: bool = False,
        is_cross_attention: bool = False,
        is_local: bool = False,
        layer_idx: int = 0,
    ) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.num_heads = num_heads
        self.head_dim = config.d_model // num_heads
        self.scaling = self.head_dim**-0.5
        self.dropout = config.attention_dropout
        self.is_causal = is_causal
        self.is_cross_attention = is_cross_attention
        self.k_proj = nn.Linear(config.d_model, config.d_model)
        self.v_proj = nn.Linear(config.d_model, config.d_model)
        self.q_proj = nn.Linear(config.d_model, config.d_model)
        self.out_proj = nn.Linear(config.d_model, config.d_model)
        self.locality = self._locality() if is_local else None
        has_gaussian = is_local and config.localness_window is not None
        self.localness = GaussianLocalness(config, num_heads, is_causal) if has_gaussian else None

    def _locality(self) -> Locality:
        if self.is_cross_attention:
            return Locality()
        config = self.config
        return Locality(config.local_window, config.head_area, config.head_boundary, self.is_causal)

    def forward(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        attention_mask: AttentionMasks | None = None,
        query_offset: int | torch.Tensor = 0,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend.

        Args:
            hidden_states: Queries' states, [B, I, d].
            key_value_states: Encoder states [B, J, d] for cross-attention.
            past_key_values: Cache of keys and values.
            attention_mask: Who sees whom.
            query_offset: Position of the first query (decoding with a cache).

        Returns:
            Output [B, I, d] and, under the `eager` implementation, weights [B, H, I, J]. In a layer with an area
            of heads they are summed over the area.
        """
        query = self._split_heads(self.q_proj(hidden_states))
        key, value = self._keys_and_values(hidden_states, key_value_states, past_key_values)
        masks = attention_mask or AttentionMasks(None, None)
        if self.locality is None:
            attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
                self.config._attn_implementation, eager_attention_forward
            )
            dropout = self.dropout if self.training else 0.0
            output, weights = attend(
                self, query, key, value, masks.full, dropout=dropout, scaling=self.scaling, **kwargs
            )
        else:
            output, weights = self._attend_locally(query, key, value, self.locality, masks.padding, query_offset)
        return self.out_proj(output.flatten(-2)), weights

    def _attend_locally(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        locality: Locality,
        padding: torch.Tensor | None,
        query_offset: int | torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        held = key.shape[2]
        if locality.causal and isinstance(query_offset, torch.Tensor):
            key, value, padding = self._keys_of_static_cache(query, key, value, padding, query_offset)
        elif locality.causal:
            seen = query_offset + query.shape[2]
            key, value = key[:, :, :seen], value[:, :, :seen]  # a static cache that is filled for the first time
        if padding is not None and padding.shape[-1] > key.shape[2]:
            padding = padding[:, padding.shape[-1] - key.shape[2] :]  # a windowed cache keeps the last keys
        bias = None if self.localness is None else self.localness(query, key, padding, query_offset)
        backend, weights = self._local_backend(), None
        shared: dict[str, Any] = {
            "bias": bias,
            "key_padding_mask": padding,
            "scale": self.scaling,
            "dropout_p": self.dropout if self.training else 0.0,
        }
        if backend == "eager":
            output, weights = attention_with_weights(make_call(query, key, value, locality, **shared))
            if locality.causal:
                weights = _over_all_positions(weights, held, query_offset)
        else:
            if locality.window is None and backend == "blocked":
                backend = None  # blocks follow a window; a layer without one has nothing to split
            output = local_attention(
                query,
                key,
                value,
                window=locality.window,
                head_area=locality.head_area,
                head_boundary=locality.head_boundary,
                causal=locality.causal,
                backend=backend,
                **shared,
            )
        return output.transpose(1, 2), weights

    def _keys_of_static_cache(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        padding: torch.Tensor | None,
        query_offset: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys and values [B, H, K, D] that end at the last query, and which of them are real, [B, K].

        A static cache is longer than what it holds, and only the device knows how much it holds. So shapes cannot
        depend on that: as many keys are taken as the queries can ever reach, and those before the first are masked.
        """
        count = key.shape[2]
        if self.config.local_window is not None and self.config.localness_window != "layer":
            count = min(count, query.shape[2] + self.config.local_window // 2)  # "layer" needs the mean of all keys
        positions = torch.arange(query.shape[2] - count, query.shape[2], device=key.device) + query_offset
        index = positions.clamp(min=0)
        real = (positions >= 0).expand(key.shape[0], -1)
        if padding is not None:
            real = real & padding.index_select(1, index)
        return key.index_select(2, index), value.index_select(2, index), real

    def _local_backend(self) -> str | None:
        implementation = self.config._attn_implementation or "eager"
        check_local_implementation(implementation)
        return _LOCAL_BACKENDS[implementation]

    def _split_heads(self, states: torch.Tensor) -> torch.Tensor:
        return states.view(*states.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2)

    def _keys_and_values(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None,
        past_key_values: Cache | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cache, is_updated = past_key_values, None
        if isinstance(past_key_values, EncoderDecoderCache):
            cache = past_key_values.self_attention_cache
            if self.is_cross_attention:
                cache, is_updated = past_key_values.cross_attention_cache, past_key_values.is_updated
        elif self.is_cross_attention:
            cache = None
        if cache is not None and is_updated is not None and is_updated.get(self.layer_idx):
            layer: Any = cache.layers[self.layer_idx]
            return layer.keys, layer.values
        source = hidden_states if key_value_states is None else key_value_states
        key, value = self._split_heads(self.k_proj(source)), self._split_heads(self.v_proj(source))
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
            if is_updated is not None:
                is_updated[self.layer_idx] = True
        return key, value
