# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""RNNsearch: a bi-directional LSTM encoder, an LSTM decoder with attention (Bahdanau et al., 2015; Luong et al.).

Shapes: B batch, I target and J source positions, T either, d_s and d_t widths of the embeddings, d of the states.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import can_return_tuple

from .configuration_rnnsearch import RnnSearchConfig
from .feature_cache import decoder_half, make_feature_cache, real_tokens
from .seq2seq_model import (
    Seq2SeqEmbeddings,
    Seq2SeqHead,
    Seq2SeqPreTrained,
    check_as_many,
    drop,
    embed,
)

State = tuple[torch.Tensor, torch.Tensor]


def run_lstm(
    lstm: nn.LSTM, inputs: torch.Tensor, mask: torch.Tensor | None, state: State | None = None
) -> torch.Tensor:
    """Outputs [B, T, d] of an LSTM over the real tokens of inputs [B, T, ...]; zero at padding, wherever it stands.

    Args:
        lstm: One layer, in one or both directions.
        inputs: [B, T, ...].
        mask: [B, T], True = a real token; None = all.
        state: h and c [B, d] before the first token; None = zeros.
    """
    initial = None if state is None else (state[0].unsqueeze(0), state[1].unsqueeze(0))
    if mask is None:
        return lstm(inputs, initial)[0]
    lengths = mask.sum(dim=1).clamp(min=1).cpu()
    real_first = (~mask).long().argsort(dim=1, stable=True).unsqueeze(-1)
    packed = pack_padded_sequence(
        inputs.take_along_dim(real_first, 1), lengths, batch_first=True, enforce_sorted=False
    )
    outputs, _ = pad_packed_sequence(lstm(packed, initial)[0], batch_first=True, total_length=mask.shape[1])
    outputs = torch.zeros_like(outputs).scatter(1, real_first.expand_as(outputs), outputs)
    return outputs.masked_fill(~mask.unsqueeze(-1), 0.0)


class Attention(nn.Module):
    """Attention of decoder states on encoder states, and the attentional state tanh(W [context; state])."""

    def __init__(self, config: RnnSearchConfig) -> None:
        super().__init__()
        d = config.hidden_size
        self.kind = config.attention
        if self.kind != "dot":
            self.key_projection = nn.Linear(d, d, bias=False)
        if self.kind == "additive":
            self.query_projection = nn.Linear(d, d)
            self.energy = nn.Linear(d, 1, bias=False)
        self.output_projection = nn.Linear(2 * d, config.output_dim, bias=False)

    def forward(
        self, queries: torch.Tensor, states: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The attentional states [B, I, output_dim] and the weights [B, I, J].

        Args:
            queries: [B, I, d].
            states: [B, J, d].
            mask: [B, J], True = a real source token; None = all.
        """
        energies = self._energies(queries, states)
        energies = energies.to(torch.promote_types(energies.dtype, torch.float32))
        if mask is not None:
            energies = energies.masked_fill(~mask.unsqueeze(1), torch.finfo(energies.dtype).min)
        weights = energies.softmax(dim=-1).to(states.dtype)
        if mask is not None:
            weights = weights.masked_fill(~mask.unsqueeze(1), 0.0)  # a source without a real token
        return torch.tanh(self.output_projection(torch.cat([weights @ states, queries], dim=-1))), weights

    def _energies(self, queries: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        if self.kind == "dot":
            return queries @ states.transpose(1, 2)
        keys = self.key_projection(states)
        if self.kind == "general":
            return queries @ keys.transpose(1, 2)
        pairs = torch.tanh(self.query_projection(queries).unsqueeze(2) + keys.unsqueeze(1))
        return self.energy(pairs).squeeze(-1)


class RnnSearchPreTrainedModel(Seq2SeqPreTrained, PreTrainedModel):  # type: ignore[override]
    """Weight initialisation and the names that the library looks for."""

    config: RnnSearchConfig
    config_class = RnnSearchConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _no_split_modules = ["RnnSearchEncoder", "RnnSearchDecoder"]  # noqa: RUF012
    auto_map = {  # noqa: RUF012
        "AutoConfig": "configuration_rnnsearch.RnnSearchConfig",
        "AutoModel": "modeling_rnnsearch.RnnSearchModel",
        "AutoModelForSeq2SeqLM": "modeling_rnnsearch.RnnSearchForConditionalGeneration",
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Xavier, embeddings N(0, `init_std`), LSTMs uniform within d ** -0.5 as torch's."""
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=self.config.init_std or module.embedding_dim**-0.5)
        elif isinstance(module, nn.LSTM):
            for weight in module.parameters():
                init.uniform_(weight, -(module.hidden_size**-0.5), module.hidden_size**-0.5)


