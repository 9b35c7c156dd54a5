# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What surrounds the layers of encoders and decoders that read a fixed number of earlier positions.

Shapes: B batch, I target and J source positions, T either, C features, e width of the embeddings.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
)
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.utils import can_return_tuple

from .layers import check_as_many, drop, embed, padding_mask
from .seq2seq_model import known_keywords, takes_past_key_values


class FeatureEncoder:
    """Mixin of an encoder with `embed_tokens` and `encode`."""

    config: Any
    embed_tokens: Any

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        """Encode tokens [B, J] (or `inputs_embeds` [B, J, e]) under a mask [B, J], 1 = a real
        token.

        There is no attention for `output_attentions` to ask for.
        """
        embeddings = embed(
            self.embed_tokens, input_ids, inputs_embeds, ("input_ids", "inputs_embeds")
        )
        states, seen = self.encode(
            embeddings, _real_tokens(attention_mask, embeddings, "attention_mask")
        )
        shown = (
            self.config.output_hidden_states
            if output_hidden_states is None
            else output_hidden_states
        )
        return BaseModelOutput(
            last_hidden_state=states, hidden_states=tuple(seen) if shown else None
        )

    def encode(
        self, embeddings: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """The states [B, J, C] for the decoder, and the hidden states; mask [B, J], True = a real
        token.
        """
        raise NotImplementedError


class FeatureDecoder:
    """Mixin of a decoder with `embed_tokens`, `decode` and `make_cache`."""

    config: Any
    training: bool
    embed_tokens: Any

    @can_return_tuple
    @takes_past_key_values
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode target prefixes.

        Args:
            input_ids: [B, I], the positions after those in the cache.
            attention_mask: [B, past + I], 1 = a real token.
            encoder_hidden_states: The encoder's states [B, J, C].
            encoder_attention_mask: [B, J], 1 = a real token.
            cache: Cache of features of earlier positions.
            inputs_embeds: [B, I, e] instead of `input_ids`.
            use_cache: Whether to keep them; default: the config's, outside training.
            output_attentions: Whether to return `cross_attentions`, [B, 1, I, J] for each layer
                that attends.
            output_hidden_states: Whether to return `hidden_states`, too.

        Returns:
            `last_hidden_state` [B, I, width of the output projection's input].
        """
        known_keywords(kwargs, type(self).forward)
        config, source = self.config, encoder_hidden_states
        if source is None:
            raise ValueError(
                "`encoder_hidden_states` must be given: the decoder attends to the source."
            )
        names = "decoder_input_ids", "decoder_inputs_embeds"
        embeddings = embed(self.embed_tokens, input_ids, inputs_embeds, names)
        check_as_many(source.shape[0], embeddings.shape[0])
        if cache is None and (
            config.use_cache and not self.training if use_cache is None else use_cache
        ):
            cache = self.make_cache()
        features = getattr(cache, "self_attention_cache", cache)
        growing = DynamicLayer, DynamicSlidingWindowLayer
        if any(type(layer) not in growing for layer in getattr(features, "layers", ())):
            raise ValueError(
                f"{config.model_type} keeps features of the last positions, which a "
                f"{type(features).__name__} of another kind cannot hold: leave `cache` and "
                "`cache_implementation` unset, or pass use_cache=False."
            )
        past = 0 if features is None else features.get_seq_length()
        mask = _real_tokens(attention_mask, embeddings, "decoder_attention_mask", past)
        source_mask = _real_tokens(encoder_attention_mask, source, "attention_mask")
        states, weights, seen = self.decode(embeddings, mask, source, source_mask, features)
        outputs = BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=drop(states, config.dropout, self.training), cache=cache
        )
        if config.output_attentions if output_attentions is None else output_attentions:
            outputs.cross_attentions = tuple(weight.unsqueeze(1) for weight in weights)
        if config.output_hidden_states if output_hidden_states is None else output_hidden_states:
            outputs.hidden_states = tuple(seen)
        return outputs

    def decode(
        self,
        embeddings: torch.Tensor,
        mask: torch.Tensor | None,
        source: torch.Tensor,
        source_mask: torch.Tensor | None,
        cache: Cache | None,
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor], Sequence[torch.Tensor]]:
        """The last states [B, I, C], the attention weights [B, I, J] of each layer, and the hidden
        states.

        Args:
            embeddings: [B, I, e].
            mask: [B, past + I], True = a real target token; None = all.
            source: The encoder's states [B, J, C].
            source_mask: [B, J], True = a real source token; None = all.
            cache: What the layers keep of earlier positions.
        """
        raise NotImplementedError

    def make_cache(self) -> Cache:
        """An empty cache."""
        raise NotImplementedError


def make_feature_cache(num_layers: int, num_positions: int) -> EncoderDecoderCache:
    """An empty cache of features [B, T, C] of the last positions, T at most `num_positions`, for
    each layer.

    They lie in the library's sliding windows as keys [B, 1, T, C] whose values have no width;
    `update` gives them with the new ones. So beams are reordered, and assisted generation takes
    tokens back, as the library does."""
    cache = DynamicCache()
    cache.layers = [
        DynamicSlidingWindowLayer(sliding_window=num_positions + 1) for _ in range(num_layers)
    ]
    return EncoderDecoderCache(cache, DynamicCache())


def attention_weights(energies: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The softmax over the real source tokens of a mask [B, J] (None = all) of energies [B, I, J],
    in float32.
    """
    precise = energies.to(torch.promote_types(energies.dtype, torch.float32))
    if mask is None:
        return precise.softmax(dim=-1).to(energies.dtype)
    hidden = ~mask.unsqueeze(1)
    precise = precise.masked_fill(hidden, torch.finfo(precise.dtype).min).softmax(dim=-1)
    return precise.masked_fill(hidden, 0.0).to(
        energies.dtype
    )  # zeros for a source without a real token


def _real_tokens(
    mask: torch.Tensor | None, states: torch.Tensor, name: str, past: int = 0
) -> torch.Tensor | None:
    """A padding mask [B, past + T] for states [B, T, C] as booleans, True = a real token; None =
    all are real.
    """
    return (
        None if mask is None else padding_mask(mask, states.shape[0], past + states.shape[1], name)
    )
