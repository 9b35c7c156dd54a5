# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""CSAN: the Transformer of Vaswani et al. (2017) with local self-attention in its lower layers.

With locality off it computes what transformers' Marian computes, weight for weight. Shapes: B batch, H heads,
I queries, J keys, T positions, d model width, D = d / H head width.
"""

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.generation import GenerationMixin
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_call import SharedMasks
from .configuration_csan import CsanConfig
from .csan_attention import (
    BLOCKED,
    AttentionMasks,
    CsanAttention,
    check_local_implementation,
    full_attention_implementation,
    make_decoder_cache,
    mask_config,
)
from .locality import LocalityModule, first_real_token
from .seq2seq_model import (
    Seq2SeqEmbeddings,
    Seq2SeqHead,
    Seq2SeqPreTrained,
    SinusoidalPositionalEmbedding,
    drop,
    embed,
    padding_mask,
)

if TYPE_CHECKING:
    # Never run: transformers copies the files that a relative import names, and this one belongs to a checkpoint
    # whose `auto_map` offers the classification heads.
    from .modeling_csan_classification import CsanForSequenceClassification  # noqa: F401


class _ResidualLayer(GradientCheckpointingLayer):
    """What encoder and decoder layers share: residual sub-layers and the feed-forward one, under Marian's names."""

    dropout: float
    normalize_before: bool
    activation_dropout: float

    def _build_feed_forward(self, config: CsanConfig, width: int) -> None:
        self.activation_fn = ACT2FN[config.activation_function]
        self.activation_dropout = config.activation_dropout
        self.fc1 = nn.Linear(config.d_model, width)
        self.fc2 = nn.Linear(width, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model)

    def _feed_forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        hidden_states = self.activation_fn(self.fc1(hidden_states))
        return self.fc2(drop(hidden_states, self.activation_dropout, self.training))

    def _sublayer(
        self, norm: nn.Module, hidden_states: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Residual connection, dropout and layer normalisation around a sub-layer, post- or pre-norm."""
        output = function(norm(hidden_states) if self.normalize_before else hidden_states)
        output = _clamp_half(hidden_states + drop(output, self.dropout, self.training))
        return output if self.normalize_before else norm(output)


def _clamp_half(hidden_states: torch.Tensor) -> torch.Tensor:
    """Keep float16 activations finite: a layer normalisation would make NaN of an infinite one."""
    if hidden_states.dtype != torch.float16:
        return hidden_states
    limit = torch.finfo(torch.float16).max - 1000
    return hidden_states.clamp(min=-limit, max=limit)


class CsanEncoderLayer(_ResidualLayer):
    """Self-attention and feed-forward; local where the config says so."""

    def __init__(self, config: CsanConfig, layer_idx: int) -> None:
        super().__init__()
        self.dropout, self.normalize_before = config.dropout, config.normalize_before
        self.self_attn = CsanAttention(config, "encoder", layer_idx)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self._build_feed_forward(config, config.encoder_ffn_dim)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: AttentionMasks | None = None, **kwargs: Any
    ) -> torch.Tensor:
        """[B, I, d] -> [B, I, d]."""
        hidden_states = self.self_attn.before(hidden_states, attention_mask)
        hidden_states = self._sublayer(
            self.self_attn_layer_norm,
            hidden_states,
            lambda states: self.self_attn(states, attention_mask=attention_mask, **kwargs)[0],
        )
        return self._sublayer(self.final_layer_norm, hidden_states, self._feed_forward)


class CsanDecoderLayer(_ResidualLayer):
    """Causal self-attention, cross-attention and feed-forward, each attention local where the config says so."""

    def __init__(self, config: CsanConfig, layer_idx: int) -> None:
        super().__init__()
        self.dropout, self.normalize_before = config.dropout, config.normalize_before
        self.self_attn = CsanAttention(config, "decoder", layer_idx)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.encoder_attn = CsanAttention(config, "cross", layer_idx)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model)
        self._build_feed_forward(config, config.decoder_ffn_dim)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: AttentionMasks | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: AttentionMasks | None = None,
        past_key_values: Cache | None = None,
        query_offset: int | torch.Tensor = 0,
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
                    query_offset=query_offset,
                    **kwargs,
                )[0],
            )
        return self._sublayer(self.final_layer_norm, hidden_states, self._feed_forward)


class CsanOutputProjection(nn.Linear):
    """The output layer: logits with the vocabulary's bias added in the same pass."""

    def forward(self, hidden_states: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """[B, T, d] and a bias [1, V] -> [B, T, V]."""
        return F.linear(hidden_states, self.weight, None if bias is None else bias.squeeze(0))


class CsanPreTrainedModel(Seq2SeqPreTrained, PreTrainedModel):  # type: ignore[override]
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
    auto_map = {  # noqa: RUF012
        "AutoConfig": "configuration_csan.CsanConfig",
        "AutoModel": "modeling_csan.CsanModel",
        "AutoModelForSeq2SeqLM": "modeling_csan.CsanForConditionalGeneration",
        "AutoModelForSequenceClassification": "modeling_csan_classification.CsanForSequenceClassification",
        "AutoModelForTokenClassification": "modeling_csan_classification.CsanForTokenClassification",
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """New weights by `config.initialization`.

        `"xavier"`: Xavier-uniform matrices with `init_gain`, embeddings of standard deviation `init_gain` · d^-½.
        `"normal"`: N(0, `init_std`) everywhere. Biases are 0 in both, layer normalisations 1.
        """
        super()._init_weights(module)
        if isinstance(module, SinusoidalPositionalEmbedding):
            init.copy_(module.weight, module.create_weight(module.num_positions))
        elif isinstance(module, CsanForConditionalGeneration):
            init.zeros_(module.final_logits_bias)
        elif isinstance(module, LocalityModule):
            module.init_weights(self.config)
        elif self.config.initialization == "xavier":
            self._init_xavier(module)

    def _init_xavier(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding | CsanOutputProjection):
            init.normal_(module.weight, mean=0.0, std=self.config.init_gain * self.config.d_model**-0.5)
            padding = getattr(module, "padding_idx", None)
            if padding is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[padding])
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight, gain=self.config.init_gain)
        elif isinstance(module, nn.Conv1d):
            # torch's own counts the outputs of all groups
            outputs, inputs, taps = module.weight.shape
            bound = self.config.init_gain * math.sqrt(6 / (taps * (inputs + outputs // module.groups)))
            init.uniform_(module.weight, -bound, bound)

    def get_correct_attn_implementation(self, requested_attention: str | None, *args: Any, **kwargs: Any) -> str:
        """See transformers, which does not know the implementation `"blocked"` of CSAN's own."""
        known = full_attention_implementation(requested_attention)
        correct: str = super().get_correct_attn_implementation(known, *args, **kwargs)
        return BLOCKED if requested_attention == BLOCKED else correct

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args: Any, **kwargs: Any) -> str:
        """Refuse what local layers cannot run before anything is computed, or installed for it."""
        # The library refuses names that it does not know; one with a slash it would load as a kernel from the Hub.
        known = attn_implementation in ALL_ATTENTION_FUNCTIONS.valid_keys() or "/" in (attn_implementation or "")
        if attn_implementation is not None and known:
            for locality in self.config.localities():
                check_local_implementation(attn_implementation, locality)
        return super()._check_and_adjust_attn_implementation(attn_implementation, *args, **kwargs)

    def _run_layer(
        self, drop: float, layer: nn.Module, hidden_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """The layer's output [B, T, d], or in training with probability `drop` its input (LayerDrop)."""
        if not self.training or drop == 0.0:
            return layer(hidden_states, *args, **kwargs)
        if torch.compiler.is_compiling():
            # A compiled graph does not branch: the layer is computed, and its output perhaps discarded.
            dropped = torch.rand([], device=hidden_states.device) < drop
            return torch.where(dropped, hidden_states, layer(hidden_states, *args, **kwargs))
        return hidden_states if torch.rand([]) < drop else layer(hidden_states, *args, **kwargs)


class CsanScaledWordEmbedding(nn.Embedding):
    """Word embeddings, multiplied by sqrt(d) with `config.scale_embedding`.

    The module's output for tokens is what the model takes as their `inputs_embeds`, as in Marian's encoder.
    """

    def __init__(self, config: CsanConfig, num_embeddings: int) -> None:
        super().__init__(num_embeddings, config.d_model, config.pad_token_id)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[B, T] -> [B, T, d]."""
        return super().forward(input_ids) * self.embed_scale


def _padding_mask(
    attention_mask: torch.Tensor | None, batch: int, length: int | None, name: str, any_local: bool
) -> torch.Tensor | None:
    """[B, T] boolean for local layers; None where a ready-made mask [B, H, I, J] is all that there is."""
    if not isinstance(attention_mask, torch.Tensor):
        return None
    if attention_mask.dim() != 4:
        return padding_mask(attention_mask, batch, length, name)
    if attention_mask.dtype != torch.bool and not attention_mask.is_floating_point():
        raise ValueError(
            f"A ready-made 4D mask `{name}` must be boolean (True = visible) or floating (added to the energies), got "
            f"{attention_mask.dtype}."
        )
    if any_local:
        raise ValueError(
            f"Local layers take a padding mask `{name}` of shape [batch, length], got {list(attention_mask.shape)}; "
            f"a ready-made 4D mask works only with locality off (local_window=None, head_area=1)."
        )
    return None


def _position_embedding(config: CsanConfig) -> SinusoidalPositionalEmbedding:
    return SinusoidalPositionalEmbedding(
        config.max_position_embeddings, config.d_model, config.sinusoids, config.pad_token_id
    )


class CsanEncoder(CsanPreTrainedModel):
    """A stack of `CsanEncoderLayer`."""

    _can_record_outputs = {"hidden_states": CsanEncoderLayer, "attentions": CsanAttention}  # noqa: RUF012

    def __init__(self, config: CsanConfig) -> None:
        super().__init__(config)
        self.embed_tokens: nn.Embedding = CsanScaledWordEmbedding(config, config.vocab_size)
        self.embed_positions = _position_embedding(config)
        self.layers = nn.ModuleList([CsanEncoderLayer(config, i) for i in range(config.encoder_layers)])
        self.layer_norm = nn.LayerNorm(config.d_model) if config.normalize_before else nn.Identity()
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Encode source sentences.

        Args:
            input_ids: [B, J].
            attention_mask: [B, J], 1 = a real token.
            inputs_embeds: [B, J, d] instead of `input_ids`: what `get_input_embeddings()` gives, already scaled.

        Returns:
            `last_hidden_state` [B, J, d].
        """
        embeddings = embed(self.embed_tokens, input_ids, inputs_embeds, ("input_ids", "inputs_embeds"))
        masks = self._masks(embeddings, attention_mask)
        hidden_states = embeddings + self.embed_positions(embeddings.shape[1], 0, masks.first_real)
        hidden_states = drop(hidden_states, self.config.dropout, self.training)
        for layer in self.layers:
            hidden_states = self._run_layer(self.config.encoder_layerdrop, layer, hidden_states, masks, **kwargs)
        return BaseModelOutput(last_hidden_state=self.layer_norm(hidden_states))

    def _masks(self, embeddings: torch.Tensor, attention_mask: torch.Tensor | None) -> AttentionMasks:
        local = _local_attentions(self.layers, "self_attn")
        batch, length = embeddings.shape[:2]
        padding = _padding_mask(attention_mask, batch, length, "attention_mask", any(local))
        full = None
        if not all(local):
            full = create_bidirectional_mask(
                config=mask_config(self.config), inputs_embeds=embeddings, attention_mask=attention_mask
            )
        return AttentionMasks(full, padding, first_real_token(padding), SharedMasks())


def _local_attentions(layers: Iterable[nn.Module], name: str) -> list[bool]:
    """For each layer, whether its attention module `name` is local."""
    modules: list[Any] = [layer.get_submodule(name) for layer in layers]
    return [module.locality is not None for module in modules]


class CsanDecoder(CsanPreTrainedModel):
    """A stack of `CsanDecoderLayer`."""

    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": CsanDecoderLayer,
        "attentions": OutputRecorder(CsanAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(CsanAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: CsanConfig) -> None:
        super().__init__(config)
        self.embed_tokens: nn.Embedding = CsanScaledWordEmbedding(config, config.decoder_vocab_size)
        self.embed_positions = _position_embedding(config)
        self.layers = nn.ModuleList([CsanDecoderLayer(config, i) for i in range(config.decoder_layers)])
        self.layer_norm = nn.LayerNorm(config.d_model) if config.normalize_before else nn.Identity()
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
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
            inputs_embeds: [B, I, d] instead of `input_ids`, already scaled.
            use_cache: Whether to keep keys and values.

        Returns:
            `last_hidden_state` [B, I, d] and the cache.
        """
        names = "decoder_input_ids", "decoder_inputs_embeds"
        embeddings = embed(self.embed_tokens, input_ids, inputs_embeds, names)
        if use_cache and past_key_values is None:
            past_key_values = make_decoder_cache(self.config)
        offset = past_key_values.get_seq_length() if past_key_values is not None else 0
        if isinstance(offset, torch.Tensor):
            offset = offset.clone()  # a static cache counts in place, and its first layer before the others run
        masks = self._self_attention_masks(embeddings, attention_mask, past_key_values, offset)
        cross_masks = self._cross_attention_masks(embeddings, encoder_hidden_states, encoder_attention_mask)
        hidden_states = embeddings + self.embed_positions(embeddings.shape[1], offset, masks.first_real)
        hidden_states = drop(hidden_states, self.config.dropout, self.training)
        for layer in self.layers:
            hidden_states = self._run_layer(
                self.config.decoder_layerdrop,
                layer,
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
        self,
        embeddings: torch.Tensor,
        attention_mask: torch.Tensor | None,
        past_key_values: Cache | None,
        offset: int | torch.Tensor,
    ) -> AttentionMasks:
        local = _local_attentions(self.layers, "self_attn")
        batch, length = embeddings.shape[:2]
        seen = None if isinstance(offset, torch.Tensor) else offset + length
        padding = _padding_mask(attention_mask, batch, seen, "decoder_attention_mask", any(local))
        full = None
        if not all(local):
            cache = past_key_values
            if isinstance(cache, EncoderDecoderCache):
                cache = cache.self_attention_cache
            full = create_causal_mask(
                config=mask_config(self.config),
                inputs_embeds=embeddings,
                attention_mask=attention_mask,
                past_key_values=cache,
            )
        return AttentionMasks(full, padding, first_real_token(padding), SharedMasks())

    def _cross_attention_masks(
        self,
        embeddings: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None,
        encoder_attention_mask: torch.Tensor | None,
    ) -> AttentionMasks:
        if encoder_hidden_states is None:
            return AttentionMasks()
        local = _local_attentions(self.layers, "encoder_attn")
        batch, length = encoder_hidden_states.shape[:2]
        if batch != embeddings.shape[0]:
            raise ValueError(
                f"Sources and targets must have the same number of sentences, got {batch} sources and "
                f"{embeddings.shape[0]} targets."
            )
        padding = _padding_mask(encoder_attention_mask, batch, length, "attention_mask", any(local))
        full = None
        if not all(local):
            full = create_bidirectional_mask(
                config=mask_config(self.config),
                inputs_embeds=embeddings,
                attention_mask=encoder_attention_mask,
                encoder_hidden_states=encoder_hidden_states,
            )
        return AttentionMasks(full, padding, first_real_token(padding), SharedMasks())


class CsanModel(Seq2SeqEmbeddings, CsanPreTrainedModel):  # type: ignore[override]
    """Encoder and decoder without the output projection."""

    def __init__(self, config: CsanConfig) -> None:
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared: nn.Embedding = CsanScaledWordEmbedding(config, config.vocab_size)
        self.encoder = CsanEncoder(config)
        self.decoder = CsanDecoder(config)
        self.post_init()


class CsanForConditionalGeneration(  # type: ignore[misc, override]
    Seq2SeqHead, CsanPreTrainedModel, GenerationMixin
):
    """CSAN with the output projection, for translation and other sequence-to-sequence tasks."""

    def __init__(self, config: CsanConfig) -> None:
        super().__init__(config)
        self.model = CsanModel(config)
        self.final_logits_bias = nn.Buffer(torch.zeros(1, config.decoder_vocab_size))
        self.lm_head = CsanOutputProjection(config.d_model, config.decoder_vocab_size, bias=False)
        self.post_init()

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> nn.Embedding:
        """See `Seq2SeqPreTrained`; resizes the bias of a shared vocabulary, too."""
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        if self.config.share_encoder_decoder_embeddings:
            self._resize_final_logits_bias(self.config.vocab_size)
        return embeddings

    def resize_decoder_token_embeddings(self, new_num_tokens: int) -> nn.Embedding:
        """See `Seq2SeqHead`; resizes the bias, too."""
        embeddings = super().resize_decoder_token_embeddings(new_num_tokens)
        self._resize_final_logits_bias(new_num_tokens)
        return embeddings

    def _resize_final_logits_bias(self, new_num_tokens: int) -> None:
        bias = self.final_logits_bias[:, :new_num_tokens]
        self.final_logits_bias = nn.Buffer(F.pad(bias, (0, new_num_tokens - bias.shape[1])))

    def _project(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if isinstance(self.lm_head, CsanOutputProjection):
            return self.lm_head(hidden_states, self.final_logits_bias)
        return self.lm_head(hidden_states) + self.final_logits_bias  # replaced by the user or by an adapter

    def make_cache(self, num_beams: int) -> Cache:
        """Windowed layers keep their window alone; see `make_decoder_cache`."""
        return make_decoder_cache(self.config, num_beams)


CsanModel.register_for_auto_class("AutoModel")
CsanForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = ["CsanForConditionalGeneration", "CsanModel", "CsanPreTrainedModel"]
