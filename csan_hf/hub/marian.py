# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Marian checkpoints as CSANs: window and area add no parameters, so every published one can be fine-tuned."""

import copy
import dataclasses
import difflib
import os
from typing import Any

import torch
from transformers import MarianConfig, MarianMTModel
from transformers.utils import logging

from ..csan import CsanConfig, CsanForConditionalGeneration
from ..csan.attention import CsanAttention

logger = logging.get_logger(__name__)

# What a config of the original Marian may say and transformers' Marian ignores. Anything else than these values
# describes another architecture than the one that transformers (and CSAN) would compute with the weights.
_ARCHITECTURE = {
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}
# Descriptions of the file or class, not of the model
_NOT_COPIED = {"architectures", "dtype", "transformers_version"}
_POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


def convert_marian(
    name_or_path_or_model: str | os.PathLike | MarianMTModel,
    *,
    local_window: int | None = None,
    head_area: int = 1,
    **config_overrides: Any,
) -> CsanForConditionalGeneration:
    """Makes a CSAN of a Marian model, weight for weight, ready for fine-tuning.

    With the defaults it computes what the Marian model computes. With a window or an area it has the same
    parameters and computes something else, which fine-tuning then puts right. Other methods of locality add
    parameters; those are new and start from the config's initialisation. Two things differ on purpose: positions are
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
    marian = _load(name_or_path_or_model)
    config = _convert_config(marian.config, {"local_window": local_window, "head_area": head_area, **config_overrides})
    model: Any = CsanForConditionalGeneration(config)
    model.to(device=marian.device, dtype=marian.dtype)
    _copy_weights(marian, model)
    model.generation_config = copy.deepcopy(marian.generation_config)
    model.name_or_path = model.config.name_or_path = marian.name_or_path
    return model.eval()


def _check_overrides(overrides: dict[str, Any]) -> None:
    """Refuses names that CsanConfig would silently keep as attributes of no meaning."""
    fields = {field.name for field in dataclasses.fields(CsanConfig)}
    for name in overrides.keys() - fields:
        close = difflib.get_close_matches(name, fields, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"CsanConfig has no field {name!r}.{hint}")


def _load(source: str | os.PathLike | MarianMTModel) -> MarianMTModel:
    if isinstance(source, MarianMTModel):
        return source
    if not isinstance(source, str | os.PathLike):
        raise ValueError(f"Expected a MarianMTModel, a directory or a Hub name, got {type(source).__name__}.")
    model_type = MarianConfig.get_config_dict(source)[0].get("model_type")
    if model_type != MarianConfig.model_type:
        raise ValueError(f"{source} holds a model of type {model_type!r}, not a Marian model.")
    # the library types this as if it always returned the model alone
    loaded: Any = MarianMTModel.from_pretrained(source, output_loading_info=True)
    model, report = loaded
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if problem := report.get(kind):
            raise ValueError(f"The Marian checkpoint {source} has {kind.replace('_', ' ')}: {sorted(problem)}")
    return model


def _convert_config(marian: MarianConfig, overrides: dict[str, Any]) -> CsanConfig:
    """Returns CSAN's config with Marian's settings, which go by the same names."""
    for name, expected in _ARCHITECTURE.items():
        if getattr(marian, name, expected) not in (expected, None):
            raise ValueError(
                f"The Marian config has {name}={getattr(marian, name)!r}; only {expected!r} can be converted."
            )
    names = {field.name for field in dataclasses.fields(MarianConfig)} - _NOT_COPIED
    fields = {name: copy.deepcopy(getattr(marian, name)) for name in names}
    if marian.share_encoder_decoder_embeddings:
        # Marian reads vocab_size alone then, so the other may hold anything
        fields["decoder_vocab_size"] = marian.vocab_size
    return CsanConfig(**{**fields, **overrides})


def _copy_weights(marian: MarianMTModel, model: CsanForConditionalGeneration) -> None:
    """Copies every weight and buffer, and checks that nothing was lost, left over or tied differently."""
    source = dict(marian.state_dict())
    positions = {name: source.pop(name) for name in _POSITIONS if name in source}
    _check_positions(positions, model)
    target = model.state_dict()
    new = _added_by_locality(model)
    problems = {
        "missing in Marian": sorted(target.keys() - source.keys() - new),
        "unknown to CSAN": sorted(source.keys() - target.keys()),
        "of another shape": [
            f"{name} {tuple(source[name].shape)}, not {tuple(target[name].shape)}"
            for name in sorted(source.keys() & target.keys())
            if source[name].shape != target[name].shape
        ],
    }
    _refuse(problems)
    model.load_state_dict(source, strict=False)
    target = model.state_dict()
    # Where CSAN ties two weights that differ in Marian, the later one has overwritten the earlier
    _refuse({"tied in CSAN but not here": [n for n in source if not torch.equal(source[n], target[n])]})
    if new:
        logger.warning(f"Newly initialised, to be trained: {sorted(new)}")


def _added_by_locality(model: CsanForConditionalGeneration) -> set[str]:
    """Weights of locality methods, which Marian does not have."""
    return {
        f"{place}.{name}.{weight}"
        for place, attention in model.named_modules()
        if isinstance(attention, CsanAttention)
        for name, module in attention.locality_modules().items()
        for weight in module.state_dict()
    }


def _check_positions(positions: dict[str, torch.Tensor], model: CsanForConditionalGeneration) -> None:
    """Refuses positions that are not the sinusoids which CSAN computes."""
    for name, weight in positions.items():
        module: Any = model.get_submodule(name.removesuffix(".weight"))
        expected = module.create_weight(weight.shape[0])
        if not torch.allclose(weight.cpu().float(), expected, atol=1e-2 if weight.dtype.itemsize < 4 else 1e-5):
            raise ValueError(f"{name} does not hold the sinusoids that CSAN computes, and CSAN learns none.")


def _refuse(problems: dict[str, list[str]]) -> None:
    found = [f"{kind}: {', '.join(names)}" for kind, names in problems.items() if names]
    if found:
        raise ValueError("CSAN cannot represent this Marian model. Weights " + "; weights ".join(found))
