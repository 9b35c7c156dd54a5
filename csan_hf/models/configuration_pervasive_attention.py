# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Configuration of Pervasive Attention, translation by one 2D convolutional network."""

from typing import Literal

from .configuration_seq2seq import MOST_LAYERS, Seq2SeqConfig, bounded


class PervasiveAttentionConfig(Seq2SeqConfig):
    """Configuration of a Pervasive Attention model (Elbayad et al., CoNLL 2018).

    The defaults are the paper's network: L = 24 layers of growth rate g = 32 with 5×5 kernels (of
    which 5×3 weights are not masked), embeddings of 128 and max aggregation.

    Args:
        vocab_size: Entries of the source vocabulary (of both, where shared).
        decoder_vocab_size: Entries of the target vocabulary; default: `vocab_size`.
        share_encoder_decoder_embeddings: Whether source and target share one embedding (and one
            vocabulary).
        tie_word_embeddings: Whether the output projection is the target embedding, after a linear
            map from the features to its width. If not, the features are projected straight to the
            vocabulary.
        source_embed_dim: Width d_s of the source embedding.
        target_embed_dim: Width d_t of the target embedding; d_s + d_t is even.
        block: The network over the grid: `"dense"`, the paper's, or `"residual"`, a later one of
            the same authors without normalisation, of (d_s + d_t) / 2 channels.
        num_layers: Layers L.
        growth_rate: Channels g that every dense layer adds.
        kernel_size: Kernel k of the masked convolutions: k source positions wide, (k + 1) / 2
            target positions deep. Odd.
        bottleneck_factor: A dense layer's 1×1 convolution makes `bottleneck_factor` · g channels.
        gated: Whether a dense layer's masked convolution is gated (a gated linear unit).
        ffn_dim: Width of a residual layer's feed-forward network.
        aggregation: How a row of the grid becomes one vector: `"max"` (equation 2), `"average"`
            (equation 3), `"attention"` (equations 8 and 9), `"max_attention"` (the first and the
            third, concatenated) or `"gated_max"` (the maximum of a gated linear unit).
        dropout: Dropout after every masked convolution and feed-forward network, and before the
            output projection.
        embedding_dropout: Dropout of the embeddings.
        position_embeddings: `None`, `"learned"` or `"sinusoidal"`: added to both embeddings.
        scale_embedding: Whether an embedding of width d is sqrt(d) · token + position. If not, it
            is sqrt(1/2) (token + position), or the token's alone where there are no positions.
        max_position_embeddings: Positions of the learned embeddings (longer inputs are refused),
            and of the precomputed sinusoids, up to 16,384 (longer inputs extend them).
        batch_norm_eps: Epsilon of the batch normalisations.
        batch_norm_momentum: Weight of a batch in their running statistics.
        init_std: Standard deviation of new embeddings; default: `target_embed_dim` ** -0.5.
        use_cache: Whether generation keeps the grid's last rows.
        decoder_start_token_id: First input of the decoder.
        pad_token_id: Padding token.
        eos_token_id: End of a sentence.
        bos_token_id: Unused by the model.
        forced_eos_token_id: Token forced at the maximal length, `None` = none.

    Raises:
        ValueError: A field is out of range, or a keyword is a misspelt field; the message names the
            field and the value. (A keyword that resembles no field gives a warning and is kept as
            an attribute, as in transformers.)

    Example:
        >>> from csan_hf import PervasiveAttentionConfig, PervasiveAttentionForConditionalGeneration
        >>> config = PervasiveAttentionConfig(vocab_size=8000, num_layers=12)
        >>> model = PervasiveAttentionForConditionalGeneration(config)
    """

    model_type = "pervasive_attention"
    attribute_map = {  # noqa: RUF012
        "hidden_size": "target_embed_dim",
        "num_hidden_layers": "num_layers",
    }

    vocab_size: int = bounded(12000, 1)
    share_encoder_decoder_embeddings: bool = False
    source_embed_dim: int = bounded(128, 1)
    target_embed_dim: int = bounded(128, 1)
    block: Literal["dense", "residual"] = "dense"
    num_layers: int = bounded(24, 1, MOST_LAYERS)
    growth_rate: int = bounded(32, 1)
    kernel_size: int = bounded(5, 1, odd=True)
    bottleneck_factor: int = bounded(4, 1)
    gated: bool = False
    ffn_dim: int = bounded(1024, 1)
    aggregation: Literal["max", "average", "attention", "max_attention", "gated_max"] = "max"
    dropout: float | int = bounded(0.2, 0, below=1)
    embedding_dropout: float | int = bounded(0.0, 0, below=1)
    position_embeddings: Literal["learned", "sinusoidal"] | None = None
    scale_embedding: bool = False
    max_position_embeddings: int = bounded(1024, 1)
    batch_norm_eps: float | int = bounded(1e-5, above=0)
    batch_norm_momentum: float | int = bounded(0.1, 0, 1)
    init_std: float | int | None = bounded(None, above=0)

    @property
    def input_channels(self) -> int:
        """Channels that enter the block: half of f0 = d_t + d_s."""
        return (self.source_embed_dim + self.target_embed_dim) // 2

    @property
    def block_channels(self) -> int:
        """Channels that leave the dense block: f0 / 2 + L · g."""
        return self.input_channels + self.num_layers * self.growth_rate

    @property
    def grid_channels(self) -> int:
        """Channels f_L of the grid that is aggregated: half of those of the dense block, or the
        residual one's.
        """
        return self.input_channels if self.block == "residual" else self.block_channels // 2

    @property
    def aggregated_channels(self) -> int:
        """Channels of a target row after aggregation."""
        return self.grid_channels * (2 if self.aggregation == "max_attention" else 1)

    def validate_fields(self) -> None:
        """Raise `ValueError` where the configuration is impossible; the message names field and
        value.
        """
        super().validate_fields()
        source, target = self.source_embed_dim, self.target_embed_dim
        if (source + target) % 2:
            raise ValueError(
                f"`source_embed_dim` ({source}) + `target_embed_dim` ({target}) must be even, as "
                f"the first convolution halves the channels, got {source + target}."
            )
        if self.share_encoder_decoder_embeddings and source != target:
            raise ValueError(
                f"`target_embed_dim` ({target}) must equal `source_embed_dim` ({source}) with "
                "share_encoder_decoder_embeddings=True; set it to False for separate embeddings."
            )


PervasiveAttentionConfig.register_for_auto_class()

__all__ = ["PervasiveAttentionConfig"]
