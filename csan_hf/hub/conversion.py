# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Marian, M2M100, NLLB, BART and mBART as CSANs, and CSANs as Marian models.

Window and area add no parameters.
"""

import copy
import dataclasses
import os
import re
from typing import Any

import torch
from transformers import (
    AutoConfig,
    BartConfig,
    BartForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from csan_hf_runtime.text_files import reading_folder_or_name

from ..models import CsanConfig, CsanForConditionalGeneration
from ..models.csan_attention import CsanAttention
from ..models.locality import PARTS, parameters_name

logger = logging.get_logger(__name__)

_POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
# Descriptions of the file or class, not of the model
_NOT_COPIED = {"architectures", "dtype", "transformers_version"}
# What pipelines read of a config, though it is no field
_OF_PIPELINES = ("prefix", "task_specific_params")


def convert_marian(
    name_or_path_or_model: str | os.PathLike | MarianMTModel,
    **config_overrides: Any,
) -> CsanForConditionalGeneration:
    """Makes a CSAN of a Marian model, weight for weight, ready for fine-tuning.

    Without overrides it computes what the Marian model computes. With a window or an area it has
    the same parameters but computes something else, so it needs fine-tuning. Other methods of
    locality add parameters, which start from the config's initialisation. Two things differ on
    purpose: positions are counted from the first real token, so that left padding changes nothing,
    and `decoder_inputs_embeds` are taken as given (Marian's decoder multiplies them by √d with
    `scale_embedding`, its encoder does not).

    ```python
    model = convert_marian("Helsinki-NLP/opus-mt-de-en", local_window=11, head_area=3)
    ```

    Args:
        name_or_path_or_model: A Marian model, or the directory or Hub name of one.
        **config_overrides: Fields of `CsanConfig`: `local_window`, `head_area`, `dropout`, ...;
            those of locality are off where they are not given.

    Returns:
        The CSAN in evaluation mode, with the data type, device and generation config of the Marian
        model. Its weights are copies.

    Raises:
        ValueError: The checkpoint is not Marian's, is incomplete, or holds weights that CSAN cannot
            represent; the message names them. Also where an override names no field of
            `CsanConfig`.
        RuntimeError: An override changes the shape of a weight.
    """
    marian, model = _source_and_csan(name_or_path_or_model, MarianMTModel, config_overrides)
    weights = dict(marian.state_dict())
    for name in set(_POSITIONS) & weights.keys():
        weight = weights[name]
        expected = model.get_submodule(name.removesuffix(".weight")).create_weight(weight.shape[0])
        tolerance = 1e-2 if weight.dtype.itemsize < 4 else 1e-5
        if torch.allclose(weight.cpu().float(), expected, atol=tolerance):
            del weights[name]  # the sinusoids that CSAN computes
    return _transfer(marian, model, weights)


def convert_m2m100(
    name_or_path_or_model: str | os.PathLike | M2M100ForConditionalGeneration,
    **config_overrides: Any,
) -> CsanForConditionalGeneration:
    """Makes a CSAN of an M2M100 or NLLB model, weight for weight, ready for fine-tuning.

    As `convert_marian`, which describes arguments, result and errors. The model's own tokenizer and
    the languages of the pipeline stay usable.

    ```python
    model = convert_m2m100("facebook/nllb-200-distilled-600M", local_window=11, head_area=3)
    ```
    """
    source, model = _source_and_csan(
        name_or_path_or_model, M2M100ForConditionalGeneration, config_overrides
    )
    # M2M100 has no bias
    weights = {**source.state_dict(), "final_logits_bias": model.final_logits_bias}
    return _transfer(source, model, weights)


def convert_bart(
    name_or_path_or_model: str
    | os.PathLike
    | BartForConditionalGeneration
    | MBartForConditionalGeneration,
    **config_overrides: Any,
) -> CsanForConditionalGeneration:
    """Makes a CSAN of a BART or mBART model, weight for weight, ready for fine-tuning.

    As `convert_marian`, which describes arguments, result and errors. Like BART it has learned
    positions, and refuses a text with more tokens than these. Of mBART, the decoder begins with the
    end of a sentence, as mBART-50's does.

    ```python
    model = convert_bart("facebook/mbart-large-50-many-to-many-mmt", local_window=11, head_area=3)
    ```
    """
    if isinstance(name_or_path_or_model, PreTrainedModel):
        config = name_or_path_or_model.config
    else:
        config = AutoConfig.from_pretrained(name_or_path_or_model, trust_remote_code=False)
    family: type[PreTrainedModel] = BartForConditionalGeneration
    if isinstance(config, MBartConfig):
        family = MBartForConditionalGeneration
    source, model = _source_and_csan(name_or_path_or_model, family, config_overrides)
    weights = dict(source.state_dict())
    for name in _POSITIONS:
        weights[name] = weights[name][2:]  # the first two, kept for padding, stand for no position
    return _transfer(source, model, weights)


def to_marian(model: CsanForConditionalGeneration) -> MarianMTModel:
    """Makes a Marian model of a CSAN whose locality is off, weight for weight.

    It computes the same in transformers, and other programs that read Marian models, such as
    optimum, can read it.

    Args:
        model: The CSAN, unwrapped.

    Returns:
        The Marian model in evaluation mode, with the data type, device and generation config of the
        CSAN. Its weights are copies.

    Raises:
        ValueError: Layers are local, or the architecture is not Marian's; the message names what
            differs.
    """
    config = model.config
    needed: dict[str, tuple[Any, Any]] = {
        f"local {part} layers": (config.local_layers(part), []) for part in PARTS
    }
    needed["normalize_before"] = (config.normalize_before, False)
    needed["position_embeddings"] = (config.position_embeddings, "sinusoidal")
    for name, (value, expected) in needed.items():
        if value != expected:
            raise ValueError(
                f"Marian models have {name}={expected!r}, but this CSAN has {value!r}."
            )
    marian: Any = MarianMTModel(MarianConfig(**_shared_fields(config, MarianConfig)))
    embedding: Any = model.model.encoder.embed_positions
    table = embedding.create_weight(config.max_position_embeddings).to(
        device=model.device, dtype=model.dtype
    )
    positions = {name: table for name in _POSITIONS if name in marian.state_dict()}
    return _transfer(model, marian, {**model.state_dict(), **positions})


def convert_config(
    source: PreTrainedConfig,
    **config_overrides: Any,
) -> CsanConfig:
    """Returns the config of the CSAN that a model of a family above with this config becomes.

    The further arguments are those of `convert_marian`. Raises `ValueError` if an override names no
    field of `CsanConfig`, or a value is out of range."""
    fields = _shared_fields(source, CsanConfig)
    if isinstance(source, M2M100Config):
        fields["normalize_before"] = True
        fields["position_embeddings"] = "m2m_100"
        fields["share_encoder_decoder_embeddings"] = True
    elif isinstance(source, BartConfig | MBartConfig):
        fields["normalize_before"] = isinstance(source, MBartConfig)
        fields["position_embeddings"] = "learned"
        fields["share_encoder_decoder_embeddings"] = True
        start = source.decoder_start_token_id
        fields["decoder_start_token_id"] = source.eos_token_id if start is None else start
    elif fields["share_encoder_decoder_embeddings"]:
        # Marian reads `vocab_size` alone: the other may hold anything
        fields["decoder_vocab_size"] = fields["vocab_size"]
    for name in _OF_PIPELINES:
        if getattr(source, name, None) is not None:
            fields[name] = copy.deepcopy(getattr(source, name))
    return CsanConfig(**{**fields, "local_window": None, "head_area": 1, **config_overrides})


def _source_and_csan(source: Any, model_class: Any, fields: dict[str, Any]) -> tuple[Any, Any]:
    """Returns the model to convert, `source` itself or the complete model of a directory or Hub
    name, and a new CSAN of its sizes.
    """
    if isinstance(source, model_class):
        return source, CsanForConditionalGeneration(convert_config(source.config, **fields))
    with reading_folder_or_name(source, "model"):
        model_type = PreTrainedConfig.get_config_dict(source)[0].get("model_type")
        expected = model_class.config_class.model_type
        if model_type not in (None, expected):
            raise ValueError(f"{source} is a model of type {model_type!r}, not {expected!r}.")
        # What is out of range is refused before a model of such sizes is built
        config = convert_config(model_class.config_class.from_pretrained(source), **fields)
        # Sizes that differ are reported below. The library types this as if it always returned the
        # model alone
        loaded: Any = model_class.from_pretrained(
            source, output_loading_info=True, ignore_mismatched_sizes=True
        )
    model, report = loaded
    report["unexpected_keys"] = filter(_is_needed, report.get("unexpected_keys", ()))
    report = {kind: sorted(keys) for kind, keys in report.items()}
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if report.get(kind):
            raise ValueError(
                f"The checkpoint {source} has {kind.replace('_', ' ')}: {report[kind]}"
            )
    return model, CsanForConditionalGeneration(config)


def _is_needed(key: str) -> bool:
    """Whether a key is none of those that files of earlier versions of a library had besides."""
    return re.search(r"\.(embed_positions\.\w+|position_ids|version)$", key) is None


def _shared_fields(config: PreTrainedConfig, target: type[PreTrainedConfig]) -> dict[str, Any]:
    """Returns the fields of a config that another class of configs has under the same names."""
    names = {field.name for field in dataclasses.fields(target)} - _NOT_COPIED
    return {
        field.name: copy.deepcopy(getattr(config, field.name))
        for field in dataclasses.fields(config)
        if field.name in names
    }


def _transfer(source: PreTrainedModel, target: Any, weights: dict[str, torch.Tensor]) -> Any:
    """Copies `weights`, data type, device, generation config and the config's name to a new model
    of the other family.

    Raises `ValueError` if a weight is missing, left over or tied differently, torch's
    `RuntimeError` for other shapes."""
    target.to(device=source.device, dtype=source.dtype)
    new: set[str] = set()
    for place, attention in target.named_modules():
        if isinstance(attention, CsanAttention):
            for method in attention.methods:
                prefix = f"{place}.{parameters_name(method)}."
                new |= {name for name in target.state_dict() if name.startswith(prefix)}
    message = f"{type(target).__name__} cannot represent this {type(source).__name__}: "
    missing, left_over = target.load_state_dict(weights, strict=False)
    loaded = target.state_dict()
    # Where the target ties two weights that differ in the source, the later one has overwritten the
    # earlier
    tied = [
        name
        for name in weights.keys() & loaded.keys()
        if not torch.equal(weights[name], loaded[name])
    ]
    problems = {"missing": {*missing} - new, "left over": left_over, "that would be tied": tied}
    faults = [
        f"weights {kind}: {', '.join(sorted(names))}" for kind, names in problems.items() if names
    ]
    if faults:
        raise ValueError(message + "; ".join(faults))
    if new:
        logger.warning(f"Newly initialised, to be trained: {sorted(new)}")
    target.generation_config = copy.deepcopy(source.generation_config)
    # Not that of the model: an adapter of it would load the source instead
    target.config.name_or_path = source.name_or_path
    return target.eval()
