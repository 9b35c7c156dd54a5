# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The locality of a model in words, for model cards."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..analysis.locality_picture import caption
from ..models import CsanConfig
from ..models.csan_attention import CsanAttention
from ..models.locality import PARTS, AttentionSite, LayerLocality, LocalityMethod

_NAMES = {
    "encoder": "Self-attention of the encoder",
    "decoder": "Self-attention of the decoder",
    "cross": "Cross-attention of the decoder",
}


class _Text(NamedTuple):
    """What cards say of a method: a phrase, what a model's name says of it, and its paper in the bibliography."""

    phrase: Callable[[Any, AttentionSite], str]
    label: str | None = None
    paper: str | None = None


def _window(method: Any, site: AttentionSite) -> str:
    return f"a window of {method.size} tokens, the query's own and {(method.size - 1) // 2} on either side"


def _head_area(method: Any, site: AttentionSite) -> str:
    wrap = ", the first and last head being neighbours" if method.boundary == "circular" else ""
    side = (method.size - 1) // 2
    return (
        f"an area of {method.size} heads (of {site.num_heads}), the query's own and {side} on either side{wrap}, "
        f"under one softmax"
    )


def _bi_direct(method: Any, site: AttentionSite) -> str:
    half = site.num_heads // 2
    return (
        f"heads 1 to {half} see the query and what stands before it, heads {half + 1} to {site.num_heads} the query "
        f"and what follows"
    )


def _relative_positions(method: Any, site: AttentionSite) -> str:
    reach = method.max_distance
    return f"relative positions: a learned vector for each distance up to {reach} tokens, added to keys and values"


def _neighbor(method: Any, site: AttentionSite) -> str:
    return "a Gaussian around each query, with a window predicted from the query, added to the energies"


def _local_hard(method: Any, site: AttentionSite) -> str:
    cut = f"; keys more than {method.width:g} tokens from it are not seen" if method.cut_off else ""
    return (
        f"a Gaussian around a position predicted from each query, with a window of {method.width:g} tokens, added to "
        f"the energies{cut}"
    )


def _gaussian(method: Any, site: AttentionSite) -> str:
    width = {
        "fixed": f"a constant window of {method.size:g} tokens",
        "layer": "one window per sentence and layer, predicted from the mean of the keys",
        "query": "a window predicted from each query",
        "head": "one learned window per head",
    }[method.width]
    return f"a Gaussian around a position predicted from each query, with {width}, added to the energies"


def _block(method: Any, site: AttentionSite) -> str:
    width = site.d_model // 2 if method.width is None else method.width
    return (
        f"bi-directional block self-attention in place of multi-head attention: blocks of {method.length} tokens, "
        f"{width} features in each direction"
    )


def _cnn(method: Any, site: AttentionSite) -> str:
    return f"{method.layers} depthwise separable convolutions of {method.kernel_size} tokens before the attention"


_METHODS = {
    "window": _Text(_window, paper="yang2019"),
    "head_area": _Text(_head_area, paper="yang2019"),
    "bi_direct": _Text(_bi_direct, "heads of the past and of the future", "shen2018a"),
    "relative_positions": _Text(_relative_positions, "relative positions", "shaw2018"),
    "neighbor": _Text(_neighbor, "a Gaussian around each query", "sperber2018"),
    "local_hard": _Text(_local_hard, "a Gaussian around a predicted position", "luong2015"),
    "gaussian": _Text(_gaussian, "Gaussian localness", "yang2018"),
    "block": _Text(_block, "block self-attention", "shen2018b"),
    "cnn": _Text(_cnn, "convolutions", "yu2018"),
}


def _text(method: LocalityMethod) -> _Text:
    """What is said of a method; of one from outside its key and settings."""
    return _METHODS.get(method.key) or _Text(lambda method, site: caption(method), method.key.replace("_", " "))


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
            how = "; ".join(_text(method).phrase(method, site) for method in locality.methods)
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
    name = next(filter(None, map(_csan_name, localities)), "Transformer")
    labels = list(dict.fromkeys(label for method in methods if (label := _text(method).label)))
    return f"{name} with {' and '.join(labels)}" if labels else name


def _csan_name(locality: LayerLocality) -> str | None:
    """What the papers call a Transformer with the window and the area of these layers."""
    area = locality.area
    if area.head_area > 1:
        return f"2D-CSAN ({area.head_area}×{area.window or 'sentence'})"
    return None if area.window is None else f"1D-CSAN ({area.window})"


def locality_papers(config: dict[str, Any]) -> list[str]:
    """Papers of the methods that a CSAN's attention uses, as keys of the card's bibliography."""
    methods = [method for locality in _localities(_as_config(config)) for method in locality.methods]
    return list(dict.fromkeys(paper for method in methods if (paper := _text(method).paper)))


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
