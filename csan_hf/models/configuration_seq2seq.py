# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Base of the families' configurations: common fields, declared bounds, checks, saving."""

import dataclasses
import difflib
import operator
import os
from collections.abc import Callable, Iterable
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

import transformers
from packaging import version
from transformers.utils import logging
from transformers.utils.versions import require_version

# From the first to below the second all is tested; pyproject.toml, guides and model cards say the
# same
MINIMUM_TRANSFORMERS = "5.20"
UNTESTED_TRANSFORMERS = "5.25"
require_version(
    f"transformers>={MINIMUM_TRANSFORMERS}",
    f"These models need transformers {MINIMUM_TRANSFORMERS} or newer: "
    "pip install -U 'transformers<6'",
)

# An older transformers lacks what follows
from huggingface_hub.dataclasses import type_validator  # noqa: E402
from transformers import GenerationConfig  # noqa: E402
from transformers.configuration_utils import PreTrainedConfig  # noqa: E402

logger = logging.get_logger(__name__)

if version.parse(transformers.__version__) >= version.parse(UNTESTED_TRANSFORMERS):
    logger.warning_once(
        f"This code was tested with transformers {MINIMUM_TRANSFORMERS} to below "
        f"{UNTESTED_TRANSFORMERS}, and this is {transformers.__version__}. Should it fail: pip "
        f"install 'transformers<{UNTESTED_TRANSFORMERS}'"
    )

MOST_LAYERS = 1000  # a config.json that asks for millions would keep the machine busy silently
MOST_TOKENS = 2**31 - 1  # longest distance, window or width: a number that every tensor can hold
# Keywords that transformers and its companions hand to a config, beside its fields and properties
_LIBRARY_KEYWORDS = {
    "attn_implementation",
    "auto_map",
    "custom_pipelines",
    "experts_implementation",
    "prefix",
    "pruned_heads",
    "quantization_config",
    "task_specific_params",
    "tokenizer_class",
    "torchscript",
}
_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "above": operator.gt,
    "at least": operator.ge,
    "below": operator.lt,
    "at most": operator.le,
    "odd": lambda value, odd: value % 2 == odd,
}
_TYPE_NAMES = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a string",
    type(None): "None",
}


def bounded(
    default: object,
    least: object = None,
    most: object = None,
    above: object = None,
    below: object = None,
    odd: object = None,
) -> Any:
    """A field and the numbers that it may hold; `above` and `below` are strict, None = no bound."""
    bounds = {"above": above, "at least": least, "below": below, "at most": most, "odd": odd}
    bounds = {words: bound for words, bound in bounds.items() if bound is not None}
    return dataclasses.field(default=default, metadata={"bounds": bounds})


