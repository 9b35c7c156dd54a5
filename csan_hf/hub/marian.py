# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Marian checkpoints as CSANs (window and area of heads add no parameters), and CSANs as Marian checkpoints."""

import os
from typing import Any

import torch
from transformers import MarianConfig, MarianMTModel

from ..models import CsanConfig, CsanForConditionalGeneration
from .conversion import check_attention_is_kept, check_overrides, load_source, shared_fields, transfer

# What a config of the original Marian may say and transformers' Marian ignores. Anything else than these values
# describes another architecture than the one that transformers (and CSAN) would compute with the weights.
_ARCHITECTURE = {
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}
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
    check_overrides(config_overrides)
    marian = load_source(name_or_path_or_model, MarianMTModel, "a Marian")
    config = convert_config(marian.config, local_window=local_window, head_area=head_area, **config_overrides)
    check_attention_is_kept(config)
    model: Any = CsanForConditionalGeneration(config)
    weights = dict(marian.state_dict())
    positions = {name: weights.pop(name) for name in _POSITIONS if name in weights}
    _check_positions(positions, model)
    return transfer(marian, model, weights, "CSAN cannot represent this Marian model.")


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
    marian: Any = MarianMTModel(MarianConfig(**shared_fields(config, MarianConfig)))
    embedding: Any = model.model.encoder.embed_positions
    table = embedding.create_weight(config.max_position_embeddings).to(device=model.device, dtype=model.dtype)
    positions = {name: table for name in _POSITIONS if name in marian.state_dict()}
    return transfer(model, marian, {**model.state_dict(), **positions}, "Marian cannot represent this CSAN.")


def convert_config(
    marian: MarianConfig, *, local_window: int | None = None, head_area: int = 1, **config_overrides: Any
) -> CsanConfig:
    """Returns the config that `convert_marian` gives the CSAN: Marian's settings, which go by the same names.

    Args:
        marian: The config of the Marian model.
        local_window: See `convert_marian`.
        head_area: See `convert_marian`.
        **config_overrides: See `convert_marian`.

    Raises:
        ValueError: See `convert_marian`.
    """
    overrides = {"local_window": local_window, "head_area": head_area, **config_overrides}
    check_overrides(overrides)
    for name, expected in _ARCHITECTURE.items():
        if getattr(marian, name, expected) not in (expected, None):
            raise ValueError(
                f"The Marian config has {name}={getattr(marian, name)!r}; only {expected!r} can be converted."
            )
    fields = shared_fields(marian, CsanConfig)
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
