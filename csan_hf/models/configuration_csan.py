# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Configuration of CSAN, the Transformer with locality in its attention."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from transformers.activations import ACT2FN
from transformers.utils import logging

from .configuration_seq2seq import MOST_LAYERS, MOST_TOKENS, Seq2SeqConfig, bounded, did_you_mean
from .distances import BiDirectional, HeadArea, RelativeBias, RelativePositions, Window
from .gaussian import Gaussian, LocalHard, MovingGaussian, Neighbor
from .locality import (
    PARTS,
    AttentionSite,
    LayerLocality,
    LocalityMethod,
    check_head_area,
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


class CsanConfig(Seq2SeqConfig):
    """Configuration of a CSAN: Marian's fields, and where and how its attention is local.

    The defaults are the paper's 2D-CSAN on Transformer-base (Yang et al., NAACL 2019): a window of
    11 tokens and an area of 3 heads in the lowest three encoder layers. `local_window=None,
    head_area=1` is the plain Transformer.

    Locality has a short form, the same settings for all local layers (`local_window` to
    `cross_localness_layers`), and a long form, a specification for each layer (`encoder_locality`,
    `decoder_locality`, `cross_locality`), which wins where a part has it.
    `layer_locality(part, index)` reads either.

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
        max_position_embeddings: Length of the precomputed sinusoids, up to 16,384; longer inputs
            extend them.
        sinusoids: Positions: `"marian"` (Vaswani et al., 2017), `"m2m_100"` (M2M100, NLLB), or
            learned ones and a layer normalisation, `"bart"` (BART, mBART); see
            `SinusoidalPositionalEmbedding`. `None` = no positions.
        scale_embedding: Whether embeddings are multiplied by sqrt(d_model).
        initialization: Scheme of new weights, `"xavier"` or `"normal"`; see
            `CsanPreTrainedModel._init_weights`.
        init_gain: Gain of `"xavier"`, for matrices and embeddings alike.
        init_std: Standard deviation of `"normal"`.
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
        encoder_locality: One specification for each encoder layer, or `None` for full attention:
            `[{"window": 11, "head_area": 3}, {"gaussian": "query"}, {"relative_positions": 16,
            "window": 5}, None]`. Keys are locality methods (`window`, `head_area`, `bi_direct`,
            `relative_positions`, `relative_bias`, `neighbor`, `local_hard`, `gaussian`,
            `moving_gaussian`, `block`, `cnn`), values their settings: the first alone, several as
            in `{"gaussian": {"width": "fixed", "size": 4}}`, or `True` for the defaults. `None` =
            what the fields above say.
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
    sinusoids: Literal["marian", "m2m_100", "bart"] | None = "marian"
    scale_embedding: bool = True
    initialization: Literal["xavier", "normal"] = "xavier"
    init_gain: float | int = bounded(0.5, above=0)
    init_std: float | int = bounded(0.02, above=0)

    local_window: int | None = bounded(11, 1, MOST_TOKENS, odd=True)
    head_area: int = bounded(3, 1, odd=True)
    head_boundary: Literal["mask", "circular"] = "mask"
    localness_window: Literal["fixed", "layer", "query", "head"] | None = None
    localness_window_size: float | int = bounded(10.0, above=0, most=MOST_TOKENS)
    localness_layers: list[int] | tuple[int, ...] | None = None
    decoder_localness_layers: list[int] | tuple[int, ...] | None = None
    cross_localness_layers: list[int] | tuple[int, ...] | None = None
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
        return cls(**cls.preset_fields(name, fields))

    @classmethod
    def preset_fields(cls, name: str | None, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a config with a preset, over which `fields` win.

        A specification of the preset is written out for the layers that it is for, with the
        short-form locality of `fields` in it.
        """
        presets = locality_presets()
        if name is not None and name not in presets:
            hint = did_you_mean(name, presets)
            raise ValueError(f"There is no preset {name!r}, only {', '.join(presets)}.{hint}")
        preset = {} if name is None else presets[name]
        chosen = dict(fields)
        if chosen.get("encoder_locality") is None:
            chosen.pop("encoder_locality", None)
        values = {**_FULL_ATTENTION, **preset, **chosen}
        is_composed = False
        for part in PARTS:
            field = f"{part}_locality"
            specification = preset.get(field)
            if specification is None or field in chosen:
                continue
            depth_field = "encoder_layers" if part == "encoder" else "decoder_layers"
            depth = fields.get(depth_field, getattr(cls, depth_field))
            if isinstance(specification, list):
                [specification] = specification
                layers = range(depth)
            else:
                layers = values.pop("localness_layers", None)
                if layers is None:
                    layers = _lowest_layers(depth)
            composed = _with_short_form(specification, part, values)
            values[field] = [composed if index in layers else None for index in range(depth)]
            is_composed = True
        is_read = any(
            values.get(f"{part}_locality") is None
            and (part == "encoder" or values.get(_LAYER_FIELDS[part]))
            for part in PARTS
        )
        if is_composed and not is_read:
            for setting in _SETTINGS:
                values.pop(setting, None)
            values.update(_FULL_ATTENTION)
        return values

    def specifications(self, part: str) -> Sequence[Mapping[str, Any] | None]:
        """One specification, or None, for each layer of a part, in whichever form the config has
        its locality.
        """
        written_out = getattr(self, f"{part}_locality")
        if written_out is not None:
            return written_out
        depth = self._depth(part)
        layers = getattr(self, _LAYER_FIELDS[part])
        if layers is None:
            layers = _lowest_layers(depth) if part == "encoder" else ()
        specification = _short_form_specification(part, vars(self))
        return [specification if index in layers else None for index in range(depth)]

    def _depth(self, part: str) -> int:
        return self.encoder_layers if part == "encoder" else self.decoder_layers

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
            for index in range(self._depth(part))
            if self.layer_locality(part, index) is not None
        ]

    def localities(self) -> list[LayerLocality]:
        """The localities of all layers that are local, of all parts."""
        return [
            locality
            for part in PARTS
            for index in range(self._depth(part))
            if (locality := self.layer_locality(part, index)) is not None
        ]

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
        for part in PARTS:
            self._check_layers(part)
        self._check_short_form()
        self.localities()  # every specification is possible

    def _check_layers(self, part: str) -> None:
        """Refuse layer numbers, specifications and areas of heads that a part has no place for."""
        depth = self._depth(part)
        name = _LAYER_FIELDS[part]
        layers = getattr(self, name)
        if layers is not None and not (
            len(set(layers)) == len(layers) and set(layers) <= set(range(depth))
        ):
            raise ValueError(
                f"`{name}` must hold layer numbers from 0 to {depth - 1}, each once, got {layers}."
            )
        written_out = getattr(self, f"{part}_locality")
        if written_out is not None:
            if len(written_out) != depth:
                raise ValueError(
                    f"`{part}_locality` must hold one item for each of the {depth} layers, got "
                    f"{written_out!r}."
                )
        elif part != "cross" and any(self.specifications(part)):
            heads = self.attention_site(part, 0).num_heads
            check_head_area(self.head_area, heads, self.head_boundary)

    def _check_short_form(self) -> None:
        """Refuse fields of the short form that no layer reads; warn of local layers without any."""
        written_out = [part for part in PARTS if getattr(self, f"{part}_locality") is not None]
        unread = [_LAYER_FIELDS[part] for part in written_out]
        if written_out and not any(
            any(self.specifications(part)) for part in PARTS if part not in written_out
        ):
            unread += _FULL_ATTENTION
        for name in unread:
            value = getattr(self, name)
            if value and value not in (1, getattr(type(self), name)):
                beside = ", ".join(f"`{part}_locality`" for part in written_out)
                raise ValueError(
                    f"`{name}` ({value}) has no effect beside {beside}, which says what is local: "
                    "leave one out."
                )
        if self.cross_localness_layers and self.localness_window is None:
            raise ValueError(
                f"`cross_localness_layers` ({self.cross_localness_layers}) has no effect without a "
                "`localness_window`: cross-attention has no other."
            )
        layers = self.localness_layers or self.decoder_localness_layers
        if layers and not _short_form_specification("encoder", vars(self)):
            off = "`local_window`, `head_area` and `localness_window` are off"
            logger.warning_once(f"Layers {layers} are to be local, but {off}.")


