# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Configuration of CSAN, the Transformer with locality in its attention."""

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from transformers.activations import ACT2FN
from transformers.utils import logging

from .configuration_seq2seq import (
    MOST_LAYERS,
    Seq2SeqConfig,
    bounded,
)
from .locality import (
    PARTS,
    AttentionSite,
    LayerLocality,
    LocalityMethod,
    layer_locality,
)

logger = logging.get_logger(__name__)

LONG_FIELDS = {
    "encoder_locality": "encoder_layers",
    "decoder_locality": "decoder_layers",
    "cross_locality": "decoder_layers",
}
"""Fields that hold the locality of a part's layers, and those that hold how many there are."""


class CsanConfig(Seq2SeqConfig):
    """Configuration of a CSAN: Marian's fields, and where and how its attention is local.

    The defaults are the paper's 2D-CSAN on Transformer-base (Yang et al., NAACL 2019): a window of
    11 tokens and an area of 3 heads in the lowest three encoder layers. `local_window=None,
    head_area=1` is the plain Transformer.

    Locality is kept as a specification for each layer (`encoder_locality`, `decoder_locality`,
    `cross_locality`). The keywords of `ShortForm` (`local_window` to `cross_localness_layers`) say
    it for all local layers alike: a config is made of them, and they override those of a saved one
    whose locality they can express.

    Args:
        vocab_size: Entries of the source vocabulary (of both, where shared).
        decoder_vocab_size: Entries of the target vocabulary; default: `vocab_size`.
        share_encoder_decoder_embeddings: Whether source and target share one embedding (and one
            vocabulary).
        tie_word_embeddings: Whether the output projection is the decoder's embedding.
        d_model: Width d of the model.
        encoder_layers, decoder_layers: Number of layers.
        encoder_attention_heads, decoder_attention_heads: Attention heads H; they divide `d_model`.
        encoder_ffn_dim, decoder_ffn_dim: Width of the feed-forward layers.
        activation_function: Non-linearity of the feed-forward layers (a name from transformers'
            `ACT2FN`).
        dropout: Dropout after embeddings and sub-layers.
        attention_dropout: Dropout of attention weights.
        activation_dropout: Dropout inside the feed-forward layers.
        classifier_dropout: Dropout before the linear layer of the classification heads; `None` =
            `dropout`.
        encoder_layerdrop, decoder_layerdrop: Probability of skipping a layer in training.
        normalize_before: Layer normalisation before each sub-layer (pre-norm) instead of after it
            (post-norm).
        max_position_embeddings: Number of learned positions; length of the precomputed sinusoids,
            up to 16,384, which longer inputs extend.
        position_embeddings: `"sinusoidal"` (Vaswani et al., 2017), `"m2m_100"`, the sinusoids of
            M2M100 and NLLB, or `"learned"` with a layer normalisation, as in BART and mBART; see
            `SinusoidalPositionalEmbedding`. `None` = no positions. (Before: `sinusoids`.)
        scale_embedding: Whether embeddings are multiplied by sqrt(d_model).
        initialization: Scheme of new weights, `"xavier"` or `"normal"`; see
            `CsanPreTrainedModel._init_weights`.
        init_gain: Gain of `"xavier"`, for matrices and embeddings alike.
        init_std: Standard deviation of `"normal"`.
        encoder_locality: One specification for each encoder layer, or `None` for full attention:
            `[{"window": 11, "head_area": 3}, {"gaussian": "query"}, {"relative_positions": 16,
            "window": 5}, None]`. Keys are locality methods (`window`, `head_area`, `bi_direct`,
            `relative_positions`, `relative_bias`, `line`, `neighbor`, `local_hard`, `gaussian`,
            `moving_gaussian`, `block`, `cnn`), values their settings: the first alone, several as
            in `{"gaussian": {"width": "fixed", "size": 4}}`, or `True` for the defaults. Default:
            what the short form says.
        decoder_locality: The same for the self-attention of each decoder layer.
        cross_locality: The same for the cross-attention of each decoder layer.
        line_token_id: Token that ends a line in source and target, for the method `line`.
        use_cache: Whether generation keeps keys and values of earlier steps.
        decoder_start_token_id: First input of the decoder; the padding token, as in Marian.
        pad_token_id, eos_token_id, bos_token_id: Padding, end of a sentence, and one that the model
            does not use.
        forced_eos_token_id: Token forced at the maximum length; `None` = none.

    Raises:
        ValueError: See `Seq2SeqConfig`.

    Example:
        >>> config = CsanConfig.base(vocab_size=8000, local_window=11, head_area=1)
        >>> model = CsanForConditionalGeneration(config)
    """

    model_type = "csan"
    # Of csan_hf (`short_form.py`): what makes the long form of the short one. A checkpoint, which
    # has the long form, carries none of it
    long_form: ClassVar[Any] = staticmethod(dict)
    merge: ClassVar[Any] = staticmethod(operator.or_)
    attribute_map = {  # noqa: RUF012
        "num_attention_heads": "encoder_attention_heads",
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
    }

    d_model: int = bounded(512, 1)
    encoder_layers: int = bounded(6, 1, MOST_LAYERS)
    decoder_layers: int = bounded(6, 1, MOST_LAYERS)
    encoder_attention_heads: int = bounded(8, 1)
    decoder_attention_heads: int = bounded(8, 1)
    encoder_ffn_dim: int = bounded(2048, 1)
    decoder_ffn_dim: int = bounded(2048, 1)
    activation_function: str = "relu"
    dropout: float | int = bounded(0.1, 0, 1)
    attention_dropout: float | int = bounded(0.0, 0, 1)
    activation_dropout: float | int = bounded(0.0, 0, 1)
    classifier_dropout: float | int | None = bounded(None, 0, 1)
    encoder_layerdrop: float | int = bounded(0.0, 0, 1)
    decoder_layerdrop: float | int = bounded(0.0, 0, 1)
    normalize_before: bool = False
    max_position_embeddings: int = bounded(1024, 1)
    position_embeddings: Literal["sinusoidal", "m2m_100", "learned"] | None = "sinusoidal"
    scale_embedding: bool = True
    initialization: Literal["xavier", "normal"] = "xavier"
    init_gain: float | int = bounded(0.5, above=0)
    init_std: float | int = bounded(0.02, above=0)

    encoder_locality: list[Any] | tuple[Any, ...] | None = None
    decoder_locality: list[Any] | tuple[Any, ...] | None = None
    cross_locality: list[Any] | tuple[Any, ...] | None = None
    line_token_id: int | None = bounded(None, 0)

    @classmethod
    def base(cls, **overrides: Any) -> "CsanConfig":
        """Transformer-base: d_model 512, 8 heads, 6 + 6 layers, feed-forward 2048, dropout 0.1."""
        return cls(**overrides)

    @classmethod
    def big(cls, **overrides: Any) -> "CsanConfig":
        """Transformer-big: d_model 1024, 16 heads, 6 + 6 layers, feed-forward 4096, dropout 0.3."""
        sizes = {
            "d_model": 1024,
            "encoder_attention_heads": 16,
            "decoder_attention_heads": 16,
            "encoder_ffn_dim": 4096,
            "decoder_ffn_dim": 4096,
            "dropout": 0.3,
        }
        return cls(**{**sizes, **overrides})

    @classmethod
    def preset(cls, name: str | None, **fields: Any) -> "CsanConfig":
        """Transformer-base with a locality method as the papers compare it, or for long texts.

        Args:
            name: `"bi_direct"`, `"rel_pos"`, `"neighbor"`, `"local_hard"`, `"local_soft"`,
                `"block"`, `"cnn"`, `"csan_1d"`, `"csan_2d"` (NAACL 2019, Table 1), `"long"` (local
                everywhere, without sinusoids: for texts longer than those of training), `"lines"`
                (the same, line by line), or a preset of another registered method; `ValueError`
                where there is none. `None` = full attention.
            **fields: Fields of the config; they win over the preset's. Short-form locality comes
                beside it: `preset("rel_pos", local_window=11)` is REL_POS within a window.
        """
        return cls(**cls.long_form({**fields, "preset": name}))

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As `Seq2SeqConfig`; overrides in the short form change that of the saved locality."""
        changes = {}
        for name in [*kwargs]:
            field = cls.attribute_map.get(name, name)
            if field in {*cls.keywords, *LONG_FIELDS.values()}:
                changes[field] = kwargs.pop(name)
        return super().from_dict(cls.merge(config_dict, changes), **kwargs)

    def specifications(self, part: str) -> Sequence[Mapping[str, Any] | None]:
        """One specification, or None, for each layer of a part."""
        specifications: Sequence[Mapping[str, Any] | None] = getattr(self, f"{part}_locality")
        return specifications

    def layer_locality(self, part: str, index: int) -> LayerLocality | None:
        """The locality of a part's layer, counted from 0; `None` = full attention."""
        specification = self.specifications(part)[index]
        if specification is None:
            return None
        name = f"{part}_locality[{index}]"
        return layer_locality(specification, self.attention_site(part, index), name)

    def attention_site(self, part: str, index: int) -> AttentionSite:
        """The place and the sizes of an attention; see `layer_locality`."""
        heads = self.encoder_attention_heads if part == "encoder" else self.decoder_attention_heads
        return AttentionSite(part, index, heads, self.d_model, self.dropout)

    def local_layers(self, part: str) -> list[int]:
        """Numbers of a part's local layers, counted from 0, in ascending order."""
        return [
            index
            for index in range(len(self.specifications(part)))
            if self.layer_locality(part, index) is not None
        ]

    def localities(self) -> list[LayerLocality]:
        """The localities of all layers that are local, of all parts."""
        localities = []
        for part in PARTS:
            for index in range(len(self.specifications(part))):
                locality = self.layer_locality(part, index)
                if locality is not None:
                    localities.append(locality)
        return localities

    @property
    def position_limit(self) -> int | None:
        """Tokens of the longest text that there are positions for; None = any number."""
        return None if self.position_embeddings is None else self.max_position_embeddings

    @property
    def takes_any_length(self) -> bool:
        """Whether the model is for texts longer than those of training."""
        return any(method.takes_any_length for method in self._methods())

    @property
    def line_method(self) -> Any:
        """The method that needs lines, which `line_token_id` ends; None = none does."""
        return next((method for method in self._methods() if method.needs_lines), None)

    def _methods(self) -> Iterator[LocalityMethod]:
        return itertools.chain(*(locality.methods for locality in self.localities()))

    def validate_fields(self) -> None:
        """Raise `ValueError` where the configuration is impossible; the message names field and
        value.
        """
        super().validate_fields()
        for name in ("encoder_attention_heads", "decoder_attention_heads"):
            heads = getattr(self, name)
            if self.d_model % heads:
                raise ValueError(
                    f"`d_model` ({self.d_model}) must be a multiple of `{name}` ({heads})."
                )
        if self.activation_function not in ACT2FN:
            known = "a name in transformers' ACT2FN, such as 'relu' or 'gelu'"
            raise ValueError(
                f"`activation_function` must be {known}, got {self.activation_function!r}."
            )
        names = {*LONG_FIELDS, *LONG_FIELDS.values()} | self.keywords & vars(self).keys()
        for name, value in self.long_form({name: getattr(self, name) for name in names}).items():
            setattr(self, name, value)
        for name in self.keywords & vars(self).keys():
            delattr(self, name)
        for name, depth_field in LONG_FIELDS.items():
            depth = getattr(self, depth_field)
            if getattr(self, name) is None:
                setattr(self, name, [None] * depth)
            layers = getattr(self, name)
            if len(layers) != depth:
                raise ValueError(
                    f"`{name}` must hold one item for each of the {depth} layers, got {layers!r}."
                )
        mark = self.line_token_id
        size = min(self.vocab_size, self.decoder_vocab_size)
        if mark is not None and (
            mark >= size
            or mark in (self.pad_token_id, self.decoder_start_token_id, self.eos_token_id)
        ):
            raise ValueError(
                f"`line_token_id` must be a token of both vocabularies, 0 to {size - 1}, but "
                f"padding, the end and the first of a target, got {mark}."
            )
        self.localities()  # every specification is possible


CsanConfig.register_for_auto_class()

__all__ = ["CsanConfig"]
