# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Pervasive Attention: translation by one masked 2D network over the source × target grid (Elbayad
et al., 2018).

The encoder only embeds the source: every cell of the grid sees a target prefix and a source token,
and convolutions do the rest. Shapes: B batch, I target and J source positions,
d_t and d_s widths of the embeddings, f_L channels of the final grid, V target vocabulary."""

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_outputs import (
    BaseModelOutput,
)
from transformers.utils import can_return_tuple

from .canvas import Canvas, rows_before_padding, up_to_last, words_to_explain
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
from .layers import (
    SinusoidalPositionalEmbedding,
    attention_weights,
    check_as_many,
    drop,
    embed,
    padding_mask,
)
from .residual_block import DepthwiseConvolution, ResidualBlock
from .seq2seq_model import (
    IGNORED_LABEL,
    DecoderOutput,
    Seq2SeqForGeneration,
    Seq2SeqModel,
    Seq2SeqPreTrained,
    known_keywords,
    takes_past_key_values,
)


class LearnedPositionalEmbedding(nn.Embedding):
    """One trained vector for each position."""

    def forward(self, length: int, offset: int = 0) -> Tensor:  # type: ignore[override]
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

    def forward(self, target: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [B, I, channels] of targets [B, I, d_t], columns [B, J, channels] of sources; a cell
        is their sum.
        """
        rows = F.linear(target, self.weight[:, : self.target_dim])
        return rows, F.linear(source, self.weight[:, self.target_dim :], self.bias)


Aggregated = tuple[Tensor, Tensor | None]


class MaxAggregation(nn.Module):
    """Collapses the source axis of H [B, I, J, f] by its maximum (equation 2).

    Padding is zero in H: after a ReLU (`after_relu`) it is no maximum; otherwise it is hidden.
    """

    after_relu = False

    def __init__(self, channels: int) -> None:
        super().__init__()

    def features(self, grid: Tensor) -> Tensor:
        """The features [B, I, J, f] that are pooled."""
        return grid

    def _pooled(self, grid: Tensor, source_mask: Tensor | None) -> Tensor:
        features = self.features(grid)
        if source_mask is None or self.after_relu:
            return features
        hidden = ~source_mask & source_mask.any(dim=1, keepdim=True)
        return features.masked_fill(hidden[:, None, :, None], torch.finfo(features.dtype).min)

    def forward(self, grid: Tensor, source_mask: Tensor | None) -> Aggregated:
        """Aggregate over the real source tokens of the mask [B, J] (None = all).

        Returns:
            [B, I, f or 2f], and ρ [B, I, J] if there is an attention.
        """
        features = self._pooled(grid, source_mask)
        if features.requires_grad:  # the gradient goes to the first of equal ones
            return features.max(dim=2).values, None
        return features.amax(dim=2), None

    def contributions(
        self,
        grid: Tensor,
        source_mask: Tensor | None,
        weights: Tensor,
        directions: Tensor,
    ) -> Tensor:
        """Contributions of the source tokens to a linear function of the aggregated row (equation
        7).

        Args:
            grid: H [B, I, J, f].
            source_mask: [B, J].
            weights: ρ [B, I, J] of the attention aggregations.
            directions: [B, I, f or 2f], the linear function at each row: the row of E of a word.

        Returns:
            α [B, I, J]; its sum over J is the function's value at the aggregated row. `"attention"`
            is not asked for it: ρ is its alignment.
        """
        values, columns = self._pooled(grid, source_mask).max(dim=2)
        return grid.new_zeros(grid.shape[:3]).scatter_add_(2, columns, values * directions)

    def pooled_share(self, grid: Tensor, source_mask: Tensor | None) -> Tensor:
        """The share of channels whose maximum lies at each source token, |B_ij| / f: [B, I, J].

        A channel that is 0 at all source tokens has its maximum at none of them.
        """
        values, columns = self._pooled(grid, source_mask).max(dim=2)
        live = values.ne(0).to(grid.dtype)
        return grid.new_zeros(grid.shape[:3]).scatter_add_(2, columns, live) / grid.shape[-1]


