# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""ConvS2S: gated convolutions in encoder and decoder, attention in every decoder layer (Gehring et
al., ICML 2017).

Shapes: B batch, I target and J source positions, T either, e width of the embeddings, d channels of
the convolutions."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration_conv_s2s import ConvS2SConfig
from .encoder_decoder import FeatureDecoder, FeatureEncoder, make_feature_cache
from .layers import attention_weights, drop
from .seq2seq_model import (
    CACHE,
    Seq2SeqForGeneration,
    Seq2SeqModel,
    Seq2SeqPreTrained,
    takes_past_key_values,
)

_ROOT_HALF = math.sqrt(0.5)


class WeightNormalized(nn.Module):
    """A linear map, or a convolution of a kernel size, whose weights are g v / |v| for each output.

    Weight normalisation (Salimans and Kingma, 2016), which the paper applies to all layers but the
    embeddings. torch's parametrisation computes the same, but makes weights anew at each access: an
    adapter that is merged into them is lost, and the model cannot be pickled."""

    def __init__(self, inputs: int, outputs: int, *kernel_size: int) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.empty(outputs, inputs, *kernel_size))  # v
        self.magnitude = nn.Parameter(torch.empty(outputs))  # g
        self.bias = nn.Parameter(torch.empty(outputs))

    def weight(self) -> Tensor:
        """[outputs, inputs], or [outputs, inputs, k]."""
        norm = self.direction.flatten(1).norm(dim=1)
        return self.direction * (self.magnitude / norm).view(-1, *[1] * (self.direction.dim() - 1))

    def forward(self, states: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs], or [B, inputs, T] -> [B, outputs, T - k + 1]."""
        compute = F.linear if self.direction.dim() == 2 else F.conv1d
        return compute(states, self.weight(), self.bias)


class GatedConvolution(nn.Module):
    """A weight-normalised convolution [B, T + k - 1, d] -> [B, T, d] whose one half of channels
    gates the other.
    """

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__()
        self.convolution = WeightNormalized(
            config.hidden_size, 2 * config.hidden_size, config.kernel_size
        )

    def forward(self, states: Tensor) -> Tensor:
        """Each output sees k inputs; the caller pads."""
        return F.glu(self.convolution(states.transpose(1, 2)), dim=1).transpose(1, 2)


class ConvS2SEncoderLayer(GradientCheckpointingLayer):
    """A gated convolution with a residual connection."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.beside = config.kernel_size // 2
        self.convolution = GatedConvolution(config)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """[B, J, d] -> [B, J, d]; padding, where the mask [B, J, 1] is False, is zero for the
        convolution.
        """
        inputs = states if mask is None else states * mask
        inputs = F.pad(drop(inputs, self.dropout, self.training), (0, 0, self.beside, self.beside))
        return (self.convolution(inputs) + states) * _ROOT_HALF


class ConvS2SDecoderLayer(GradientCheckpointingLayer):
    """A causal gated convolution and attention (section 3.3), with a residual connection around
    both.
    """

    def __init__(self, config: ConvS2SConfig, layer_idx: int) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.above = config.kernel_size - 1
        self.layer_idx = layer_idx
        self.convolution = GatedConvolution(config)
        self.query_projection = WeightNormalized(config.hidden_size, config.embed_dim)
        self.context_projection = WeightNormalized(config.embed_dim, config.hidden_size)

    @takes_past_key_values
    def forward(
        self,
        states: Tensor,
        embeddings: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        source_mask: Tensor | None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The states [B, I, d] after this layer and the attention weights [B, I, J].

        Args:
            states: [B, I, d].
            embeddings: Target embeddings [B, I, e].
            keys: Encoder states z [B, J, e].
            values: Encoder states with the source embeddings, (z + e) √½, [B, J, e].
            mask: [B, I, 1], True = a real target token.
            source_mask: [B, J], True = a real source token.
            cache: Holds the last inputs of the convolution; where activations are checkpointed, the
                library takes an argument of this name (`CACHE`) away.
        """
        inputs = drop(states if mask is None else states * mask, self.dropout, self.training)
        if cache is not None:
            rows = inputs.unsqueeze(1)
            inputs = cache.update(rows, rows[..., :0], self.layer_idx)[0][:, 0]
        convolved = self.convolution(
            F.pad(inputs, (0, 0, self.above + states.shape[1] - inputs.shape[1], 0))
        )
        query = (self.query_projection(convolved) + embeddings) * _ROOT_HALF
        weights = attention_weights(query @ keys.transpose(1, 2), source_mask)
        lengths: Any = keys.shape[1]
        if source_mask is not None:
            lengths = source_mask.sum(dim=1).clamp(min=1).to(values.dtype).view(-1, 1, 1)
        # A mean of m values has 1/m of their variance where the weights are equal
        context = self.context_projection((weights @ values) * lengths**0.5)
        return ((context + convolved) * _ROOT_HALF + states) * _ROOT_HALF, weights


class ConvS2SPreTrainedModel(Seq2SeqPreTrained):
    """Weight initialisation and the names that the library looks for."""

    config: ConvS2SConfig
    supports_gradient_checkpointing = True
    _no_split_modules = ["ConvS2SEncoderLayer", "ConvS2SDecoderLayer"]  # noqa: RUF012
    auto_map = {  # noqa: RUF012
        "AutoConfig": "configuration_conv_s2s.ConvS2SConfig",
        "AutoModel": "modeling_conv_s2s.ConvS2SModel",
        "AutoModelForSeq2SeqLM": "modeling_conv_s2s.ConvS2SForConditionalGeneration",
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Variances that keep those of activations (section 3.5); embeddings and positions N(0,
        0.1).
        """
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=0.1)
        elif isinstance(module, WeightNormalized):
            gates = 4.0 if module.direction.dim() == 3 else 1.0
            std = math.sqrt(gates * (1.0 - self.config.dropout) / module.direction[0].numel())
            init.normal_(module.direction, mean=0.0, std=std)
            init.copy_(module.magnitude, module.direction.flatten(1).norm(dim=1))
            init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            init.normal_(
                module.weight,
                mean=0.0,
                std=math.sqrt((1.0 - self.config.dropout) / module.in_features),
            )
            init.zeros_(module.bias)


