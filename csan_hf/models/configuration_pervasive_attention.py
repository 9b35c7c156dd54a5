# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Configuration of Pervasive Attention, translation by one 2D convolutional network."""

from .required_version import MINIMUM_TRANSFORMERS  # noqa: F401  (first, as what follows needs it)

# isort: split
import dataclasses
import os
from typing import Any

from transformers.configuration_utils import PreTrainedConfig

from .checkpoint_files import complete_checkpoint
from .keyword_checks import check_config_keywords

AGGREGATIONS = ("max", "average", "attention", "max_attention")
POSITION_EMBEDDINGS = ("learned", "sinusoidal")


class PervasiveAttentionConfig(PreTrainedConfig):
    """Configuration of a Pervasive Attention model (Elbayad et al., CoNLL 2018).

    The defaults are the paper's network: L = 24 layers of growth rate g = 32 with 5×5 kernels (of which
    5×3 weights are not masked), embeddings of 128 and max aggregation.

    Args:
        vocab_size: Entries of the source vocabulary (of both, where shared).
        decoder_vocab_size: Entries of the target vocabulary; default: `vocab_size`.
        share_encoder_decoder_embeddings: Whether source and target share one embedding (and one vocabulary).
        tie_word_embeddings: Whether the output projection is the target embedding, after a linear map from the
            features to its width. If not, the features are projected straight to the vocabulary.
        source_embed_dim: Width d_s of the source embedding.
        target_embed_dim: Width d_t of the target embedding; d_s + d_t is even.
        num_layers: Dense layers L.
        growth_rate: Channels g that every dense layer adds.
        kernel_size: Kernel k of the masked convolutions: k source positions wide, (k + 1) / 2 target positions deep.
            Odd.
        bottleneck_factor: A dense layer's 1×1 convolution makes `bottleneck_factor` · g channels.
        gated: Whether the masked convolution is gated (a gated linear unit).
        aggregation: How a row of the grid becomes one vector: `"max"` (equation 2), `"average"` (equation 3),
            `"attention"` (equations 8 and 9) or `"max_attention"` (the first and the third, concatenated).
        dropout: Dropout after every masked convolution and before the output projection.
        embedding_dropout: Dropout of the embeddings.
        position_embeddings: `None`, `"learned"` or `"sinusoidal"`: added to both embeddings.
        max_position_embeddings: Positions of the learned embeddings (longer inputs are refused), and of the
            precomputed sinusoids, up to 16,384 (longer inputs extend them).
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
        ValueError: A field is out of range, or a keyword is a misspelt field; the message names the field and the
            value. (A keyword that resembles no field gives a warning and is kept as an attribute, as in transformers.)

    Example:
        >>> from csan_hf import PervasiveAttentionConfig, PervasiveAttentionForConditionalGeneration
        >>> config = PervasiveAttentionConfig(vocab_size=8000, num_layers=12)
        >>> model = PervasiveAttentionForConditionalGeneration(config)
    """

    model_type = "pervasive_attention"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012
    attribute_map = {  # noqa: RUF012
        "hidden_size": "target_embed_dim",
        "num_hidden_layers": "num_layers",
    }

    vocab_size: int = 12000
    decoder_vocab_size: int = None  # type: ignore[assignment]  # `vocab_size` once initialised
    share_encoder_decoder_embeddings: bool = False
    tie_word_embeddings: bool = True
    is_encoder_decoder: bool = True
    is_decoder: bool = False

    source_embed_dim: int = 128
    target_embed_dim: int = 128
    num_layers: int = 24
    growth_rate: int = 32
    kernel_size: int = 5
    bottleneck_factor: int = 4
    gated: bool = False
    aggregation: str = "max"
    dropout: float = 0.2
    embedding_dropout: float = 0.0
    position_embeddings: str | None = None
    max_position_embeddings: int = 1024
    batch_norm_eps: float = 1e-5
    batch_norm_momentum: float = 0.1
    init_std: float | None = None

    use_cache: bool = True
    decoder_start_token_id: int = 0
    pad_token_id: int = 0
    eos_token_id: int | list[int] | None = 1
    bos_token_id: int | None = None
    forced_eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Fill in the derived defaults and validate."""
        if self.decoder_vocab_size is None:
            self.decoder_vocab_size = self.vocab_size
        check_config_keywords(self, kwargs, {field.name for field in dataclasses.fields(self)})
        super().__post_init__(**kwargs)
        self.validate_fields()

    @property
    def input_channels(self) -> int:
        """Channels that enter the dense block: half of f0 = d_t + d_s."""
        return (self.source_embed_dim + self.target_embed_dim) // 2

    @property
    def block_channels(self) -> int:
        """Channels that leave the dense block: f0 / 2 + L · g."""
        return self.input_channels + self.num_layers * self.growth_rate

    @property
    def grid_channels(self) -> int:
        """Channels f_L of the grid that is aggregated: half of those that leave the dense block."""
        return self.block_channels // 2

    @property
    def aggregated_channels(self) -> int:
        """Channels of a target row after aggregation."""
        return self.grid_channels * (2 if self.aggregation == "max_attention" else 1)

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Save as transformers does; with a model's config, also the code to load it where csan_hf is not installed.

        Args:
            save_directory: The directory; created if missing. Saving a model calls this method, too.
            push_to_hub: See transformers.
            kwargs: See transformers.
        """
        is_of_model = bool(self.architectures or getattr(self, "auto_map", None))
        named = complete_checkpoint(self, save_directory) if is_of_model else self
        super(PervasiveAttentionConfig, named).save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)

    def validate_fields(self) -> None:
        """Raise `ValueError` where the configuration is impossible; the message names field and value."""
        self._validate_sizes()
        self._validate_tokens()
        self._validate_numbers()
        self._validate_choices()

    def _validate_sizes(self) -> None:
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"`{name}` must be True or False, got {getattr(self, name)!r}.")
        for name in _POSITIVE_FIELDS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"`{name}` must be an integer of at least 1, got {value!r}.")
        if self.kernel_size % 2 == 0:
            raise ValueError(f"`kernel_size` must be odd, got {self.kernel_size}.")
        width = self.source_embed_dim + self.target_embed_dim
        if width % 2:
            raise ValueError(
                f"`source_embed_dim` ({self.source_embed_dim}) + `target_embed_dim` ({self.target_embed_dim}) must be "
                f"even, as the first convolution halves the channels, got {width}."
            )
        if not self.share_encoder_decoder_embeddings:
            return
        for source, target in (("vocab_size", "decoder_vocab_size"), ("source_embed_dim", "target_embed_dim")):
            if getattr(self, source) != getattr(self, target):
                raise ValueError(
                    f"`{target}` ({getattr(self, target)}) must equal `{source}` ({getattr(self, source)}) with "
                    "share_encoder_decoder_embeddings=True; set it to False for separate embeddings."
                )

    def _validate_tokens(self) -> None:
        # Padding stands on both sides
        sizes = {
            "pad_token_id": min(self.vocab_size, self.decoder_vocab_size),
            "decoder_start_token_id": self.decoder_vocab_size,
        }
        for name, size in sizes.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
                raise ValueError(f"`{name}` must be a token of the vocabulary, 0 to {size - 1}, got {value!r}.")
        for name in ("eos_token_id", "bos_token_id", "forced_eos_token_id"):
            value = getattr(self, name)
            for token in (value or [value]) if isinstance(value, list | tuple) else [] if value is None else [value]:
                if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self.decoder_vocab_size:
                    raise ValueError(
                        f"`{name}` must be None or a token (or a list of tokens) of the vocabulary, 0 to "
                        f"{self.decoder_vocab_size - 1}, got {value!r}."
                    )

    def _validate_numbers(self) -> None:
        for name in ("dropout", "embedding_dropout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < 1.0:
                raise ValueError(f"`{name}` must be at least 0 and below 1, got {value!r}.")
        positive = {"batch_norm_eps": self.batch_norm_eps, "init_std": 1.0 if self.init_std is None else self.init_std}
        for name, value in positive.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < float("inf"):
                raise ValueError(f"`{name}` must be a positive number, got {value!r}.")
        momentum = self.batch_norm_momentum
        if isinstance(momentum, bool) or not isinstance(momentum, int | float) or not 0.0 <= momentum <= 1.0:
            raise ValueError(f"`batch_norm_momentum` must be a number between 0 and 1, got {momentum!r}.")

    def _validate_choices(self) -> None:
        if self.aggregation not in AGGREGATIONS:
            raise ValueError(f"`aggregation` must be one of {list(AGGREGATIONS)}, got {self.aggregation!r}.")
        if self.position_embeddings is not None and self.position_embeddings not in POSITION_EMBEDDINGS:
            raise ValueError(
                f"`position_embeddings` must be None or one of {list(POSITION_EMBEDDINGS)}, "
                f"got {self.position_embeddings!r}."
            )


_FLAGS = ("share_encoder_decoder_embeddings", "tie_word_embeddings", "gated", "use_cache")
_POSITIVE_FIELDS = (
    "vocab_size",
    "decoder_vocab_size",
    "source_embed_dim",
    "target_embed_dim",
    "num_layers",
    "growth_rate",
    "kernel_size",
    "bottleneck_factor",
    "max_position_embeddings",
)

__all__ = ["PervasiveAttentionConfig"]