_LAYER_FIELDS = {
    "encoder": "localness_layers",
    "decoder": "decoder_localness_layers",
    "cross": "cross_localness_layers",
}
_SETTINGS = (
    "local_window",
    "head_area",
    "localness_window",
    "head_boundary",
    "localness_window_size",
)
_FULL_ATTENTION: dict[str, Any] = {"local_window": None, "head_area": 1, "localness_window": None}


def _lowest_layers(depth: int) -> range:
    """The encoder layers that are local where nothing else is said (NAACL 2019, section 4.2)."""
    return range(min(3, depth))


def _short_form_specification(part: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The specification of a local layer of a part by the short form in `fields`."""
    setting = {name: fields.get(name, getattr(CsanConfig, name)) for name in _SETTINGS}
    specification: dict[str, Any] = {}
    if part != "cross" and setting["local_window"] is not None:
        specification["window"] = setting["local_window"]
    if part != "cross" and setting["head_area"] != 1:
        specification["head_area"] = {
            "size": setting["head_area"],
            "boundary": setting["head_boundary"],
        }
    if setting["localness_window"] is not None:
        specification["gaussian"] = {
            "width": setting["localness_window"],
            "size": setting["localness_window_size"],
        }
    return specification


def _with_short_form(
    specification: Mapping[str, Any], part: str, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """A preset's specification together with the short form in `fields`."""
    composed = {**specification, **_short_form_specification(part, fields)}
    tables = composed.get("relative_positions")
    if "head_area" in composed and isinstance(tables, Mapping) and tables.get("per_head"):
        # The heads of an area share one softmax, and so the tables
        composed["relative_positions"] = {**tables, "per_head": False}
    return composed


CsanConfig.register_for_auto_class()

__all__ = ["CsanConfig"]
