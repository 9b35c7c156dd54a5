# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Pervasive Attention: translation by one masked 2D network over the source × target grid (Elbayad
et al., 2018).

There is no encoder beside the embedding of the source: every cell of the grid sees a target prefix
and a source token, and convolutions do the rest. Shapes: B batch, I target and J source positions,
d_t and d_s widths of the embeddings, f_L channels of the final grid, V target vocabulary."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqModelOutput,
)
from transformers.utils import can_return_tuple

from .canvas import Canvas, rows_before_padding, rows_with_labels, words_to_explain
from .configuration_pervasive_attention import PervasiveAttentionConfig
from .dense_block import (
    FORMER_NAMES,
    DenseBlock,
    FeatureAffine,
    MaskedConvolution,
    PointwiseConvolution,
)
from .grid_cache import GridCache, RowSums, make_grid_cache
from .grid_norm import GridBatchNorm
from .layers import SinusoidalPositionalEmbedding, check_as_many, drop, embed, padding_mask
from .residual_block import DepthwiseConvolution, ResidualBlock
from .seq2seq_model import (
    Seq2SeqForGeneration,
    Seq2SeqModel,
    Seq2SeqPreTrained,
    known_keywords,
    takes_past_key_values,
)


class LearnedPositionalEmbedding(nn.Embedding):
    """One trained vector for each position."""

    def forward(self, length: int, offset: int = 0) -> torch.Tensor:  # type: ignore[override]
        """Embeddings [length, d] of the positions from `offset` on; too few positions are a
        ValueError.
        """
        if offset + length > self.num_embeddings:
            raise ValueError(
                f"A sentence of {offset + length} tokens exceeds "
                f"max_position_embeddings={self.num_embeddings} of the learned positions; shorten "
                "it (truncation, max_length), or train with "
                'position_embeddings="sinusoidal" or None.'
            )
        return self.weight[offset : offset + length]


def make_position_embedding(config: PervasiveAttentionConfig, width: int) -> nn.Module | None:
    """The position embedding that a config asks for."""
    if config.position_embeddings == "learned":
        return LearnedPositionalEmbedding(config.max_position_embeddings, width)
    if config.position_embeddings == "sinusoidal":
        return SinusoidalPositionalEmbedding(config.max_position_embeddings, width)
    return None


