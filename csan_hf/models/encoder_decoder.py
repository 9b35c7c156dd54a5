# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Encoders and decoders that read a fixed number of earlier positions: forward passes and cache.

Shapes: B batch, I target and J source positions, T either, C features, e width of the embeddings.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
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
from .seq2seq_model import Seq2SeqPreTrained, known_keywords, takes_past_key_values


class FeatureEncoder(Seq2SeqPreTrained):
    """Base of an encoder with `embed_tokens` and `encode`."""

    embed_tokens: nn.Embedding

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        """Encode tokens [B, J] (or `inputs_embeds` [B, J, e]) under a mask [B, J], 1 = a real
        token.

        There is no attention for `output_attentions` to ask for.
        """
        embeddings = embed(self.embed_tokens, input_ids, inputs_embeds)
        mask = padding_mask(
            attention_mask, embeddings.shape[0], embeddings.shape[1], "attention_mask"
        )
        states, hidden_states = self.encode(embeddings, mask)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return BaseModelOutput(
            last_hidden_state=states,
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
        )

    def encode(self, embeddings: Tensor, mask: Tensor | None) -> tuple[Tensor, Sequence[Tensor]]:
        """The states [B, J, C] for the decoder, and the hidden states; mask [B, J], True = a real
        token.
        """
        raise NotImplementedError


class FeatureDecoder(Seq2SeqPreTrained):
    """Base of a decoder with `embed_tokens`, `decode` and `make_cache`."""

    config: Any
    embed_tokens: nn.Embedding

    @can_return_tuple
    @takes_past_key_values
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
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
        known_keywords(kwargs)
        config = self.config
        source = encoder_hidden_states
        if source is None:
            raise ValueError(
                "`encoder_hidden_states` must be given: the decoder attends to the source."
            )
        embeddings = embed(self.embed_tokens, input_ids, inputs_embeds, prefix="decoder_")
        batch, length = embeddings.shape[:2]
        check_as_many(source.shape[0], batch)
        if use_cache is None:
            use_cache = config.use_cache and not self.training
        if cache is None and use_cache:
            cache = self.make_cache()
        features: Any = getattr(cache, "self_attention_cache", cache)
        past = 0
        if features is not None:
            if any(
                not isinstance(layer, DynamicLayer)
                or (layer.values is not None and layer.values.numel())
                for layer in features.layers
            ):
                raise ValueError(
                    f"{config.model_type} keeps features of the last positions, which a "
                    f"{type(features).__name__} of another kind cannot hold: leave `cache` and "
                    "`cache_implementation` unset, or pass use_cache=False. Prefix tuning, whose "
                    "prefix is keys and values, is for models that attend to those."
                )
            past = features.get_seq_length()
        states, weights, hidden_states = self.decode(
            embeddings,
            padding_mask(attention_mask, batch, past + length, "decoder_attention_mask"),
            source,
            padding_mask(encoder_attention_mask, batch, source.shape[1], "attention_mask"),
            features,
        )
        outputs = BaseModelOutputWithPastAndCrossAttentions(
            drop(states, config.dropout, self.training), cache
        )
        if config.output_attentions if output_attentions is None else output_attentions:
            outputs.cross_attentions = tuple(weight.unsqueeze(1) for weight in weights)
        if config.output_hidden_states if output_hidden_states is None else output_hidden_states:
            outputs.hidden_states = tuple(hidden_states)
        return outputs

    def decode(
        self,
        embeddings: Tensor,
        mask: Tensor | None,
        source: Tensor,
        source_mask: Tensor | None,
        cache: Cache | None,
    ) -> tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]:
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
    """An empty cache of features [B, T, C] of the last positions for each layer.

    T is at most `num_positions`, or 1 where that is 0. The features lie in the library's sliding
    windows as keys [B, 1, T, C] whose values have no width; `update` gives them with the new ones.
    So beams are reordered, and assisted generation takes tokens back, as the library does."""
    window = max(num_positions, 1) + 1  # the library counts the new position, and cannot keep none
    cache = DynamicCache()
    cache.layers = [DynamicSlidingWindowLayer(sliding_window=window) for _ in range(num_layers)]
    return EncoderDecoderCache(cache, DynamicCache())
