# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""CSAN: the Transformer of Vaswani et al. (2017) with local self-attention in its lower layers.

With locality off it computes what transformers' Marian computes, weight for weight. Shapes: B
batch, H heads, I queries, J keys, T positions, d model width, D = d / H head width."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_call import ForwardPass
from .configuration_csan import CsanConfig
from .csan_attention import AttentionMasks, CsanAttention, make_decoder_cache
from .layers import SinusoidalPositionalEmbedding, check_as_many, drop, embed, padding_mask
from .locality import LocalityMethod, LocalityModule, parameters_name
from .seq2seq_model import (
    CACHE,
    DecoderOutput,
    Seq2SeqForGeneration,
    Seq2SeqModel,
    Seq2SeqPreTrained,
    known_keywords,
    takes_past_key_values,
)

END_PENALTY = 4.0
"""Most that is taken from the logit of an end far from the source's end. On pages wrong ends led by
at most 2.3, right ones by 5.8 and more.
"""


@dataclass
class CsanEncoderOutput(BaseModelOutput):
    """Output of the encoder, with the line of each source token [B, J] where lines count."""

    line_ids: Tensor | None = None


class _ResidualLayer(GradientCheckpointingLayer):
    """Base of encoder and decoder layers; its modules have Marian's names."""

    part: str

    def __init__(self, config: CsanConfig, layer_idx: int) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.normalize_before = config.normalize_before
        self.self_attn = CsanAttention(config, self.part, layer_idx)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        width = config.encoder_ffn_dim
        if self.part == "decoder":
            width = config.decoder_ffn_dim
            self.encoder_attn = CsanAttention(config, "cross", layer_idx)
            self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.activation_fn = ACT2FN[config.activation_function]
        self.activation_dropout = config.activation_dropout
        self.fc1 = nn.Linear(config.d_model, width)
        self.fc2 = nn.Linear(width, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model)

    def _feed_forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.activation_fn(self.fc1(hidden_states))
        return self.fc2(drop(hidden_states, self.activation_dropout, self.training))

    def _sublayer(
        self,
        norm: nn.Module,
        hidden_states: Tensor,
        function: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """A sub-layer with residual connection, dropout and layer normalisation (post or pre)."""
        output = function(norm(hidden_states) if self.normalize_before else hidden_states)
        output = hidden_states + drop(output, self.dropout, self.training)
        if output.dtype == torch.float16:
            # Kept finite: a layer normalisation would make NaN of infinity
            limit = torch.finfo(torch.float16).max - 1000
            output = output.clamp(min=-limit, max=limit)
        return output if self.normalize_before else norm(output)


class CsanEncoderLayer(_ResidualLayer):
    """Self-attention and feed-forward; local where the config says so."""

    part = "encoder"

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: AttentionMasks | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """[B, I, d] -> [B, I, d]."""
        hidden_states = self.self_attn.before(hidden_states, attention_mask)
        hidden_states = self._sublayer(
            self.self_attn_layer_norm,
            hidden_states,
            lambda states: self.self_attn(states, attention_mask=attention_mask, **kwargs)[0],
        )
        return self._sublayer(self.final_layer_norm, hidden_states, self._feed_forward)


class CsanDecoderLayer(_ResidualLayer):
    """Causal self-attention, cross-attention and feed-forward; local where the config says so."""

    part = "decoder"

    @takes_past_key_values
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: AttentionMasks | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: AttentionMasks | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """[B, I, d] with encoder states [B, J, d] -> [B, I, d]."""
        kwargs.update(attention_mask=attention_mask, cache=cache)
        hidden_states = self._sublayer(
            self.self_attn_layer_norm,
            hidden_states,
            lambda states: self.self_attn(states, **kwargs)[0],
        )
        if encoder_hidden_states is not None:
            kwargs.update(
                key_value_states=encoder_hidden_states, attention_mask=encoder_attention_mask
            )
            hidden_states = self._sublayer(
                self.encoder_attn_layer_norm,
                hidden_states,
                lambda states: self.encoder_attn(states, **kwargs)[0],
            )
        return self._sublayer(self.final_layer_norm, hidden_states, self._feed_forward)


class CsanOutputProjection(nn.Linear):
    """The output layer: logits with the vocabulary's bias added in the same pass."""

    def forward(self, hidden_states: Tensor, bias: Tensor | None = None) -> Tensor:
        """[B, T, d] and a bias [1, V] -> [B, T, V]."""
        return F.linear(hidden_states, self.weight, None if bias is None else bias.squeeze(0))


class CsanPreTrainedModel(Seq2SeqPreTrained):
    """Weight initialisation, tying and the names that the library looks for."""

    config: CsanConfig
    encoder_inputs = ("line_ids",)
    decoder_inputs = ("decoder_line_ids",)
    supports_gradient_checkpointing = True
    _no_split_modules = ["CsanEncoderLayer", "CsanDecoderLayer"]  # noqa: RUF012
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True
    _keep_in_fp32_modules_strict = ["moving_gaussian"]  # noqa: RUF012  # steps add up
    auto_map = {  # noqa: RUF012
        "AutoConfig": "configuration_csan.CsanConfig",
        "AutoModel": "modeling_csan.CsanModel",
        "AutoModelForSeq2SeqLM": "modeling_csan.CsanForConditionalGeneration",
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """New weights by `config.initialization`.

        `"xavier"`: Xavier-uniform matrices with `init_gain`, embeddings of standard deviation
        `init_gain` · d^-½. `"normal"`: N(0, `init_std`) everywhere. Biases are 0 in both, layer
        normalisations 1."""
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
            init.normal_(
                module.weight, mean=0.0, std=self.config.init_gain * self.config.d_model**-0.5
            )
            padding = getattr(module, "padding_idx", None)
            if padding is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[padding])
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight, gain=self.config.init_gain)
        elif isinstance(module, nn.Conv1d):
            # torch's own counts the outputs of all groups
            outputs, inputs, taps = module.weight.shape
            bound = self.config.init_gain * math.sqrt(
                6 / (taps * (inputs + outputs // module.groups))
            )
            init.uniform_(module.weight, -bound, bound)


class CsanScaledWordEmbedding(nn.Embedding):
    """Word embeddings, times √d with `config.scale_embedding`; as in Marian, `inputs_embeds` are
    its outputs.
    """

    def __init__(self, config: CsanConfig, num_embeddings: int) -> None:
        super().__init__(num_embeddings, config.d_model, config.pad_token_id)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0

    def forward(self, input_ids: Tensor) -> Tensor:
        """[B, T] -> [B, T, d]."""
        return super().forward(input_ids) * self.embed_scale


class _CsanStack(CsanPreTrainedModel):
    """Shared by encoder and decoder: embeddings, masks, the stack of layers."""

    layer_class: type[_ResidualLayer]

    def __init__(self, config: CsanConfig, vocab_size: int, num_layers: int) -> None:
        super().__init__(config)
        self.embed_tokens = CsanScaledWordEmbedding(config, vocab_size)
        self.embed_positions = SinusoidalPositionalEmbedding(
            config.max_position_embeddings,
            config.d_model,
            config.position_embeddings or "sinusoidal",
            config.pad_token_id,
        )
        self.layernorm_embedding: nn.Module = nn.Identity()
        if config.position_embeddings == "learned":
            self.layernorm_embedding = nn.LayerNorm(config.d_model)
        self.layers = nn.ModuleList(
            [self.layer_class(config, index) for index in range(num_layers)]
        )
        self.layer_norm: nn.Module = nn.Identity()
        if config.normalize_before:
            self.layer_norm = nn.LayerNorm(config.d_model)
        self.line_method = config.line_method
        self.gradient_checkpointing = False
        self.post_init()

    def _masks(
        self,
        make_full: Callable[..., Tensor | None],
        name: str,
        mask: Tensor | None,
        batch: int,
        length: int | None,
        offset: int | Tensor = 0,
        **inputs: Any,
    ) -> AttentionMasks:
        """The masks of all layers of one forward pass.

        Args:
            make_full: The library's function for the mask of full attention.
            name: Name of the mask in messages.
            mask: A padding mask [B, T]; None = no padding.
            batch: B.
            length: T; None = unknown.
            offset: Place of the first query.
            **inputs: Further arguments of `make_full`.
        """
        attention = "encoder_attn" if "encoder_hidden_states" in inputs else "self_attn"
        padding = padding_mask(mask, batch, length, name)
        full = None
        if any(getattr(layer, attention).locality is None for layer in self.layers):
            full = make_full(config=self.config, attention_mask=mask, **inputs)
        return AttentionMasks(
            full=full,
            padding=padding,
            first_real=None if padding is None else padding.int().argmax(dim=-1),
            shared=ForwardPass(),
            query_offset=offset,
        )

    def _run(
        self,
        embeddings: Tensor,
        masks: AttentionMasks,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """The states [B, T, d] after all layers, of which LayerDrop skips some in training."""
        if self.config.position_embeddings is not None:
            embeddings = embeddings + self.embed_positions(
                embeddings.shape[1], masks.query_offset, masks.first_real
            )
        embeddings = self.layernorm_embedding(embeddings)
        hidden_states = drop(embeddings, self.config.dropout, self.training)
        layerdrop = self.config.encoder_layerdrop
        if self.layer_class.part == "decoder":
            layerdrop = self.config.decoder_layerdrop
        may_drop = self.training and layerdrop > 0
        for layer in self.layers:
            if not may_drop or torch.rand([]) >= layerdrop:
                hidden_states = layer(hidden_states, masks, *args, **kwargs)
        return self.layer_norm(hidden_states)


class CsanEncoder(_CsanStack):
    """A stack of `CsanEncoderLayer`."""

    layer_class = CsanEncoderLayer
    _can_record_outputs = {"hidden_states": CsanEncoderLayer, "attentions": CsanAttention}  # noqa: RUF012

    def __init__(self, config: CsanConfig) -> None:
        super().__init__(config, config.vocab_size, config.encoder_layers)

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        line_ids: Tensor | None = None,
    ) -> CsanEncoderOutput:
        """Encode sources [B, J], or embeddings [B, J, d], already scaled; padding mask [B, J].

        `line_ids` [B, J] are the lines of the tokens, counted from 0; default: by their marks.
        `capture_outputs` adds the hidden states and attentions that are asked for."""
        embeddings = embed(self.embed_tokens, input_ids, inputs_embeds)
        masks = self._masks(
            create_bidirectional_mask,
            name="attention_mask",
            mask=attention_mask,
            batch=embeddings.shape[0],
            length=embeddings.shape[1],
            inputs_embeds=embeddings,
        )
        hidden_states = self._run(embeddings, masks, output_attentions=output_attentions)
        if line_ids is None and input_ids is not None and self.line_method is not None:
            line_ids = self.line_method.source_lines(self.config, input_ids)
        return CsanEncoderOutput(last_hidden_state=hidden_states, line_ids=line_ids)


class CsanDecoder(_CsanStack):
    """A stack of `CsanDecoderLayer`."""

    layer_class = CsanDecoderLayer
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": CsanDecoderLayer,
        "attentions": OutputRecorder(CsanAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(CsanAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: CsanConfig) -> None:
        super().__init__(config, config.decoder_vocab_size, config.decoder_layers)

    @merge_with_config_defaults
    @capture_outputs
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
        decoder_line_ids: Tensor | None = None,
        encoder_line_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> DecoderOutput:
        """Decode targets [B, I] (or embeddings, scaled) after those in the cache.

        Masks: of targets [B, past + I], of sources [B, J]. Lines, where they count: of targets
        [B, I] (default: by their marks), of sources [B, J]."""
        kwargs = known_keywords(kwargs)
        embeddings = embed(self.embed_tokens, input_ids, inputs_embeds, prefix="decoder_")
        if use_cache and cache is None:
            cache = make_decoder_cache(self.layers)
        batch, length = embeddings.shape[:2]
        offset = cache.get_seq_length() if cache is not None else 0
        seen = None
        if isinstance(offset, Tensor):
            # A static cache counts in place, and its first layer before the others run
            offset = offset.clone()
        else:
            seen = offset + length
        masks = self._masks(
            create_causal_mask,
            name="decoder_attention_mask",
            mask=attention_mask,
            batch=batch,
            length=seen,
            offset=offset,
            inputs_embeds=embeddings,
            **{CACHE: getattr(cache, "self_attention_cache", cache)},
        )
        cross_masks = AttentionMasks()
        penalties = None
        if encoder_hidden_states is not None:
            sources, source_length = encoder_hidden_states.shape[:2]
            check_as_many(sources, batch)
            cross_masks = self._masks(
                create_bidirectional_mask,
                name="attention_mask",
                mask=encoder_attention_mask,
                batch=sources,
                length=source_length,
                offset=offset,
                inputs_embeds=embeddings,
                encoder_hidden_states=encoder_hidden_states,
            )
            cross_masks = cross_masks._replace(real_queries=masks.padding)
            if self.line_method is not None:
                cross_masks, penalties = self.line_method.read(
                    self.config,
                    cross_masks,
                    source_lines=encoder_line_ids,
                    target_lines=decoder_line_ids,
                    input_ids=input_ids,
                    cache=cache,
                    wants_weights=self.config.output_attentions
                    or bool(kwargs.get("output_attentions")),
                )
        hidden_states = self._run(
            embeddings,
            masks,
            encoder_hidden_states,  # by position, so that gradient checkpointing sees them
            encoder_attention_mask=cross_masks,
            **{CACHE: cache},
            **kwargs,
        )
        return DecoderOutput(hidden_states, cache, details=add_penalty(cross_masks, penalties))


def add_penalty(masks: AttentionMasks, of_lines: Tensor | None) -> Tensor | None:
    """Penalties of the logits of end, mark and others in generation, [B, I, 3]: `of_lines`,
    and from an end far from the source's (`Term.tokens_left`); `masks` are of cross-attention.
    """
    left = None if masks.shared is None else masks.shared.tokens_left
    if left is None:
        return of_lines
    of_end = F.pad(left.clamp(0.0, END_PENALTY)[..., None], (0, 2))
    return of_end if of_lines is None else of_end + of_lines


class CsanBaseModel(CsanPreTrainedModel, Seq2SeqModel):
    """Base of the models without output projection; layers may share a method's parameters."""

    def __init__(self, config: CsanConfig) -> None:
        super().__init__(config)
        # What was set since the config was made is checked now; the short form is no field of it
        for name in config.keywords & vars(config).keys():
            raise ValueError(f"`{name}`, set on a config, has no effect: give it to CsanConfig().")
        if config.share_encoder_decoder_embeddings:
            config.decoder_vocab_size = config.vocab_size
            self.shared = CsanScaledWordEmbedding(config, config.vocab_size)
        config.validate_fields()
        self.encoder = CsanEncoder(config)

    def tied_weights(self) -> dict[str, str]:
        """See `Seq2SeqPreTrained`; also the parameters of `shared` locality methods, those of the
        first layer of the part with an equal method.
        """
        tied = super().tied_weights()
        first_layers: dict[tuple[str, LocalityMethod], str] = {}
        for path, module in self.named_modules():
            if not isinstance(module, CsanAttention):
                continue
            for method in module.methods:
                if not getattr(method, "shared", False):
                    continue
                name = f"{path}.{parameters_name(method)}"
                source = first_layers.setdefault((module.part, method), name)
                if source == name:
                    continue
                for parameter, _ in self.get_submodule(name).named_parameters():
                    tied[f"{name}.{parameter}"] = f"{source}.{parameter}"
        return tied


class CsanModel(CsanBaseModel):
    """Encoder and decoder without the output projection."""

    def __init__(self, config: CsanConfig) -> None:
        super().__init__(config)
        self.decoder = CsanDecoder(config)
        self.post_init()


class CsanForConditionalGeneration(CsanPreTrainedModel, Seq2SeqForGeneration):
    """CSAN with the output projection, for translation and other sequence-to-sequence tasks."""

    def __init__(self, config: CsanConfig) -> None:
        super().__init__(config)
        self.model = CsanModel(config)
        self.final_logits_bias = nn.Buffer(torch.zeros(1, config.decoder_vocab_size))
        self.lm_head = CsanOutputProjection(config.d_model, config.decoder_vocab_size, bias=False)
        self.post_init()

    def _get_resized_lm_head(
        self, old_lm_head: nn.Linear, new_num_tokens: int | None = None, *args: Any, **kwargs: Any
    ) -> nn.Linear:
        """See transformers; resizes the bias, too."""
        if new_num_tokens is not None:
            missing = new_num_tokens - self.final_logits_bias.shape[1]  # below 0: superfluous
            self.final_logits_bias = nn.Buffer(F.pad(self.final_logits_bias, (0, missing)))
        return super()._get_resized_lm_head(old_lm_head, new_num_tokens, *args, **kwargs)

    def _project(self, hidden_states: Tensor, penalties: Tensor | None = None) -> Tensor:
        """Logits [B, I, V], in generation less the penalties [B, I, 3] of end, mark and others."""
        if isinstance(self.lm_head, CsanOutputProjection):
            logits = self.lm_head(hidden_states, self.final_logits_bias)
        else:
            # Replaced by the user or by an adapter
            logits = self.lm_head(hidden_states) + self.final_logits_bias
        if penalties is None or self.training:
            return logits
        of_end, of_mark, of_others = penalties.to(logits).unsqueeze(-2).unbind(-1)
        taken = of_others.repeat(1, 1, logits.shape[-1])
        if self.config.line_token_id is not None:
            taken[..., [self.config.line_token_id]] = of_mark
        ends = self.config.eos_token_id
        if ends is not None:
            taken[..., [ends] if isinstance(ends, int) else ends] = of_end
        return logits - taken

    def create_masks_for_generate(
        self, attention_mask: Tensor | None, **kwargs: Any
    ) -> Tensor | None:
        """Keep the padding mask [B, T] under a static cache: the model derives its own from it."""
        return attention_mask

    def make_cache(self, num_beams: int) -> Cache:
        """See `Seq2SeqForGeneration`; a decoder layer with a window keeps no more than that."""
        return make_decoder_cache(self.model.decoder.layers, num_beams)


CsanPreTrainedModel.body_class = CsanModel
CsanModel.register_for_auto_class("AutoModel")
CsanForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = ["CsanForConditionalGeneration", "CsanModel", "CsanPreTrainedModel"]
