# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The locality of a model in words, for model cards."""

from collections.abc import Sequence
from typing import Any

import torch

from ..models import CsanConfig
from ..models.csan_attention import CsanAttention
from ..models.locality import PARTS, LayerLocality

_NAMES = {
    "encoder": "Self-attention of the encoder",
    "decoder": "Self-attention of the decoder",
    "cross": "Cross-attention of the decoder",
}


def describe_network(config: dict[str, Any], task: str) -> dict[str, Any]:
    """Returns what a card says of the network: its kind, its locality and the papers, as keys of the bibliography.

    Args:
        config: The fields of a `CsanConfig`, as in `config.json`.
        task: `"translation"`, or a classifier's, which has an encoder alone.
    """
    if task != "translation":
        decoder = ("decoder_localness_layers", "cross_localness_layers", "decoder_locality", "cross_locality")
        config = {**config, **dict.fromkeys(decoder)}
    papers = [*locality_papers(config), "vaswani2017"]
    return {"kind": short_name(config), "locality": describe_locality(config), "papers": papers}


def describe_locality(config: dict[str, Any]) -> list[str]:
    """Says where and how a CSAN's attention is local.

    Args:
        config: The fields of a `CsanConfig`, as in `config.json`. Missing ones count as off.

    Returns:
        Sentences in Markdown, one for each group of layers that are local alike; a single one for a plain Transformer.
    """
    full = _as_config(config)
    sentences = []
    for part in PARTS:
        for locality, layers in _groups(full, part).items():
            site = full.attention_site(part, layers[0])
            how = "; ".join(method.describe(site) for method in locality.methods)
            depth = full.encoder_layers if part == "encoder" else full.decoder_layers
            added = added_parameters(full, part, layers[0])
            parameters = f"{added:+,} parameters in each layer" if added else "no parameters added"
            sentences.append(f"**{_NAMES[part]}**, {_name_layers(layers, depth)}: {how}; {parameters}.")
    return sentences or ["None: every layer attends to the whole sentence, as in the plain Transformer."]


def added_parameters(config: CsanConfig, part: str, index: int) -> int:
    """Counts the parameters that one attention has more than multi-head attention.

    Args:
        config: The model's configuration.
        part: `"encoder"`, `"decoder"` (its self-attention) or `"cross"`.
        index: Layer, counted from 0.
    """
    with torch.device("meta"):
        attention = CsanAttention(config, part, index)
    d = config.d_model
    return sum(parameter.numel() for parameter in attention.parameters()) - 4 * (d * d + d)


def short_name(config: dict[str, Any]) -> str:
    """Names the kind of model as the papers do: `2D-CSAN (3×11)`, `1D-CSAN (11)`, `Transformer`..."""
    full = _as_config(config)
    localities = sorted(_localities(full), key=lambda locality: -locality.area.head_area)  # the largest area first
    methods = [method for locality in localities for method in locality.methods]
    names = [_model_name(locality) for locality in localities]
    name = next((name for name in names if name is not None), "Transformer")
    labels = list(dict.fromkeys(method.label for method in methods if method.label is not None))
    return f"{name} with {' and '.join(labels)}" if labels else name


def _model_name(locality: LayerLocality) -> str | None:
    """What the last method that has a name for its models says."""
    names = [method.model_name(locality.area) for method in locality.methods]
    return next((name for name in reversed(names) if name is not None), None)


def locality_papers(config: dict[str, Any]) -> list[str]:
    """Papers of the methods that a CSAN's attention uses, as keys of the card's bibliography."""
    methods = [method for locality in _localities(_as_config(config)) for method in locality.methods]
    return list(dict.fromkeys(method.paper for method in methods if method.paper is not None))


def _localities(config: CsanConfig) -> list[LayerLocality]:
    return [locality for part in PARTS for locality in _groups(config, part)]


def _as_config(config: dict[str, Any]) -> CsanConfig:
    return CsanConfig.from_dict({"local_window": None, "head_area": 1, **config})


def _groups(config: CsanConfig, part: str) -> dict[LayerLocality, list[int]]:
    """The local layers of a part, those that are alike together."""
    groups: dict[LayerLocality, list[int]] = {}
    for index in config.local_layers(part):
        locality = config.layer_locality(part, index)
        assert locality is not None  # for the type checker
        groups.setdefault(locality, []).append(index)
    return groups


def _name_layers(layers: Sequence[int], depth: int) -> str:
    numbers = ", ".join(str(layer + 1) for layer in layers)
    return f"layer{'s' if len(layers) > 1 else ''} {numbers} of {depth}, counted from the input"
