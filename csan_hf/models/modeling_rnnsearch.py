# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""RNNsearch: a bi-directional LSTM encoder, an LSTM decoder with attention (Bahdanau et al., 2015;
Luong et al.).

Shapes: B batch, I target and J source positions, T either, d_s and d_t widths of the embeddings, d
of the states."""

import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init
from transformers.cache_utils import Cache

from .configuration_rnnsearch import RnnSearchConfig
from .encoder_decoder import FeatureDecoder, FeatureEncoder, make_feature_cache
from .layers import attention_weights, drop
from .seq2seq_model import Seq2SeqForGeneration, Seq2SeqModel, Seq2SeqPreTrained

# The encoder was one nn.LSTM of two directions. The second pattern matches both, so it is the last
FORMER_NAMES = {
    r"encoder\.lstm\.(\w+)_l0_reverse": r"encoder.layers.0.backwards.\1_l0",
    r"encoder\.lstm\.(\w+)_l0": r"encoder.layers.0.forwards.\1_l0",
}


def call_lstm(lstm: nn.LSTM, inputs: Tensor, state: tuple[Tensor, ...] | None) -> Any:
    """`lstm(inputs, state)`; in float32 where autocast asks for bfloat16 that the CPU lacks."""
    is_cpu_autocast = inputs.device.type == "cpu" and torch.is_autocast_enabled("cpu")
    if not is_cpu_autocast or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return lstm(inputs, state)
    with torch.autocast("cpu", enabled=False):
        if state is not None:
            state = tuple(part.float() for part in state)
        return lstm(inputs.float(), state)


def reading_order(mask: Tensor) -> Tensor:
    """Positions [B, T, 1] in the order in which an LSTM reads them: real tokens, then padding, so
    that no real token sees it. The mask [B, T] is True at real tokens.
    """
    length = mask.shape[1]
    positions = torch.arange(length, device=mask.device) + (~mask).long() * length
    return positions.argsort(1).unsqueeze(-1)


@torch.compiler.disable
def run_lstm(
    lstm: nn.LSTM,
    inputs: Tensor,
    mask: Tensor | None,
    state: tuple[Tensor, ...] | None = None,
) -> Tensor:
    """Outputs [B, T, d] over the real tokens of inputs [B, T, ...], zero at padding.

    The mask [B, T] is True at real tokens, wherever padding stands (None = all are real); `state`
    is h and c [1, B, d] before the first token, None = zeros. Not packed: `pack_padded_sequence`
    takes longer on a CPU, and copies the lengths from a GPU."""
    if torch.compiler.is_exporting():
        raise ValueError(
            "RNNsearch cannot be exported: torch.export unrolls an LSTM for one length."
        )
    if mask is None:
        return call_lstm(lstm, inputs, state)[0]
    order = reading_order(mask)
    outputs = call_lstm(lstm, inputs.take_along_dim(order, 1), state)[0]
    outputs = outputs.take_along_dim(order.argsort(1), 1)
    return outputs.masked_fill(~mask.unsqueeze(-1), 0.0)


class AlignmentModel(nn.Module):
    """Attention of decoder to encoder states; the attentional state is tanh(W [context; state])."""

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

    def project_keys(self, states: Tensor) -> Tensor:
        """Keys [B, J, d] of encoder states [B, J, d]."""
        return states if self.kind == "dot" else self.key_projection(states)

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        states: Tensor,
        mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The attentional states [B, I, output_dim] and the weights [B, I, J].

        Args:
            queries: [B, I, d].
            keys: [B, J, d], of `project_keys`.
            states: [B, J, d].
            mask: [B, J], True = a real source token; None = all.
        """
        if self.kind == "additive":
            pairs = torch.tanh(self.query_projection(queries).unsqueeze(2) + keys.unsqueeze(1))
            energies = self.energy(pairs).squeeze(-1)
        else:
            energies = queries @ keys.transpose(1, 2)
        weights = attention_weights(energies, mask)
        attended = self.output_projection(torch.cat([weights @ states, queries], dim=-1))
        return torch.tanh(attended), weights


