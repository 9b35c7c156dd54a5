# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Configuration of CSAN, the Transformer with locality in its attention."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transformers.activations import ACT2FN
from transformers.utils import logging

from .configuration_seq2seq import (
    MOST_LAYERS,
    MOST_TOKENS,
    Seq2SeqConfig,
    bounded,
    check_fields,
    did_you_mean,
)
from .distances import BiDirectional, HeadArea, RelativeBias, RelativePositions, Window
from .gaussian import Gaussian, LocalHard, MovingGaussian, Neighbor
from .locality import (
    PARTS,
    AttentionSite,
    LayerLocality,
    LocalityMethod,
    layer_locality,
    locality_presets,
    register_locality,
)
from .sublayers import Block, Convolution

logger = logging.get_logger(__name__)

# In the order in which a layer applies them
LOCALITY_METHODS: list[type[LocalityMethod]] = [
    Window,
    HeadArea,
    BiDirectional,
    RelativePositions,
    RelativeBias,
    Neighbor,
    LocalHard,
    Gaussian,
    MovingGaussian,
    Block,
    Convolution,
]
for _method in LOCALITY_METHODS:
    register_locality(_method)


@dataclass(frozen=True)
class ShortForm:
    """The short form of locality: the same settings for all local layers.

    The defaults are the paper's 2D-CSAN (Yang et al., NAACL 2019).

    Args:
        local_window: Window M of the local layers in tokens, both edges included. Odd; `None` =
            unrestricted.
        head_area: Neighbouring heads N that a local layer attends to jointly. Odd, at most 2H - 1;
            1 = own head.
        head_boundary: `"mask"` (heads outside 0..H-1 are not visible) or `"circular"` (wrap modulo
            H, N <= H).
        localness_window: Gaussian localness of the local layers: how its window D is set,
            `"fixed"`, `"layer"`, `"query"` or `"head"` (Yang et al., EMNLP 2018); `None` = no
            Gaussian.
        localness_window_size: D of the `"fixed"` strategy, in tokens.
        localness_layers: Encoder layers that are local, counted from 0; `None` = the lowest three.
        decoder_localness_layers: Decoder layers whose self-attention is local; `None` = none.
        cross_localness_layers: Decoder layers whose cross-attention has the Gaussian, without
            window and area; `None` = none.
    """

    local_window: int | None = bounded(11, 1, MOST_TOKENS, odd=True)
    head_area: int = bounded(3, 1, odd=True)
    head_boundary: Literal["mask", "circular"] = "mask"
    localness_window: Literal["fixed", "layer", "query", "head"] | None = None
    localness_window_size: float | int = bounded(10.0, above=0, most=MOST_TOKENS)
    localness_layers: list[int] | tuple[int, ...] | None = None
    decoder_localness_layers: list[int] | tuple[int, ...] | None = None
    cross_localness_layers: list[int] | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        check_fields(self)

    def specification(self, part: str) -> dict[str, Any]:
        """The specification of a local layer of a part."""
        specification: dict[str, Any] = {}
        if part != "cross" and self.local_window is not None:
            specification["window"] = self.local_window
        if part != "cross" and self.head_area > 1:
            specification["head_area"] = self.head_area
            if self.head_boundary != "mask":
                specification["head_area"] = {
                    "size": self.head_area,
                    "boundary": self.head_boundary,
                }
        if self.localness_window is not None:
            specification["gaussian"] = self.localness_window
            if self.localness_window == "fixed":
                specification["gaussian"] = {"width": "fixed", "size": self.localness_window_size}
        return specification

    def write_out(
        self, part: str, depth: int, preset: Mapping[str, Any] | list[Mapping[str, Any]]
    ) -> list[dict[str, Any] | None]:
        """One specification, or None, for each layer of a part: a preset's (see
        `LocalityMethod.presets`) together with the short form.
        """
        layers = getattr(self, LAYER_FIELDS[part])
        default_layers = _lowest_layers(depth) if part == "encoder" else range(0)
        if isinstance(preset, list):
            [preset] = preset
            default_layers = range(depth)
        specification = {**preset, **self.specification(part)}
        tables = specification.get("relative_positions")
        if "head_area" in specification and isinstance(tables, Mapping) and "per_head" in tables:
            # The heads of an area share one softmax, and so the tables
            specification["relative_positions"] = {**tables, "per_head": False}
        if layers is None:
            layers = default_layers
        else:
            self._check_layers(part, depth, specification)
        return [specification or None if index in layers else None for index in range(depth)]

    def _check_layers(self, part: str, depth: int, specification: Mapping[str, Any]) -> None:
        """Refuse layer numbers that a part has no place for; warn where nothing is said of them."""
        name = LAYER_FIELDS[part]
        layers = getattr(self, name)
        if len(set(layers)) != len(layers) or not set(layers) <= set(range(depth)):
            raise ValueError(
                f"`{name}` must hold layer numbers from 0 to {depth - 1}, each once, got {layers}."
            )
        if not layers or specification:
            return
        if part == "cross":
            raise ValueError(
                f"`{name}` ({layers}) has no effect without a `localness_window`: cross-attention "
                "has no other."
            )
        off = "`local_window`, `head_area` and `localness_window` are off"
        logger.warning_once(f"Layers {layers} are to be local, but {off}.")


