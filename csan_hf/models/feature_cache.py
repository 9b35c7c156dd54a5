# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A cache of the last features of each layer, for decoders whose layers read a fixed number of earlier positions."""

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicSlidingWindowLayer, EncoderDecoderCache

from .seq2seq_model import padding_mask


def make_feature_cache(num_layers: int, num_positions: int) -> EncoderDecoderCache:
    """An empty cache of features [B, T, C] of the last positions, T at most `num_positions`, for each layer.

    They lie in the library's sliding windows as keys [B, 1, T, C] whose values have no width; `update` gives them with
    the new ones. So beams are reordered, and assisted generation takes tokens back, as the library does.
    """
    cache = DynamicCache()
    cache.layers = [DynamicSlidingWindowLayer(sliding_window=num_positions + 1) for _ in range(num_layers)]
    return EncoderDecoderCache(cache, DynamicCache())


def decoder_half(past_key_values: Cache | None) -> Cache | None:
    """The decoder's own half of a cache."""
    if isinstance(past_key_values, EncoderDecoderCache):
        return past_key_values.self_attention_cache
    return past_key_values


def real_tokens(mask: torch.Tensor | None, states: torch.Tensor, name: str, past: int = 0) -> torch.Tensor | None:
    """A padding mask [B, past + T] for states [B, T, d] as booleans, True = a real token; None = all are real."""
    return None if mask is None else padding_mask(mask, states.shape[0], past + states.shape[1], name)