class AverageAggregation(MaxAggregation):
    """The sum over the source tokens, over the square root of their number (equation 3)."""

    def forward(self, grid: Tensor, source_mask: Tensor | None) -> Aggregated:
        return grid.sum(dim=2) / _root_of_lengths(grid, source_mask), None

    def contributions(
        self,
        grid: Tensor,
        source_mask: Tensor | None,
        weights: Tensor,
        directions: Tensor,
    ) -> Tensor:
        return (grid @ directions.unsqueeze(-1)).squeeze(-1) / _root_of_lengths(grid, source_mask)


class AttentionAggregation(MaxAggregation):
    """The sum weighted by an attention ρ, times the square root of the number of source tokens
    (equations 8 and 9).
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.attention = nn.Linear(channels, 1)

    def forward(self, grid: Tensor, source_mask: Tensor | None) -> Aggregated:
        energies = self.attention(grid).squeeze(-1).to(grid.dtype)  # autocast has another type
        weights = attention_weights(energies, source_mask)
        attended = (weights.unsqueeze(2) @ grid).squeeze(2)
        return attended * _root_of_lengths(grid, source_mask), weights


class MaxAttentionAggregation(AttentionAggregation):
    """The maximum and the attention, concatenated."""

    def forward(self, grid: Tensor, source_mask: Tensor | None) -> Aggregated:
        attended, weights = super().forward(grid, source_mask)
        pooled, _ = MaxAggregation.forward(self, grid, source_mask)
        return torch.cat([pooled, attended], dim=-1), weights

    def contributions(
        self,
        grid: Tensor,
        source_mask: Tensor | None,
        weights: Tensor,
        directions: Tensor,
    ) -> Tensor:
        pooled, attended = directions.chunk(2, dim=-1)
        scores = (grid @ attended.unsqueeze(-1)).squeeze(-1) * weights
        scores = scores * _root_of_lengths(grid, source_mask)
        return scores + MaxAggregation.contributions(self, grid, source_mask, weights, pooled)


class GatedMaxAggregation(MaxAggregation):
    """The maximum of a gated linear unit of the features, of the authors' later network."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.gate = nn.Linear(channels, 2 * channels)

    def features(self, grid: Tensor) -> Tensor:
        return F.glu(self.gate(grid), dim=-1)


AGGREGATIONS = {
    "max": MaxAggregation,
    "average": AverageAggregation,
    "attention": AttentionAggregation,
    "max_attention": MaxAttentionAggregation,
    "gated_max": GatedMaxAggregation,
}
# Networks that give the cells [R, f_L] of H: `block(inputs, canvas, rows_above)`; with `needs_norm`
# the decoder's final norm follows, which checkpoints and adapters know by that place
BLOCKS = {"dense": DenseBlock, "residual": ResidualBlock}