LAYER_FIELDS = {
    "encoder": "localness_layers",
    "decoder": "decoder_localness_layers",
    "cross": "cross_localness_layers",
}
"""Fields of the short form that name the local layers of a part."""
SHORT_FIELDS = {field.name: field.default for field in dataclasses.fields(ShortForm)}
"""Fields of the short form with their defaults."""
DEPTH_FIELDS = {"encoder": "encoder_layers", "decoder": "decoder_layers", "cross": "decoder_layers"}
"""Fields that hold the number of layers of a part."""
_LONG_FIELDS = tuple(f"{part}_locality" for part in PARTS)
_FULL_ATTENTION: dict[str, Any] = {"local_window": None, "head_area": 1}
_FORMER_POSITIONS = {"marian": "sinusoidal", "bart": "learned"}


def _lowest_layers(depth: int) -> range:
    """The encoder layers that are local where nothing else is said (NAACL 2019, section 4.2)."""
    return range(min(3, depth))


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
            `relative_positions`, `relative_bias`, `neighbor`, `local_hard`, `gaussian`,
            `moving_gaussian`, `block`, `cnn`), values their settings: the first alone, several as
            in `{"gaussian": {"width": "fixed", "size": 4}}`, or `True` for the defaults. Default:
            what the short form says.
        decoder_locality: The same for the self-attention of each decoder layer.
        cross_locality: The same for the cross-attention of each decoder layer.
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
    keywords = frozenset({*SHORT_FIELDS, "sinusoids"})
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
                everywhere, without sinusoids: for texts longer than those of training), or a preset
                of another registered method; `ValueError` where there is none. `None` = full
                attention.
            **fields: Fields of the config; they win over the preset's. Short-form locality comes
                beside it: `preset("rel_pos", local_window=11)` is REL_POS within a window.
        """
        return cls(**cls.long_form({**fields, "preset": name}))

    @classmethod
    def long_form(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of a config with their locality written out layer by layer, in place of the short
        form, of a key `preset` and of fields' former names.

        Raises:
            ValueError: See `preset` and `ShortForm`; or the short form has no effect beside the
                long one.
        """
        values = dict(fields)
        if "sinusoids" in values:
            positions = values.pop("sinusoids")
            values["position_embeddings"] = _FORMER_POSITIONS.get(positions, positions)
        preset: dict[str, Any] = {}
        if "preset" in values:
            preset = {**_FULL_ATTENTION, **_fields_of_preset(values.pop("preset"))}
        specifications = {part: preset.pop(f"{part}_locality", {}) for part in PARTS}
        values = {**preset, **values}
        short = ShortForm(**{name: values.pop(name) for name in SHORT_FIELDS if name in values})
        unread: list[str] = []
        is_local = False
        for part in PARTS:
            name = f"{part}_locality"
            if values.get(name) is not None:
                unread.append(LAYER_FIELDS[part])
                continue
            depth = values.get(DEPTH_FIELDS[part], getattr(cls, DEPTH_FIELDS[part]))
            values[name] = short.write_out(part, depth, specifications[part])
            is_local = is_local or any(values[name])
        if unread and not is_local:
            unread += ["local_window", "head_area", "localness_window"]
        for name in unread:
            value = getattr(short, name)
            if value and value not in (1, SHORT_FIELDS[name]):
                raise ValueError(
                    f"`{name}` ({value}) has no effect beside "
                    f"{', '.join(f'`{field}`' for field in _LONG_FIELDS if fields.get(field))}, "
                    "which says what is local: leave one out."
                )
        return values

    def write_out(self, keywords: dict[str, Any]) -> None:
        """See `Seq2SeqConfig`: keep the locality in the long form."""
        names = [*_LONG_FIELDS, *DEPTH_FIELDS.values()]
        fields = {name: getattr(self, name) for name in names}
        for name, value in self.long_form({**fields, **keywords}).items():
            setattr(self, name, value)

    @classmethod
    def merge(cls, fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
        """See `Seq2SeqConfig`; overrides in the short form change that of the saved locality.

        Raises:
            ValueError: It has none.
        """
        changed = overrides.keys() & {*SHORT_FIELDS, *DEPTH_FIELDS.values()}
        short = cls(**fields).short_form() if changed else {}
        if short is None:
            for name in changed & SHORT_FIELDS.keys():
                raise ValueError(
                    f"`{name}` cannot change this locality, which only the long form says: give "
                    f"{', '.join(_LONG_FIELDS)}."
                )
        if not short:
            return super().merge(fields, overrides)
        replaced = {*_LONG_FIELDS, *SHORT_FIELDS}
        kept = {name: value for name, value in fields.items() if name not in replaced}
        return {**kept, **short, **overrides}

    def short_form(self) -> dict[str, Any] | None:
        """The fields of `ShortForm` that say this locality, None where there are none."""
        localities = self.localities()
        short: dict[str, Any] = dict(_FULL_ATTENTION)
        for locality in localities:
            if locality.part != "cross":
                short["local_window"] = locality.area.window
                short["head_area"] = locality.area.head_area
                short["head_boundary"] = locality.area.head_boundary
            for method in locality.methods:
                if isinstance(method, Gaussian):
                    short["localness_window"] = method.width
                    short["localness_window_size"] = method.size
        for part, name in LAYER_FIELDS.items():
            short[name] = self.local_layers(part)
        if short["localness_layers"] == list(_lowest_layers(self.encoder_layers)) or not localities:
            short["localness_layers"] = None
        form = ShortForm(**short)
        written = copy.copy(self)
        for part in PARTS:
            layers = form.write_out(part, len(self.specifications(part)), {})
            setattr(written, f"{part}_locality", layers)
        return short if written.localities() == localities else None

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
        return [
            locality
            for part in PARTS
            for index in range(len(self.specifications(part)))
            if (locality := self.layer_locality(part, index)) is not None
        ]

    @property
    def position_limit(self) -> int | None:
        """See `Seq2SeqConfig`."""
        return None if self.position_embeddings is None else self.max_position_embeddings

    @property
    def takes_any_length(self) -> bool:
        """See `Seq2SeqConfig`: whether a method makes it so."""
        for locality in self.localities():
            if any(method.takes_any_length for method in locality.methods):
                return True
        return False

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
        for name in SHORT_FIELDS.keys() & vars(self).keys():
            raise ValueError(f"`{name}` is of use when a config is made: set {_LONG_FIELDS}.")
        for part in PARTS:
            layers = self.specifications(part)
            depth = getattr(self, DEPTH_FIELDS[part])
            if len(layers) != depth:
                raise ValueError(
                    f"`{part}_locality` must hold one item for each of the {depth} layers, got "
                    f"{layers!r}."
                )
        self.localities()  # every specification is possible


LOCALITY_FIELDS = {
    *SHORT_FIELDS,
    *_LONG_FIELDS,
    "position_embeddings",
    "sinusoids",
}
"""Fields of a recipe that a preset replaces."""


def _fields_of_preset(name: str | None) -> dict[str, Any]:
    if name is None:
        return {}
    presets = locality_presets()
    if name not in presets:
        hint = did_you_mean(name, presets)
        raise ValueError(f"There is no preset {name!r}, only {', '.join(presets)}.{hint}")
    return dict(presets[name])


CsanConfig.register_for_auto_class()

__all__ = ["CsanConfig"]
