# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints of the authors' code (elbayadm/attn2d) as Pervasive Attention models.

The code of 2018 is the paper's dense network, that of 2020, in fairseq, the residual one. Both
compute the same functions as this package and store them differently:

- they concatenate [x_j ; y_i], source first; here the target comes first;
- they store k×k kernels and multiply the rows after the present one by zero; here these rows do not
  exist;
- in 2018 each layer has its own running statistics of the features that it reads; here a feature
  has one mean and one variance. In training they agree, as every layer reads the same features.
  Where they do not, the difference goes into the layer's affine map;
- in 2018 sentences count positions from 1 in the source and from 0 in the target, in tables of the
  same kind; in 2020 from 2, and fairseq's sinusoids become a table of learned positions here.
"""

import argparse
import os
import re
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from ..models import PervasiveAttentionConfig, PervasiveAttentionForConditionalGeneration
from ..models.layers import SinusoidalPositionalEmbedding

StateDict = Mapping[str, Tensor]

# Modules here, and their names in 2018 and in 2020
_NAMES = (
    ("model.shared", "src_embedding.label_embedding", "encoder.embed_tokens"),
    ("model.encoder.embed_tokens", "src_embedding.label_embedding", "encoder.embed_tokens"),
    ("model.decoder.embed_tokens", "trg_embedding.label_embedding", "decoder.embed_tokens"),
    ("model.encoder.embed_positions", "src_embedding.pos_embedding", "encoder.embed_positions"),
    ("model.decoder.embed_positions", "trg_embedding.pos_embedding", "decoder.embed_positions"),
    (
        "model.decoder.input_projection",
        "net.features.initial_transiton",
        "decoder.net.reduce_channels",
    ),
    ("model.decoder.dense_block.layers", "net.features.denseblock1", ""),
    ("model.decoder.dense_block.transition", "net.features.transition1", ""),
    ("model.decoder.final_norm", "net.features.norm_last", ""),
    ("model.decoder.residual_block.layers", "", "decoder.net.residual_blocks"),
    ("model.decoder.aggregation.gate", "", "decoder.aggregator.linear"),
    ("model.decoder.output_projection", "aggregator.lin", "decoder.projection"),
    ("lm_head", "prediction", "decoder.prediction"),
)
_SUPPORTED = {
    2018: (
        "network.type densenet with one dense block and half_inputs 1, norm batch, use_st 0, "
        "bias 0, weight_norm 0; encode_length 0; embeddings of type lookup; aggregator.mode max, "
        "truncated-max or truncated-mean"
    ),
    2020: "convnet resnet, aggregator gated-max or max",
}
# The 2018 name of every aggregation that exists here, and this package's names
_AGGREGATIONS = {
    "max": "max",
    "truncated-max": "max",
    "average": "average",
    "truncated-mean": "average",
}
# Options of 2020 that change the function, with the values that are offered here; other aggregators
# have weights of the same names
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
# What `fairseq.data.Dictionary` gives every vocabulary; its decoder starts with the end of a
# sentence
_TOKENS_2020 = {
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
# Row of the first position in the tables; in 2018 the source's row 0 belongs to padding
_FIRST_POSITION = {2018: {"encoder": 1, "decoder": 0}, 2020: {"encoder": 2, "decoder": 2}}
_POSITIONS_2020 = 1024  # as their README evaluates
# The dropouts of their configurations, which no state dict holds
_DROPOUTS = {"dropout": 0.2, "embedding_dropout": 0.2}
# That of every batch norm of 2018: torch's default
_EPS = 1e-5
_COUNTER = "num_batches_tracked"  # came with torch 0.4.1; nothing is computed with it
_MOST_NAMES = 12


def convert_attn2d(
    checkpoint: str | os.PathLike | StateDict,
    *,
    aggregation: str = "max",
    pad_token_id: int = 0,
    eos_token_id: int = 2,
    decoder_start_token_id: int = 3,
    **overrides: Any,
) -> PervasiveAttentionForConditionalGeneration:
    """Make a Pervasive Attention model of a state dict of the authors' 2018 code (model convs2s2D,
    type densenet).

    It computes the same logits, those that the 2018 code gives for a sentence alone (it lets a
    batch's padding in). Its sources end without an end-of-sentence token. Of two tables of
    positions the shorter one sets `max_position_embeddings`.

    ```python
    model = convert_attn2d("save/l24/model-best.pth")
    ```

    Args:
        checkpoint: The file that their trainer saved (`model.pth`, `model-best.pth`), or the state
            dict itself.
        aggregation: What the weights do not tell: the 2018 `aggregator.mode`, `"max"`,
            `"truncated-max"` or `"truncated-mean"`, or this package's name for the latter,
            `"average"`.
        pad_token_id: Padding, `<PAD>` of their vocabulary files.
        eos_token_id: End of a target sentence, their `<EOS>`.
        decoder_start_token_id: First input of the decoder, their `<BOS>`.
        **overrides: Fields of `PervasiveAttentionConfig` that the weights do not determine:
            `dropout` and `embedding_dropout` (default: 0.2 as in their configurations),
            `use_cache`, ...

    Returns:
        The model in evaluation mode on the CPU, with the data type of the weights. Its weights are
        copies.

    Raises:
        ValueError: The file holds no state dict, weights are missing, unknown or of another shape,
            or they or `aggregation` belong to a variant that this package cannot represent; the
            message names them.
        TypeError: A field of `overrides` follows from the weights.
        OSError: The file cannot be read.
    """
    if aggregation not in _AGGREGATIONS:
        raise ValueError(
            f"aggregation={aggregation!r} cannot be converted; supported: "
            f"{', '.join(map(repr, _AGGREGATIONS))}. (The 2018 'mean' and attentions differ from "
            "the paper's equations 3 and 9, and from those here, by a factor that depends on the "
            "sentence's length, so no weights make up for it.)"
        )
    if isinstance(checkpoint, str | os.PathLike):
        state = _state_dict(_load(checkpoint), checkpoint)
    else:
        state = _state_dict(checkpoint, "The state dict")
    weights = {
        name.removeprefix("module."): weight  # of a DataParallel
        for name, weight in state.items()
        if not name.endswith((".conv2.mask", ".incremental_state"))
    }
    fields = _dense_fields(weights)
    if fields["position_embeddings"] and pad_token_id != 0:
        raise ValueError(
            f"pad_token_id={pad_token_id}: the 2018 position embeddings "
            "(src_embedding.pos_embedding.weight) take token 0 for padding, so they can be "
            "converted with pad_token_id=0 only."
        )
    fields |= {
        "aggregation": _AGGREGATIONS[aggregation],
        "batch_norm_eps": _EPS,
        "pad_token_id": pad_token_id,
        "eos_token_id": eos_token_id,
        "decoder_start_token_id": decoder_start_token_id,
    }
    return _make_model(weights, fields, overrides, year=2018)


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
        TypeError: A field of `overrides` follows from the weights.
        OSError: The file cannot be read.
    """
    content = _load(checkpoint)
    if not isinstance(content, Mapping) or "model" not in content:
        raise ValueError(f"{checkpoint} is no checkpoint of fairseq: it has no entry 'model'.")
    options = vars(content.get("args") or argparse.Namespace())
    changed = {
        name: options[name]
        for name, values in _OFFERED.items()
        if options.get(name, values[0]) not in values
    }
    if changed:
        raise ValueError(
            f"{checkpoint} was trained with {changed}, which this package does not offer."
        )
    weights = dict(_state_dict(content["model"], checkpoint))
    fields = _residual_fields(weights)
    return _make_model(weights, fields, _TOKENS_2020 | overrides, year=2020)


def _load(path: str | os.PathLike) -> Any:
    """Tensors, and options of fairseq, of a file."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of a class for each fault
        if isinstance(error, OSError) and error.filename:
            raise  # without a name: a damaged file points to where nothing is
        raise ValueError(
            f"{path} cannot be read as a file of tensors and options: it is damaged, or holds "
            "objects, which are not loaded, as they can run code."
        ) from error


def _state_dict(content: object, source: str | os.PathLike) -> StateDict:
    if not isinstance(content, Mapping) or not all(
        isinstance(weight, Tensor) for weight in content.values()
    ):
        raise ValueError(
            f"{source} is not a state dict of tensors; expected what "
            "torch.save(model.state_dict()) writes, such as model-best.pth, or fairseq's "
            "checkpoint_best.pt."
        )
    return content


def _dense_fields(weights: StateDict) -> dict[str, Any]:
    """The config's fields that follow from the shapes of 2018."""
    source = "src_embedding.label_embedding.weight"
    target = "trg_embedding.label_embedding.weight"
    conv1 = "net.features.denseblock1.denselayer1.conv1.weight"
    conv2 = "net.features.denseblock1.denselayer1.conv2.weight"
    norm = "net.features.transition1.norm.weight"
    _check_names({source, target, conv1, conv2, norm}, weights, year=2018)
    fields = _embedding_fields(weights[source], weights[target])
    num_layers = _last_layer(r"net\.features\.denseblock1\.denselayer(\d+)\.", weights)
    channels = (fields["source_embed_dim"] + fields["target_embed_dim"]) // 2
    growth_rate = (len(weights[norm]) - channels) // num_layers
    fields |= {
        # With a linear map before it, the output projection is the embedding
        "tie_word_embeddings": "aggregator.lin.weight" in weights,
        "num_layers": num_layers,
        "growth_rate": growth_rate,
        "bottleneck_factor": len(weights[conv1]) // max(growth_rate, 1),
        "kernel_size": weights[conv2].shape[-1],
        "gated": len(weights[conv2]) == 2 * growth_rate,
        "position_embeddings": None,
    }
    source_positions = weights.get("src_embedding.pos_embedding.weight")
    target_positions = weights.get("trg_embedding.pos_embedding.weight")
    if source_positions is not None and target_positions is not None:
        # A sentence that has no row must fail here as it does there
        fields["max_position_embeddings"] = min(len(source_positions) - 1, len(target_positions))
        fields["position_embeddings"] = "learned"
    return fields


def _residual_fields(weights: dict[str, Tensor]) -> dict[str, Any]:
    """The config's fields that follow from the weights of 2020, which are completed."""
    source = "encoder.embed_tokens.weight"
    target = "decoder.embed_tokens.weight"
    prediction = "decoder.prediction.weight"
    projection = "decoder.projection.weight"
    projection_bias = "decoder.projection.bias"
    layers = "decoder.net.residual_blocks"
    mconv2 = f"{layers}.0.mconv2.weight"
    fc1 = f"{layers}.0.fc1.weight"
    names = {source, target, prediction, projection, projection_bias, mconv2, fc1}
    _check_names(names, weights, year=2020)
    kernel = weights[mconv2]
    num_layers = 1 + _last_layer(re.escape(layers) + r"\.(\d+)\.", weights)
    for number in range(num_layers):  # without a bias unless --conv-bias
        weights.setdefault(f"{layers}.{number}.mconv2.bias", torch.zeros(len(kernel)))
    is_tied = torch.equal(weights[prediction], weights[target])
    if not is_tied:  # two linear maps are one
        bias = weights[prediction] @ weights[projection_bias]
        weights["decoder.prediction.bias"] = weights["decoder.prediction.bias"] + bias
        weights[prediction] = weights[prediction] @ weights[projection]
    has_positions = any("embed_positions" in name for name in weights)
    length = len(_positions(weights, "decoder", weights[target].shape[1], year=2020))
    is_gated = "decoder.aggregator.linear.weight" in weights
    return {
        "block": "residual",
        "aggregation": "gated_max" if is_gated else "max",
        **_embedding_fields(weights[source], weights[target]),
        "tie_word_embeddings": is_tied,
        "num_layers": num_layers,
        "kernel_size": kernel.shape[3],
        "ffn_dim": len(weights[fc1]),
        "scale_embedding": True,
        "position_embeddings": "learned" if has_positions else None,
        "max_position_embeddings": length,
    }


def _embedding_fields(source: Tensor, target: Tensor) -> dict[str, Any]:
    """The config's fields that follow from the tables of embeddings, [entries, width]."""
    return {
        "vocab_size": len(source),
        "decoder_vocab_size": len(target),
        "source_embed_dim": source.shape[1],
        "target_embed_dim": target.shape[1],
        "share_encoder_decoder_embeddings": torch.equal(source, target),
    }


def _last_layer(pattern: str, weights: StateDict) -> int:
    """The largest number of a layer in the names of weights."""
    matches = [re.match(pattern, name) for name in weights]
    return max(int(match[1]) for match in matches if match)


def _positions(weights: StateDict, side: str, width: int, year: int) -> Tensor:
    """The table of positions of a side, from the first one on; of 2020 also fairseq's sinusoids."""
    first = _FIRST_POSITION[year][side]
    learned = weights.get(_their_name(f"model.{side}.embed_positions.weight", year))
    if learned is not None:
        return learned[first:]
    return SinusoidalPositionalEmbedding(_POSITIONS_2020, width, "m2m_100", first - 1).weight


def _their_name(name: str, year: int) -> str:
    """The name of a weight or statistic of this package in their code."""
    for module, name_2018, name_2020 in _NAMES:
        if name.startswith(f"{module}."):
            theirs = name_2018 if year == 2018 else name_2020
            name = name.replace(module, theirs, 1)
            break
    if year == 2018:
        return re.sub(r"1\.(\d+)\.", lambda match: f"1.denselayer{int(match[1]) + 1}.", name)
    return name.replace("conv2", "mconv2")


def _make_model(
    weights: StateDict, fields: dict[str, Any], overrides: dict[str, Any], year: int
) -> PervasiveAttentionForConditionalGeneration:
    config = PervasiveAttentionConfig(**fields, **_DROPOUTS | overrides)
    model: Any = PervasiveAttentionForConditionalGeneration(config)
    state = model.state_dict()
    their_names = {name: _their_name(name, year) for name in state if "feature_norm" not in name}
    needed = [
        name for name in their_names if "embed_positions" not in name and _COUNTER not in name
    ]
    _check_names([their_names[name] for name in needed], weights, year)
    if year == 2018:
        _check_known(weights, their_names.values())
    converted = {
        name: _convert(name, weights[their_names[name]], config.target_embed_dim) for name in needed
    }
    try:
        for name in their_names.keys() - needed:
            if _COUNTER in name:
                converted[name] = weights.get(their_names[name], torch.tensor(0))
            else:
                rows, width = state[name].shape
                converted[name] = _positions(weights, name.split(".")[1], width, year)[:rows]
        if config.block == "dense":
            converted |= _convert_feature_norms(weights, converted, config)
        model.to(converted["lm_head.bias"].dtype)
        model.load_state_dict(converted)
    except RuntimeError as error:
        raise _refusal("of another shape", [str(error)], year) from error
    return model.eval()


def _convert(name: str, weight: Tensor, target_width: int) -> Tensor:
    """A weight of theirs as this package stores it."""
    if name.endswith("conv2.weight"):
        return weight[:, :, : weight.shape[2] // 2 + 1]
    if weight.ndim == 4:  # a 1×1 kernel
        weight = weight.flatten(1)
    if name.endswith("input_projection.weight"):  # the target's columns first
        return weight.roll(target_width, dims=1)
    return weight


def _convert_feature_norms(
    weights: StateDict, converted: StateDict, config: PervasiveAttentionConfig
) -> dict[str, Tensor]:
    """The statistics of the dense block's features, and the affine maps that fit them."""
    block = "model.decoder.dense_block"
    readers = [f"{block}.layers.{number}.norm1" for number in range(config.num_layers)]
    readers.append(f"{block}.transition.norm")
    theirs = [_their_name(f"{reader}.", 2018) for reader in readers]
    norms = {}
    # A feature's statistics are those of the first norm that reads it
    for name in ("running_mean", "running_var"):
        statistics = [weights[f"{theirs[0]}{name}"]]
        statistics += [weights[f"{norm}{name}"][-config.growth_rate :] for norm in theirs[1:]]
        norms[f"{block}.feature_norm.{name}"] = torch.cat(statistics)
    mean = norms[f"{block}.feature_norm.running_mean"].double()
    variance = norms[f"{block}.feature_norm.running_var"].double()
    counter = weights.get(f"{theirs[0]}num_batches_tracked", torch.tensor(0))
    norms[f"{block}.feature_norm.num_batches_tracked"] = counter
    for reader, norm in zip(readers, theirs, strict=True):
        weight = converted[f"{reader}.weight"].double()
        channels = len(weight)
        scale = weight * torch.rsqrt(weights[f"{norm}running_var"].double() + _EPS)
        shift = scale * (mean[:channels] - weights[f"{norm}running_mean"].double())
        norms[f"{reader}.weight"] = scale * torch.sqrt(variance[:channels] + _EPS)
        norms[f"{reader}.bias"] = converted[f"{reader}.bias"].double() + shift
    return norms


def _check_names(names: Collection[str], weights: StateDict, year: int) -> None:
    """Refuse a state dict without these weights."""
    missing = set(names) - weights.keys()
    if missing:
        raise _refusal("missing", missing, year)


def _check_known(weights: StateDict, names: Collection[str]) -> None:
    """Refuse a state dict of 2018 that holds other weights, or cannot be tied."""
    statistics = ("running_mean", "running_var", _COUNTER)
    unknown = [name for name in weights.keys() - set(names) if not name.endswith(statistics)]
    if unknown:
        raise _refusal("unknown", unknown, 2018)
    tied = {"prediction.weight", "trg_embedding.label_embedding.weight"}
    if "aggregator.lin.weight" in weights and not torch.equal(*(weights[name] for name in tied)):
        raise _refusal("that must be equal beside aggregator.lin", tied, 2018)


def _refusal(kind: str, names: Collection[str], year: int) -> ValueError:
    network = "dense" if year == 2018 else "residual"
    listed = ", ".join(sorted(names)[:_MOST_NAMES])
    return ValueError(
        f"This is no checkpoint of attn2d's {network} network that can be converted: it has "
        f"weights {kind}: {listed}. Supported: {_SUPPORTED[year]}."
    )
