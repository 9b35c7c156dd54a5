# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Descriptions of networks in model cards: a CSAN's locality, a Pervasive Attention's grid."""

import itertools
from typing import Any

import torch

from ..models import CsanConfig, PervasiveAttentionConfig
from ..models.csan_attention import CsanAttention
from ..models.locality import AttentionSite, LayerLocality, LocalityMethod
from .locality_reach import caption, layer_groups

_PARTS = {
    "encoder": "Self-attention of the encoder",
    "decoder": "Self-attention of the decoder",
    "cross": "Cross-attention of the decoder",
}
_AGGREGATIONS = {
    "max": "the maximum over the source tokens",
    "average": "the scaled average over the source tokens",
    "attention": "attention over the source tokens",
    "max_attention": "the maximum over the source tokens beside attention over them",
    "gated_max": "the maximum of a gated linear unit over the source tokens",
}


def describe_csan(config: dict[str, Any], task: str) -> dict[str, Any]:
    """Describes a CSAN: its `kind`, its `locality` and `papers`, keys of the bibliography.

    Args:
        config: The fields of a `CsanConfig`, as in `config.json`.
        task: `"translation"`, or a classifier's, which has an encoder alone.
    """
    if task != "translation":
        decoder = (
            "decoder_localness_layers",
            "cross_localness_layers",
            "decoder_locality",
            "cross_locality",
        )
        config = {**config, **dict.fromkeys(decoder)}
    papers = [*locality_papers(config), "vaswani-etal-2017-attention"]
    return {"kind": short_name(config), "locality": describe_locality(config), "papers": papers}


def describe_locality(config: dict[str, Any]) -> list[str]:
    """Says where and how a CSAN's attention is local; missing fields of its config count as off.

    Returns:
        Sentences in Markdown, one for each group of layers that are local alike; a single one for a
        plain Transformer.
    """
    full = _as_config(config)
    sentences = []
    for part, locality, layers in _groups(full):
        site = full.attention_site(part, layers[0])
        how = "; ".join(_describe(method, site) for method in locality.methods)
        depth = full.encoder_layers if part == "encoder" else full.decoder_layers
        numbers = ", ".join(str(layer + 1) for layer in layers)
        numbers = f"layers {numbers}" if len(layers) > 1 else f"layer {numbers}"
        added = added_parameters(full, part, layers[0])
        parameters = f"{added:+,} parameters in each layer" if added else "no parameters added"
        sentences.append(
            f"**{_PARTS[part]}**, {numbers} of {depth}, counted from the input: {how}; "
            f"{parameters}."
        )
    return sentences or [
        "None: every layer attends to the whole sentence, as in the plain Transformer."
    ]


def _describe(method: LocalityMethod, site: AttentionSite) -> str:
    return caption(method) if method.phrase is None else method.phrase.format(method, site)


def added_parameters(config: CsanConfig, part: str, index: int) -> int:
    """Counts parameters of an attention (of a part, `"encoder"` say, and a layer) beyond multi-head
    attention's.
    """
    with torch.device("meta"):
        attention = CsanAttention(config, part, index)
    d = config.d_model
    return sum(parameter.numel() for parameter in attention.parameters()) - 4 * (d * d + d)


def short_name(config: dict[str, Any]) -> str:
    """Names the kind of model as the papers do: `2D-CSAN (3×11)`, `Transformer`..."""
    localities = [locality for _, locality, _ in _groups(_as_config(config))]
    localities.sort(key=lambda locality: -locality.area.head_area)  # the largest area first
    methods = itertools.chain.from_iterable(locality.methods for locality in localities)
    name = next(filter(None, map(_csan_name, localities)), "Transformer")
    labels = dict.fromkeys(
        method.key.replace("_", " ") if method.label is None else method.label for method in methods
    )
    added = " and ".join(filter(None, labels))
    return f"{name} with {added}" if added else name


def _csan_name(locality: LayerLocality) -> str | None:
    area = locality.area
    if area.head_area > 1:
        return f"2D-CSAN ({area.head_area}×{area.window or 'sentence'})"
    return None if area.window is None else f"1D-CSAN ({area.window})"


def locality_papers(config: dict[str, Any]) -> list[str]:
    """Papers of the methods that a CSAN's attention uses, as keys of the card's bibliography."""
    papers: dict[str | None, None] = {}
    for _, locality, _ in _groups(_as_config(config)):
        papers |= dict.fromkeys(method.paper for method in locality.methods)
    return list(filter(None, papers))


def _as_config(config: dict[str, Any]) -> CsanConfig:
    return CsanConfig.from_dict({"local_window": None, "head_area": 1, **config})


def _groups(config: CsanConfig) -> list[tuple[str, LayerLocality, tuple[int, ...]]]:
    """The local layers by part and locality."""
    return [
        (part, locality, layers)
        for part, locality, layers in layer_groups(config)
        if locality is not None
    ]


def describe_pervasive_attention(config: dict[str, Any], task: str) -> dict[str, Any]:
    """Describes a Pervasive Attention network: its `kind`, its `grid` and `papers`.

    Args:
        config: The fields of a `PervasiveAttentionConfig`, as in `config.json`.
        task: Not used: the family has no classifiers.
    """
    config = PervasiveAttentionConfig.from_dict(config).to_dict()
    layers = config["num_layers"]
    kernel = config["kernel_size"]
    reach = layers * (kernel // 2)
    if config.get("block") == "residual":
        kind = "Pervasive Attention, residual"
        network = "residual network"
        parts = f"layers, each a feed-forward network of {config['ffn_dim']} and a depthwise "
        parts += "convolution with "
    else:
        kind = "Pervasive Attention"
        network = "DenseNet"
        parts = f"dense layers of growth rate {config['growth_rate']} with "
        if config.get("gated"):
            parts += "gated "
    grid = (
        f"one masked 2D {network} over the grid of target and source tokens, without an encoder "
        f"beside the embeddings; {layers} {parts}{kernel}×{kernel} kernels, of which the "
        f"{kernel // 2 + 1} rows that do not look ahead are used (a cell sees {reach} target "
        f"tokens back and {reach} source tokens to either side); embeddings of "
        f"{config['source_embed_dim']} (source) and {config['target_embed_dim']} (target); a "
        f"target position is {_AGGREGATIONS[config['aggregation']]}"
    )
    return {"kind": kind, "grid": grid, "papers": ["elbayad-etal-2018-pervasive"]}