class RnnSearchPreTrainedModel(Seq2SeqPreTrained):
    """Weight initialisation and the names that the library looks for."""

    config: RnnSearchConfig
    _no_split_modules = ["RnnSearchEncoder", "RnnSearchDecoder"]  # noqa: RUF012
    auto_map = {  # noqa: RUF012
        "AutoConfig": "configuration_rnnsearch.RnnSearchConfig",
        "AutoModel": "modeling_rnnsearch.RnnSearchModel",
        "AutoModelForSeq2SeqLM": "modeling_rnnsearch.RnnSearchForConditionalGeneration",
    }

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As `Seq2SeqPreTrained.from_pretrained`, also where the encoder has its former names."""
        kwargs.setdefault("key_mapping", FORMER_NAMES)
        return super().from_pretrained(*args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Xavier, embeddings N(0, `init_std`), LSTMs uniform within d ** -0.5 as torch's."""
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(
                module.weight, mean=0.0, std=self.config.init_std or module.embedding_dim**-0.5
            )
        elif isinstance(module, nn.LSTM):
            for weight in module.parameters():
                init.uniform_(weight, -(module.hidden_size**-0.5), module.hidden_size**-0.5)


class BidirectionalLSTM(nn.Module):
    """Two LSTMs of half the width, which read the sentence forwards and backwards.

    One `nn.LSTM` of two directions would read padding first backwards."""

    def __init__(self, in_features: int, width: int) -> None:
        super().__init__()
        self.forwards = nn.LSTM(in_features, width // 2, batch_first=True)
        self.backwards = nn.LSTM(in_features, width // 2, batch_first=True)

    def forward(self, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """States [B, J, d] of inputs [B, J, in_features]; see `run_lstm`."""
        forward_states = run_lstm(self.forwards, inputs, mask)
        mirrored_mask = None if mask is None else mask.flip(1)
        backward_states = run_lstm(self.backwards, inputs.flip(1), mirrored_mask).flip(1)
        return torch.cat([forward_states, backward_states], -1)


class RnnSearchEncoder(RnnSearchPreTrainedModel, FeatureEncoder):
    """Embedding and stacked bi-directional LSTMs."""

    def __init__(self, config: RnnSearchConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.source_embed_dim)
        widths = [config.source_embed_dim] + [config.hidden_size] * (config.encoder_layers - 1)
        self.layers = nn.ModuleList(
            BidirectionalLSTM(width, config.hidden_size) for width in widths
        )
        self.post_init()

    def _load_from_state_dict(self, state_dict: dict[str, Any], *args: Any) -> None:
        """Load weights under their former names, too: transformers saves what it loaded by them."""
        for former, name in FORMER_NAMES.items():
            for key in list(state_dict):
                state_dict[re.sub(former, name, key)] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, *args)

    def encode(self, embeddings: Tensor, mask: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See `FeatureEncoder`: states [B, J, d], zero at padding."""
        states = embeddings
        for layer in self.layers:
            states = layer(drop(states, self.config.dropout, self.training), mask)
        return states, (embeddings, states)


class RnnSearchDecoder(RnnSearchPreTrainedModel, FeatureDecoder):
    """Embedding, an LSTM that starts from the encoder's last states, attention on all states."""

    def __init__(self, config: RnnSearchConfig) -> None:
        super().__init__(config)
        d = config.hidden_size
        self.embed_tokens = nn.Embedding(config.decoder_vocab_size, config.target_embed_dim)
        self.bridge = nn.Linear(d, 2 * d)
        fed = config.output_dim if config.input_feeding else 0
        self.lstm = nn.LSTM(config.target_embed_dim + fed, d, batch_first=True)
        self.attention = AlignmentModel(config)
        self.post_init()

    def make_cache(self) -> Cache:
        """An empty cache of the state after the last position."""
        return make_feature_cache(1, 1)

    def decode(
        self,
        embeddings: Tensor,
        mask: Tensor | None,
        source: Tensor,
        source_mask: Tensor | None,
        cache: Cache | None,
    ) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """See `FeatureDecoder`: the attentional states [B, I, output_dim]."""
        if mask is not None:
            mask = mask[:, -embeddings.shape[1] :]
        inputs = drop(embeddings, self.config.dropout, self.training)
        if cache is not None and cache.get_seq_length():
            layer: Any = cache.layers[0]
            state = layer.keys[:, 0, -1]
        else:
            state = self._initial_state(source, source_mask)
        keys = self.attention.project_keys(source)
        if cache is None and not self.config.input_feeding:
            h, c, _ = self._split(state)
            states = run_lstm(self.lstm, inputs, mask, (h, c))
            attended, weights = self.attention(states, keys, source, source_mask)
            return attended, (weights,), (embeddings, attended)
        attended_steps = []
        weights_steps = []
        states_after = []
        for step, embedding in enumerate(inputs.unbind(dim=1)):
            h, c, fed = self._split(state)
            if self.config.input_feeding:
                embedding = torch.cat([embedding, fed[0]], dim=-1)
            query, (_, c) = call_lstm(self.lstm, embedding.unsqueeze(1), (h, c))
            attended, weights = self.attention(query, keys, source, source_mask)
            attended_steps.append(attended)
            weights_steps.append(weights)
            new_state = torch.cat([query[:, 0], c[0], attended[:, 0]], dim=-1)
            if mask is not None:
                new_state = torch.where(mask[:, step, None], new_state, state)
            state = new_state
            states_after.append(state)
        if cache is not None:
            rows = torch.stack(states_after, dim=1).unsqueeze(1)
            cache.update(rows, rows[..., :0], 0)
        attended = torch.cat(attended_steps, dim=1)
        return attended, (torch.cat(weights_steps, dim=1),), (embeddings, attended)

    def _initial_state(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """h, c and a fed state of zeros before the first token, [B, 2d + output_dim].

        Of the last encoder states in either direction (Bahdanau, appendix A.2.2)."""
        forward, backward = states.chunk(2, dim=-1)
        if mask is None:
            last_forward = forward[:, -1]
            last_backward = backward[:, 0]
        else:
            row = torch.arange(len(states), device=states.device)
            real = mask.long()
            last_forward = forward[row, real.cumsum(dim=1).argmax(dim=1)]
            last_backward = backward[row, real.argmax(dim=1)]
        last = torch.cat([last_forward, last_backward], dim=-1)
        # Not the config's width, on which peft may have an effect
        fed = self.attention.output_projection.out_features
        return F.pad(torch.tanh(self.bridge(last)), (0, fed))

    def _split(self, state: Tensor) -> tuple[Tensor, ...]:
        """h, c and the fed state of a state [B, 2d + output_dim], [1, B, ...] each."""
        width = self.config.hidden_size
        return tuple(
            part.unsqueeze(0).contiguous()
            for part in state.tensor_split((width, 2 * width), dim=-1)
        )


class RnnSearchModel(RnnSearchPreTrainedModel, Seq2SeqModel):
    """Encoder and decoder without the output projection."""

    def __init__(self, config: RnnSearchConfig) -> None:
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.source_embed_dim)
        self.encoder = RnnSearchEncoder(config)
        self.decoder = RnnSearchDecoder(config)
        self.post_init()


class RnnSearchForConditionalGeneration(RnnSearchPreTrainedModel, Seq2SeqForGeneration):
    """RNNsearch with the output projection, for translation."""

    def __init__(self, config: RnnSearchConfig) -> None:
        super().__init__(config)
        self.model = RnnSearchModel(config)
        self.lm_head = nn.Linear(config.output_dim, config.decoder_vocab_size)
        self.post_init()


RnnSearchPreTrainedModel.body_class = RnnSearchModel
RnnSearchModel.register_for_auto_class("AutoModel")
RnnSearchForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = ["RnnSearchForConditionalGeneration", "RnnSearchModel", "RnnSearchPreTrainedModel"]