class JointProjection(nn.Module):
    """The grid's input: [y_i ; x_j] (equation 1) through the 1×1 convolution that halves the
    channels.

    Computed as the sum of a projection of the targets and one of the sources, so that the grid of
    all pairs is never built at full width."""

    def __init__(self, target_dim: int, source_dim: int) -> None:
        super().__init__()
        self.target_dim = target_dim
        channels = target_dim + source_dim
        self.weight = nn.Parameter(torch.empty(channels // 2, channels))
        self.bias = nn.Parameter(torch.zeros(channels // 2))

    def forward(
        self, target: torch.Tensor, source: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows [B, I, channels] of targets [B, I, d_t], columns [B, J, channels] of sources; a cell
        is their sum.
        """
        rows = F.linear(target, self.weight[:, : self.target_dim])
        return rows, F.linear(source, self.weight[:, self.target_dim :], self.bias)


Aggregated = tuple[torch.Tensor, torch.Tensor | None]


class MaxAggregation(nn.Module):
    """Collapses the source axis of H [B, I, J, f] by its maximum (equation 2).

    Padding is zero in H: after a ReLU (`after_relu`) it is no maximum; otherwise it is hidden.
    """

    after_relu = False

    def __init__(self, channels: int) -> None:
        super().__init__()

    def features(self, grid: torch.Tensor) -> torch.Tensor:
        """What is pooled, [B, I, J, f]."""
        return grid

    def _pooled(self, grid: torch.Tensor, source_mask: torch.Tensor | None) -> torch.Tensor:
        features = self.features(grid)
        if source_mask is None or self.after_relu:
            return features
        hidden = ~source_mask & source_mask.any(dim=1, keepdim=True)
        return features.masked_fill(hidden[:, None, :, None], torch.finfo(features.dtype).min)

    def forward(self, grid: torch.Tensor, source_mask: torch.Tensor | None) -> Aggregated:
        """The real source tokens of the mask [B, J] (None = all) in one [B, I, f or 2f]; ρ [B, I,
        J], if any.
        """
        features = self._pooled(grid, source_mask)
        # The gradient goes to the first of equal ones, for which places must be searched
        return features.max(dim=2).values if features.requires_grad else features.amax(dim=2), None

    def contributions(
        self,
        grid: torch.Tensor,
        source_mask: torch.Tensor | None,
        weights: torch.Tensor,
        directions: torch.Tensor,
    ) -> torch.Tensor:
        """What each source token adds to a linear function of the aggregated row (equation 7).

        Args:
            grid: H [B, I, J, f].
            source_mask: [B, J].
            weights: ρ [B, I, J] of the attention aggregations.
            directions: [B, I, f or 2f], the linear function at each row: the row of E of a word.

        Returns:
            α [B, I, J]; its sum over J is the function's value at the aggregated row. For
            `"attention"` it is ρ.
        """
        values, columns = self._pooled(grid, source_mask).max(dim=2)
        return grid.new_zeros(grid.shape[:3]).scatter_add_(2, columns, values * directions)

    def pooled_share(self, grid: torch.Tensor, source_mask: torch.Tensor | None) -> torch.Tensor:
        """The share of channels whose maximum lies at each source token, |B_ij| / f: [B, I, J].

        A channel that is 0 at all source tokens has its maximum at none of them.
        """
        values, columns = self._pooled(grid, source_mask).max(dim=2)
        live = values.ne(0).to(grid.dtype)
        return grid.new_zeros(grid.shape[:3]).scatter_add_(2, columns, live) / grid.shape[-1]


class AverageAggregation(MaxAggregation):
    """Their sum over the square root of their number (equation 3)."""

    def forward(self, grid: torch.Tensor, source_mask: torch.Tensor | None) -> Aggregated:
        return grid.sum(dim=2) / _root_of_lengths(grid, source_mask), None

    def contributions(
        self,
        grid: torch.Tensor,
        source_mask: torch.Tensor | None,
        weights: torch.Tensor,
        directions: torch.Tensor,
    ) -> torch.Tensor:
        return (grid @ directions.unsqueeze(-1)).squeeze(-1) / _root_of_lengths(grid, source_mask)


class AttentionAggregation(MaxAggregation):
    """Their sum weighted by an attention ρ, times the square root of their number (equations 8 and
    9).
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.attention = nn.Linear(channels, 1)

    def forward(self, grid: torch.Tensor, source_mask: torch.Tensor | None) -> Aggregated:
        energies = self.attention(grid).squeeze(-1)
        energies = energies.to(torch.promote_types(energies.dtype, torch.float32))
        if source_mask is None:
            weights = energies.softmax(dim=-1).to(grid.dtype)
        else:  # zeros for a sentence without real source tokens
            visible = source_mask.unsqueeze(1)
            weights = energies.masked_fill(~visible, torch.finfo(energies.dtype).min).softmax(
                dim=-1
            )
            weights = weights.masked_fill(~visible, 0.0).to(grid.dtype)
        return (weights.unsqueeze(2) @ grid).squeeze(2) * _root_of_lengths(
            grid, source_mask
        ), weights

    def contributions(
        self,
        grid: torch.Tensor,
        source_mask: torch.Tensor | None,
        weights: torch.Tensor,
        directions: torch.Tensor,
    ) -> torch.Tensor:
        return weights


class MaxAttentionAggregation(AttentionAggregation):
    """The maximum and the attention, concatenated."""

    def forward(self, grid: torch.Tensor, source_mask: torch.Tensor | None) -> Aggregated:
        attended, weights = super().forward(grid, source_mask)
        return torch.cat(
            [MaxAggregation.forward(self, grid, source_mask)[0], attended], dim=-1
        ), weights

    def contributions(
        self,
        grid: torch.Tensor,
        source_mask: torch.Tensor | None,
        weights: torch.Tensor,
        directions: torch.Tensor,
    ) -> torch.Tensor:
        pooled, attended = directions.chunk(2, dim=-1)
        scores = (
            (grid @ attended.unsqueeze(-1)).squeeze(-1)
            * weights
            * _root_of_lengths(grid, source_mask)
        )
        return scores + MaxAggregation.contributions(self, grid, source_mask, weights, pooled)


class GatedMaxAggregation(MaxAggregation):
    """The maximum of a gated linear unit of the features, of the authors' later network."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.gate = nn.Linear(channels, 2 * channels)

    def features(self, grid: torch.Tensor) -> torch.Tensor:
        return F.glu(self.gate(grid), dim=-1)


AGGREGATIONS = {
    "max": MaxAggregation,
    "average": AverageAggregation,
    "attention": AttentionAggregation,
    "max_attention": MaxAttentionAggregation,
    "gated_max": GatedMaxAggregation,
}
# What makes the cells [R, f_L] of H: `block(inputs, canvas, cache)`; with `needs_norm` the
# decoder's final norm follows, which checkpoints and adapters know by that place
BLOCKS = {"dense": DenseBlock, "residual": ResidualBlock}


def _root_of_lengths(grid: torch.Tensor, source_mask: torch.Tensor | None) -> torch.Tensor | float:
    """Square root of the number of real source tokens, [B, 1, 1]."""
    if source_mask is None:
        return float(grid.shape[2]) ** 0.5
    return source_mask.sum(dim=1).clamp(min=1).to(grid.dtype).sqrt().view(-1, 1, 1)


@dataclass
class PervasiveAttentionDecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """What the decoder returns.

    Args:
        last_hidden_state: [B, I, d_t] what the vocabulary is projected from ([B, I, f_L or 2 f_L]
            untied).
        hidden_states: Target embeddings [B, I, d_t] and `last_hidden_state`.
        cross_attentions: With `output_attentions` one [B, 1, I, J]: ρ where the aggregation
            attends, else the share of channels whose maximum lies at each source token.
        grid: With `output_attentions` H [B, I, J, f_L], zero at padding.
    """

    grid: torch.Tensor | None = None


@dataclass
class PervasiveAttentionModelOutput(Seq2SeqModelOutput):
    """`Seq2SeqModelOutput` and the decoder's `grid`."""

    grid: torch.Tensor | None = None


class PervasiveAttentionPreTrainedModel(Seq2SeqPreTrained):
    """Weight initialisation, tying and the names that the library looks for."""

    config: PervasiveAttentionConfig
    supports_gradient_checkpointing = True
    _no_split_modules = ["PervasiveAttentionDecoder"]  # noqa: RUF012
    _can_compile_fullgraph = False
    auto_map = {  # noqa: RUF012
        "AutoConfig": "configuration_pervasive_attention.PervasiveAttentionConfig",
        "AutoModel": "modeling_pervasive_attention.PervasiveAttentionModel",
        "AutoModelForSeq2SeqLM": (
            "modeling_pervasive_attention.PervasiveAttentionForConditionalGeneration"
        ),
    }

    @classmethod
    def from_pretrained(
        cls, *args: Any, key_mapping: dict[str, str] | None = None, **kwargs: Any
    ) -> Any:
        """As `Seq2SeqPreTrained.from_pretrained`, also where the statistics have their former
        names.
        """
        renamed = {
            rf"dense_block\.{former}": f"dense_block.{own}" for former, own in FORMER_NAMES.items()
        }
        return super().from_pretrained(
            *args, key_mapping={**renamed, **(key_mapping or {})}, **kwargs
        )

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """New weights: He for what a ReLU precedes, Xavier for the rest, embeddings N(0,
        `init_std`).
        """
        if isinstance(module, GridBatchNorm):
            init.zeros_(module.running_mean)
            init.ones_(module.running_var)
            init.zeros_(module.num_batches_tracked)
        if isinstance(module, FeatureAffine) or (
            isinstance(module, GridBatchNorm) and module.affine
        ):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, DepthwiseConvolution):
            init.uniform_(
                module.weight, -1.0 / module.weight.shape[3], 1.0 / module.weight.shape[3]
            )
            init.zeros_(module.bias)
        elif isinstance(module, PointwiseConvolution | MaskedConvolution):
            init.normal_(module.weight, mean=0.0, std=math.sqrt(2.0 / module.weight[0].numel()))
        elif isinstance(module, JointProjection | nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(
                module.weight,
                mean=0.0,
                std=self.config.init_std or self.config.target_embed_dim**-0.5,
            )
        elif isinstance(module, SinusoidalPositionalEmbedding):
            init.copy_(module.weight, module.create_weight(module.num_positions))

    def _embed(
        self,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        mask: torch.Tensor | None,
        past: int = 0,
        prefix: str = "",
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Embeddings [B, T, d] with positions, which count real tokens, and the mask [B, past + T]
        as booleans.

        `prefix` stands before the names of the inputs in messages.
        """
        own: Any = self  # an encoder or a decoder
        embeddings = embed(own.embed_tokens, input_ids, inputs_embeds, prefix)
        batch, length = embeddings.shape[:2]
        real = padding_mask(mask, batch, past + length, f"{prefix}attention_mask")
        scale = self.config.scale_embedding
        if scale:
            embeddings = math.sqrt(embeddings.shape[-1]) * embeddings
        if own.embed_positions is not None:
            if real is None:
                vectors = own.embed_positions(length, past)
            else:
                ranks = (real.long().cumsum(dim=1) - 1).clamp(min=0)[:, past:]
                vectors = F.embedding(ranks, own.embed_positions(past + length))
            embeddings = (1.0 if scale else math.sqrt(0.5)) * (
                embeddings + vectors.to(embeddings.dtype)
            )
        return drop(embeddings, self.config.embedding_dropout, self.training), real

    def synchronize_batch_norm(self, process_group: Any) -> None:
        """Let the batch normalisations share their statistics with the other processes in training.

        Every process of the group must then run the same training forward and backward passes.

        Args:
            process_group: A group of torch.distributed (`torch.distributed.group.WORLD` for all
                processes), or None to stop sharing.
        """
        for norm in self._norms():
            norm.process_group = process_group

    def _norms(self) -> list[GridBatchNorm]:
        return [module for module in self.modules() if isinstance(module, GridBatchNorm)]

    @torch.no_grad()
    def refresh_batch_statistics(self, batches: Iterable[dict[str, Any]]) -> int:
        """Replace the running statistics by their averages over batches, with the weights as they
        are now.

        What training leaves is an average over its last few batches, with weights that were still
        moving, and too noisy where a feature is rarely active; and averaged weights have no
        statistics of their own at all (Wu and Johnson, 2021, "Rethinking 'Batch' in BatchNorm",
        section 3).

        Args:
            batches: Arguments of `forward`, as in training: a few hundred batches of training data.
                What is in eval mode within a model in training mode stays so.

        Returns:
            The number of batches; with 0 nothing has changed.
        """
        if not self._norms():
            return 0
        norms = [norm for norm in self._norms() if not norm.is_frozen]
        momenta, modes = (
            [norm.momentum for norm in norms],
            {module: module.training for module in self.modules()},
        )
        if not self.training:
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
            for module, mode in modes.items():
                module.training = mode
        return count

    def num_parameters_with_masked_taps(self) -> int:
        """Parameters as the paper counts them: k×k kernels, the masked taps included, which are not
        stored here.
        """
        kernels = [
            module.weight for module in self.modules() if isinstance(module, MaskedConvolution)
        ]
        # [out, in, ceil(k / 2), k]: of each row there are k // 2 masked ones
        return self.num_parameters() + sum(
            kernel[:, :, 0].numel() * (kernel.shape[3] // 2) for kernel in kernels
        )


class PervasiveAttentionEncoder(PervasiveAttentionPreTrainedModel):
    """The source embedding: what generation computes once for a sentence."""

    supports_gradient_checkpointing = False  # there is nothing to compute again

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.source_embed_dim)
        self.embed_positions = make_position_embedding(config, config.source_embed_dim)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        """Embed tokens [B, J], or take `inputs_embeds` [B, J, d_s]: `last_hidden_state` [B, J,
        d_s].

        Positions count the real tokens of the mask [B, J]. There is no attention for
        `output_attentions` to ask for."""
        embeddings, _ = self._embed(input_ids, inputs_embeds, attention_mask)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return BaseModelOutput(
            last_hidden_state=embeddings,
            hidden_states=(embeddings,) if output_hidden_states else None,
        )


class PervasiveAttentionDecoder(PervasiveAttentionPreTrainedModel):
    """The network over the grid, from target and source embeddings to one vector for each target
    position.
    """

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.decoder_vocab_size, config.target_embed_dim)
        self.embed_positions = make_position_embedding(config, config.target_embed_dim)
        self.input_projection = JointProjection(config.target_embed_dim, config.source_embed_dim)
        block = BLOCKS[config.block](config)
        self.add_module(f"{config.block}_block", block)
        if block.needs_norm:
            self.final_norm = GridBatchNorm(
                config.grid_channels, config.batch_norm_eps, config.batch_norm_momentum
            )
        aggregation: Any = AGGREGATIONS[config.aggregation](config.grid_channels)
        aggregation.after_relu = block.needs_norm and config.aggregation != "gated_max"
        self.aggregation = aggregation
        self.output_projection: nn.Module = nn.Identity()
        if config.tie_word_embeddings:
            self.output_projection = nn.Linear(config.aggregated_channels, config.target_embed_dim)
        self.post_init()

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
    ) -> PervasiveAttentionDecoderOutput:
        """Decode target prefixes.

        Args:
            input_ids: [B, I], the positions after those in the cache.
            attention_mask: [B, past + I], 1 = a real token.
            encoder_hidden_states: Source embeddings [B, J, d_s].
            encoder_attention_mask: [B, J], 1 = a real token.
            cache: Cache of earlier rows.
            inputs_embeds: [B, I, d_t] instead of `input_ids`.
            use_cache: Whether to keep rows; default: the config's, outside training.
            output_attentions: Whether to return `cross_attentions` and `grid`, too.
            output_hidden_states: Whether to return `hidden_states`, too.

        Raises:
            ValueError: There is no source, source and target do not fit together or are empty, a
                mask has another shape, or the cache is of another kind.
        """
        known_keywords(kwargs, type(self).forward)
        if encoder_hidden_states is None:
            raise ValueError(
                "`encoder_hidden_states` must be given: every cell of the grid needs a source "
                "token."
            )
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training and not torch.is_grad_enabled()
        if use_cache and cache is None:
            cache = make_grid_cache()
        rows = _grid_cache(cache)
        past = rows.get_seq_length() if rows is not None else 0
        if rows is not None and (
            torch.is_grad_enabled() or any(norm.is_of_batch for norm in self._norms())
        ):
            raise ValueError(
                "The cache keeps grid rows of an evaluation without gradients; call model.eval() "
                "and use torch.no_grad(), or pass use_cache=False."
            )
        embeddings, target_mask = self._embed(
            input_ids, inputs_embeds, attention_mask, past, prefix="decoder_"
        )
        source = encoder_hidden_states
        if 0 in (*embeddings.shape[:2], *source.shape[:2]):
            raise ValueError(
                "The grid needs at least one sentence, one target and one source token, got "
                f"targets {list(embeddings.shape[:2])} and sources {list(source.shape[:2])} "
                "([batch, length])."
            )
        check_as_many(source.shape[0], embeddings.shape[0])
        source_mask = padding_mask(
            encoder_attention_mask, source.shape[0], source.shape[1], "attention_mask"
        )
        if target_mask is not None:
            target_mask = target_mask[:, past:]
        shape = (source.shape[0], embeddings.shape[1], source.shape[1])
        beside = self.config.kernel_size // 2
        is_prefix = rows is not None and rows.takes_prefix(shape[1], beside)
        # Below earlier rows, a row's contributions are computed, and nothing is read above it
        above = beside if rows is None or is_prefix else 0
        canvas = Canvas.of_masks(shape, target_mask, source_mask, above, beside)
        block = getattr(self, f"{self.config.block}_block")
        rows_above = None
        if rows is not None:
            last_rows = None
            if is_prefix:
                last_rows = Canvas.of_masks(
                    (shape[0], beside, shape[2]),
                    None if target_mask is None else target_mask[:, -beside:],
                    source_mask,
                    above=0,
                    beside=beside,
                )
            rows_above = RowSums(
                rows, canvas, self.config.num_layers, block.pending_channels, last_rows
            )
        inputs = canvas.sum_of(*self.input_projection(embeddings, source))
        cells = block(inputs, canvas, rows_above)
        if rows_above is not None:
            rows_above.finish()
        if block.needs_norm:
            cells = self.final_norm(cells, canvas.real).relu()
        aggregated, attention = canvas.aggregate(cells, source_mask, self.aggregation)
        hidden_state = self.output_projection(aggregated)
        hidden_state = drop(hidden_state, self.config.dropout, self.training)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        outputs = PervasiveAttentionDecoderOutput(
            last_hidden_state=hidden_state,
            cache=cache,
            hidden_states=(embeddings, hidden_state) if output_hidden_states else None,
        )
        if self.config.output_attentions if output_attentions is None else output_attentions:
            outputs.grid = canvas.unpack(cells)
            share = (
                self.aggregation.pooled_share(outputs.grid, source_mask)
                if attention is None
                else attention
            )
            outputs.cross_attentions = (share.unsqueeze(1),)
        return outputs


def _grid_cache(cache: Cache | None) -> GridCache | None:
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if cache is not None and not isinstance(cache, GridCache):
        raise ValueError(
            f"Pervasive Attention keeps grid rows, which a {type(cache).__name__} cannot hold: "
            "leave `cache` and `cache_implementation` unset, or pass use_cache=False."
        )
    return cache


class PervasiveAttentionModel(PervasiveAttentionPreTrainedModel, Seq2SeqModel):
    """The network without the output projection."""

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.source_embed_dim)
        self.encoder = PervasiveAttentionEncoder(config)
        self.decoder = PervasiveAttentionDecoder(config)
        self.post_init()

    def _join(self, encoder_outputs: Any, decoder_outputs: Any) -> PervasiveAttentionModelOutput:
        joined = super()._join(encoder_outputs, decoder_outputs)
        return PervasiveAttentionModelOutput(**joined, grid=decoder_outputs.grid)


class PervasiveAttentionForConditionalGeneration(
    PervasiveAttentionPreTrainedModel, Seq2SeqForGeneration
):
    """Pervasive Attention with the output projection, for translation."""

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__(config)
        self.model = PervasiveAttentionModel(config)
        width = (
            config.target_embed_dim if config.tie_word_embeddings else config.aggregated_channels
        )
        self.lm_head = nn.Linear(width, config.decoder_vocab_size)
        self.post_init()

    def _target_mask(
        self,
        mask: torch.Tensor | None,
        decoder_input_ids: torch.Tensor | None,
        labels: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """Padding must not enter the statistics: the rows up to the last label, or before trailing
        padding.
        """
        if mask is None and labels is not None:
            return rows_with_labels(labels)
        if mask is None and self.training and decoder_input_ids is not None:
            return rows_before_padding(
                decoder_input_ids, self.config
            )  # a Trainer that computes the loss itself
        return mask

    def _explain(self, outputs: Any, logits: torch.Tensor, **inputs: torch.Tensor | None) -> Any:
        """The implicit alignment of target rows with source tokens, one [B, 1, I, J], zero at
        padding.

        For `"attention"` it is ρ (equation 8). Otherwise it is what each source token adds to the
        logit of a word (equation 7), before dropout; its sum over the source tokens, plus the
        biases, is that logit."""
        aggregation = self.model.decoder.aggregation
        if outputs.cross_attentions is None:
            return outputs.cross_attentions
        attention_mask = inputs.pop("attention_mask")
        words = words_to_explain(logits, **inputs)
        directions = F.embedding(words, self.lm_head.weight)
        if self.config.tie_word_embeddings:
            directions = directions @ self.model.decoder.output_projection.weight
        source_mask = None if attention_mask is None else attention_mask.bool()
        (share,) = outputs.cross_attentions
        grid = outputs.grid
        alignment = aggregation.contributions(
            grid, source_mask, share.squeeze(1), directions.to(grid.dtype)
        )
        return (alignment.unsqueeze(1),)

    def make_cache(self, num_beams: int) -> Cache:
        """The last rows of the grid of every layer."""
        return make_grid_cache()


PervasiveAttentionModel.register_for_auto_class("AutoModel")
PervasiveAttentionForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = [
    "PervasiveAttentionForConditionalGeneration",
    "PervasiveAttentionModel",
    "PervasiveAttentionPreTrainedModel",
]
