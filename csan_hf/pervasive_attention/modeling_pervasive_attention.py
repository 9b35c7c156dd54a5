# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Pervasive Attention: translation by one masked 2D DenseNet over the source × target grid (Elbayad et al., 2018).

There is no encoder beside the embedding of the source: every cell of the grid sees a target prefix and a source
token, and convolutions do the rest. Shapes: B batch, I target and J source positions, d_t and d_s widths of the
embeddings, f_L channels of the final grid, V target vocabulary.
"""

import math
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.generation import GenerationConfig, GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, ModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import can_return_tuple

from .aggregation import Aggregation
from .batch_norm import GridBatchNorm
from .checkpoint_files import apply_umask
from .configuration_pervasive_attention import PervasiveAttentionConfig
from .grid_cache import GridCache, make_grid_cache
from .grid_cells import GridCells
from .grid_convolution import DenseBlock, JointProjection, MaskedConvolution, PointwiseConvolution
from .input_checks import check_labels, check_size, embed, label_loss, load_checked, padding_mask


def shift_tokens_right(labels: torch.Tensor, pad_token_id: int, decoder_start_token_id: int) -> torch.Tensor:
    """Decoder inputs [B, T] for labels [B, T]: one position later, led by the start token, -100 as padding."""
    shifted = labels.new_full(labels.shape, decoder_start_token_id)
    shifted[:, 1:] = labels[:, :-1]
    return shifted.masked_fill(shifted == -100, pad_token_id)


class SinusoidalPositionalEmbedding(nn.Module):
    """Sinusoids of Vaswani et al. (2017), section 3.5, sines in the first half and cosines in the second.

    The table is computed in double precision and kept for `num_positions`, at most `LONGEST_TABLE`: a config asks for
    any number of positions, and most are never used. What lies beyond is computed when it is asked for.
    """

    LONGEST_TABLE = 16_384
    weight: torch.Tensor

    def __init__(self, num_positions: int, embedding_dim: int) -> None:
        super().__init__()
        self.num_positions, self.embedding_dim = min(num_positions, self.LONGEST_TABLE), embedding_dim
        # Made where the model is being made, which may be the meta device, and filled there unless it is
        weight = torch.empty(self.num_positions, embedding_dim).copy_(self.create_weight(self.num_positions))
        self.register_buffer("weight", weight, persistent=False)

    def create_weight(self, end: int, start: int = 0) -> torch.Tensor:
        """The sinusoids of positions `start` to `end` - 1, [end - start, d] float32."""
        half = np.arange(0, self.embedding_dim, 2)
        angles = np.arange(start, end)[:, None] / np.power(10000, half / self.embedding_dim)[None, :]
        cosines = np.cos(angles)[:, : self.embedding_dim // 2]
        return torch.from_numpy(np.concatenate([np.sin(angles), cosines], axis=1)).float()

    def forward(self, length: int, offset: int = 0) -> torch.Tensor:
        """Embeddings [length, d] of the positions from `offset` on."""
        end = offset + length
        if end <= self.num_positions:
            return self.weight[offset:end]
        return self.create_weight(end, offset).to(self.weight)


class LearnedPositionalEmbedding(nn.Embedding):
    """One trained vector for each position."""

    def forward(self, length: int, offset: int = 0) -> torch.Tensor:  # type: ignore[override]
        """Embeddings [length, d] of the positions from `offset` on.

        Raises:
            ValueError: There are not so many positions.
        """
        if offset + length > self.num_embeddings:
            raise ValueError(
                f"A sentence of {offset + length} tokens exceeds max_position_embeddings={self.num_embeddings} of the "
                "learned positions; shorten it (truncation, max_length), or train with "
                'position_embeddings="sinusoidal" or None.'
            )
        return self.weight[offset : offset + length]


def _position_embedding(config: PervasiveAttentionConfig, width: int) -> nn.Module | None:
    if config.position_embeddings == "learned":
        return LearnedPositionalEmbedding(config.max_position_embeddings, width)
    if config.position_embeddings == "sinusoidal":
        return SinusoidalPositionalEmbedding(config.max_position_embeddings, width)
    return None


@dataclass
class PervasiveAttentionDecoderOutput(ModelOutput):
    """What the decoder returns.

    Args:
        last_hidden_state: [B, I, d_t] what the vocabulary is projected from ([B, I, f_L or 2 f_L] untied).
        past_key_values: The cache.
        hidden_states: Target embeddings [B, I, d_t] and `last_hidden_state`.
        grid: H [B, I, J, f_L], the final grid, zero at padding; or its real cells alone.
        attention: ρ [B, I, J] of the attention aggregations.
    """

    last_hidden_state: torch.Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    grid: "torch.Tensor | PackedGrid | None" = None
    attention: torch.Tensor | None = None

    def dense_grid(self) -> torch.Tensor:
        """H [B, I, J, f_L], zero at padding."""
        assert self.grid is not None  # for the type checker
        return self.grid.dense() if isinstance(self.grid, PackedGrid) else self.grid


@dataclass
class PackedGrid:
    """A grid of which only the real cells are kept.

    Args:
        cells: Which they are.
        features: [R, f_L].
    """

    cells: GridCells
    features: torch.Tensor

    def dense(self) -> torch.Tensor:
        """[B, I, J, f_L], zero at padding."""
        return self.cells.unpack(self.features)


class PervasiveAttentionPreTrainedModel(PreTrainedModel):
    """Weight initialisation, tying and the names that the library looks for."""

    config: PervasiveAttentionConfig
    config_class = PervasiveAttentionConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["PervasiveAttentionDecoder"]  # noqa: RUF012
    _can_compile_fullgraph = False

    def __init__(self, config: PervasiveAttentionConfig, *args: Any, **kwargs: Any) -> None:
        g, layers = config.growth_rate, config.num_layers
        # Matrices of the dense layers, 1x1 and masked, and the embeddings
        inputs = layers * config.input_channels + g * layers * (layers - 1) // 2
        masked = g * config.kernel_size * ((config.kernel_size + 1) // 2)
        dense = config.bottleneck_factor * g * (inputs + layers * masked)
        embeddings = config.vocab_size * config.source_embed_dim + config.decoder_vocab_size * config.target_embed_dim
        learned = config.max_position_embeddings if config.position_embeddings == "learned" else 0
        embeddings += learned * (config.source_embed_dim + config.target_embed_dim)
        check_size(config, embeddings + dense, layers)
        super().__init__(config, *args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """New weights: He for what a ReLU precedes, Xavier for the rest, embeddings N(0, `init_std`)."""
        if isinstance(module, GridBatchNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        if isinstance(module, GridBatchNorm | DenseBlock) and hasattr(module, "running_mean"):
            init.zeros_(module.running_mean)
            init.ones_(module.running_var)
            init.zeros_(module.num_batches_tracked)
        elif isinstance(module, PointwiseConvolution | MaskedConvolution):
            init.normal_(module.weight, mean=0.0, std=math.sqrt(2.0 / module.weight[0].numel()))
        elif isinstance(module, JointProjection | nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=self.config.init_std or self.config.target_embed_dim**-0.5)
        elif isinstance(module, SinusoidalPositionalEmbedding):
            init.copy_(module.weight, module.create_weight(module.num_positions))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint as transformers does; see there.

        Raises:
            OSError: A file of weights is damaged, incomplete or unsafe.
            ValueError: A weight is missing, NaN or infinite.
        """
        return load_checked(super().from_pretrained, pretrained_model_name_or_path, *args, **kwargs)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save a checkpoint as transformers does, its weights with the permissions that the umask says."""
        super().save_pretrained(save_directory, *args, **kwargs)
        apply_umask(save_directory)

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args: Any, **kwargs: Any) -> str:
        """Refuse a choice that would mean nothing: the library's own words would ask to have it supported."""
        if attn_implementation not in (None, "eager"):
            raise ValueError(
                f"Pervasive Attention has no attention modules, so attn_implementation={attn_implementation!r} has "
                "nothing to run: leave `attn_implementation` unset."
            )
        return super()._check_and_adjust_attn_implementation(attn_implementation, *args, **kwargs)

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Which weights are one, as the config says now: shared embeddings do not hang on `tie_word_embeddings`."""
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return dict(self._tied_weights_keys)

    @property
    def _tied_weights_keys(self) -> dict[str, str]:  # type: ignore[override]
        return {}

    @property
    def dummy_inputs(self) -> dict[str, torch.Tensor]:
        """A small valid input: two source sentences, one of them padded."""
        pad = self.config.pad_token_id
        input_ids = torch.tensor([[0, 6, 10, 4, 2], [0, 8, 12, 2, pad]], device=self.device)
        return {"input_ids": input_ids, "attention_mask": input_ids.ne(pad), "decoder_input_ids": input_ids}

    def synchronize_batch_norm(self, process_group: Any) -> None:
        """Let the batch normalisations share their statistics with the other processes in training.

        Every process of the group must then run the same training forward and backward passes.

        Args:
            process_group: A group of torch.distributed (`torch.distributed.group.WORLD` for all processes), or None
                to stop sharing.
        """
        for module in self.modules():
            if isinstance(module, GridBatchNorm | DenseBlock):
                module.process_group = process_group

    @torch.no_grad()
    def refresh_batch_statistics(self, batches: Iterable[dict[str, Any]]) -> int:
        """Replace the running statistics by their averages over batches, with the weights as they are now.

        What training leaves is an average over its last few batches, with weights that were still moving, and too
        noisy where a feature is rarely active; and averaged weights have no statistics of their own at all (Wu and
        Johnson, 2021, "Rethinking 'Batch' in BatchNorm", section 3).

        Args:
            batches: Arguments of `forward`, as in training: a few hundred batches of training data.

        Returns:
            The number of batches; with 0 nothing has changed.
        """
        norms = [module for module in self.modules() if isinstance(module, GridBatchNorm | DenseBlock)]
        momenta, was_training = [norm.momentum for norm in norms], self.training
        self.train()
        count = 0
        try:
            for count, batch in enumerate(batches, start=1):
                for norm in norms:
                    norm.momentum = 1.0 / count
                self(**batch)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
            self.train(was_training)
        return count

    def num_parameters_with_masked_taps(self) -> int:
        """Parameters as the paper counts them: k×k kernels, the masked taps included, which are not stored here."""
        masked = sum(module.masked_taps for module in self.modules() if isinstance(module, MaskedConvolution))
        return self.num_parameters() + masked


def _embed(
    embed_tokens: nn.Embedding,
    positions: nn.Module | None,
    offset: int,
    input_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    names: tuple[str, str],
) -> torch.Tensor:
    """Embeddings [B, T, d]: of tokens, or ready-made ones; sqrt(1/2) (token + position) where there are positions."""
    embeddings = embed(embed_tokens, input_ids, inputs_embeds, names)
    if positions is None:
        return embeddings
    return math.sqrt(0.5) * (embeddings + positions(embeddings.shape[1], offset).to(embeddings.dtype))


def _padding_mask(
    mask: torch.Tensor | None, embeddings: torch.Tensor, name: str, past: int = 0
) -> torch.Tensor | None:
    """[B, T] boolean, True = real, for embeddings [B, T, d] of the positions after `past`; None = all are real."""
    if mask is None:
        return None
    batch, length = embeddings.shape[:2]
    return padding_mask(mask, batch, past + length, name)[:, past:]


class PervasiveAttentionEncoder(PervasiveAttentionPreTrainedModel):
    """The source embedding: what generation computes once for a sentence."""

    supports_gradient_checkpointing = False  # there is nothing to compute again

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.source_embed_dim)
        self.embed_positions = _position_embedding(config, config.source_embed_dim)
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
        """Embed source sentences.

        Args:
            input_ids: [B, J].
            attention_mask: [B, J], 1 = a real token; unused here.
            inputs_embeds: [B, J, d_s] instead of `input_ids`.
            output_hidden_states: Whether to return `hidden_states`, too.

        Returns:
            `last_hidden_state` [B, J, d_s].
        """
        embeddings = _embed(
            self.embed_tokens, self.embed_positions, 0, input_ids, inputs_embeds, ("input_ids", "inputs_embeds")
        )
        embeddings = F.dropout(embeddings, p=self.config.embedding_dropout, training=self.training)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return BaseModelOutput(
            last_hidden_state=embeddings, hidden_states=(embeddings,) if output_hidden_states else None
        )


class PervasiveAttentionDecoder(PervasiveAttentionPreTrainedModel):
    """The network over the grid, from target and source embeddings to one vector for each target position."""

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.decoder_vocab_size, config.target_embed_dim)
        self.embed_positions = _position_embedding(config, config.target_embed_dim)
        self.input_projection = JointProjection(config.target_embed_dim, config.source_embed_dim)
        self.dense_block = DenseBlock(config)
        self.final_norm = GridBatchNorm(config.grid_channels, config.batch_norm_eps, config.batch_norm_momentum)
        self.aggregation = Aggregation(config)
        self.output_projection: nn.Module = nn.Identity()
        if config.tie_word_embeddings:
            self.output_projection = nn.Linear(config.aggregated_channels, config.target_embed_dim)
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
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> PervasiveAttentionDecoderOutput:
        """Decode target prefixes.

        Args:
            input_ids: [B, I], the positions after those in the cache.
            attention_mask: [B, past + I], 1 = a real token.
            encoder_hidden_states: Source embeddings [B, J, d_s].
            encoder_attention_mask: [B, J], 1 = a real token.
            past_key_values: Cache of earlier rows.
            inputs_embeds: [B, I, d_t] instead of `input_ids`.
            use_cache: Whether to keep rows.
            output_hidden_states: Whether to return `hidden_states`, too.

        Raises:
            ValueError: There is no source, source and target do not fit together or are empty, a mask has another
                shape, or the cache is of another kind.
        """
        if encoder_hidden_states is None:
            raise ValueError("`encoder_hidden_states` must be given: every cell of the grid needs a source token.")
        if use_cache and past_key_values is None:
            past_key_values = make_grid_cache(self.config)
        cache = _grid_cache(past_key_values)
        offset = cache.get_seq_length() if cache is not None else 0
        embeddings = _embed(
            self.embed_tokens,
            self.embed_positions,
            offset,
            input_ids,
            inputs_embeds,
            ("decoder_input_ids", "decoder_inputs_embeds"),
        )
        embeddings = F.dropout(embeddings, p=self.config.embedding_dropout, training=self.training)
        source = encoder_hidden_states
        if 0 in (*embeddings.shape[:2], *source.shape[:2]):
            raise ValueError(
                f"The grid needs at least one sentence, one target and one source token, got targets "
                f"{list(embeddings.shape[:2])} and sources {list(source.shape[:2])} ([batch, length])."
            )
        if source.shape[0] != embeddings.shape[0]:
            raise ValueError(
                f"Sources and targets must be as many sentences, got {source.shape[0]} and {embeddings.shape[0]}."
            )
        target_mask = _padding_mask(attention_mask, embeddings, "decoder_attention_mask", offset)
        source_mask = _padding_mask(encoder_attention_mask, source, "attention_mask")
        real = _cell_mask(target_mask, source_mask, embeddings, source)
        grid, aggregated, attention = self._run_grid(embeddings, source, real, source_mask, cache)
        hidden_state = self.output_projection(aggregated)
        hidden_state = F.dropout(hidden_state, p=self.config.dropout, training=self.training)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return PervasiveAttentionDecoderOutput(
            last_hidden_state=hidden_state,
            past_key_values=past_key_values,
            hidden_states=(embeddings, hidden_state) if output_hidden_states else None,
            grid=grid,
            attention=attention,
        )

    def _run_grid(
        self,
        target: torch.Tensor,
        source: torch.Tensor,
        real: torch.Tensor | None,
        source_mask: torch.Tensor | None,
        cache: GridCache | None,
    ) -> tuple[torch.Tensor | PackedGrid, torch.Tensor, torch.Tensor | None]:
        """H [B, I, J, f_L], zero at padding; its aggregation [B, I, f_L or 2 f_L]; ρ [B, I, J], where there is one."""
        rows, columns = self.input_projection(target, source)
        needs_grad = torch.is_grad_enabled() and (
            rows.requires_grad
            or columns.requires_grad
            or any(parameter.requires_grad for parameter in self.dense_block.parameters())
        )
        if cache is None and (self.training or needs_grad):
            return self._run_differentiably(rows, columns, real, source_mask)
        if self.training or needs_grad:
            raise ValueError(
                "The cache keeps grid rows of an evaluation without gradients; call model.eval() and use "
                "torch.no_grad(), or pass use_cache=False."
            )
        features = self.dense_block.infer(rows.unsqueeze(2) + columns.unsqueeze(1), real, cache)
        grid = self.final_norm(features.flatten(0, 2)).view_as(features).relu()
        if real is not None:
            grid = grid * real.unsqueeze(-1).to(grid.dtype)
        return grid, *self.aggregation(grid, source_mask)

    @torch.compiler.disable  # already fused by hand; traced, it would be compiled anew for every number of real cells
    def _run_differentiably(
        self,
        rows: torch.Tensor,
        columns: torch.Tensor,
        real: torch.Tensor | None,
        source_mask: torch.Tensor | None,
    ) -> tuple[PackedGrid, torch.Tensor, torch.Tensor | None]:
        cells = GridCells.from_mask((rows.shape[0], rows.shape[1], columns.shape[1]), real)
        features = self.final_norm(self.dense_block(cells.sum_of(rows, columns), cells)).relu()
        return PackedGrid(cells, features), *cells.aggregate(features, source_mask, self.aggregation)


def _cell_mask(
    target_mask: torch.Tensor | None,
    source_mask: torch.Tensor | None,
    target: torch.Tensor,
    source: torch.Tensor,
) -> torch.Tensor | None:
    """[B, I, J], True where both tokens are real."""
    if target_mask is None and source_mask is None:
        return None
    if target_mask is None:
        target_mask = source_mask.new_ones(target.shape[:2])  # type: ignore[union-attr]
    if source_mask is None:
        source_mask = target_mask.new_ones(source.shape[:2])
    return target_mask.unsqueeze(2) & source_mask.unsqueeze(1)


def _grid_cache(past_key_values: Cache | None) -> GridCache | None:
    cache = past_key_values
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if cache is not None and not isinstance(cache, GridCache):
        raise ValueError(
            f"Pervasive Attention keeps grid rows, which a {type(cache).__name__} cannot hold: leave "
            "`past_key_values` and `cache_implementation` unset, or pass use_cache=False."
        )
    return cache


def _require_separate_vocabularies(config: PervasiveAttentionConfig, method: str, instead: str) -> None:
    if config.share_encoder_decoder_embeddings:
        raise ValueError(
            f"`{method}` needs separate vocabularies, but share_encoder_decoder_embeddings=True; call `{instead}`."
        )


class PervasiveAttentionModel(PervasiveAttentionPreTrainedModel):
    """The network without the output projection."""

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.source_embed_dim)
        self.encoder = PervasiveAttentionEncoder(config)
        self.decoder = PervasiveAttentionDecoder(config)
        self.post_init()

    @property
    def _tied_weights_keys(self) -> dict[str, str]:  # type: ignore[override]
        if not self.config.share_encoder_decoder_embeddings:
            return {}
        return {
            "encoder.embed_tokens.weight": "shared.weight",
            "decoder.embed_tokens.weight": "shared.weight",
        }

    def get_input_embeddings(self) -> nn.Embedding:
        """The source embedding (the shared one, where shared)."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:  # type: ignore[override]
        """Replace the source embedding (the shared one in all its places, where shared)."""
        if self.config.share_encoder_decoder_embeddings:
            self.shared = value
            self.decoder.embed_tokens = value
        self.encoder.embed_tokens = value

    def get_decoder_input_embeddings(self) -> nn.Embedding:
        """The target embedding."""
        return self.decoder.embed_tokens

    def set_decoder_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the target embedding of a model with separate vocabularies."""
        _require_separate_vocabularies(self.config, "set_decoder_input_embeddings", "set_input_embeddings")
        self.decoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        """Embed the source (unless `encoder_outputs` is given) and run the grid.

        Args:
            input_ids: Source tokens, [B, J].
            attention_mask: [B, J], 1 = a real source token.
            decoder_input_ids: Target tokens, [B, I]; default: the source shifted right.
            decoder_attention_mask: [B, I], 1 = a real target token.
            encoder_outputs: What the encoder returned for this source.
            past_key_values: Cache of earlier target rows.
            inputs_embeds: [B, J, d_s] instead of `input_ids`.
            decoder_inputs_embeds: [B, I, d_t] instead of `decoder_input_ids`.
            use_cache: Whether to return a cache; default: the config's, outside training.
            output_attentions: Whether to return `cross_attentions`, one [B, 1, I, J]: ρ where the aggregation attends,
                else the share of channels whose maximum lies at each source token. (What a source token adds to the
                logit of a word takes the output projection: `PervasiveAttentionForConditionalGeneration`.)
            output_hidden_states: Whether to return hidden states.
        """
        encoder_outputs, decoder_outputs = self.run(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
        )
        cross_attentions = None
        if self.config.output_attentions if output_attentions is None else output_attentions:
            share = decoder_outputs.attention
            if share is None:
                share = self.decoder.aggregation.pooled_share(decoder_outputs.dense_grid())
            cross_attentions = (share.unsqueeze(1),)
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            past_key_values=decoder_outputs.past_key_values,  # type: ignore[arg-type]
            decoder_hidden_states=decoder_outputs.hidden_states,
            cross_attentions=cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
        )

    def run(
        self,
        input_ids: torch.Tensor | None,
        *,
        attention_mask: torch.Tensor | None,
        decoder_input_ids: torch.Tensor | None,
        decoder_attention_mask: torch.Tensor | None,
        encoder_outputs: BaseModelOutput | tuple | None,
        past_key_values: Cache | None,
        inputs_embeds: torch.Tensor | None,
        decoder_inputs_embeds: torch.Tensor | None,
        use_cache: bool | None,
        output_hidden_states: bool | None,
    ) -> tuple[BaseModelOutput, PervasiveAttentionDecoderOutput]:
        """What `forward` computes, as the outputs of encoder and decoder."""
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                output_hidden_states=output_hidden_states,
                return_dict=True,
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs[:2])
        assert isinstance(encoder_outputs, BaseModelOutput)  # for the type checker
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self._decoder_inputs_from_source(input_ids)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training and not torch.is_grad_enabled()
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs[0],
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        return encoder_outputs, decoder_outputs

    def _decoder_inputs_from_source(self, input_ids: torch.Tensor | None) -> torch.Tensor:
        if input_ids is None or not self.config.share_encoder_decoder_embeddings:
            raise ValueError(
                "`decoder_input_ids` (or `decoder_inputs_embeds`) must be given: they can be derived only from "
                "`input_ids` of a shared vocabulary."
            )
        return shift_tokens_right(input_ids, self.config.pad_token_id, self.config.decoder_start_token_id)


class PervasiveAttentionForConditionalGeneration(PervasiveAttentionPreTrainedModel, GenerationMixin):
    """Pervasive Attention with the output projection, for translation."""

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__(config)
        # The class name would choose the causal loss, which shifts the labels once more.
        self.loss_type = "ForMaskedLM"
        self.model = PervasiveAttentionModel(config)
        width = config.target_embed_dim if config.tie_word_embeddings else config.aggregated_channels
        self.lm_head = nn.Linear(width, config.decoder_vocab_size)
        self.post_init()

    @property
    def _tied_weights_keys(self) -> dict[str, str]:  # type: ignore[override]
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
        return embeddings

    def _resize_token_embeddings(
        self, new_num_tokens: int, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        if self.config.share_encoder_decoder_embeddings:
            return super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        # The library would resize the output projection along, which belongs to the target vocabulary.
        embeddings = self._get_resized_embeddings(
            self.model.get_input_embeddings(), new_num_tokens, pad_to_multiple_of, mean_resizing
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
        self.set_output_embeddings(self._get_resized_lm_head(self.lm_head, new_num_tokens))
        self.config.decoder_vocab_size = new_num_tokens
        self.tie_weights()
        return self.model.get_decoder_input_embeddings()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits of the next target tokens and, with `labels`, their cross-entropy.

        Args:
            input_ids: Source tokens, [B, J].
            attention_mask: [B, J], 1 = a real source token.
            decoder_input_ids: Target tokens, [B, I]; default: `labels` shifted right.
            decoder_attention_mask: [B, I], 1 = a real target token; default: with labels, those up to the last one
                that is not -100; in training without labels, those before the end of the sentence; else all.
            encoder_outputs: What the encoder returned for this source.
            past_key_values: Cache of earlier target rows.
            inputs_embeds: [B, J, d_s] instead of `input_ids`.
            decoder_inputs_embeds: [B, I, d_t] instead of `decoder_input_ids`.
            labels: [B, I], the tokens to predict, -100 = ignored.
            use_cache: Whether to return a cache.
            output_attentions: Whether to return `cross_attentions`; see `alignment`.
            output_hidden_states: Whether to return hidden states.

        Returns:
            `logits` [B, I, V] and, with labels, `loss`: the mean over labels, or their sum divided by
            `num_items_in_batch` where the Trainer passes it.
        """
        if labels is not None:
            check_labels(labels, decoder_inputs_embeds if decoder_input_ids is None else decoder_input_ids)
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
            if decoder_attention_mask is None:
                decoder_attention_mask = _rows_with_labels(labels)
        elif self.training and decoder_attention_mask is None and decoder_input_ids is not None:
            # A Trainer that computes the loss itself keeps the labels, but padding must not enter the statistics
            decoder_attention_mask = _rows_before_end(decoder_input_ids, self.config)
        encoded, decoder_outputs = self.model.run(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
        )
        logits = self.lm_head(decoder_outputs.last_hidden_state)
        loss = None
        if labels is not None:
            loss = label_loss(self.loss_function, logits, labels, kwargs.get("num_items_in_batch"))
        cross_attentions = None
        if self.config.output_attentions if output_attentions is None else output_attentions:
            words = _words_to_explain(labels, decoder_input_ids, decoder_attention_mask, logits)
            cross_attentions = (self.alignment(decoder_outputs, attention_mask, words).unsqueeze(1),)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=decoder_outputs.past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            cross_attentions=cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
        )

    def alignment(
        self,
        decoder_outputs: PervasiveAttentionDecoderOutput,
        attention_mask: torch.Tensor | None,
        words: torch.Tensor,
    ) -> torch.Tensor:
        """The implicit alignment of target rows with source tokens.

        For `"attention"` it is ρ (equation 8). Otherwise it is what each source token adds to the logit of a word
        (equation 7), before dropout; its sum over the source tokens, plus the biases, is that logit.

        Args:
            decoder_outputs: What the decoder returned.
            attention_mask: [B, J], 1 = a real source token.
            words: [B, I], the word of each row.

        Returns:
            [B, I, J], zero at padding.
        """
        aggregation = self.model.decoder.aggregation
        if aggregation.kind == "attention":
            assert decoder_outputs.attention is not None
            return decoder_outputs.attention
        grid = decoder_outputs.dense_grid()
        directions = F.embedding(words, self.lm_head.weight)
        if self.config.tie_word_embeddings:
            directions = directions @ self.model.decoder.output_projection.weight
        source_mask = None if attention_mask is None else attention_mask.bool()
        return aggregation.contributions(grid, source_mask, decoder_outputs.attention, directions.to(grid.dtype))

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Decoder inputs [B, I] for labels [B, I]."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """See transformers. The config that is saved says what the weights are: tied, where they are one.

        (peft compares the output projection with the source embedding when it merges an adapter, and calls them untied
        where the vocabularies are separate.)
        """
        if getattr(self.lm_head, "weight", None) is self.model.get_decoder_input_embeddings().weight:
            self.config.tie_word_embeddings = True
        super().save_pretrained(*args, **kwargs)

    def compute_transition_scores(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """See transformers, which takes `config.vocab_size` for the number of words that can be generated."""
        # A view of this model with a configuration of its own: other threads may be using this one's.
        view = copy(self)
        view.config = copy(self.config)
        view.config.vocab_size = self.config.decoder_vocab_size
        parent: Any = super(PervasiveAttentionForConditionalGeneration, view)
        scores: torch.Tensor = parent.compute_transition_scores(*args, **kwargs)
        return scores

    def create_masks_for_generate(
        self, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor | None:
        """Leave the padding mask [B, T] as it is: the grid makes what it needs of it."""
        return attention_mask

    def _prepare_cache_for_generation(  # type: ignore[override]
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Put the grid's cache in the place of the library's default."""
        user_defined = model_kwargs.get("past_key_values") is not None
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)  # type: ignore[misc]
        implementation = generation_config.cache_implementation
        if user_defined or implementation not in (None, "dynamic") or model_kwargs.get("past_key_values") is None:
            return
        cache = make_grid_cache(self.config)
        if generation_config.is_assistant:
            cache.activate_past_recording()
        model_kwargs["past_key_values"] = cache


