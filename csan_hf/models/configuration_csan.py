# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Configuration of CSAN, the Transformer with locality in its attention."""

from .required_version import MINIMUM_TRANSFORMERS  # noqa: F401  (first, as what follows needs it)

# isort: split
import dataclasses
import difflib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformers.activations import ACT2FN
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import logging

from .checkpoint_files import complete_checkpoint
from .key_area import check_head_area, check_tokens, check_window
from .keyword_checks import check_config_keywords
from .locality import PARTS, AttentionSite, LayerLocality, layer_locality, locality_presets
from .locality_methods import LOCALNESS_WINDOWS

if TYPE_CHECKING:
    # Never run: from a checkpoint in a folder, transformers 4 copies only the files that this one names. Without the
    # files that these import it would fail before `required_version` can say that it is too old.
    from .bi_directional import BiDirectional  # noqa: F401
    from .block import BlockSummary  # noqa: F401
    from .convolutions import Convolutions  # noqa: F401
    from .dropout import drop  # noqa: F401
    from .gaussian import GaussianTerm  # noqa: F401
    from .local_hard import LocalHard  # noqa: F401
    from .locality_terms import Positions  # noqa: F401
    from .neighbor import Neighbor  # noqa: F401
    from .relative_positions import RelativePositionTerm  # noqa: F401
    from .window_and_heads import Window  # noqa: F401

logger = logging.get_logger(__name__)

INITIALIZATIONS = ("xavier", "normal")
SINUSOIDS = ("marian", "m2m_100")


