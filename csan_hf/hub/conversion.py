# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What the conversions between CSAN and transformers' own families share: loading, checking and copying."""

import copy
import dataclasses
import difflib
import os
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from ..models import CsanConfig
from ..models.csan_attention import CsanAttention
from ..text_files import reading_folder_or_name

logger = logging.get_logger(__name__)

# Descriptions of the file or class, not of the model
_NOT_COPIED = {"architectures", "dtype", "transformers_version"}


def check_overrides(overrides: dict[str, Any]) -> None:
    """Refuses names that CsanConfig would silently keep as attributes without effect."""
    fields = {field.name for field in dataclasses.fields(CsanConfig)}
    for name in overrides.keys() - fields:
        close = difflib.get_close_matches(name, fields, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"CsanConfig has no field {name!r}.{hint}")


def check_attention_is_kept(config: CsanConfig) -> None:
    """Refuses a locality method that takes the place of an attention, whose weights would have nowhere to go."""
    for part in ("encoder", "decoder", "cross"):
        for layer in config.local_layers(part):
            locality = config.layer_locality(part, layer)
            if locality is not None and locality.replacement is not None:
                key = locality.replacement.key
                raise ValueError(
                    f"The locality method {key!r} of {part} layer {layer} replaces the attention, so its weights "
                    f"cannot be converted; choose a method that keeps it."
                )


def load_source(source: Any, model_class: Any, family: str) -> Any:
    """Returns the model to convert: `source` itself, or the complete model of a directory or Hub name.

    Args:
        source: A model, a directory or a Hub name.
        model_class: The class that the model must have.
        family: The family's name with its article, for messages: "a Marian".

    Raises:
        ValueError: The model is of another family, or the checkpoint is incomplete.
        OSError: There is no such checkpoint, or its weights are damaged.
    """
    if isinstance(source, model_class):
        return source
    if not isinstance(source, str | os.PathLike):
        raise ValueError(f"Expected a {model_class.__name__}, a directory or a Hub name, got {type(source).__name__}.")
    with reading_folder_or_name(source, "model"):
        model_type = model_class.config_class.get_config_dict(source)[0].get("model_type")
    if model_type != model_class.config_class.model_type:
        raise ValueError(f"{source} holds a model of type {model_type!r}, not {family} model.")
    with reading_folder_or_name(source, "model"):
        # Sizes that differ are reported below. The library types this as if it always returned the model alone
        loaded: Any = model_class.from_pretrained(source, output_loading_info=True, ignore_mismatched_sizes=True)
    model, report = loaded
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if problem := report.get(kind):
            name = family.split()[-1]
            raise ValueError(f"The {name} checkpoint {source} has {kind.replace('_', ' ')}: {sorted(problem)}")
    return model


def shared_fields(config: PreTrainedConfig, other: type[PreTrainedConfig]) -> dict[str, Any]:
    """Returns the fields of a config that another class of configs has under the same names."""
    mine, theirs = ({field.name for field in dataclasses.fields(class_)} for class_ in (type(config), other))
    return {name: copy.deepcopy(getattr(config, name)) for name in (mine & theirs) - _NOT_COPIED}


def transfer(source: PreTrainedModel, target: Any, source_weights: dict[str, torch.Tensor], message: str) -> Any:
    """Copies weights, data type, device, name and generation config, and checks that nothing was lost.

    Args:
        source: The model to convert.
        target: A new model of the other family.
        source_weights: The weights of `source` to copy, by their names in `target`.
        message: Beginning of the error where they do not fit.

    Returns:
        `target` in evaluation mode.

    Raises:
        ValueError: A weight is missing, left over, of another shape or tied differently.
    """
    target.to(device=source.device, dtype=source.dtype)
    new = _added_by_locality(target)
    weights = target.state_dict()
    problems = {
        "missing": sorted(weights.keys() - source_weights.keys() - new),
        "left over": sorted(source_weights.keys() - weights.keys()),
        "of another shape": [
            f"{name} {tuple(source_weights[name].shape)}, not {tuple(weights[name].shape)}"
            for name in sorted(source_weights.keys() & weights.keys())
            if source_weights[name].shape != weights[name].shape
        ],
    }
    _refuse(message, problems)
    target.load_state_dict(source_weights, strict=False)
    weights = target.state_dict()
    # Where the target ties two weights that differ in the source, the later one has overwritten the earlier
    untied = [name for name, weight in source_weights.items() if not torch.equal(weight, weights[name])]
    _refuse(message, {"that would be tied": untied})
    if new:
        logger.warning(f"Newly initialised, to be trained: {sorted(new)}")
    target.generation_config = copy.deepcopy(source.generation_config)
    target.name_or_path = target.config.name_or_path = source.name_or_path
    return target.eval()


def _added_by_locality(model: PreTrainedModel) -> set[str]:
    """Weights of locality methods, which no other family has."""
    return {
        f"{place}.{name}.{weight}"
        for place, attention in model.named_modules()
        if isinstance(attention, CsanAttention)
        for name, module in attention.locality_modules().items()
        for weight in module.state_dict()
    }


def _refuse(message: str, problems: dict[str, list[str]]) -> None:
    found = [f"{kind}: {', '.join(names)}" for kind, names in problems.items() if names]
    if found:
        raise ValueError(f"{message} Weights " + "; weights ".join(found))
