# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The attention module of CSAN, its masks, and the cache of its decoder.

Shapes: B batch, H heads, I queries, J keys, d model width, D = d / H head width.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from .attention_call import AttentionCall, CarriedValue, ForwardPass, Term
from .backend_dense import attention_with_weights, trains_faster_in_float32
from .backends import run
from .configuration_csan import CsanConfig
from .locality import LayerLocality, LocalityMethod, parameters_name

BLOCKED = "blocked"
"""An `attn_implementation` of CSAN's own: local layers in blocks, the others as "sdpa"."""

# Attention implementations that are a backend of local layers, too; under any other, such as "sdpa"
# and "flash_attention_2", these take the fastest backend. Under "eager" full layers run as local
# attention without a limit
_LOCAL_BACKENDS = ("eager", BLOCKED, "flex_attention")


AttentionInterface.register(BLOCKED, sdpa_attention_forward)
AttentionMaskInterface.register(BLOCKED, sdpa_mask)


class AttentionMasks(NamedTuple):
    """The masks of one kind of attention, made once per forward pass for all layers.

    Attributes:
        full: Mask for the library's attention functions.
        padding: [B, J] boolean, True = a real token, for local attention; None = all real.
        first_real: [B], place of each sentence's first real token, 0 where there is none; None = 0.
        shared: What the local layers derive from these and from the states.
        real_queries: [B, past + I] boolean, of cross-attention; None = all real.
        query_offset: Place of the first query (decoding with a cache).
        by_line: In masks of cross-attention, the masks of the layers that attend by line.
        lines: The lines of cross-attention.
    """

    full: Any = None
    padding: Tensor | None = None
    first_real: Tensor | None = None
    shared: ForwardPass | None = None
    real_queries: Tensor | None = None
    query_offset: int | Tensor = 0
    by_line: Any = None
    lines: Any = None


