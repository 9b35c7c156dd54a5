# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""ConvS2S: gated convolutions in encoder and decoder, attention in every decoder layer (Gehring et al., ICML 2017).

Shapes: B batch, I target and J source positions, T either, e width of the embeddings, d channels of the convolutions.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import is_parametrized
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import can_return_tuple

from .configuration_conv_s2s import ConvS2SConfig
from .feature_cache import decoder_half, make_feature_cache, real_tokens
from .seq2seq_model import (
    Seq2SeqEmbeddings,
    Seq2SeqHead,
    Seq2SeqPreTrained,
    check_as_many,
    drop,
    embed,
)

_ROOT_HALF = math.sqrt(0.5)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return weight_norm(nn.Linear(inputs, outputs))


class ScaledGradient(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a number."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, scale: float) -> torch.Tensor:
        """The states themselves."""
        ctx.scale = scale
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The gradient times the number."""
        return gradient * ctx.scale, None


class GatedConvolution(nn.Module):
    """A weight-normalised convolution [B, T + k - 1, d] -> [B, T, d] whose one half of channels gates the other."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.convolution = weight_norm(nn.Conv1d(config.hidden_size, 2 * config.hidden_size, config.kernel_size))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Each output sees k inputs; the caller pads."""
        return F.glu(self.convolution(states.transpose(1, 2)), dim=1).transpose(1, 2)


class ConvS2SEncoderLayer(GradientCheckpointingLayer):
    """A gated convolution with a residual connection."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__()
        self.dropout, self.beside = config.dropout, config.kernel_size // 2
        self.convolution = GatedConvolution(config)

    def forward(self, states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """[B, J, d] -> [B, J, d]; padding, where the mask [B, J, 1] is False, is zero for the convolution."""
        inputs = states if mask is None else states * mask
        inputs = F.pad(drop(inputs, self.dropout, self.training), (0, 0, self.beside, self.beside))
        return (self.convolution(inputs) + states) * _ROOT_HALF


class ConvS2SDecoderLayer(GradientCheckpointingLayer):
    """A causal gated convolution and attention (section 3.3), with a residual connection around both."""

    def __init__(self, config: ConvS2SConfig, layer_idx: int) -> None:
        super().__init__()
        self.dropout, self.above, self.layer_idx = config.dropout, config.kernel_size - 1, layer_idx
        self.convolution = GatedConvolution(config)
        self.query_projection = _linear(config.hidden_size, config.embed_dim)
        self.context_projection = _linear(config.embed_dim, config.hidden_size)

    def forward(
        self,
        states: torch.Tensor,
        embeddings: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        source_mask: torch.Tensor | None,
        cache: Cache | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The states [B, I, d] after this layer and the attention weights [B, I, J].

        Args:
            states: [B, I, d].
            embeddings: Target embeddings [B, I, e].
            keys: Encoder states z [B, J, e].
            values: Encoder states with the source embeddings, (z + e) √½, [B, J, e].
            mask: [B, I, 1], True = a real target token.
            source_mask: [B, J], True = a real source token.
            cache: Holds the last inputs of the convolution.
        """
        inputs = drop(states if mask is None else states * mask, self.dropout, self.training)
        if cache is not None:
            rows = inputs.unsqueeze(1)
            inputs = cache.update(rows, rows[..., :0], self.layer_idx)[0][:, 0]
        convolved = self.convolution(F.pad(inputs, (0, 0, self.above + states.shape[1] - inputs.shape[1], 0)))
        query = (self.query_projection(convolved) + embeddings) * _ROOT_HALF
        weights = self._attend(query @ keys.transpose(1, 2), source_mask)
        lengths: Any = keys.shape[1]
        if source_mask is not None:
            lengths = source_mask.sum(dim=1).clamp(min=1).to(values.dtype).view(-1, 1, 1)
        # A mean of m values has 1/m of their variance where the weights are equal
        context = self.context_projection((weights @ values) * lengths**0.5)
        return ((context + convolved) * _ROOT_HALF + states) * _ROOT_HALF, weights

    def _attend(self, energies: torch.Tensor, source_mask: torch.Tensor | None) -> torch.Tensor:
        precise = energies.to(torch.promote_types(energies.dtype, torch.float32))
        if source_mask is None:
            return precise.softmax(dim=-1).to(energies.dtype)
        hidden = ~source_mask.unsqueeze(1)
        precise = precise.masked_fill(hidden, torch.finfo(precise.dtype).min).softmax(dim=-1)
        return precise.masked_fill(hidden, 0.0).to(energies.dtype)


class ConvS2SPreTrainedModel(Seq2SeqPreTrained, PreTrainedModel):  # type: ignore[override]
    """Weight initialisation and the names that the library looks for."""

    config: ConvS2SConfig
    config_class = ConvS2SConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ConvS2SEncoderLayer", "ConvS2SDecoderLayer"]  # noqa: RUF012
    auto_map = {  # noqa: RUF012
        "AutoConfig": "configuration_conv_s2s.ConvS2SConfig",
        "AutoModel": "modeling_conv_s2s.ConvS2SModel",
        "AutoModelForSeq2SeqLM": "modeling_conv_s2s.ConvS2SForConditionalGeneration",
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Variances that keep those of activations (section 3.5); embeddings and positions N(0, 0.1)."""
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=0.1)
        elif isinstance(module, nn.Linear | nn.Conv1d):
            gates = 4.0 if isinstance(module, nn.Conv1d) else 1.0
            keep = 1.0 - self.config.dropout
            std = math.sqrt(gates * keep / module.weight[0].numel())
            if is_parametrized(module):
                weight = torch.empty_like(module.weight).normal_(0.0, std)
                parts: Any = module.get_submodule("parametrizations.weight")
                scale, direction = parts.original0, parts.original1
                init.copy_(direction, weight)
                init.copy_(scale, weight.flatten(1).norm(dim=1).view_as(scale))
            else:
                init.normal_(module.weight, mean=0.0, std=std)
            assert module.bias is not None  # for the type checker
            init.zeros_(module.bias)


class _Embedding(ConvS2SPreTrainedModel):
    """What encoder and decoder share: tokens and learned positions."""

    def _build(self, vocab_size: int) -> None:
        config = self.config
        self.embed_tokens = nn.Embedding(vocab_size, config.embed_dim)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.embed_dim)
        self.input_projection = _linear(config.embed_dim, config.hidden_size)
        self.output_projection = _linear(config.hidden_size, config.embed_dim)

    def _embed(
        self,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        mask: torch.Tensor | None,
        past: int,
        names: tuple[str, str],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Token + position [B, T, e], positions counting real tokens, and the mask [B, T] of these tokens."""
        embeddings = embed(self.embed_tokens, input_ids, inputs_embeds, names)
        length = embeddings.shape[1]
        if past + length > self.config.max_position_embeddings:
            raise ValueError(
                f"A sentence of {past + length} tokens exceeds max_position_embeddings="
                f"{self.config.max_position_embeddings}; shorten it (truncation, max_length)."
            )
        name = "decoder_attention_mask" if names[0].startswith("decoder") else "attention_mask"
        real = real_tokens(mask, embeddings, name, past)
        if real is None:
            positions = torch.arange(past, past + length, device=embeddings.device)
        else:
            positions, real = (real.long().cumsum(dim=1) - 1).clamp(min=0)[:, past:], real[:, past:]
        embeddings = embeddings + self.embed_positions(positions)
        return drop(embeddings, self.config.dropout, self.training), real


class ConvS2SEncoder(_Embedding):
    """Embeddings and a stack of `ConvS2SEncoderLayer`."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__(config)
        self._build(config.vocab_size)
        self.layers = nn.ModuleList([ConvS2SEncoderLayer(config) for _ in range(config.encoder_layers)])
        self.gradient_checkpointing = False
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Encode tokens [B, J] or `inputs_embeds` [B, J, e].

        Returns:
            `last_hidden_state` [B, J, 2e]: the keys z of the attention, then its values (z + e) √½.
        """
        names = "input_ids", "inputs_embeds"
        embeddings, mask = self._embed(input_ids, inputs_embeds, attention_mask, 0, names)
        states = self.input_projection(embeddings)
        column = None if mask is None else mask.unsqueeze(-1)
        seen = [states]
        for layer in self.layers:
            states = layer(states, column)
            seen.append(states)
        keys = self.output_projection(states)
        # Every decoder layer sends a gradient here
        keys = ScaledGradient.apply(keys, 1.0 / (2.0 * self.config.decoder_layers))
        if column is not None:
            keys, embeddings = keys * column, embeddings * column
        values = (keys + embeddings) * _ROOT_HALF
        shown = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        return BaseModelOutput(
            last_hidden_state=torch.cat([keys, values], dim=-1), hidden_states=tuple(seen) if shown else None
        )


class ConvS2SDecoder(_Embedding):
    """Embeddings and a stack of `ConvS2SDecoderLayer`."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__(config)
        self._build(config.decoder_vocab_size)
        self.layers = nn.ModuleList([ConvS2SDecoderLayer(config, i) for i in range(config.decoder_layers)])
        self.gradient_checkpointing = False
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
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
            encoder_hidden_states: [B, J, 2e].
            encoder_attention_mask: [B, J], 1 = a real token.
            past_key_values: Cache of the convolutions' last inputs.
            inputs_embeds: [B, I, e] instead of `input_ids`.
            use_cache: Whether to keep them; default: the config's, outside training.
            output_attentions: Whether to return `cross_attentions`, [B, 1, I, J] for each layer.
            output_hidden_states: Whether to return `hidden_states`, too.

        Returns:
            `last_hidden_state` [B, I, e].
        """
        config, source = self.config, encoder_hidden_states
        assert source is not None  # for the type checker
        if past_key_values is None and (config.use_cache and not self.training if use_cache is None else use_cache):
            past_key_values = make_feature_cache(config.decoder_layers, config.kernel_size - 1)
        cache = decoder_half(past_key_values)
        names = "decoder_input_ids", "decoder_inputs_embeds"
        past = 0 if cache is None else cache.get_seq_length()
        embeddings, mask = self._embed(input_ids, inputs_embeds, attention_mask, past, names)
        check_as_many(len(source), len(embeddings))
        source_mask = real_tokens(encoder_attention_mask, source, "attention_mask")
        keys, values = source.chunk(2, dim=-1)
        column = None if mask is None else mask.unsqueeze(-1)
        states = self.input_projection(embeddings)
        seen, attentions = [states], []
        for layer in self.layers:
            states, weights = layer(states, embeddings, keys, values, column, source_mask, cache)
            seen.append(states)
            attentions.append(weights.unsqueeze(1))
        outputs = BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=drop(self.output_projection(states), config.dropout, self.training),
            past_key_values=past_key_values,
        )
        if config.output_attentions if output_attentions is None else output_attentions:
            outputs.cross_attentions = tuple(attentions)
        if config.output_hidden_states if output_hidden_states is None else output_hidden_states:
            outputs.hidden_states = tuple(seen)
        return outputs


class ConvS2SModel(Seq2SeqEmbeddings, ConvS2SPreTrainedModel):  # type: ignore[override]
    """Encoder and decoder without the output projection."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.embed_dim)
        self.encoder = ConvS2SEncoder(config)
        self.decoder = ConvS2SDecoder(config)
        self.post_init()


class ConvS2SForConditionalGeneration(  # type: ignore[misc, override]
    Seq2SeqHead, ConvS2SPreTrainedModel, GenerationMixin
):
    """ConvS2S with the output projection, for translation."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__(config)
        self.model = ConvS2SModel(config)
        self.lm_head = nn.Linear(config.embed_dim, config.decoder_vocab_size)
        self.post_init()

    def make_cache(self, num_beams: int) -> Cache:
        """The last inputs of every convolution of the decoder."""
        return make_feature_cache(self.config.decoder_layers, self.config.kernel_size - 1)


ConvS2SModel.register_for_auto_class("AutoModel")
ConvS2SForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = ["ConvS2SForConditionalGeneration", "ConvS2SModel", "ConvS2SPreTrainedModel"]