class _Embedding(ConvS2SPreTrainedModel):
    """Shared by encoder and decoder: tokens and learned positions."""

    def _build(self, vocab_size: int) -> None:
        config = self.config
        self.embed_tokens = nn.Embedding(vocab_size, config.embed_dim)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.embed_dim)
        self.input_projection = WeightNormalized(config.embed_dim, config.hidden_size)
        self.output_projection = WeightNormalized(config.hidden_size, config.embed_dim)

    def _add_positions(
        self, embeddings: Tensor, mask: Tensor | None, past: int
    ) -> tuple[Tensor, Tensor | None]:
        """Token + position [B, T, e], positions counting real tokens, and the mask [B, T, 1] of
        these tokens.
        """
        seen = past + embeddings.shape[1]
        if seen > self.config.max_position_embeddings:
            raise ValueError(
                f"A sentence of {seen} tokens exceeds "
                f"max_position_embeddings={self.config.max_position_embeddings}; shorten it "
                "(truncation, max_length)."
            )
        if mask is None:
            positions = torch.arange(past, seen, device=embeddings.device)
        else:
            positions, mask = (
                (mask.long().cumsum(dim=1) - 1).clamp(min=0)[:, past:],
                mask[:, past:, None],
            )
        embeddings = embeddings + self.embed_positions(positions)
        return drop(embeddings, self.config.dropout, self.training), mask


class ConvS2SEncoder(_Embedding, FeatureEncoder):
    """Embeddings and a stack of `ConvS2SEncoderLayer`."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__(config)
        self._build(config.vocab_size)
        self.layers = nn.ModuleList(
            [ConvS2SEncoderLayer(config) for _ in range(config.encoder_layers)]
        )
        self.gradient_checkpointing = False
        self.post_init()

    def encode(self, embeddings: Tensor, mask: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """See `FeatureEncoder`: states [B, J, 2e], the keys z of the attention, then its values (z
        + e) √½.
        """
        embeddings, mask = self._add_positions(embeddings, mask, 0)
        seen = [self.input_projection(embeddings)]
        for layer in self.layers:
            seen.append(layer(seen[-1], mask))
        keys = self.output_projection(seen[-1])
        if keys.requires_grad:  # every decoder layer sends a gradient here (section 3.5)
            scale = 1.0 / (2.0 * self.config.decoder_layers)
            keys.register_hook(lambda gradient: gradient * scale)
        if mask is not None:
            keys, embeddings = keys * mask, embeddings * mask
        return torch.cat([keys, (keys + embeddings) * _ROOT_HALF], dim=-1), seen


class ConvS2SDecoder(_Embedding, FeatureDecoder):
    """Embeddings and a stack of `ConvS2SDecoderLayer`."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__(config)
        self._build(config.decoder_vocab_size)
        self.layers = nn.ModuleList(
            [ConvS2SDecoderLayer(config, i) for i in range(config.decoder_layers)]
        )
        self.gradient_checkpointing = False
        self.post_init()

    def make_cache(self) -> Cache:
        """An empty cache of the last inputs of every convolution."""
        return make_feature_cache(self.config.decoder_layers, self.config.kernel_size - 1)

    def decode(
        self,
        embeddings: Tensor,
        mask: Tensor | None,
        source: Tensor,
        source_mask: Tensor | None,
        cache: Cache | None,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """See `FeatureDecoder`: the states [B, I, e]."""
        embeddings, mask = self._add_positions(
            embeddings, mask, 0 if cache is None else cache.get_seq_length()
        )
        keys, values = source.chunk(2, dim=-1)
        seen, attentions = [self.input_projection(embeddings)], []
        for layer in self.layers:
            states, weights = layer(
                seen[-1], embeddings, keys, values, mask, source_mask, **{CACHE: cache}
            )
            seen.append(states)
            attentions.append(weights)
        return self.output_projection(seen[-1]), attentions, seen


class ConvS2SModel(ConvS2SPreTrainedModel, Seq2SeqModel):
    """Encoder and decoder without the output projection."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.embed_dim)
        self.encoder = ConvS2SEncoder(config)
        self.decoder = ConvS2SDecoder(config)
        self.post_init()


class ConvS2SForConditionalGeneration(ConvS2SPreTrainedModel, Seq2SeqForGeneration):
    """ConvS2S with the output projection, for translation."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__(config)
        self.model = ConvS2SModel(config)
        self.lm_head = nn.Linear(config.embed_dim, config.decoder_vocab_size)
        self.post_init()


ConvS2SPreTrainedModel.body_class = ConvS2SModel
ConvS2SModel.register_for_auto_class("AutoModel")
ConvS2SForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = ["ConvS2SForConditionalGeneration", "ConvS2SModel", "ConvS2SPreTrainedModel"]