class Seq2SeqConfig(PreTrainedConfig):
    """Configuration of an encoder-decoder with one shared or two separate vocabularies.

    Fields are checked by their types and the bounds declared beside them (`bounded`) on
    construction, on loading, with overrides, too, and before saving: a ValueError names field and
    value. A misspelt field is refused; any other keyword gives a warning and is kept as an
    attribute, as in transformers."""

    # Function of config and directory with which csan_hf completes a save
    after_saving: ClassVar[Callable[[Any, str | os.PathLike], None] | None] = None
    # Keywords of which a config makes fields
    keywords: ClassVar[frozenset[str]] = frozenset()
    keys_to_ignore_at_inference = ["cache", "past_key_values"]  # noqa: RUF012
    architectures: list[str] | None = None
    vocab_size: int = bounded(32000, 1)
    decoder_vocab_size: int = bounded(None, 1)  # `vocab_size` once initialised
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    is_encoder_decoder: bool = True
    is_decoder: bool = False
    use_cache: bool = True
    decoder_start_token_id: int = 0
    pad_token_id: int = 0
    eos_token_id: int | list[int] | None = 1
    bos_token_id: int | list[int] | None = None
    forced_eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Fill in the derived defaults and validate."""
        if self.decoder_vocab_size is None:
            self.decoder_vocab_size = self.vocab_size
        self._check_keywords(kwargs)
        super().__post_init__(**kwargs)
        self.validate_fields()

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Make a config as transformers does; overrides of fields are checked like all others."""
        overrides = {}
        for name in kwargs.keys() - {"dtype"}:
            field = cls.attribute_map.get(name, name)
            if field in cls.__dataclass_fields__:
                overrides[field] = kwargs.pop(name)
        if config_dict.get("vocab_size") == config_dict.get("decoder_vocab_size"):
            config_dict = {**config_dict, "decoder_vocab_size": None}  # as many as `vocab_size`
        return super().from_dict({**config_dict, **overrides}, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:  # type: ignore[override]
        """Save as transformers does, with the code of the configuration; fields are checked."""
        self.validate_fields()
        super().save_pretrained(save_directory, **kwargs)
        if self.after_saving is not None:
            self.after_saving(save_directory)

    def validate_fields(self) -> None:
        """Raise a `ValueError` that names field and value where the configuration is impossible."""
        check_fields(self)
        if self.share_encoder_decoder_embeddings and self.decoder_vocab_size != self.vocab_size:
            raise ValueError(
                f"`decoder_vocab_size` ({self.decoder_vocab_size}) must equal `vocab_size` "
                f"({self.vocab_size}) with share_encoder_decoder_embeddings=True."
            )
        for name in ("pad", "decoder_start", "eos", "bos", "forced_eos"):
            value = getattr(self, f"{name}_token_id")
            size = self.decoder_vocab_size
            if name == "pad":  # of both vocabularies
                size = min(size, self.vocab_size)
            tokens = value if isinstance(value, list) else [value or 0]
            if not tokens or min(tokens) < 0 or max(tokens) >= size:
                raise ValueError(
                    f"`{name}_token_id` must be a token of the vocabulary, 0 to {size - 1}, got "
                    f"{value!r}."
                )

    def _check_keywords(self, keywords: dict[str, Any]) -> None:
        """Refuse misspelt fields, warn of other unknown ones; a saved config always loads."""
        known = (
            _LIBRARY_KEYWORDS
            | self.keywords
            | GenerationConfig._get_default_generation_params().keys()
        )
        for name in keywords.keys() - known - self.attribute_map.keys():
            if name.startswith("_") or hasattr(type(self), name):
                continue
            message = f"{type(self).__name__} has no field {name!r}"
            hint = did_you_mean(
                name, {*type(self).__dataclass_fields__, *self.keywords}, likeness=0.8
            )
            if hint and self.transformers_version is None:
                raise ValueError(f"{message}.{hint}")
            logger.warning_once(f"{message}: it has no effect.")


def did_you_mean(name: object, names: Iterable[str], likeness: float = 0.6) -> str:
    """The nearest of some names as a sentence for the end of a message, or nothing."""
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=likeness)
    return f" Did you mean {close[0]!r}?" if close else ""


def check_fields(instance: Any, prefix: str = "") -> None:
    """Raise `ValueError` unless a dataclass's fields have their types and are within the bounds."""
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        bounds = field.metadata.get("bounds", {})
        try:
            # transformers' own check has no types at run time
            type_validator(field.name, value, field.type)
            fits = value is None or all(
                _HOLDS[words](value, bound) for words, bound in bounds.items()
            )
        except TypeError:
            fits = False
        if not fits or value in (float("inf"), float("-inf")):
            expected = f"{_in_words(field.type)} {bounds_text(field)}".strip()
            raise ValueError(f"`{prefix}{field.name}` must be {expected}, got {value!r}.")


def bounds_text(field: dataclasses.Field) -> str:
    """The bounds of a field in words: "at least 1 and odd"; "" if it has none."""
    bounds = field.metadata.get("bounds", {})
    return " and ".join(
        words if words == "odd" else f"{words} {bound}" for words, bound in bounds.items()
    )


def _in_words(kind: Any) -> str:
    """A type as a message names it."""
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return f"one of {list(parts)}"
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(
            _in_words(part) for part in parts if part is not int or float not in parts
        )
    return _TYPE_NAMES.get(kind) or str(kind)


__all__ = ["Seq2SeqConfig"]