class CsanAttention(nn.Module):
    """Multi-head attention, full or local by `config.layer_locality`; a method's parameters are a
    submodule.

    `observe_terms`, where it is set, is called with the terms of every call.
    """

    def __init__(self, config: CsanConfig, part: str, layer_idx: int = 0) -> None:
        super().__init__()
        self.config = config
        self.part = part
        self.layer_idx = layer_idx
        site = config.attention_site(part, layer_idx)
        self.num_heads = site.num_heads
        self.head_dim = site.head_dim
        self.is_causal = site.is_causal
        self.is_cross_attention = part == "cross"
        self.scaling = self.head_dim**-0.5
        self.dropout = config.attention_dropout
        self.observe_terms: Callable[[Sequence[Term]], None] | None = None
        self.locality: LayerLocality | None = config.layer_locality(part, layer_idx)
        locality = self.locality or LayerLocality(part, ())
        self.methods = locality.methods
        self.area = locality.area
        self.past_tokens = locality.past_tokens
        self.is_by_line = any(method.needs_lines for method in self.methods)
        self.replacement = locality.replacement
        # The decoder's cache has carried values after the keys of its layers, in order: the lines',
        # then those of cross-attention
        below = [config.layer_locality(part, layer) for layer in range(layer_idx)]
        self.carried_layer = config.decoder_layers + sum(map(_carries_value, below))
        if config.line_method is not None:
            self.carried_layer += 1
        if self.replacement is None:
            self.k_proj, self.v_proj, self.q_proj, self.out_proj = (
                nn.Linear(config.d_model, config.d_model) for _ in range(4)
            )
        for method in self.methods:
            self.add_module(parameters_name(method), method.build(site))

    def _module_of(self, method: LocalityMethod) -> Any:
        return getattr(self, parameters_name(method))

    def before(self, states: Tensor, masks: AttentionMasks | None) -> Tensor:
        """Apply the methods that come before the sub-layer, such as convolutions: [B, T, d] ->
        [B, T, d].
        """
        padding = None if masks is None else masks.padding
        for method in self.methods:
            if method.before is not None:
                states = method.before(self._module_of(method), states, padding)
        return states

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        cache: Cache | None = None,
        attention_mask: AttentionMasks | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from states [B, I, d] to themselves, or to `key_value_states` [B, J, d] in
        cross-attention.

        Returns the output [B, I, d] and, under `eager` with `output_attentions`, weights [B, H, I,
        J], summed over an area of heads, and zero where a method replaces the attention."""
        masks = attention_mask or AttentionMasks()
        if self.is_by_line:
            masks = masks.by_line
        wants_weights = kwargs.get("output_attentions")
        if wants_weights is None:
            wants_weights = self.config.output_attentions
        implementation = self.config._attn_implementation or "eager"
        if self.replacement is not None:
            module = self._module_of(self.replacement)
            output, weights = self.replacement.attend(module, hidden_states, masks.padding)
            if not wants_weights:
                return output, None
            if weights is None and implementation == "eager":
                # The library drops None, which would shift the weights of later layers
                batch, length = output.shape[:2]
                weights = output.new_zeros(1, 1, 1, 1).expand(batch, self.num_heads, length, length)
            return output, weights
        query = self._split_heads(self.q_proj(hidden_states))  # [B, H, I, D]
        key, value = self._keys_and_values(hidden_states, key_value_states, cache)  # [B, H, J, D]
        if self.locality is None and implementation != "eager":
            output = self._attend_by_library(query, key, value, masks.full, **kwargs)
            weights = None
        else:
            output, weights = self._attend(query, key, value, masks, cache, wants_weights)
        return self.out_proj(output.flatten(-2)), weights  # [B, I, H, D] -> [B, I, d]

    def _attend_by_library(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
    ) -> Tensor:
        """The output [B, I, H, D] of full attention."""
        attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        dtype = query.dtype
        dropout = self.dropout if self.training else 0.0
        in_float32 = trains_faster_in_float32(query, dropout)
        if in_float32:
            query, key, value = query.float(), key.float(), value.float()
        with torch.autocast(query.device.type, enabled=False) if in_float32 else nullcontext():
            output, _ = attend(
                self, query, key, value, mask, dropout=dropout, scaling=self.scaling, **kwargs
            )
        return output.to(dtype)

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        masks: AttentionMasks,
        cache: Cache | None,
        wants_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """The output [B, I, H, D]; the weights [B, H, I, J] under `eager` with `wants_weights`."""
        held = key.shape[2]
        key, value, padding = self._reachable(query.shape[2], key, value, masks)
        query_start, key_start = self._positions(query.shape[2], key.shape[2], masks)
        shared = masks.shared or ForwardPass()
        decoder_cache = getattr(cache, "self_attention_cache", cache)
        call = AttentionCall(
            query,
            key,
            value,
            self.area,
            scale=self.scaling,
            key_padding_mask=padding,
            query_start=query_start,
            key_start=key_start,
            dropout_p=self.dropout if self.training else 0.0,
            is_self_attention=not self.is_cross_attention,
            shared=shared,
            carried=CarriedValue(masks.real_queries, decoder_cache, self.carried_layer),
            lines=masks.lines,
        )
        methods = [method for method in self.methods if method.term is not None]
        terms = [method.term(self._module_of(method), call) for method in methods]
        for term in terms:
            if term.tokens_left is not None:
                shared.tokens_left = term.tokens_left
        if self.observe_terms is not None:
            self.observe_terms(terms)
        call = replace(call, terms=terms)
        implementation = self.config._attn_implementation or "eager"
        backend = implementation if implementation in _LOCAL_BACKENDS else None
        if backend == "eager" and wants_weights:
            output, weights = attention_with_weights(call)
            if self.is_causal:
                weights = _over_all_positions(weights, held, masks.query_offset)
            return output.transpose(1, 2), weights
        if backend == BLOCKED and call.area.window is None:
            backend = None  # blocks need a window
        return run(call, backend).transpose(1, 2), None

    def _reachable(
        self, queries: int, key: Tensor, value: Tensor, masks: AttentionMasks
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys, values and padding up to the last query's in a causal layer, else all, or those
        near the lines of the queries.
        """
        offset = masks.query_offset
        padding = masks.padding
        if masks.lines is not None:
            key = masks.lines.take(key)
            value = masks.lines.take(value)
        if self.is_causal and isinstance(offset, Tensor):
            # Only the device knows how much a static cache holds, and shapes cannot depend on that:
            # take as many keys as the queries can ever reach; those before the first are masked
            reached = key.shape[2]
            if self.past_tokens is not None:
                reached = min(reached, queries + self.past_tokens)
            places = torch.arange(queries - reached, queries, device=key.device) + offset
            index = places.clamp(min=0)
            real = (places >= 0).expand(key.shape[0], -1)
            padding = real if padding is None else real & padding.index_select(1, index)
            key = key.index_select(2, index)
            value = value.index_select(2, index)
        elif self.is_causal:
            # A static cache that is filled for the first time holds empty places after these
            filled = offset + queries
            key = key[:, :, :filled]
            value = value[:, :, :filled]
        if padding is not None and padding.shape[-1] > key.shape[2]:
            padding = padding[:, -key.shape[2] :]  # a windowed cache has the last keys
        return key, value, padding

    def _positions(self, queries: int, keys: int, masks: AttentionMasks) -> tuple[Any, Any]:
        """Positions of the first query and of the first key."""
        query_start: Any = masks.query_offset
        first_real: Any = 0 if masks.first_real is None else masks.first_real
        if self.is_cross_attention:
            return query_start, -first_real
        query_start = query_start - first_real
        return query_start, query_start + (queries - keys) if self.is_causal else query_start

    def _split_heads(self, states: Tensor) -> Tensor:
        return states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _keys_and_values(
        self, hidden_states: Tensor, key_value_states: Tensor | None, cache: Cache | None
    ) -> tuple[Tensor, Tensor]:
        layers: Any = cache
        if isinstance(cache, EncoderDecoderCache):
            layers = cache.self_attention_cache
            if self.is_cross_attention:
                layers = cache.cross_attention_cache
                if cache.is_updated.get(self.layer_idx):
                    layer = layers.layers[self.layer_idx]
                    return layer.keys, layer.values
                cache.is_updated[self.layer_idx] = True
        elif self.is_cross_attention:
            layers = None
        source = hidden_states if key_value_states is None else key_value_states
        key = self._split_heads(self.k_proj(source))
        value = self._split_heads(self.v_proj(source))
        if layers is not None:
            key, value = layers.update(key, value, self.layer_idx)
        return key, value


