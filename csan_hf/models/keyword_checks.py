# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Checks for keywords that nothing reads: a misspelt one is refused, any other gives a warning."""

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.utils import TransformersKwargs, logging

logger = logging.get_logger(__name__)

_CLOSE = 0.8
"""Similarity (difflib's ratio) from which an unknown keyword is taken for a misspelt one."""

# What transformers and its companions keep in a config beside the fields of its class, or hand to it.
_OF_THE_LIBRARY = {
    "attn_implementation",
    "auto_map",
    "custom_pipelines",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "per_layer_config",
    "prefix",
    "problem_type",
    "pruned_heads",
    "quantization_config",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers_version",
}
_OF_A_FORWARD = {*TransformersKwargs.__annotations__, "cache_position", "return_dict"}


def check_config_keywords(config: Any, keywords: Mapping[str, Any], fields: Collection[str]) -> None:
    """Refuse or warn about keywords of a config that name no field: transformers would keep them without effect.

    For a config that was saved earlier (it names a `transformers_version`) there are only warnings, so that it loads.

    Args:
        config: The config.
        keywords: The keywords that its class has no field for.
        fields: Names of its fields.

    Raises:
        ValueError: A keyword is a misspelt field.
    """
    known = {*_OF_THE_LIBRARY, *config.attribute_map, *GenerationConfig._get_default_generation_params()}
    for name in keywords:
        if name in known or name.startswith("_") or hasattr(type(config), name):
            continue
        close = difflib.get_close_matches(name, fields, n=1, cutoff=_CLOSE)
        message = f"{type(config).__name__} has no field {name!r}"
        if close and getattr(config, "transformers_version", None) is None:
            raise ValueError(f"{message}. Did you mean {close[0]!r}?")
        logger.warning_once(f"{message}: it has no effect.")


def check_forward_keywords(keywords: Mapping[str, Any], forward: Callable[..., Any]) -> None:
    """Refuse or warn about keywords of a forward pass that nothing reads.

    Keywords that transformers itself passes on are accepted; any other gives one warning.

    Args:
        keywords: The keywords that the forward pass has no argument for.
        forward: The forward pass.

    Raises:
        TypeError: A keyword is a misspelt argument.
    """
    if torch.compiler.is_compiling() or _OF_A_FORWARD.issuperset(keywords):
        return
    arguments = list(inspect.signature(forward).parameters)
    for name in keywords:
        if name in _OF_A_FORWARD:
            continue
        close = difflib.get_close_matches(name, arguments, n=1, cutoff=_CLOSE)
        if close:
            raise TypeError(f"forward() has no argument {name!r}. Did you mean {close[0]!r}?")
        logger.warning_once(f"forward() has no argument {name!r}: it has no effect.")
