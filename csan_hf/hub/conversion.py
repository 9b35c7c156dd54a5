# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Marian, M2M100 and NLLB checkpoints as CSANs (window and area of heads add no parameters), and CSANs as Marian's."""

import copy
import dataclasses
import difflib
import os
from typing import Any

import torch
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from ..models import CsanConfig, CsanForConditionalGeneration
from ..models.csan_attention import CsanAttention
from ..text_files import reading_folder_or_name

logger = logging.get_logger(__name__)

# What a config of the original Marian may say and transformers' Marian ignores. Anything else than these values
# describes another architecture than the one that transformers (and CSAN) would compute with the weights.
_ARCHITECTURE = {
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}
_POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
# Descriptions of the file or class, not of the model
_NOT_COPIED = {"architectures", "dtype", "transformers_version"}


def convert_marian(
    name_or_path_or_model: str | os.PathLike | MarianMTModel,
    *,
    local_window: int | None = None,
    head_area: int = 1,
    **config_overrides: Any,
) -> CsanForConditionalGeneration:
    """Makes a CSAN of a Marian model, weight for weight, ready for fine-tuning.

    With the defaults it computes what the Marian model computes. With a window or an area it has the same
    parameters but computes something else, so it needs fine-tuning. Other methods of locality add parameters,
    which start from the config's initialisation. Two things differ on purpose: positions are
    counted from the first real token, so that left padding changes nothing, and `decoder_inputs_embeds` are taken as
    given (Marian's decoder multiplies them by √d with `scale_embedding`, its encoder does not).

    ```python
    model = convert_marian("Helsinki-NLP/opus-mt-de-en", local_window=11, head_area=3)
    ```

    Args:
        name_or_path_or_model: A Marian model, or the directory or Hub name of one.
        local_window: Window M of the local layers in tokens, both edges included; `None` is unrestricted.
        head_area: Heads N that a local layer attends to jointly; 1 is each head by itself.
        **config_overrides: Other fields of `CsanConfig`: `localness_layers`, `dropout`, ...

    Returns:
        The CSAN in evaluation mode, with the data type, device and generation config of the Marian model. Its
        weights are copies.

    Raises:
        ValueError: The checkpoint is not Marian's, is incomplete, or holds weights or settings that CSAN cannot
            represent; the message names them. Also where an override names no field of `CsanConfig`.
    """
    _check_overrides(config_overrides)
    marian = _load_source(name_or_path_or_model, MarianMTModel, "a Marian")
    config = _marian_config(marian.config, local_window=local_window, head_area=head_area, **config_overrides)
    _check_attention_is_kept(config)
    model: Any = CsanForConditionalGeneration(config)
    weights = dict(marian.state_dict())
    positions = {name: weights.pop(name) for name in _POSITIONS if name in weights}
    _check_positions(positions, model)
    return _transfer(marian, model, weights, "CSAN cannot represent this Marian model.")


def to_marian(model: CsanForConditionalGeneration) -> MarianMTModel:
    """Makes a Marian model of a CSAN whose locality is off, weight for weight.

    It computes the same in transformers, and other programs that read Marian models, such as optimum and CTranslate2,
    can read it. (CTranslate2's converter takes vocabularies that end with "<pad>", as published Marian models have.)

    Args:
        model: The CSAN, unwrapped.

    Returns:
        The Marian model in evaluation mode, with the data type, device and generation config of the CSAN. Its weights
        are copies.

    Raises:
        ValueError: Layers are local, or the architecture is not Marian's; the message names what differs.
    """
    config = model.config
    for part in ("encoder", "decoder", "cross"):
        if layers := config.local_layers(part):
            attention = "cross-attention" if part == "cross" else f"{part} self-attention"
            raise ValueError(
                f"Marian has no locality, but the {attention} of layers {layers} is local: only a CSAN without "
                "locality can be converted."
            )
    for name, expected in (("normalize_before", False), ("sinusoids", "marian")):
        if getattr(config, name) != expected:
            raise ValueError(f"Marian models have {name}={expected!r}, but this CSAN has {getattr(config, name)!r}.")
    marian: Any = MarianMTModel(MarianConfig(**_shared_fields(config, MarianConfig)))
    embedding: Any = model.model.encoder.embed_positions
    table = embedding.create_weight(config.max_position_embeddings).to(device=model.device, dtype=model.dtype)
    positions = {name: table for name in _POSITIONS if name in marian.state_dict()}
    return _transfer(model, marian, {**model.state_dict(), **positions}, "Marian cannot represent this CSAN.")


def convert_config(source: PreTrainedConfig, **config_overrides: Any) -> CsanConfig:
    """Returns the config of the CSAN that a model with this config becomes.

    Args:
        source: The config of a Marian, M2M100 or NLLB model.
        **config_overrides: Fields of `CsanConfig`.

    Raises:
        ValueError: An override names no field of `CsanConfig`, or a value is out of range.
    """
    converter: Any = _m2m100_config if isinstance(source, M2M100Config) else _marian_config
    return converter(source, **config_overrides)