def _over_all_positions(weights: Tensor, held: int, query_offset: int | Tensor) -> Tensor:
    """Spread weights [B, H, I, K], whose last key is at the last query's position, over all
    positions; the others get zero.

    The cache holds `held` keys: fewer than positions if it keeps a window, more if it is static."""
    queries, count = weights.shape[-2:]
    positions = held
    if not isinstance(query_offset, Tensor):
        positions = max(held, query_offset + queries)
        if count == positions:
            return weights  # themselves, so that they have a gradient of the output
    places = torch.arange(queries - count, queries, device=weights.device) + query_offset
    zeros = weights.new_zeros(*weights.shape[:-1], positions)
    return zeros.index_add(-1, places.clamp(min=0), weights)  # clamped places have weight 0


def _carries_value(locality: LayerLocality | None) -> bool:
    return locality is not None and any(method.carries_value for method in locality.methods)


class _BeamSharedCache(DynamicCache):
    """Keys and values of the encoder's states, the same for all beams of a sentence."""

    def __init__(self, num_beams: int = 1) -> None:
        super().__init__()
        self.num_beams = num_beams

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Reorder, unless each beam comes from its own sentence; checked on a CPU alone, as an
        accelerator would wait longer for it.
        """
        if beam_idx.device.type == "cpu":
            sentence = torch.arange(beam_idx.shape[0]) // self.num_beams
            if torch.equal(beam_idx // self.num_beams, sentence):
                return
        super().reorder_cache(beam_idx)


def make_decoder_cache(layers: Any, num_beams: int = 1) -> EncoderDecoderCache:
    """An empty cache for decoder layers: places for the keys that each needs, then for carried
    values; `num_beams` consecutive rows share a source.
    """
    cache = DynamicCache()
    for layer in layers:
        past_tokens = layer.self_attn.past_tokens
        if past_tokens is None:
            cache.layers.append(DynamicLayer())
        else:
            # The library counts the query, too, and needs at least one key before it
            cache.layers.append(DynamicSlidingWindowLayer(max(past_tokens + 1, 2)))
    if any(layer.encoder_attn.is_by_line for layer in layers):
        cache.layers.append(DynamicSlidingWindowLayer(2))
    for layer in layers:
        if _carries_value(layer.encoder_attn.locality):
            cache.layers.append(DynamicSlidingWindowLayer(2))
    return EncoderDecoderCache(cache, _BeamSharedCache(num_beams))
