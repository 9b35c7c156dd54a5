# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The locality of a model in words, for model cards."""

from collections.abc import Sequence
from typing import Any

_WINDOWS = {
    "fixed": "a constant window of {size:g} tokens",
    "layer": "one window per sentence and layer, predicted from the mean of the keys",
    "query": "a window predicted from each query",
    "head": "one learned window per head",
}
_DEFAULT_ENCODER_LAYERS = 3


def describe_locality(config: dict[str, Any]) -> list[str]:
    """Says where and how a CSAN's attention is local.

    Args:
        config: The fields of a `CsanConfig`, as in `config.json`. Missing ones count as off.

    Returns:
        Sentences in Markdown, one for each part of the model that is local; a single one for a plain Transformer.
    """
    sentences = []
    heads = {"encoder": config.get("encoder_attention_heads"), "decoder": config.get("decoder_attention_heads")}
    how = _describe_self_attention(config)
    for part in ("encoder", "decoder"):
        layers = _local_layers(config, part)
        if how and layers:
            where = _name_layers(layers, config.get(f"{part}_layers"))
            area = f" (of {heads[part]})" if config.get("head_area", 1) > 1 and heads[part] else ""
            sentences.append(f"**Self-attention of the {part}**, {where}: {how.format(of_heads=area)}.")
    gaussian = _describe_gaussian(config)
    cross = config.get("cross_localness_layers") or []
    if gaussian and cross:
        where = _name_layers(cross, config.get("decoder_layers"))
        sentences.append(f"**Cross-attention of the decoder**, {where}: {gaussian}.")
    return sentences or ["None: every layer attends to the whole sentence, as in the plain Transformer."]


def short_name(config: dict[str, Any]) -> str:
    """Names the kind of model as the papers do: `2D-CSAN (3×11)`, `1D-CSAN (11)`, `Transformer`..."""
    window, area = config.get("local_window"), config.get("head_area", 1)
    local = any(_local_layers(config, part) for part in ("encoder", "decoder"))
    if local and area > 1:
        name = f"2D-CSAN ({area}×{window or 'sentence'})"
    elif local and window is not None:
        name = f"1D-CSAN ({window})"
    else:
        name = "Transformer"
    gaussian = config.get("localness_window") is not None and (local or config.get("cross_localness_layers"))
    return f"{name} with Gaussian localness" if gaussian else name


def _local_layers(config: dict[str, Any], part: str) -> Sequence[int]:
    if part == "decoder":
        return config.get("decoder_localness_layers") or []
    layers = config.get("localness_layers")
    if layers is None:
        return range(min(_DEFAULT_ENCODER_LAYERS, config.get("encoder_layers", _DEFAULT_ENCODER_LAYERS)))
    return layers


def _describe_self_attention(config: dict[str, Any]) -> str:
    window, area = config.get("local_window"), config.get("head_area", 1)
    parts = []
    if window is not None:
        side = (window - 1) // 2
        parts.append(f"a window of {window} tokens, the query's own and {side} on either side")
    if area > 1:
        side = (area - 1) // 2
        wrap = ", the first and last head being neighbours" if config.get("head_boundary") == "circular" else ""
        parts.append(
            f"an area of {area} heads{{of_heads}}, the query's own and {side} on either side{wrap}, under one softmax"
        )
    if gaussian := _describe_gaussian(config):
        parts.append(gaussian)
    return "; ".join(parts)


def _describe_gaussian(config: dict[str, Any]) -> str:
    strategy = config.get("localness_window")
    if strategy is None:
        return ""
    window = _WINDOWS[strategy].format(size=config.get("localness_window_size", 10))
    return f"a Gaussian around a position predicted from each query, with {window}, added to the energies"


def _name_layers(layers: Sequence[int], depth: int | None) -> str:
    numbers = ", ".join(str(layer + 1) for layer in sorted(layers))
    of = f" of {depth}" if depth else ""
    return f"layer{'s' if len(layers) > 1 else ''} {numbers}{of}, counted from the input"