def _root_of_lengths(grid: Tensor, source_mask: Tensor | None) -> Tensor | float:
    """Square root of the number of real source tokens, [B, 1, 1]."""
    if source_mask is None:
        return float(grid.shape[2]) ** 0.5
    return source_mask.sum(dim=1).clamp(min=1).to(grid.dtype).sqrt().view(-1, 1, 1)


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
            rf"dense_block\.{former}": f"dense_block.{name}"
            for former, name in FORMER_NAMES.items()
        }
        return super().from_pretrained(
            *args, key_mapping={**renamed, **(key_mapping or {})}, **kwargs
        )

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """New weights: He after a ReLU, Xavier elsewhere, embeddings N(0, `init_std`)."""
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
            bound = 1.0 / module.weight.shape[3]
            init.uniform_(module.weight, -bound, bound)
            init.zeros_(module.bias)
        elif isinstance(module, PointwiseConvolution | MaskedConvolution):
            init.normal_(module.weight, mean=0.0, std=math.sqrt(2.0 / module.weight[0].numel()))
        elif isinstance(module, JointProjection | nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            std = self.config.init_std or self.config.target_embed_dim**-0.5
            init.normal_(module.weight, mean=0.0, std=std)
        elif isinstance(module, SinusoidalPositionalEmbedding):
            init.copy_(module.weight, module.create_weight(module.num_positions))

    def _embed(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        mask: Tensor | None,
        past: int = 0,
        prefix: str = "",
    ) -> tuple[Tensor, Tensor | None]:
        """Embeddings [B, T, d] with positions, which count real tokens, and the mask [B, past + T]
        as booleans.

        `prefix` stands before the names of the inputs in messages.
        """
        model: Any = self  # an encoder or a decoder
        embeddings = embed(model.embed_tokens, input_ids, inputs_embeds, prefix)
        batch, length = embeddings.shape[:2]
        real = padding_mask(mask, batch, past + length, f"{prefix}attention_mask")
        if self.config.scale_embedding:
            embeddings = math.sqrt(embeddings.shape[-1]) * embeddings
        if model.embed_positions is not None:
            if real is None:
                positions = model.embed_positions(length, past)
            else:
                ranks = (real.long().cumsum(dim=1) - 1).clamp(min=0)[:, past:]
                positions = F.embedding(ranks, model.embed_positions(past + length))
            embeddings = embeddings + positions.to(embeddings.dtype)
            if not self.config.scale_embedding:
                embeddings = math.sqrt(0.5) * embeddings
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

        Training leaves an average over its last few batches, with weights that were still moving,
        and too noisy where a feature is rarely active; averaged weights have no statistics of their
        own at all (Wu and Johnson, 2021, "Rethinking 'Batch' in BatchNorm", section 3).

        Args:
            batches: Arguments of `forward`, as in training: a few hundred batches of training data.
                Modules in eval mode within a model in training mode stay so.

        Returns:
            The number of batches; with 0 nothing has changed.
        """
        momenta = {norm: norm.momentum for norm in self._norms()}
        if not momenta:
            return 0
        was_training = self.training
        if not was_training:
            self.train()
        count = 0
        try:
            for count, batch in enumerate(batches, start=1):
                for norm in momenta:
                    norm.momentum = 1.0 / count
                self(**batch)
        finally:
            for norm, momentum in momenta.items():
                norm.momentum = momentum
            if not was_training:
                self.eval()
        return count

    def num_parameters_with_masked_taps(self) -> int:
        """Parameters as the paper counts them: k×k kernels, with the masked taps, which are not
        stored here.
        """
        count = self.num_parameters()
        for module in self.modules():
            if isinstance(module, MaskedConvolution):  # [out, in, ceil(k / 2), k]
                masked_rows = module.weight.shape[3] // 2
                count += module.weight[:, :, 0].numel() * masked_rows
        return count


class PervasiveAttentionEncoder(PervasiveAttentionPreTrainedModel):
    """The source embedding, which generation computes once for a sentence."""

    supports_gradient_checkpointing = False  # nothing here is worth computing again

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.source_embed_dim)
        self.embed_positions = make_position_embedding(config, config.source_embed_dim)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
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
    ) -> DecoderOutput:
        """Decode target prefixes.

        Args:
            input_ids: [B, I], the positions after those in the cache.
            attention_mask: [B, past + I], 1 = a real token.
            encoder_hidden_states: Source embeddings [B, J, d_s].
            encoder_attention_mask: [B, J], 1 = a real token.
            cache: Cache of earlier rows.
            inputs_embeds: [B, I, d_t] instead of `input_ids`.
            use_cache: Whether to keep rows; default: the config's, outside training.
            output_attentions: Whether to return `cross_attentions` and `details`, the grid, too.
            output_hidden_states: Whether to return `hidden_states`, too.

        Raises:
            ValueError: There is no source, source and target do not fit together, a mask has
                another shape, or the cache is of another kind.
        """
        known_keywords(kwargs)
        if encoder_hidden_states is None:
            raise ValueError(
                "`encoder_hidden_states` must be given: every cell of the grid needs a source "
                "token."
            )
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training and not torch.is_grad_enabled()
        if use_cache and cache is None:
            cache = make_grid_cache()
        rows = self._grid_cache(cache)
        past = 0 if rows is None else rows.get_seq_length()
        embeddings, target_mask = self._embed(
            input_ids, inputs_embeds, attention_mask, past, prefix="decoder_"
        )
        if target_mask is not None:
            target_mask = target_mask[:, past:]
        sources, columns = encoder_hidden_states.shape[:2]
        source_mask = padding_mask(encoder_attention_mask, sources, columns, "attention_mask")
        check_as_many(sources, embeddings.shape[0])
        shape = (*embeddings.shape[:2], columns)
        reach = self.config.kernel_size // 2
        is_prefix = rows is not None and rows.takes_prefix(shape[1], reach)
        # A row below earlier ones is multiplied alone, and nothing is read above it
        above = reach if rows is None or is_prefix else 0
        canvas = Canvas.of_masks(shape, target_mask, source_mask, above=above, beside=reach)
        last_rows = None
        if is_prefix:
            last_mask = None if target_mask is None else target_mask[:, -reach:]
            last_shape = (shape[0], reach, shape[2])
            last_rows = Canvas.of_masks(last_shape, last_mask, source_mask, above=0, beside=reach)
        block = getattr(self, f"{self.config.block}_block")
        rows_above = None
        if rows is not None:
            rows_above = RowSums(
                rows, canvas, self.config.num_layers, block.pending_channels, last_rows
            )
        inputs = canvas.sum_of(*self.input_projection(embeddings, encoder_hidden_states))
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
        outputs = DecoderOutput(
            hidden_state,
            cache,
            hidden_states=(embeddings, hidden_state) if output_hidden_states else None,
        )
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_attentions:
            outputs.details = canvas.unpack(cells)
            if attention is None:
                attention = self.aggregation.pooled_share(outputs.details, source_mask)
            outputs.cross_attentions = (attention.unsqueeze(1),)
        return outputs

    def _grid_cache(self, cache: Cache | None) -> GridCache | None:
        """The rows of a cache; refuse one that cannot be used."""
        if isinstance(cache, EncoderDecoderCache):
            cache = cache.self_attention_cache
        if cache is None:
            return None
        if not isinstance(cache, GridCache):
            raise ValueError(
                f"Pervasive Attention keeps grid rows, which a {type(cache).__name__} cannot hold: "
                "leave `cache` and `cache_implementation` unset, or pass use_cache=False. Prefix "
                "tuning, whose prefix is keys and values, is for models that attend to those."
            )
        if torch.is_grad_enabled() or any(norm.is_of_batch for norm in self._norms()):
            raise ValueError(
                "The cache keeps grid rows of an evaluation without gradients; call model.eval() "
                "and use torch.no_grad(), or pass use_cache=False."
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
        mask: Tensor | None,
        decoder_input_ids: Tensor | None,
        labels: Tensor | None,
    ) -> Tensor | None:
        """The rows up to the last label, or before trailing padding, which must not enter the
        statistics.
        """
        if mask is not None:
            return mask
        if labels is not None:
            return up_to_last(labels.ne(IGNORED_LABEL))
        if self.training and decoder_input_ids is not None:
            # A Trainer that computes the loss itself keeps the labels
            return rows_before_padding(decoder_input_ids, self.config)
        return None

    def _explain(self, outputs: Any, logits: Tensor, **inputs: Tensor | None) -> Any:
        """The implicit alignment of target rows with source tokens, one [B, 1, I, J], zero at
        padding.

        For `"attention"` it is ρ (equation 8), otherwise the contributions of the source tokens to
        the logit of a word (equation 7), before dropout; their sum, plus the biases, is that logit.
        """
        if outputs.cross_attentions is None or self.config.aggregation == "attention":
            return outputs.cross_attentions
        attention_mask = inputs.pop("attention_mask")
        words = words_to_explain(logits, **inputs)
        directions = F.embedding(words, self.lm_head.weight)
        if self.is_tied:
            directions = directions @ self.model.decoder.output_projection.weight
        source_mask = None if attention_mask is None else attention_mask.bool()
        (share,) = outputs.cross_attentions
        grid = outputs.details
        alignment = self.model.decoder.aggregation.contributions(
            grid, source_mask, share.squeeze(1), directions.to(grid.dtype)
        )
        return (alignment.unsqueeze(1),)

    @property
    def is_tied(self) -> bool:
        """Whether the output projection has the shape of an embedding."""
        return not isinstance(self.model.decoder.output_projection, nn.Identity)

    def make_cache(self, num_beams: int) -> Cache:
        """A cache for the sums of every layer over the last rows."""
        return make_grid_cache()


PervasiveAttentionPreTrainedModel.body_class = PervasiveAttentionModel
PervasiveAttentionModel.register_for_auto_class("AutoModel")
PervasiveAttentionForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = [
    "PervasiveAttentionForConditionalGeneration",
    "PervasiveAttentionModel",
    "PervasiveAttentionPreTrainedModel",
]
