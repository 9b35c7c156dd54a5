# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A Pervasive Attention network in words, for model cards."""

from typing import Any

_AGGREGATIONS = {
    "max": "the maximum over the source tokens",
    "average": "the scaled average over the source tokens",
    "attention": "attention over the source tokens",
    "max_attention": "the maximum over the source tokens beside attention over them",
}


def describe_network(config: dict[str, Any], task: str) -> dict[str, Any]:
    """Returns what a card says of the network: its kind, its grid and the papers, as keys of the bibliography."""
    return {"kind": "Pervasive Attention", "grid": describe_grid(config), "papers": ["elbayad2018"]}


def describe_grid(config: dict[str, Any]) -> str:
    """Says what the network over the grid looks like.

    Args:
        config: The fields of a `PervasiveAttentionConfig`, as in `config.json`.

    Returns:
        The rest of a sentence that begins with the model's name.
    """
    layers, kernel = config["num_layers"], config["kernel_size"]
    gated = "gated " if config.get("gated") else ""
    above = layers * (kernel // 2)
    return (
        f"one masked 2D DenseNet over the grid of target and source tokens, without an encoder beside the embeddings; "
        f"{layers} dense layers of growth rate {config['growth_rate']} with {gated}{kernel}×{kernel} kernels, "
        f"of which the {kernel // 2 + 1} rows that do not look ahead are used (a cell sees {above} target tokens back "
        f"and {above} source tokens to either side); embeddings of {config['source_embed_dim']} (source) and "
        f"{config['target_embed_dim']} (target); a target position is {_AGGREGATIONS[config['aggregation']]}"
    )