class RnnSearchEncoder(RnnSearchPreTrainedModel):
    """Embedding and one bi-directional LSTM."""

    def __init__(self, config: RnnSearchConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.source_embed_dim)
        self.lstm = nn.LSTM(config.source_embed_dim, config.hidden_size // 2, batch_first=True, bidirectional=True)
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
        """Encode tokens [B, J] (or `inputs_embeds` [B, J, d_s]): `last_hidden_state` [B, J, d], zero at padding."""
        embeddings = embed(self.embed_tokens, input_ids, inputs_embeds, ("input_ids", "inputs_embeds"))
        mask = real_tokens(attention_mask, embeddings, "attention_mask")
        states = run_lstm(self.lstm, drop(embeddings, self.config.dropout, self.training), mask)
        if self.config.output_hidden_states if output_hidden_states is None else output_hidden_states:
            return BaseModelOutput(last_hidden_state=states, hidden_states=(embeddings, states))
        return BaseModelOutput(last_hidden_state=states)


class RnnSearchDecoder(RnnSearchPreTrainedModel):
    """Embedding, one LSTM that starts from the encoder's last states, and attention on all of them."""

    def __init__(self, config: RnnSearchConfig) -> None:
        super().__init__(config)
        d = config.hidden_size
        self.embed_tokens = nn.Embedding(config.decoder_vocab_size, config.target_embed_dim)
        self.bridge = nn.Linear(d, 2 * d)
        fed = config.output_dim if config.input_feeding else 0
        self.lstm = nn.LSTM(config.target_embed_dim + fed, d, batch_first=True)
        self.attention = Attention(config)
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
            encoder_hidden_states: [B, J, d].
            encoder_attention_mask: [B, J], 1 = a real token.
            past_key_values: Cache of the states after earlier positions.
            inputs_embeds: [B, I, d_t] instead of `input_ids`.
            use_cache: Whether to keep the states; default: the config's, outside training.
            output_attentions: Whether to return `cross_attentions`, one [B, 1, I, J].
            output_hidden_states: Whether to return `hidden_states`, too.

        Returns:
            `last_hidden_state` [B, I, d_t], the attentional states ([B, I, d] untied).
        """
        names = "decoder_input_ids", "decoder_inputs_embeds"
        embeddings = embed(self.embed_tokens, input_ids, inputs_embeds, names)
        states, config = encoder_hidden_states, self.config
        assert states is not None  # for the type checker
        check_as_many(len(states), len(embeddings))
        if past_key_values is None and (config.use_cache and not self.training if use_cache is None else use_cache):
            past_key_values = make_feature_cache(1, 1)
        cache = decoder_half(past_key_values)
        past = 0 if cache is None else cache.get_seq_length()
        mask = real_tokens(attention_mask, embeddings, "decoder_attention_mask", past)
        mask = None if mask is None else mask[:, past:]
        source_mask = real_tokens(encoder_attention_mask, states, "attention_mask")
        inputs = drop(embeddings, config.dropout, self.training)
        if cache is None and not config.input_feeding:
            h, c, _ = self._initial_state(states, source_mask)
            attended, weights = self.attention(run_lstm(self.lstm, inputs, mask, (h, c)), states, source_mask)
        else:
            attended, weights = self._run_steps(inputs, mask, states, source_mask, cache)
        outputs = BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=drop(attended, config.dropout, self.training), past_key_values=past_key_values
        )
        if config.output_attentions if output_attentions is None else output_attentions:
            outputs.cross_attentions = (weights.unsqueeze(1),)
        if config.output_hidden_states if output_hidden_states is None else output_hidden_states:
            outputs.hidden_states = (embeddings, attended)
        return outputs

    def _initial_state(self, states: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """h, c [B, d] and a fed state of zeros, before the first token (Bahdanau et al., appendix A.2.2)."""
        half = states.shape[-1] // 2
        if mask is None:
            last = torch.cat([states[:, -1, :half], states[:, 0, half:]], dim=-1)
        else:
            counts = mask.long().cumsum(dim=1)
            first, end = counts.eq(0).sum(dim=1), counts.lt(counts[:, -1:]).sum(dim=1)
            row = torch.arange(states.shape[0], device=states.device)
            first = first.clamp(max=states.shape[1] - 1)
            last = torch.cat([states[row, end, :half], states[row, first, half:]], dim=-1)
        h, c = torch.tanh(self.bridge(last)).chunk(2, dim=-1)
        return h, c, h.new_zeros(h.shape[0], self.config.output_dim)

    def _run_steps(
        self,
        inputs: torch.Tensor,
        mask: torch.Tensor | None,
        states: torch.Tensor,
        source_mask: torch.Tensor | None,
        cache: Cache | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As all positions at once, one after the other, with the state after each of them in the cache."""
        sizes = [self.config.hidden_size, self.config.hidden_size, self.config.output_dim]
        state: Any = self._initial_state(states, source_mask)
        if cache is not None and cache.get_seq_length():
            layer: Any = cache.layers[0]
            state = layer.keys[:, 0, -1].split(sizes, dim=-1)
        attended, weights, after = [], [], []
        for step, embedding in enumerate(inputs.unbind(dim=1)):
            h, c, fed = state
            if self.config.input_feeding:
                embedding = torch.cat([embedding, fed], dim=-1)
            query, (_, new_c) = self.lstm(embedding.unsqueeze(1), (h.unsqueeze(0), c.unsqueeze(0)))
            vector, weight = self.attention(query, states, source_mask)
            new: Any = query[:, 0], new_c[0], vector[:, 0]
            if mask is not None:
                real = mask[:, step, None]
                new = tuple(torch.where(real, ours, old) for ours, old in zip(new, state, strict=True))
            state = new
            attended.append(vector)
            weights.append(weight)
            after.append(torch.cat(state, dim=-1))
        if cache is not None:
            rows = torch.stack(after, dim=1).unsqueeze(1)
            cache.update(rows, rows[..., :0], 0)
        return torch.cat(attended, dim=1), torch.cat(weights, dim=1)


class RnnSearchModel(Seq2SeqEmbeddings, RnnSearchPreTrainedModel):  # type: ignore[override]
    """Encoder and decoder without the output projection."""

    def __init__(self, config: RnnSearchConfig) -> None:
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.source_embed_dim)
        self.encoder = RnnSearchEncoder(config)
        self.decoder = RnnSearchDecoder(config)
        self.post_init()


class RnnSearchForConditionalGeneration(  # type: ignore[misc, override]
    Seq2SeqHead, RnnSearchPreTrainedModel, GenerationMixin
):
    """RNNsearch with the output projection, for translation."""

    def __init__(self, config: RnnSearchConfig) -> None:
        super().__init__(config)
        self.model = RnnSearchModel(config)
        self.lm_head = nn.Linear(config.output_dim, config.decoder_vocab_size)
        self.post_init()

    def make_cache(self, num_beams: int) -> Cache:
        """The decoder's state."""
        return make_feature_cache(1, 1)


RnnSearchModel.register_for_auto_class("AutoModel")
RnnSearchForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = ["RnnSearchForConditionalGeneration", "RnnSearchModel", "RnnSearchPreTrainedModel"]
