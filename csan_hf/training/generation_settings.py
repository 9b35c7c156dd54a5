# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Checks of the section generation: its values, beside each other and in a vocabulary."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from transformers import GenerationConfig

from csan_hf_runtime.generation import check_lengths

from .arguments import GenerationArguments, check_section

_TOKENS = (
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
    "sequence_bias",
)
_EMPTY_WITHOUT_EFFECT = ("suppress_tokens", "begin_suppress_tokens")


def check_generation(values: Mapping[str, Any], vocabulary_size: int) -> None:
    """Checks settings of generation, of which transformers refuses some at the first translation.

    Args:
        values: Names of `GenerationConfig` and their values; None = not set.
        vocabulary_size: Tokens that the decoder has.

    Raises:
        ValueError: It names key, value and bound.
    """
    check_section("generation", GenerationArguments, values)
    _check_biases(values.get("sequence_bias"))
    for name in _TOKENS:
        value = values.get(name)
        items = value if isinstance(value, list) else [value]
        if [] in (value, *items) and name not in _EMPTY_WITHOUT_EFFECT:
            raise ValueError(f"generation.{name} must not have an empty list, got {value}.")
        for token in _tokens_in(items):
            if not 0 <= token < vocabulary_size:
                raise ValueError(
                    f"generation.{name} must have tokens of the target vocabulary, 0 to "
                    f"{vocabulary_size - 1}, got {token}."
                )
    check_lengths(values, "generation.")
    GenerationConfig(**values).validate(strict=True)


def _tokens_in(items: list[Any]) -> Iterator[int]:
    """Yields the tokens of lists of lists; a bias is no token."""
    for item in items:
        if isinstance(item, int):
            yield item
        elif isinstance(item, list):
            sequence = item[0] if isinstance(item[0], list) else item
            yield from sequence


def _check_biases(pairs: list[Any] | None) -> None:
    for pair in pairs or ():
        match pair:
            case [[*tokens], int() | float() as bias] if (
                tokens and math.isfinite(bias) and all(isinstance(token, int) for token in tokens)
            ):
                continue
        raise ValueError(
            "generation.sequence_bias must hold pairs of a list of tokens and a finite number, "
            f"such as [[5, 6], -2.0], got {pair}."
        )