def _marian_config(
    marian: MarianConfig, *, local_window: int | None = None, head_area: int = 1, **config_overrides: Any
) -> CsanConfig:
    """Returns the config of the CSAN: Marian's settings, which go by the same names."""
    overrides = {"local_window": local_window, "head_area": head_area, **config_overrides}
    _check_overrides(overrides)
    for name, expected in _ARCHITECTURE.items():
        if getattr(marian, name, expected) not in (expected, None):
            raise ValueError(
                f"The Marian config has {name}={getattr(marian, name)!r}; only {expected!r} can be converted."
            )
    fields = _shared_fields(marian, CsanConfig)
    if marian.share_encoder_decoder_embeddings:
        # Marian reads vocab_size alone then, so the other may hold anything
        fields["decoder_vocab_size"] = marian.vocab_size
    return CsanConfig(**{**fields, **overrides})


def _check_positions(positions: dict[str, torch.Tensor], model: CsanForConditionalGeneration) -> None:
    """Refuses positions that are not the sinusoids which CSAN computes."""
    for name, weight in positions.items():
        module: Any = model.get_submodule(name.removesuffix(".weight"))
        expected = module.create_weight(weight.shape[0])
        if not torch.allclose(weight.cpu().float(), expected, atol=1e-2 if weight.dtype.itemsize < 4 else 1e-5):
            raise ValueError(
                f"{name} does not hold the sinusoids that CSAN computes, so this checkpoint cannot be converted."
            )


def convert_m2m100(
    name_or_path_or_model: str | os.PathLike | M2M100ForConditionalGeneration,
    *,
    local_window: int | None = None,
    head_area: int = 1,
    **config_overrides: Any,
) -> CsanForConditionalGeneration:
    """Makes a CSAN of an M2M100 or NLLB model, weight for weight, ready for fine-tuning.

    With the defaults it computes what that model computes. With locality the same parameters compute something else,
    so it needs fine-tuning. The model's own tokenizer and the languages of the pipeline stay usable.

    ```python
    model = convert_m2m100("facebook/nllb-200-distilled-600M", local_window=11, head_area=3)
    ```

    Args:
        name_or_path_or_model: An M2M100 model, or the directory or Hub name of one.
        local_window: Window M of the local layers in tokens, both edges included; `None` is unrestricted.
        head_area: Heads N that a local layer attends to jointly; 1 is each head by itself.
        **config_overrides: Other fields of `CsanConfig`: `localness_layers`, `encoder_locality`, `dropout`, ...

    Returns:
        The CSAN in evaluation mode, with the data type, device and generation config of the model. Its weights are
        copies.

    Raises:
        ValueError: The checkpoint is of another family, is incomplete, or holds weights that CSAN cannot represent;
            the message names them. Also where an override names no field of `CsanConfig`.
    """
    _check_overrides(config_overrides)
    source = _load_source(name_or_path_or_model, M2M100ForConditionalGeneration, "an M2M100")
    config = _m2m100_config(source.config, local_window=local_window, head_area=head_area, **config_overrides)
    _check_attention_is_kept(config)
    model: Any = CsanForConditionalGeneration(config)
    weights = {**source.state_dict(), "final_logits_bias": model.final_logits_bias}  # which M2M100 does not have
    return _transfer(source, model, weights, "CSAN cannot represent this M2M100 model.")


def _m2m100_config(
    m2m100: M2M100Config, *, local_window: int | None = None, head_area: int = 1, **config_overrides: Any
) -> CsanConfig:
    """Returns the config of the CSAN: pre-norm, with M2M100's sinusoids and one vocabulary."""
    _check_overrides(config_overrides)
    fields = _shared_fields(m2m100, CsanConfig)
    fields |= {"normalize_before": True, "sinusoids": "m2m_100", "share_encoder_decoder_embeddings": True}
    return CsanConfig(**{**fields, "local_window": local_window, "head_area": head_area, **config_overrides})


def _check_overrides(overrides: dict[str, Any]) -> None:
    """Refuses names that CsanConfig would silently keep as attributes without effect."""
    fields = {field.name for field in dataclasses.fields(CsanConfig)}
    for name in overrides.keys() - fields:
        close = difflib.get_close_matches(name, fields, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"CsanConfig has no field {name!r}.{hint}")


def _check_attention_is_kept(config: CsanConfig) -> None:
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


def _load_source(source: Any, model_class: Any, family: str) -> Any:
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
        config = model_class.config_class.from_pretrained(source)
    convert_config(config)  # sizes out of range are refused before a model of such sizes is built
    with reading_folder_or_name(source, "model"):
        # Sizes that differ are reported below. The library types this as if it always returned the model alone
        loaded: Any = model_class.from_pretrained(source, output_loading_info=True, ignore_mismatched_sizes=True)
    model, report = loaded
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if problem := report.get(kind):
            name = family.split()[-1]
            raise ValueError(f"The {name} checkpoint {source} has {kind.replace('_', ' ')}: {sorted(problem)}")
    return model


def _shared_fields(config: PreTrainedConfig, other: type[PreTrainedConfig]) -> dict[str, Any]:
    """Returns the fields of a config that another class of configs has under the same names."""
    mine, theirs = ({field.name for field in dataclasses.fields(class_)} for class_ in (type(config), other))
    return {name: copy.deepcopy(getattr(config, name)) for name in (mine & theirs) - _NOT_COPIED}


def _transfer(source: PreTrainedModel, target: Any, source_weights: dict[str, torch.Tensor], message: str) -> Any:
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
