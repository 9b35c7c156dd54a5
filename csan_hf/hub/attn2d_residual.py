# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints of the authors' later code (elbayadm/attn2d, 2020, in fairseq) as residual Pervasive
Attention models.

That code concatenates [x_j ; y_i], source first; it stores k×k kernels and multiplies the rows
after the present one by zero; its sinusoids are fairseq's, which become a table of learned
positions here."""

import argparse
import os
import pickle
import re
from typing import Any

import torch

from ..models import PervasiveAttentionConfig, PervasiveAttentionForConditionalGeneration
from ..models.layers import SinusoidalPositionalEmbedding

# What `fairseq.data.Dictionary` gives every vocabulary; a decoder there begins with the end of a
# sentence
_TOKENS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
_FIRST_POSITION = _TOKENS["pad_token_id"] + 1
_LAYER = "decoder.net.residual_blocks"
_POSITIONS = 1024  # as their README evaluates
# Options of theirs that change the function, with the values that are offered here; other
# aggregators have weights of the same names
_OFFERED: dict[str, tuple[Any, ...]] = {
    "convnet": ("resnet",),
    "aggregator": ("max", "gated-max"),
    "unidirectional": (False,),
    "downsample": (False,),
    "add_conv_relu": (False,),
    "conv_stride": (1,),
    "source_dilation": (1,),
    "target_dilation": (1,),
}
_DROPOUTS = {"dropout": 0.2, "embedding_dropout": 0.2}

Weights = dict[str, torch.Tensor]


def convert_attn2d_residual(
    checkpoint: str | os.PathLike, **overrides: Any
) -> PervasiveAttentionForConditionalGeneration:
    """Make a Pervasive Attention model of a checkpoint of the authors' code of 2020 (`--arch
    pervasive`).

    It must be of `--convnet resnet` with the aggregator gated-max or max. It computes the same
    logits, those that their code gives for a sentence alone (it lets a batch's padding in).

    ```python
    model = convert_attn2d_residual("checkpoints/pa_iwslt_de_en/checkpoint_best.pt")
    ```

    Args:
        checkpoint: The file that fairseq saved. Nothing of it is run: it is read as tensors and
            options alone.
        **overrides: Fields of `PervasiveAttentionConfig` that the weights do not determine:
            `dropout` and `embedding_dropout` (default: 0.2 as theirs), `use_cache`, the tokens'
            ids...

    Returns:
        The model in evaluation mode on the CPU, with the data type of the weights.

    Raises:
        ValueError: The file is none of fairseq, or of a variant that this package cannot represent;
            the message says what.
        OSError: The file cannot be read.
    """
    weights, options = _read(checkpoint)
    if changed := {
        name: options[name]
        for name, values in _OFFERED.items()
        if options.get(name, values[0]) not in values
    }:
        raise ValueError(
            f"{checkpoint} was trained with {changed}, which this package does not offer."
        )
    try:
        fields = _infer(weights)
        if fixed := fields.keys() & overrides.keys():
            raise ValueError(f"{', '.join(sorted(fixed))} cannot be given, as the weights say it")
        config = PervasiveAttentionConfig(**{**fields, **_DROPOUTS, **_TOKENS, **overrides})
        converted = _convert(weights, config)
        model: Any = PervasiveAttentionForConditionalGeneration(config)
        model.to(converted["lm_head.bias"].dtype).load_state_dict(converted)
    except (
        KeyError,
        RuntimeError,
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
        ArithmeticError,
    ) as error:
        raise ValueError(
            f"{checkpoint} is no checkpoint of attn2d's residual network: {error}"
        ) from error
    return model.eval()


def _read(checkpoint: str | os.PathLike) -> tuple[Weights, dict[str, Any]]:
    """The weights and the options of a fairseq checkpoint."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(checkpoint, map_location="cpu", weights_only=True)
        return dict(content["model"]), vars(content.get("args") or argparse.Namespace())
    except (
        pickle.UnpicklingError,
        EOFError,
        RuntimeError,
        KeyError,
        TypeError,
        IndexError,
        ValueError,
        OSError,
    ) as error:
        if isinstance(error, OSError) and error.filename:
            raise  # one without a name comes of reading where a damaged file points
        raise ValueError(
            f"{checkpoint} is damaged, or no checkpoint of fairseq that holds tensors and options "
            "alone."
        ) from error


def _infer(weights: Weights) -> dict[str, Any]:
    """The config's fields that follow from the weights."""
    source, target = weights["encoder.embed_tokens.weight"], weights["decoder.embed_tokens.weight"]
    gated = "decoder.aggregator.linear.weight" in weights
    (kernel_size,) = {*weights[f"{_LAYER}.0.mconv2.weight"].shape[2:]}  # it is square
    numbers = [
        int(found[1])
        for name in weights
        if (found := re.match(re.escape(_LAYER) + r"\.(\d+)\.", name))
    ]
    has_positions = any("embed_positions" in name for name in weights)
    return {
        "block": "residual",
        "aggregation": "gated_max" if gated else "max",
        "vocab_size": len(source),
        "decoder_vocab_size": len(target),
        "source_embed_dim": source.shape[1],
        "target_embed_dim": target.shape[1],
        "share_encoder_decoder_embeddings": source.shape == target.shape
        and torch.equal(source, target),
        "tie_word_embeddings": torch.equal(weights["decoder.prediction.weight"], target),
        "num_layers": 1 + max(numbers, default=-1),
        "kernel_size": kernel_size,
        "ffn_dim": len(weights[f"{_LAYER}.0.fc1.weight"]),
        "scale_embedding": True,
        "position_embeddings": "learned" if has_positions else None,
        "max_position_embeddings": len(_positions(weights, "decoder", target.shape[1])),
    }


def _positions(weights: Weights, side: str, width: int) -> torch.Tensor:
    """The table of positions of a side: theirs if it was learned, else fairseq's sinusoids."""
    learned = weights.get(f"{side}.embed_positions.weight")
    if learned is not None:
        return learned[_FIRST_POSITION:]
    return SinusoidalPositionalEmbedding(_POSITIONS, width, "m2m_100", _FIRST_POSITION - 1).weight


def _convert(weights: Weights, config: PervasiveAttentionConfig) -> Weights:
    """This package's state dict."""
    of_source, of_target = weights["decoder.net.reduce_channels.weight"].split(
        [config.source_embed_dim, config.target_embed_dim], dim=1
    )
    converted = {
        "model.encoder.embed_tokens.weight": weights["encoder.embed_tokens.weight"],
        "model.decoder.embed_tokens.weight": weights["decoder.embed_tokens.weight"],
        "model.decoder.input_projection.weight": torch.cat([of_target, of_source], dim=1),
        "model.decoder.input_projection.bias": weights["decoder.net.reduce_channels.bias"],
    }
    if config.share_encoder_decoder_embeddings:
        converted["model.shared.weight"] = converted["model.encoder.embed_tokens.weight"]
    for side, width in (("encoder", config.source_embed_dim), ("decoder", config.target_embed_dim)):
        if config.position_embeddings:
            converted[f"model.{side}.embed_positions.weight"] = _positions(weights, side, width)
    for part in ("weight", "bias"):
        for number in range(config.num_layers):
            theirs, ours = f"{_LAYER}.{number}", f"model.decoder.residual_block.layers.{number}"
            for name in ("fc1", "fc2"):
                converted[f"{ours}.{name}.{part}"] = weights[f"{theirs}.{name}.{part}"]
            converted[f"{ours}.conv1.{part}"] = weights[f"{theirs}.conv1.{part}"].flatten(
                1 if part == "weight" else 0
            )
            rows = config.kernel_size // 2 + 1
            kernel = weights.get(f"{theirs}.mconv2.{part}")  # without a bias unless --conv-bias
            kernel = torch.zeros(config.input_channels) if kernel is None else kernel
            converted[f"{ours}.conv2.{part}"] = kernel[:, :, :rows] if part == "weight" else kernel
        if config.aggregation == "gated_max":
            converted[f"model.decoder.aggregation.gate.{part}"] = weights[
                f"decoder.aggregator.linear.{part}"
            ]
    matrix, bias = weights["decoder.prediction.weight"], weights["decoder.prediction.bias"]
    projection = [weights[f"decoder.projection.{part}"] for part in ("weight", "bias")]
    if config.tie_word_embeddings:
        for part, tensor in zip(("weight", "bias"), projection, strict=True):
            converted[f"model.decoder.output_projection.{part}"] = tensor
    else:  # two linear maps are one
        matrix, bias = matrix @ projection[0], bias + matrix @ projection[1]
    return {**converted, "lm_head.weight": matrix, "lm_head.bias": bias}
