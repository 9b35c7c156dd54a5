# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Checks of the section generation: its values, beside each other and in a vocabulary."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from transformers import GenerationConfig

from .arguments import check_bounds

_TOKENS = (
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
    "sequence_bias",
)
_EMPTY_WITHOUT_EFFECT = ("suppress_tokens", "begin_suppress_tokens")
_WITH_START_TOKEN = ("min_length", "max_length")


def check_generation(values: Mapping[str, Any], vocabulary_size: int) -> None:
    """Checks settings of generation, of which transformers refuses some at the first translation.

    Args:
        values: Names of `GenerationConfig` and their values; None = not set.
        vocabulary_size: Tokens that the decoder has.

    Raises:
        ValueError: It names key, value and bound.
    """
    check_bounds("generation", values)
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
    _check_lengths(values)
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


def _check_lengths(values: Mapping[str, Any]) -> None:
    """Refuses a shortest translation above the longest; a limit of new tokens replaces one that
    counts the start token.
    """
    least_name = "min_new_tokens" if values.get("min_new_tokens") else "min_length"
    most_name = "max_new_tokens" if values.get("max_new_tokens") else "max_length"
    least = values.get(least_name)
    most = values.get(most_name)
    if least is None or most is None:
        return
    bound = most
    if most_name in _WITH_START_TOKEN:
        bound -= 1
    if least_name in _WITH_START_TOKEN:
        bound += 1
    if least > bound:
        raise ValueError(
            f"generation.{least_name} must be at most {bound}, as generation.{most_name} is "
            f"{most}, got {least}."
        )