class CsanConfig(PreTrainedConfig):
    """Configuration of a CSAN: Marian's fields, and where and how its attention is local.

    The defaults are the paper's 2D-CSAN on Transformer-base (Yang et al., NAACL 2019): a window of 11 tokens and an
    area of 3 heads in the lowest three encoder layers. `local_window=None, head_area=1` is the plain Transformer.

    Locality has a short form, one setting for all local layers (the fields from `local_window` to
    `cross_localness_layers`), and a long form, a specification for every layer of a part (`encoder_locality`,
    `decoder_locality`, `cross_locality`). A part follows its long form where it has one. Whichever form was used,
    `layer_locality(part, index)` returns the locality of a layer.

    Args:
        vocab_size: Entries of the source vocabulary (of both, where shared).
        decoder_vocab_size: Entries of the target vocabulary; default: `vocab_size`.
        share_encoder_decoder_embeddings: Whether source and target share one embedding (and one vocabulary).
        tie_word_embeddings: Whether the output projection is the decoder's embedding.
        d_model: Width d of the model.
        encoder_layers: Number of encoder layers.
        decoder_layers: Number of decoder layers.
        encoder_attention_heads: Attention heads H in the encoder; divides `d_model`.
        decoder_attention_heads: Attention heads in the decoder; divides `d_model`.
        encoder_ffn_dim: Width of the encoder's feed-forward layers.
        decoder_ffn_dim: Width of the decoder's feed-forward layers.
        activation_function: Non-linearity of the feed-forward layers (a name from transformers' `ACT2FN`).
        dropout: Dropout after embeddings and sub-layers.
        attention_dropout: Dropout of attention weights.
        activation_dropout: Dropout inside the feed-forward layers.
        classifier_dropout: Dropout before the linear layer of the classification heads; `None` = `dropout`.
        encoder_layerdrop: Probability of skipping an encoder layer in training.
        decoder_layerdrop: Probability of skipping a decoder layer in training.
        normalize_before: Layer normalisation before each sub-layer (pre-norm) instead of after it (post-norm).
        max_position_embeddings: Length of the precomputed sinusoids, up to 16,384; longer inputs extend them.
        sinusoids: Which sinusoids the positions are, `"marian"` (Vaswani et al., 2017) or `"m2m_100"` (those of M2M100
            and NLLB: other frequencies, the first position is `pad_token_id` + 1); see
            `CsanSinusoidalPositionalEmbedding`.
        scale_embedding: Whether embeddings are multiplied by sqrt(d_model).
        initialization: Scheme of new weights, `"xavier"` or `"normal"`; see `CsanPreTrainedModel._init_weights`.
        init_gain: Gain of `initialization="xavier"`, for matrices and embeddings alike.
        init_std: Standard deviation of `initialization="normal"`.
        local_window: Window M of the local layers: its total width in tokens, both edges included, so a query sees
            (M - 1) / 2 tokens on either side. Odd; `None` = unrestricted.
        head_area: Neighbouring heads N that a local layer attends to jointly. Odd, at most 2H - 1; 1 = own head.
        head_boundary: `"mask"` (heads outside 0..H-1 are not visible) or `"circular"` (wrap modulo H, N <= H).
        localness_window: Gaussian localness of the local layers: how its window D is set, `"fixed"`, `"layer"`,
            `"query"` or `"head"` (Yang et al., EMNLP 2018); `None` = no Gaussian.
        localness_window_size: D of the `"fixed"` strategy, in tokens.
        localness_layers: Encoder layers that are local, counted from 0; `None` = the lowest three.
        decoder_localness_layers: Decoder layers whose self-attention is local; `None` = none.
        cross_localness_layers: Decoder layers whose cross-attention carries the Gaussian; `None` = none. Window and
            area concern self-attention alone.
        encoder_locality: One specification for each encoder layer, or `None` for full attention:
            `[{"window": 11, "head_area": 3}, {"gaussian": "query"}, {"relative_positions": 16, "window": 5}, None]`.
            Keys are locality methods (`window`, `head_area`, `bi_direct`, `relative_positions`, `neighbor`,
            `local_hard`, `gaussian`, `block`, `cnn`), values their settings, several as in `{"gaussian": {"width":
            "fixed", "size": 4}}`, True where there are none. `None` = the short form.
        decoder_locality: The same for the self-attention of each decoder layer.
        cross_locality: The same for the cross-attention of each decoder layer.
        use_cache: Whether generation keeps keys and values of earlier steps.
        decoder_start_token_id: First input of the decoder; the padding token, as in Marian.
        pad_token_id: Padding token.
        eos_token_id: End of a sentence.
        bos_token_id: Unused by the model.
        forced_eos_token_id: Token forced at the maximal length, `None` = none.

    Raises:
        ValueError: A field is out of range, or a keyword is a misspelt field; the message names the field and the
            value. (A keyword that resembles no field gives a warning and is kept as an attribute, as in transformers.)

    Example:
        >>> from csan_hf import CsanConfig, CsanForConditionalGeneration
        >>> model = CsanForConditionalGeneration(CsanConfig.base(vocab_size=8000, local_window=11, head_area=1))
    """

    model_type = "csan"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012
    attribute_map = {  # noqa: RUF012
        "num_attention_heads": "encoder_attention_heads",
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
    }

    vocab_size: int = 32000
    decoder_vocab_size: int = None  # type: ignore[assignment]  # `vocab_size` once initialised
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    is_encoder_decoder: bool = True
    is_decoder: bool = False

    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    activation_function: str = "relu"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    classifier_dropout: float | None = None
    encoder_layerdrop: float = 0.0
    decoder_layerdrop: float = 0.0
    normalize_before: bool = False
    max_position_embeddings: int = 1024
    sinusoids: str = "marian"
    scale_embedding: bool = True
    initialization: str = "xavier"
    init_gain: float = 0.5
    init_std: float = 0.02

    local_window: int | None = 11
    head_area: int = 3
    head_boundary: str = "mask"
    localness_window: str | None = None
    localness_window_size: float = 10.0
    localness_layers: list[int] | None = None
    decoder_localness_layers: list[int] | None = None
    cross_localness_layers: list[int] | None = None
    encoder_locality: list[dict[str, Any] | None] | None = None
    decoder_locality: list[dict[str, Any] | None] | None = None
    cross_locality: list[dict[str, Any] | None] | None = None

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

    @classmethod
    def base(cls, **overrides: Any) -> "CsanConfig":
        """Transformer-base: d_model 512, 8 heads, 6 + 6 layers, feed-forward 2048, dropout 0.1."""
        return cls(**_SIZES["base"] | overrides)

    @classmethod
    def big(cls, **overrides: Any) -> "CsanConfig":
        """Transformer-big: d_model 1024, 16 heads, 6 + 6 layers, feed-forward 4096, dropout 0.3."""
        return cls(**_SIZES["big"] | overrides)

    @classmethod
    def preset(cls, name: str, **fields: Any) -> "CsanConfig":
        """Transformer-base with a locality method as the papers compare it.

        Args:
            name: `"bi_direct"`, `"rel_pos"`, `"neighbor"`, `"local_hard"`, `"local_soft"`, `"block"`, `"cnn"`,
                `"csan_1d"`, `"csan_2d"` (NAACL 2019, Table 1), or a preset of another registered method.
            **fields: Fields of the config; they win over the preset's.

        Raises:
            ValueError: There is no such preset, or a field is out of range.
        """
        values = {**_SIZES["base"], "local_window": None, "head_area": 1, **fields}
        return cls(**values | cls.preset_fields(name, values["encoder_layers"]) | fields)

    @classmethod
    def preset_fields(cls, name: str, encoder_layers: int) -> dict[str, Any]:
        """The fields of a preset, for a model of any size.

        Args:
            name: See `preset`.
            encoder_layers: Depth of the encoder, of which the lowest three layers are local.

        Raises:
            ValueError: There is no such preset.
        """
        presets = locality_presets()
        if name not in presets:
            close = difflib.get_close_matches(str(name), presets, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"There is no preset {name!r}, only {', '.join(presets)}.{hint}")
        values = dict(presets[name])
        specification = values.get("encoder_locality")
        if isinstance(specification, Mapping):
            local = min(_LOCAL_BY_DEFAULT, encoder_layers)
            values["encoder_locality"] = [dict(specification) for _ in range(local)] + [None] * (
                encoder_layers - local
            )
        return values

    def layer_locality(self, part: str, index: int) -> LayerLocality | None:
        """What is local in one attention; `None` = full attention. Everything else reads this rule.

        Args:
            part: `"encoder"`, `"decoder"` (its self-attention) or `"cross"`.
            index: Layer, counted from 0.

        Raises:
            ValueError: A specification is impossible, or names a method that is not registered.
        """
        specifications = getattr(self, f"{part}_locality")
        if specifications is not None:
            name, specification = f"{part}_locality[{index}]", specifications[index]
        else:
            name, specification = _LAYER_FIELDS[part], self._short_form(part, index)
        if specification is None:
            return None
        return layer_locality(specification, self.attention_site(part, index), name)

    def attention_site(self, part: str, index: int) -> AttentionSite:
        """Where an attention stands, and its sizes; see `layer_locality`."""
        heads = self.encoder_attention_heads if part == "encoder" else self.decoder_attention_heads
        return AttentionSite(part, index, heads, self.d_model, self.dropout)

    def local_layers(self, part: str) -> list[int]:
        """Numbers of the layers that are local, counted from 0, in ascending order.

        Args:
            part: `"encoder"`, `"decoder"` (its self-attention) or `"cross"`.
        """
        return [index for index in self._candidates(part) if self.layer_locality(part, index) is not None]

    def localities(self) -> list[LayerLocality]:
        """What is local in any attention of the model."""
        found = [self.layer_locality(part, index) for part in PARTS for index in self._candidates(part)]
        return [locality for locality in found if locality is not None]

    def _candidates(self, part: str) -> Sequence[int]:
        """Layers that may be local; others are not looked at, however many a config asks for."""
        specifications = getattr(self, f"{part}_locality")
        return self._named_layers(part) if specifications is None else range(len(specifications))

    def _depth(self, part: str) -> int:
        return self.encoder_layers if part == "encoder" else self.decoder_layers

    def _named_layers(self, part: str) -> list[int]:
        """Layers that the short form names for a part."""
        layers = getattr(self, _LAYER_FIELDS[part])
        if layers is None:
            return list(range(min(_LOCAL_BY_DEFAULT, self.encoder_layers))) if part == "encoder" else []
        return sorted(layers)

    def _short_form(self, part: str, index: int) -> dict[str, Any] | None:
        """The specification that the flat fields amount to in one layer."""
        if index not in self._named_layers(part):
            return None
        specification: dict[str, Any] = {}
        if part != "cross" and self.local_window is not None:
            specification["window"] = self.local_window
        if part != "cross" and self.head_area > 1:
            specification["head_area"] = {"size": self.head_area, "boundary": self.head_boundary}
        if self.localness_window is not None:
            specification["gaussian"] = {"width": self.localness_window, "size": self.localness_window_size}
        return specification

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Save as transformers does; with a model's config, also the code to load it where csan_hf is not installed.

        Args:
            save_directory: The directory; created if missing. Saving a model calls this method, too.
            push_to_hub: See transformers.
            kwargs: See transformers.
        """
        is_of_model = bool(self.architectures or getattr(self, "auto_map", None))
        named = complete_checkpoint(self, save_directory) if is_of_model else self
        super(CsanConfig, named).save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)

    def validate_fields(self) -> None:
        """Raise `ValueError` where the configuration is impossible; the message names field and value."""
        self._validate_sizes()
        self._validate_tokens()
        self._validate_locality()

    def _validate_sizes(self) -> None:
        for name in _POSITIVE_FIELDS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"`{name}` must be an integer of at least 1, got {value!r}.")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"`{name}` must be True or False, got {getattr(self, name)!r}.")
        for name in _PROBABILITY_FIELDS:
            value = getattr(self, name)
            if name == "classifier_dropout" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
                raise ValueError(f"`{name}` must be a number between 0 and 1, got {value!r}.")
        for name in ("init_gain", "init_std"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < float("inf"):
                raise ValueError(f"`{name}` must be a positive number, got {value!r}.")
        for name in ("encoder_attention_heads", "decoder_attention_heads"):
            if self.d_model % getattr(self, name):
                raise ValueError(f"`d_model` ({self.d_model}) must be a multiple of `{name}` ({getattr(self, name)}).")
        if self.share_encoder_decoder_embeddings and self.decoder_vocab_size != self.vocab_size:
            raise ValueError(
                f"`decoder_vocab_size` ({self.decoder_vocab_size}) must equal `vocab_size` ({self.vocab_size}) with "
                f"share_encoder_decoder_embeddings=True; set it to False for separate vocabularies."
            )
        for name, choices in (("initialization", INITIALIZATIONS), ("sinusoids", SINUSOIDS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"`{name}` must be one of {list(choices)}, got {getattr(self, name)!r}.")
        if self.sinusoids == "m2m_100" and (self.d_model < 4 or self.d_model % 2):
            raise ValueError(f"`d_model` must be even and at least 4 with sinusoids='m2m_100', got {self.d_model}.")
        if not isinstance(self.activation_function, str) or self.activation_function not in ACT2FN:
            raise ValueError(
                f"`activation_function` must be a name that transformers knows, such as 'relu', 'gelu' or 'silu', got "
                f"{self.activation_function!r}."
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

    def _validate_locality(self) -> None:
        self._validate_short_form()
        for part in PARTS:
            specifications, name, depth = getattr(self, f"{part}_locality"), f"{part}_locality", self._depth(part)
            if specifications is None:
                continue
            if not isinstance(specifications, list | tuple) or len(specifications) != depth:
                raise ValueError(
                    f"`{name}` must hold one specification (or None) for each of the {depth} layers, got "
                    f"{specifications!r}."
                )
            if getattr(self, _LAYER_FIELDS[part]):
                raise ValueError(
                    f"`{name}` and `{_LAYER_FIELDS[part]}` ({getattr(self, _LAYER_FIELDS[part])}) both say which "
                    f"layers are local; leave one of them out."
                )
            for index in range(depth):
                self.layer_locality(part, index)
        self._say_what_has_no_effect()

    def _validate_short_form(self) -> None:
        for part, name in _LAYER_FIELDS.items():
            _check_layers(getattr(self, name), name, self._depth(part))
        check_window(self.local_window, "local_window")
        check_head_area(self.head_area, None, self.head_boundary)
        for part in ("encoder", "decoder"):
            if getattr(self, f"{part}_locality") is None and self._named_layers(part):
                check_head_area(self.head_area, self.attention_site(part, 0).num_heads, self.head_boundary)
        if self.localness_window is not None and self.localness_window not in LOCALNESS_WINDOWS:
            raise ValueError(
                f"`localness_window` must be None or one of {list(LOCALNESS_WINDOWS)}, got {self.localness_window!r}."
            )
        size = self.localness_window_size
        if isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size < float("inf"):
            raise ValueError(f"`localness_window_size` must be a positive number of tokens, got {size!r}.")
        check_tokens(size, "localness_window_size")
        if self.cross_localness_layers and self.localness_window is None:
            raise ValueError(
                f"`cross_localness_layers` ({self.cross_localness_layers}) needs a `localness_window`: only the "
                f"Gaussian applies to cross-attention."
            )

    def _say_what_has_no_effect(self) -> None:
        """Refuse or warn about short-form fields that no layer reads."""
        short = [part for part in PARTS if getattr(self, f"{part}_locality") is None]
        reads = any(self._named_layers(part) for part in short)
        given = [name for name in ("local_window", "head_area", "localness_window") if self._is_set(name)]
        if given and not reads and len(short) < len(PARTS):
            long = ", ".join(f"`{part}_locality`" for part in PARTS if part not in short)
            raise ValueError(
                f"`{given[0]}` ({getattr(self, given[0])}) has no effect beside {long}, which says what is local: put "
                f"it into the specifications, or leave it out."
            )
        is_on = self.local_window is not None or self.head_area > 1 or self.localness_window is not None
        for name in _LAYER_FIELDS.values():
            if getattr(self, name) and not is_on:
                logger.warning_once(
                    f"`{name}` ({getattr(self, name)}) has no effect: locality is off (local_window=None, "
                    f"head_area=1, localness_window=None)."
                )

    def _is_set(self, name: str) -> bool:
        """Whether a field of the short form switches something on, and not just by default."""
        return getattr(self, name) not in (None, 1, type(self).__dataclass_fields__[name].default)


_LAYER_FIELDS = {
    "encoder": "localness_layers",
    "decoder": "decoder_localness_layers",
    "cross": "cross_localness_layers",
}
_LOCAL_BY_DEFAULT = 3
"""Encoder layers, from the lowest, that are local where nothing else is said (NAACL 2019, section 4.2)."""
_POSITIVE_FIELDS = (
    "vocab_size",
    "decoder_vocab_size",
    "d_model",
    "encoder_layers",
    "decoder_layers",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "max_position_embeddings",
)
_FLAGS = (
    "share_encoder_decoder_embeddings",
    "tie_word_embeddings",
    "normalize_before",
    "scale_embedding",
    "use_cache",
)
_PROBABILITY_FIELDS = (
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "classifier_dropout",
    "encoder_layerdrop",
    "decoder_layerdrop",
)
_SIZES: dict[str, dict[str, Any]] = {
    "base": {
        "d_model": 512,
        "encoder_layers": 6,
        "decoder_layers": 6,
        "encoder_attention_heads": 8,
        "decoder_attention_heads": 8,
        "encoder_ffn_dim": 2048,
        "decoder_ffn_dim": 2048,
        "dropout": 0.1,
    },
    "big": {
        "d_model": 1024,
        "encoder_layers": 6,
        "decoder_layers": 6,
        "encoder_attention_heads": 16,
        "decoder_attention_heads": 16,
        "encoder_ffn_dim": 4096,
        "decoder_ffn_dim": 4096,
        "dropout": 0.3,
    },
}


def _check_layers(layers: list[int] | None, name: str, depth: int) -> None:
    if layers is None:
        return
    if not isinstance(layers, list | tuple):
        raise ValueError(f"`{name}` must be None or a list of layer numbers counted from 0, got {layers!r}.")
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < depth:
            raise ValueError(f"`{name}` must hold layer numbers from 0 to {depth - 1}, got {layer!r} in {layers}.")
    if len(set(layers)) != len(layers):
        raise ValueError(f"`{name}` names a layer twice: {layers}.")


__all__ = ["CsanConfig"]
