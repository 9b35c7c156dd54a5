# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Configuration of CSAN, the Transformer with locality in its attention."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from transformers.activations import ACT2FN
from transformers.utils import logging

from .configuration_seq2seq import MOST_LAYERS, MOST_TOKENS, Seq2SeqConfig, bounded
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

# In the order of a layer's methods
_METHODS: tuple[type[LocalityMethod], ...] = (
    Window,
    HeadArea,
    BiDirectional,
    RelativePositions,
    RelativeBias,
)
_METHODS += (Neighbor, LocalHard, Gaussian, MovingGaussian, Block, Convolution)
LOCALITY_METHODS = [register_locality(method) for method in _METHODS]


class CsanConfig(Seq2SeqConfig):
    """Configuration of a CSAN: Marian's fields, and where and how its attention is local.

    The defaults are the paper's 2D-CSAN on Transformer-base (Yang et al., NAACL 2019): a window of
    11 tokens and an area of 3 heads in the lowest three encoder layers. `local_window=None,
    head_area=1` is the plain Transformer.

    Locality has a short form, one setting for all local layers (`local_window` to
    `cross_localness_layers`), and a long form, one specification a layer (`encoder_locality`,
    `decoder_locality`, `cross_locality`), which a part follows where it has one.
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
        attention_dropout, activation_dropout: Dropout of attention weights, and inside the
            feed-forward layers.
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
        init_gain, init_std: Gain of `"xavier"`, for matrices and embeddings alike; standard
            deviation of `"normal"`.
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
        cross_localness_layers: Decoder layers whose cross-attention carries the Gaussian (alone);
            `None` = none.
        encoder_locality: One specification for each encoder layer, or `None` for full attention:
            `[{"window": 11, "head_area": 3}, {"gaussian": "query"}, {"relative_positions": 16,
            "window": 5}, None]`. Keys are locality methods (`window`, `head_area`, `bi_direct`,
            `relative_positions`, `relative_bias`, `neighbor`, `local_hard`, `gaussian`,
            `moving_gaussian`, `block`, `cnn`), values their settings, several as in `{"gaussian":
            {"width": "fixed", "size": 4}}`, True where there are none. `None` = the short form.
        decoder_locality, cross_locality: The same for the self- and cross-attention of each decoder
            layer.
        use_cache: Whether generation keeps keys and values of earlier steps.
        decoder_start_token_id: First input of the decoder; the padding token, as in Marian.
        pad_token_id, eos_token_id, bos_token_id: Padding, end of a sentence, and one that the model
            does not use.
        forced_eos_token_id: Token forced at the maximal length, `None` = none.

    Raises:
        ValueError: See `Seq2SeqConfig`.

    Example:
        >>> model = CsanForConditionalGeneration(CsanConfig.base(vocab_size=8000, local_window=11, head_area=1))
    """

    model_type = "csan"
    keys_to_ignore_at_inference = ["cache"]  # noqa: RUF012
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
        sizes = {"d_model": 1024, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "dropout": 0.3}
        return cls(
            **{**sizes, "encoder_attention_heads": 16, "decoder_attention_heads": 16, **overrides}
        )

    @classmethod
    def preset(cls, name: str, **fields: Any) -> "CsanConfig":
        """Transformer-base with a locality method as the papers compare it, or for long texts.

        Args:
            name: `"bi_direct"`, `"rel_pos"`, `"neighbor"`, `"local_hard"`, `"local_soft"`,
                `"block"`, `"cnn"`, `"csan_1d"`, `"csan_2d"` (NAACL 2019, Table 1), `"long"` (local
                everywhere, without sinusoids: for texts longer than those of training), or a preset
                of another registered method; `ValueError` where there is none.
            **fields: Fields of the config; they win over the preset's. Short-form locality comes
                beside it: `preset("rel_pos", local_window=11)` is REL_POS within a window.
        """
        others = {key: value for key, value in fields.items() if key not in _SHORT_FORM}
        return cls(**others | cls.preset_fields(name, fields))

    @classmethod
    def preset_fields(cls, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a preset beside others, of which those of locality win, and those of depth
        are read.
        """
        presets = locality_presets()
        if name not in presets:
            close = difflib.get_close_matches(str(name), presets, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"There is no preset {name!r}, only {', '.join(presets)}.{hint}")
        encoder_layers = fields.get("encoder_layers", cls.encoder_layers)
        depths = dict.fromkeys(PARTS, fields.get("decoder_layers", cls.decoder_layers)) | {
            "encoder": encoder_layers
        }
        of_preset, short = (
            dict(presets[name]),
            {key: fields[key] for key in _SHORT_FORM if key in fields},
        )
        for part, depth in depths.items():
            if isinstance(every := of_preset.get(f"{part}_locality"), list):
                own = _long_form(part, _FULL_ATTENTION | of_preset | short)
                of_preset[f"{part}_locality"] = [
                    {**specification, **own} for specification in every
                ] * depth
        given = {
            key: fields[key]
            for key in ("encoder_locality", *_SHORT_FORM, *of_preset)
            if key in fields
        }
        if given.get("encoder_locality", True) is None:
            del given["encoder_locality"]
        values = {**_FULL_ATTENTION, **of_preset, **given}
        specification = values.get("encoder_locality")
        if isinstance(presets[name].get("encoder_locality"), list):
            return {
                key: value for key, value in values.items() if key not in _SHORT_FORM[:5]
            } | _FULL_ATTENTION
        if not isinstance(specification, Mapping):
            return values
        layers = values.pop("localness_layers", None)
        layers = range(min(_LOCAL_BY_DEFAULT, encoder_layers)) if layers is None else layers
        own = _long_form("encoder", values)
        if "head_area" in own and dict(specification.get("relative_positions") or {}).get(
            "per_head"
        ):
            # The heads of an area share one softmax, and so the tables
            own["relative_positions"] = {**specification["relative_positions"], "per_head": False}
        values["encoder_locality"] = [
            {**specification, **own} if index in layers else None for index in range(encoder_layers)
        ]
        if values.get("decoder_localness_layers") or values.get("cross_localness_layers"):
            return values  # which read the short form
        return {**_FULL_ATTENTION, "encoder_locality": values["encoder_locality"]}

    def specifications(self, part: str) -> Sequence[Mapping[str, Any] | None]:
        """The long form of a part's locality, whichever form the config has: one specification, or
        None, a layer.
        """
        long: Sequence[Mapping[str, Any] | None] | None = getattr(self, f"{part}_locality")
        if long is not None:
            return long
        layers = getattr(self, _LAYER_FIELDS[part])
        if layers is None:
            layers = range(_LOCAL_BY_DEFAULT) if part == "encoder" else []
        specification = _long_form(part, vars(self))
        return [specification if index in layers else None for index in range(self._depth(part))]

    def _depth(self, part: str) -> int:
        return self.encoder_layers if part == "encoder" else self.decoder_layers

    def layer_locality(self, part: str, index: int) -> LayerLocality | None:
        """What is local in the attention of a part's layer, counted from 0; `None` = full
        attention.
        """
        specification = self.specifications(part)[index]
        if specification is None:
            return None
        return layer_locality(
            specification, self.attention_site(part, index), f"{part}_locality[{index}]"
        )

    def attention_site(self, part: str, index: int) -> AttentionSite:
        """Where an attention stands, and its sizes; see `layer_locality`."""
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
        """What is local in any attention of the model."""
        layers = (
            self.layer_locality(part, index) for part in PARTS for index in range(self._depth(part))
        )
        return [locality for locality in layers if locality is not None]

    def validate_fields(self) -> None:
        """Raise `ValueError` where the configuration is impossible; the message names field and
        value.
        """
        super().validate_fields()
        for name in ("encoder_attention_heads", "decoder_attention_heads"):
            if self.d_model % getattr(self, name):
                raise ValueError(
                    f"`d_model` ({self.d_model}) must be a multiple of `{name}` "
                    f"({getattr(self, name)})."
                )
        if self.activation_function not in ACT2FN:
            known = "a name in transformers' ACT2FN, such as 'relu' or 'gelu'"
            raise ValueError(
                f"`activation_function` must be {known}, got {self.activation_function!r}."
            )
        for part, name in _LAYER_FIELDS.items():
            long, layers, depth = (
                getattr(self, f"{part}_locality"),
                getattr(self, name),
                self._depth(part),
            )
            if layers is not None and (
                len(set(layers)) < len(layers) or not set(layers) <= set(range(depth))
            ):
                raise ValueError(
                    f"`{name}` must hold layer numbers from 0 to {depth - 1}, each once, got "
                    f"{layers}."
                )
            if long is not None and len(long) != depth:
                raise ValueError(
                    f"`{part}_locality` must hold one item for each of the {depth} layers, got "
                    f"{long!r}."
                )
            if long is None and part != "cross" and any(self.specifications(part)):
                check_head_area(
                    self.head_area, self.attention_site(part, 0).num_heads, self.head_boundary
                )
        self._check_short_form_is_read()
        self.localities()  # every specification is possible

    def _check_short_form_is_read(self) -> None:
        """Refuse or warn about short-form fields that no layer reads."""
        long = [part for part in PARTS if getattr(self, f"{part}_locality") is not None]
        unread = [
            name for part, name in _LAYER_FIELDS.items() if part in long and getattr(self, name)
        ]
        if long and not any(any(self.specifications(part)) for part in PARTS if part not in long):
            names = _SHORT_FORM[:3] if self.transformers_version else _SHORT_FORM[:5]
            unread += [
                name
                for name in names
                if getattr(self, name) not in (None, 1, getattr(type(self), name))
            ]
        beside = ", ".join(f"`{part}_locality`" for part in long)
        reasons = dict.fromkeys(unread, f"beside {beside}, which says what is local: leave one out")
        if self.cross_localness_layers and self.localness_window is None:
            reasons.setdefault(
                "cross_localness_layers",
                "without a `localness_window`: cross-attention has no other",
            )
        if reasons:
            name, reason = next(iter(reasons.items()))
            raise ValueError(f"`{name}` ({getattr(self, name)}) has no effect {reason}.")
        layers = self.localness_layers or self.decoder_localness_layers
        if layers and not _long_form("encoder", vars(self)):
            off = "`local_window`, `head_area` and `localness_window` are off"
            logger.warning_once(f"Layers {layers} are to be local, but {off}.")


def _long_form(part: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The specification that the flat fields amount to in a local layer of a part."""
    fields = {name: getattr(CsanConfig, name) for name in _SHORT_FORM} | dict(fields)
    specification: dict[str, Any] = {}
    if part != "cross" and fields["local_window"] is not None:
        specification["window"] = fields["local_window"]
    if part != "cross" and fields["head_area"] != 1:
        specification["head_area"] = {
            "size": fields["head_area"],
            "boundary": fields["head_boundary"],
        }
    if fields["localness_window"] is not None:
        specification["gaussian"] = {
            "width": fields["localness_window"],
            "size": fields["localness_window_size"],
        }
    return specification


_LAYER_FIELDS = {part: f"{part}_localness_layers".removeprefix("encoder_") for part in PARTS}
_LOCAL_BY_DEFAULT = 3
"""Encoder layers, from the lowest, that are local where nothing else is said (NAACL 2019, section
4.2).
"""
_SHORT_FORM: tuple[str, ...] = ("local_window", "head_area", "localness_window", "head_boundary")
_SHORT_FORM += ("localness_window_size", *_LAYER_FIELDS.values())
_FULL_ATTENTION: dict[str, Any] = {"local_window": None, "head_area": 1, "localness_window": None}

CsanConfig.register_for_auto_class()

__all__ = ["CsanConfig"]