def _rows_with_labels(labels: torch.Tensor) -> torch.Tensor:
    """[B, I], True up to the last label of each row that is not -100."""
    return labels.ne(-100).flip(1).cumsum(1).flip(1).gt(0)


def _rows_before_end(decoder_input_ids: torch.Tensor, config: PervasiveAttentionConfig) -> torch.Tensor:
    """[B, I], True before the first end-of-sentence token and before trailing padding; the start token counts."""
    ends = torch.tensor(config.eos_token_id, device=decoder_input_ids.device).reshape(-1)
    following = decoder_input_ids[:, 1:]
    ended = torch.isin(following, ends).cumsum(1).gt(0)
    trailing = following.ne(config.pad_token_id).flip(1).cumsum(1).flip(1).eq(0)
    real = torch.ones_like(decoder_input_ids, dtype=torch.bool)
    real[:, 1:] = ~(ended | trailing)
    return real


def _words_to_explain(
    labels: torch.Tensor | None,
    decoder_input_ids: torch.Tensor | None,
    decoder_attention_mask: torch.Tensor | None,
    logits: torch.Tensor,
) -> torch.Tensor:
    """The word [B, I] whose logit each row's alignment explains: the label, the next input, or the likeliest word."""
    words = logits.argmax(dim=-1)
    if decoder_input_ids is not None and decoder_input_ids.shape[1] > 1:
        following = decoder_input_ids[:, 1:]
        if decoder_attention_mask is not None:
            real = decoder_attention_mask[:, -following.shape[1] :].bool()
            following = torch.where(real, following, words[:, :-1])
        words = torch.cat([following, words[:, -1:]], dim=1)
    if labels is not None:
        words = torch.where(labels.eq(-100), words, labels)
    return words


__all__ = [
    "PervasiveAttentionForConditionalGeneration",
    "PervasiveAttentionModel",
    "PervasiveAttentionPreTrainedModel",
]
