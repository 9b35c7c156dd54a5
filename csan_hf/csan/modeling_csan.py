# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""CSAN: the Transformer of Vaswani et al. (2017) with local self-attention in its lower layers.

With locality off it computes what transformers' Marian computes, weight for weight. Shapes: B batch, H heads,
I queries, J keys, T positions, d model width, D = d / H head width.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
)
from transformers.generation import GenerationMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import (
    AttentionMaskInterface,
    create_bidirectional_mask,
    create_causal_mask,
    sdpa_mask,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface, PreTrainedModel
from transformers.utils import can_return_tuple, logging
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_csan import CsanConfig
from .local_attention import attention_with_weights, local_attention, make_call
from .locality import GaussianBias, Locality

logger = logging.get_logger(__name__)

# `attn_implementation="blocked"`: local layers run in blocks whatever their length, the others as under "sdpa".
AttentionInterface.register("blocked", sdpa_attention_forward)
AttentionMaskInterface.register("blocked", sdpa_mask)

# Backend of the local layers under each attention implementation; under "sdpa", the library's default, the fastest.
_LOCAL_BACKENDS: dict[str, str | None] = {"eager": "eager", "sdpa": None, "blocked": "blocked"}


class AttentionMasks(NamedTuple):
    """The same visibility in two forms: what the library's attention functions take, and [B, J] for local layers."""

    full: Any
    padding: torch.Tensor | None


def shift_tokens_right(labels: torch.Tensor, pad_token_id: int, decoder_start_token_id: int) -> torch.Tensor:
    """Decoder inputs [B, T] for labels [B, T]: one position later, led by the start token, -100 as padding."""
    shifted = labels.new_full(labels.shape, decoder_start_token_id)
    shifted[:, 1:] = labels[:, :-1]
    return shifted.masked_fill(shifted == -100, pad_token_id)


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
    energies = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        energies = energies + attention_mask
    weights = F.softmax(energies, dim=-1)
    output = torch.matmul(F.dropout(weights, p=dropout, training=module.training), value)
    return output.transpose(1, 2).contiguous(), weights


class CsanSinusoidalPositionalEmbedding(nn.Module):
    """Sinusoids of Vaswani et al. (2017), section 3.5, sines in the first half and cosines in the second.

    The table is computed in double precision and kept for `num_positions`; longer inputs extend it on the fly.
    """

    def __init__(self, num_positions: int, embedding_dim: int) -> None:
        super().__init__()
        self.num_positions, self.embedding_dim = num_positions, embedding_dim
        self.register_buffer("weight", torch.empty(num_positions, embedding_dim), persistent=False)

    def create_weight(self, num_positions: int) -> torch.Tensor:
        """The sinusoids of positions 0 to `num_positions` - 1, [num_positions, d] float32."""
        half = np.arange(0, self.embedding_dim, 2)
        angles = np.arange(num_positions)[:, None] / np.power(10000, half / self.embedding_dim)[None, :]
        cosines = np.cos(angles)[:, : self.embedding_dim // 2]
        return torch.from_numpy(np.concatenate([np.sin(angles), cosines], axis=1)).float()

    def forward(self, length: int, offset: int = 0) -> torch.Tensor:
        """Embeddings [length, d] of the positions from `offset` on."""
        end = offset + length
        if end <= self.num_positions:
            return self.weight[offset:end]
        return self.create_weight(end)[offset:].to(self.weight)


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
        query_offset: int = 0,
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
        width = self._width(hidden, key, key_padding_mask, length, query_offset)
        return GaussianBias(center, width, key_offset=self._key_offset(query, key, query_offset))

    def _key_offset(self, query: torch.Tensor, key: torch.Tensor, query_offset: int) -> int:
        # A windowed cache hands over the last keys only: the first of them stands at this position.
        return query_offset + query.shape[2] - key.shape[2] if self.is_causal else 0

    def _visible_length(
        self, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, query_offset: int
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
        query_offset: int,
    ) -> torch.Tensor:
        if self.strategy == "fixed":
            return torch.full((1, 1, 1), self.window_size, device=hidden.device)
        if self.strategy == "head":
            return 50.0 * torch.sigmoid(self.head_window.float())[None, :, None]
        if self.strategy == "layer":
            hidden = torch.tanh(self.key_proj(self._mean_key(key, mask, query_offset)))
        return length * torch.sigmoid(self.window_proj(hidden).transpose(1, 2).float())

    def _mean_key(self, key: torch.Tensor, mask: torch.Tensor | None, query_offset: int) -> torch.Tensor:
        """Mean of the keys that each query sees: [B, 1, d], or [B, I, d] prefix means in a causal layer."""
        keys = _merge_heads(key)  # [B, J, d]
        real = torch.ones(keys.shape[:2], device=keys.device) if mask is None else mask.float()
        keys = keys * real.to(keys.dtype).unsqueeze(-1)
        if self.is_causal:
            sums = keys.float().cumsum(dim=1)[:, query_offset:]
            counts = real.cumsum(dim=1)[:, query_offset:]
        else:
            sums, counts = keys.float().sum(dim=1, keepdim=True), real.sum(dim=1, keepdim=True)
        return (sums / counts.clamp(min=1.0).unsqueeze(-1)).to(key.dtype)


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
        layer_idx: int | None = None,
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
        query_offset: int = 0,
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
            output, weights = self._attend_locally(query, key, value, masks.padding, query_offset)
        return self.out_proj(output.reshape(*hidden_states.shape[:-1], -1)), weights

    def _attend_locally(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        padding: torch.Tensor | None,
        query_offset: int,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
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
        locality = self.locality
        if backend == "eager":
            output, weights = attention_with_weights(make_call(query, key, value, locality, **shared))
            weights = weights.sum(dim=-2)
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

    def _local_backend(self) -> str | None:
        implementation = self.config._attn_implementation or "eager"
        if implementation not in _LOCAL_BACKENDS:
            raise ValueError(
                f"attn_implementation={implementation!r} cannot run CSAN's local layers (local_window, head_area or "
                f"localness_window); use one of {list(_LOCAL_BACKENDS)}."
            )
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
        if is_updated is not None and is_updated.get(self.layer_idx):
            layer = cache.layers[self.layer_idx]
            return layer.keys, layer.values
        source = key_value_states if self.is_cross_attention else hidden_states
        key, value = self._split_heads(self.k_proj(source)), self._split_heads(self.v_proj(source))
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
            if is_updated is not None:
                is_updated[self.layer_idx] = True
        return key, value


class CsanFeedForward(nn.Module):
    """Not a module of its own in the weights' names: mixed into the layers, so that they keep Marian's."""

    def _build_feed_forward(self, config: CsanConfig, width: int) -> None:
        self.activation_fn = ACT2FN[config.activation_function]
        self.activation_dropout = config.activation_dropout
        self.fc1 = nn.Linear(config.d_model, width)
        self.fc2 = nn.Linear(width, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model)

    def _feed_forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        hidden_states = self.activation_fn(self.fc1(hidden_states))
        return self.fc2(F.dropout(hidden_states, p=self.activation_dropout, training=self.training))

    def _sublayer(
        self, norm: nn.Module, hidden_states: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Residual connection, dropout and layer normalisation around a sub-layer, post- or pre-norm."""
        output = function(norm(hidden_states) if self.normalize_before else hidden_states)
        output = hidden_states + F.dropout(output, p=self.dropout, training=self.training)
        return output if self.normalize_before else norm(output)


def _clamp_half(hidden_states: torch.Tensor) -> torch.Tensor:
    """Keep float16 activations finite."""
    if hidden_states.dtype != torch.float16:
        return hidden_states
    limit = torch.finfo(torch.float16).max - 1000
    return hidden_states.clamp(min=-limit, max=limit)


class CsanEncoderLayer(CsanFeedForward, GradientCheckpointingLayer):
    """Self-attention and feed-forward; local where `config.localness_layers` says so."""

    def __init__(self, config: CsanConfig, layer_idx: int) -> None:
        super().__init__()
        self.dropout, self.normalize_before = config.dropout, config.normalize_before
        is_local = config.is_local and layer_idx in config.local_layers("encoder")
        self.self_attn = CsanAttention(config, config.encoder_attention_heads, is_local=is_local, layer_idx=layer_idx)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self._build_feed_forward(config, config.encoder_ffn_dim)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: AttentionMasks | None = None, **kwargs: Any
    ) -> torch.Tensor:
        """[B, I, d] -> [B, I, d]."""
        hidden_states = self._sublayer(
            self.self_attn_layer_norm,
            hidden_states,
            lambda states: self.self_attn(states, attention_mask=attention_mask, **kwargs)[0],
        )
        return _clamp_half(self._sublayer(self.final_layer_norm, hidden_states, self._feed_forward))


class CsanDecoderLayer(CsanFeedForward, GradientCheckpointingLayer):
    """Causal self-attention, cross-attention and feed-forward, each attention local where the config says so."""

    def __init__(self, config: CsanConfig, layer_idx: int) -> None:
        super().__init__()
        self.dropout, self.normalize_before = config.dropout, config.normalize_before
        heads = config.decoder_attention_heads
        self.self_attn = CsanAttention(
            config,
            heads,
            is_causal=True,
            is_local=config.is_local and layer_idx in config.local_layers("decoder"),
            layer_idx=layer_idx,
        )
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.encoder_attn = CsanAttention(
            config,
            heads,
            is_cross_attention=True,
            is_local=config.localness_window is not None and layer_idx in config.local_layers("cross"),
            layer_idx=layer_idx,
        )
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model)
        self._build_feed_forward(config, config.decoder_ffn_dim)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: AttentionMasks | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: AttentionMasks | None = None,
        past_key_values: Cache | None = None,
        query_offset: int = 0,
        **kwargs: Any,
    ) -> torch.Tensor:
        """[B, I, d] with encoder states [B, J, d] -> [B, I, d]."""
        hidden_states = self._sublayer(
            self.self_attn_layer_norm,
            hidden_states,
            lambda states: self.self_attn(
                states,
                past_key_values=past_key_values,
                attention_mask=attention_mask,
                query_offset=query_offset,
                **kwargs,
            )[0],
        )
        if encoder_hidden_states is not None:
            hidden_states = self._sublayer(
                self.encoder_attn_layer_norm,
                hidden_states,
                lambda states: self.encoder_attn(
                    states,
                    key_value_states=encoder_hidden_states,
                    past_key_values=past_key_values,
                    attention_mask=encoder_attention_mask,
                    **kwargs,
                )[0],
            )
        return _clamp_half(self._sublayer(self.final_layer_norm, hidden_states, self._feed_forward))


class CsanOutputProjection(nn.Linear):
    """The output layer: logits with the vocabulary's bias added in the same pass."""

    def forward(self, hidden_states: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """[B, T, d] and a bias [1, V] -> [B, T, V]."""
        return F.linear(hidden_states, self.weight, None if bias is None else bias.squeeze(0))


class CsanPreTrainedModel(PreTrainedModel):
    """Weight initialisation, tying and the names that the library looks for."""

    config: CsanConfig
    config_class = CsanConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["CsanEncoderLayer", "CsanDecoderLayer"]  # noqa: RUF012
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """New weights by `config.initialization`.

        `"normal"`: N(0, `init_std`) everywhere. `"xavier"`: Xavier-uniform matrices and embeddings N(0, d^-½).
        Biases are 0 in both, layer normalisations 1.
        """
        super()._init_weights(module)
        if isinstance(module, CsanSinusoidalPositionalEmbedding):
            init.copy_(module.weight, module.create_weight(module.num_positions))
        elif isinstance(module, CsanForConditionalGeneration):
            init.zeros_(module.final_logits_bias)
        elif isinstance(module, GaussianLocalness) and module.strategy == "head":
            init.zeros_(module.head_window)
        elif self.config.initialization == "xavier":
            self._init_xavier(module)

    def _init_xavier(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding | CsanOutputProjection):
            init.normal_(module.weight, mean=0.0, std=self.config.d_model**-0.5)
            padding = getattr(module, "padding_idx", None)
            if padding is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[padding])
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Which weights are one, as the config says now: shared embeddings do not hang on `tie_word_embeddings`."""
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return dict(self._tied_weights_keys)

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        return {}

    @property
    def dummy_inputs(self) -> dict[str, torch.Tensor]:
        """A small valid input: two source sentences, one of them padded."""
        pad = self.config.pad_token_id
        input_ids = torch.tensor([[0, 6, 10, 4, 2], [0, 8, 12, 2, pad]], device=self.device)
        return {
            "input_ids": input_ids,
            "attention_mask": input_ids.ne(pad),
            "decoder_input_ids": input_ids,
        }


def _embed(
    embed_tokens: nn.Embedding,
    scale: float,
    input_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    names: tuple[str, str],
) -> torch.Tensor:
    """Scaled token embeddings [B, T, d]; ready-made `inputs_embeds` are scaled in the decoder by its caller."""
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError(f"Exactly one of `{names[0]}` and `{names[1]}` must be given.")
    return embed_tokens(input_ids) * scale if inputs_embeds is None else inputs_embeds


def _padding_mask(attention_mask: torch.Tensor | None, name: str) -> torch.Tensor | None:
    """[B, J] boolean for local layers."""
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2:
        raise ValueError(
            f"Local layers take a padding mask `{name}` of shape [batch, length], got {list(attention_mask.shape)}; "
            f"a ready-made 4D mask works only with locality off (local_window=None, head_area=1)."
        )
    return attention_mask.bool()


class CsanEncoder(CsanPreTrainedModel):
    """A stack of `CsanEncoderLayer`."""

    _can_record_outputs = {"hidden_states": CsanEncoderLayer, "attentions": CsanAttention}  # noqa: RUF012

    def __init__(self, config: CsanConfig) -> None:
        super().__init__(config)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
        self.embed_positions = CsanSinusoidalPositionalEmbedding(config.max_position_embeddings, config.d_model)
        self.layers = nn.ModuleList([CsanEncoderLayer(config, i) for i in range(config.encoder_layers)])
        self.layer_norm = nn.LayerNorm(config.d_model) if config.normalize_before else nn.Identity()
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Encode source sentences.

        Args:
            input_ids: [B, J].
            attention_mask: [B, J], 1 = a real token.
            inputs_embeds: [B, J, d] instead of `input_ids`.

        Returns:
            `last_hidden_state` [B, J, d].
        """
        embeddings = _embed(
            self.embed_tokens, self.embed_scale, input_ids, inputs_embeds, ("input_ids", "inputs_embeds")
        )
        hidden_states = embeddings + self.embed_positions(embeddings.shape[1])
        hidden_states = F.dropout(hidden_states, p=self.config.dropout, training=self.training)
        masks = self._masks(embeddings, attention_mask)
        for layer in self.layers:
            if self.training and _drop_layer(self.config.encoder_layerdrop):
                continue
            hidden_states = layer(hidden_states, masks, **kwargs)
        return BaseModelOutput(last_hidden_state=self.layer_norm(hidden_states))

    def _masks(self, embeddings: torch.Tensor, attention_mask: torch.Tensor | None) -> AttentionMasks:
        local = [layer.self_attn.locality is not None for layer in self.layers]
        full, padding = None, None
        if not all(local):
            full = create_bidirectional_mask(
                config=self.config, inputs_embeds=embeddings, attention_mask=attention_mask
            )
        if any(local):
            padding = _padding_mask(attention_mask, "attention_mask")
        return AttentionMasks(full, padding)


def _drop_layer(probability: float) -> bool:
    return probability > 0.0 and bool(torch.rand([]) < probability)


class CsanDecoder(CsanPreTrainedModel):
    """A stack of `CsanDecoderLayer`."""

    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": CsanDecoderLayer,
        "attentions": OutputRecorder(CsanAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(CsanAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: CsanConfig) -> None:
        super().__init__(config)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.embed_tokens = nn.Embedding(config.decoder_vocab_size, config.d_model, config.pad_token_id)
        self.embed_positions = CsanSinusoidalPositionalEmbedding(config.max_position_embeddings, config.d_model)
        self.layers = nn.ModuleList([CsanDecoderLayer(config, i) for i in range(config.decoder_layers)])
        self.layer_norm = nn.LayerNorm(config.d_model) if config.normalize_before else nn.Identity()
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode target prefixes.

        Args:
            input_ids: [B, I], the positions after those in the cache.
            attention_mask: [B, past + I], 1 = a real token.
            encoder_hidden_states: [B, J, d].
            encoder_attention_mask: [B, J], 1 = a real token.
            past_key_values: Cache of earlier positions.
            inputs_embeds: [B, I, d] instead of `input_ids`.
            use_cache: Whether to keep keys and values.

        Returns:
            `last_hidden_state` [B, I, d] and the cache.
        """
        embeddings = _embed(
            self.embed_tokens, 1.0, input_ids, inputs_embeds, ("decoder_input_ids", "decoder_inputs_embeds")
        )
        embeddings = embeddings * self.embed_scale
        if use_cache and past_key_values is None:
            past_key_values = make_decoder_cache(self.config)
        offset = past_key_values.get_seq_length() if past_key_values is not None else 0
        hidden_states = embeddings + self.embed_positions(embeddings.shape[1], offset)
        hidden_states = F.dropout(hidden_states, p=self.config.dropout, training=self.training)
        masks = self._self_attention_masks(embeddings, attention_mask, past_key_values)
        cross_masks = self._cross_attention_masks(embeddings, encoder_hidden_states, encoder_attention_mask)
        for layer in self.layers:
            if self.training and _drop_layer(self.config.decoder_layerdrop):
                continue
            hidden_states = layer(
                hidden_states,
                masks,
                encoder_hidden_states,  # positional, so that gradient checkpointing sees it
                encoder_attention_mask=cross_masks,
                past_key_values=past_key_values,
                query_offset=offset,
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.layer_norm(hidden_states), past_key_values=past_key_values
        )

    def _self_attention_masks(
        self, embeddings: torch.Tensor, attention_mask: torch.Tensor | None, past_key_values: Cache | None
    ) -> AttentionMasks:
        local = [layer.self_attn.locality is not None for layer in self.layers]
        full, padding = None, None
        if not all(local):
            cache = past_key_values
            if isinstance(cache, EncoderDecoderCache):
                cache = cache.self_attention_cache
            full = create_causal_mask(
                config=self.config,
                inputs_embeds=embeddings,
                attention_mask=attention_mask,
                past_key_values=cache,
            )
        if any(local):
            padding = _padding_mask(attention_mask, "decoder_attention_mask")
        return AttentionMasks(full, padding)

    def _cross_attention_masks(
        self,
        embeddings: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None,
        encoder_attention_mask: torch.Tensor | None,
    ) -> AttentionMasks:
        if encoder_hidden_states is None:
            return AttentionMasks(None, None)
        local = [layer.encoder_attn.locality is not None for layer in self.layers]
        full, padding = None, None
        if not all(local):
            full = create_bidirectional_mask(
                config=self.config,
                inputs_embeds=embeddings,
                attention_mask=encoder_attention_mask,
                encoder_hidden_states=encoder_hidden_states,
            )
        if any(local):
            padding = _padding_mask(encoder_attention_mask, "attention_mask")
        return AttentionMasks(full, padding)


class _BeamSharedCache(DynamicCache):
    """Keys and values of the encoder's states, equal for all beams of a sentence."""

    def __init__(self, num_beams: int = 1) -> None:
        super().__init__()
        self.num_beams = num_beams

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Beams of one sentence share their source, so moving them about changes nothing."""
        sentence = torch.arange(beam_idx.shape[0], device=beam_idx.device) // self.num_beams
        if not torch.equal(beam_idx // self.num_beams, sentence):
            super().reorder_cache(beam_idx)


def make_decoder_cache(config: CsanConfig, num_beams: int = 1) -> EncoderDecoderCache:
    """An empty cache in which a windowed decoder layer keeps its window alone.

    The window's own keys are m past positions (M = 2m + 1). Under the `"layer"` Gaussian, whose window depends on
    the mean of all earlier keys, a layer keeps them all.

    Args:
        config: The model's configuration.
        num_beams: Consecutive rows of the batch that share a source sentence.
    """
    windowed = set(config.local_layers("decoder")) if config.local_window is not None else set()
    if config.localness_window == "layer":
        windowed = set()
    cache = DynamicCache()
    for layer_idx in range(config.decoder_layers):
        if layer_idx in windowed:
            # The library's unit is the query and the keys before it; it keeps one fewer, and at least one.
            cache.layers.append(DynamicSlidingWindowLayer(max((config.local_window + 1) // 2, 2)))
        else:
            cache.layers.append(DynamicLayer())
    return EncoderDecoderCache(cache, _BeamSharedCache(num_beams))


class CsanModel(CsanPreTrainedModel):
    """Encoder and decoder without the output projection."""

    def __init__(self, config: CsanConfig) -> None:
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
        self.encoder = CsanEncoder(config)
        self.decoder = CsanDecoder(config)
        self.post_init()

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        if not self.config.share_encoder_decoder_embeddings:
            return {}
        return {
            "encoder.embed_tokens.weight": "shared.weight",
            "decoder.embed_tokens.weight": "shared.weight",
        }

    def get_input_embeddings(self) -> nn.Module:
        """The source embedding (the shared one, where shared)."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the source embedding (the shared one in all its places, where shared)."""
        if self.config.share_encoder_decoder_embeddings:
            self.shared = value
            self.decoder.embed_tokens = value
        self.encoder.embed_tokens = value

    def get_decoder_input_embeddings(self) -> nn.Module:
        """The target embedding."""
        return self.decoder.embed_tokens

    def set_decoder_input_embeddings(self, value: nn.Module) -> None:
        """Replace the target embedding of a model with separate vocabularies."""
        _require_separate_vocabularies(self.config, "set_decoder_input_embeddings", "set_input_embeddings")
        self.decoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        """Encode (unless `encoder_outputs` is given) and decode.

        Args:
            input_ids: Source tokens, [B, J].
            attention_mask: [B, J], 1 = a real source token.
            decoder_input_ids: Target tokens, [B, I]; default: the source shifted right.
            decoder_attention_mask: [B, I], 1 = a real target token.
            encoder_outputs: What the encoder returned for this source.
            past_key_values: Cache of earlier target positions.
            inputs_embeds: [B, J, d] instead of `input_ids`.
            decoder_inputs_embeds: [B, I, d] instead of `decoder_input_ids`.
            use_cache: Whether to return a cache.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs[:3])
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self._decoder_inputs_from_source(input_ids)
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs[0],
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            past_key_values=decoder_outputs.past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )

    def _decoder_inputs_from_source(self, input_ids: torch.LongTensor | None) -> torch.Tensor:
        if input_ids is None or not self.config.share_encoder_decoder_embeddings:
            raise ValueError(
                "`decoder_input_ids` (or `decoder_inputs_embeds`) must be given: they can be derived only from "
                "`input_ids` of a shared vocabulary."
            )
        return shift_tokens_right(input_ids, self.config.pad_token_id, self.config.decoder_start_token_id)


def _require_separate_vocabularies(config: CsanConfig, method: str, instead: str) -> None:
    if config.share_encoder_decoder_embeddings:
        raise ValueError(
            f"`{method}` needs separate vocabularies, but share_encoder_decoder_embeddings=True; call `{instead}`."
        )


class CsanForConditionalGeneration(CsanPreTrainedModel, GenerationMixin):
    """CSAN with the output projection, for translation and other sequence-to-sequence tasks."""

    def __init__(self, config: CsanConfig) -> None:
        super().__init__(config)
        # The class name would choose the causal loss, which shifts the labels once more.
        self.loss_type = "ForMaskedLM"
        self.model = CsanModel(config)
        self.final_logits_bias = nn.Buffer(torch.zeros(1, config.decoder_vocab_size))
        self.lm_head = CsanOutputProjection(config.d_model, config.decoder_vocab_size, bias=False)
        self.post_init()

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        shared = self.config.share_encoder_decoder_embeddings
        target = "model.shared.weight" if shared else "model.decoder.embed_tokens.weight"
        tied = {f"model.{name}": f"model.{source}" for name, source in self.model._tied_weights_keys.items()}
        if self.config.tie_word_embeddings:
            tied["lm_head.weight"] = target
        return tied

    def get_output_embeddings(self) -> nn.Module:
        """The output projection."""
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the output projection."""
        self.lm_head = new_embeddings

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> nn.Embedding:
        """Change the size of the (shared, or else the source) vocabulary; see transformers."""
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        if self.config.share_encoder_decoder_embeddings:
            self.config.decoder_vocab_size = embeddings.weight.shape[0]
            self._resize_final_logits_bias(embeddings.weight.shape[0])
        return embeddings

    def _resize_token_embeddings(
        self, new_num_tokens: int, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        if self.config.share_encoder_decoder_embeddings:
            return super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        # The library would resize the output projection along, which belongs to the target vocabulary.
        embeddings = self._get_resized_embeddings(
            self.get_input_embeddings(), new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        self.set_input_embeddings(embeddings)
        return embeddings

    def resize_decoder_token_embeddings(self, new_num_tokens: int) -> nn.Embedding:
        """Change the size of a separate target vocabulary.

        Raises:
            ValueError: The vocabularies are shared.
        """
        _require_separate_vocabularies(self.config, "resize_decoder_token_embeddings", "resize_token_embeddings")
        embeddings = self._get_resized_embeddings(self.model.get_decoder_input_embeddings(), new_num_tokens)
        self.model.set_decoder_input_embeddings(embeddings)
        if not self.config.tie_word_embeddings:
            self.set_output_embeddings(self._get_resized_lm_head(self.lm_head, new_num_tokens))
        self.config.decoder_vocab_size = new_num_tokens
        self.tie_weights()
        self.lm_head.out_features = new_num_tokens
        self._resize_final_logits_bias(new_num_tokens)
        return self.model.get_decoder_input_embeddings()

    def _resize_final_logits_bias(self, new_num_tokens: int) -> None:
        bias = self.final_logits_bias[:, :new_num_tokens]
        self.final_logits_bias = nn.Buffer(F.pad(bias, (0, new_num_tokens - bias.shape[1])))

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits of the next target tokens and, with `labels`, their cross-entropy.

        Args:
            input_ids: Source tokens, [B, J].
            attention_mask: [B, J], 1 = a real source token.
            decoder_input_ids: Target tokens, [B, I]; default: `labels` shifted right.
            decoder_attention_mask: [B, I], 1 = a real target token.
            encoder_outputs: What the encoder returned for this source.
            past_key_values: Cache of earlier target positions.
            inputs_embeds: [B, J, d] instead of `input_ids`.
            decoder_inputs_embeds: [B, I, d] instead of `decoder_input_ids`.
            labels: [B, I], the tokens to predict, -100 = ignored.
            use_cache: Whether to return a cache.

        Returns:
            `logits` [B, I, V] and, with labels, `loss`: the mean over labels, or their sum divided by
            `num_items_in_batch` where the Trainer passes it.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        num_items_in_batch = kwargs.pop("num_items_in_batch", None)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        logits = self._project(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, logits.shape[-1], num_items_in_batch=num_items_in_batch)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )

    def _project(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if isinstance(self.lm_head, CsanOutputProjection):
            return self.lm_head(hidden_states, self.final_logits_bias)
        return self.lm_head(hidden_states) + self.final_logits_bias  # replaced by the user or by an adapter

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Decoder inputs [B, I] for labels [B, I]."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Put the windowed cache in the place of the library's default; any other choice is left alone."""
        user_defined = model_kwargs.get("past_key_values") is not None
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
        implementation = generation_config.cache_implementation
        if user_defined or implementation not in (None, "dynamic") or model_kwargs.get("past_key_values") is None:
            return
        cache = make_decoder_cache(self.config, generation_config.num_beams or 1)
        if generation_config.is_assistant:
            cache.activate_past_recording()
        model_kwargs["past_key_values"] = cache


__all__ = ["CsanForConditionalGeneration", "CsanModel", "CsanPreTrainedModel"]
