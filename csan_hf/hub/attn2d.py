# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The state dicts of the paper's own code (elbayadm/attn2d, 2018) as Pervasive Attention models.

That code and this package compute the same function and store it differently:

- it concatenates [x_j ; y_i], source first; here the target comes first;
- it stores k×k kernels and multiplies the rows after the present one by zero; here they do not
  exist;
- each of its layers has its own running statistics of the features that it reads; here a feature
  has one mean and one variance. In training they agree, as every layer reads the same features.
  Where they do not, the difference goes into the layer's affine map;
- its sentences count positions from 1 in the source and from 0 in the target, in tables of the same
  kind.
"""

import os
import pickle
import re
from collections.abc import Mapping
from typing import Any

import torch

from ..models import PervasiveAttentionConfig, PervasiveAttentionForConditionalGeneration

# The 2018 name of every aggregation that exists here, and our own names of them
_AGGREGATIONS = {
    "max": "max",
    "truncated-max": "max",
    "average": "average",
    "truncated-mean": "average",
}
_SUPPORTED = (
    "network.type densenet with one dense block and half_inputs 1, norm batch, use_st 0, bias 0, "
    "weight_norm 0; encode_length 0; embeddings of type lookup; aggregator.mode max, "
    "truncated-max or truncated-mean"
)
_BLOCK = "net.features.denseblock1.denselayer"
_TRANSITION = "net.features.transition1"
_SOURCE, _TARGET = "src_embedding.label_embedding.weight", "trg_embedding.label_embedding.weight"
_SOURCE_POSITIONS, _TARGET_POSITIONS = (
    "src_embedding.pos_embedding.weight",
    "trg_embedding.pos_embedding.weight",
)
_NORM = ("weight", "bias", "running_mean", "running_var")
# That of every batch norm in the 2018 code: torch's default
_EPS = 1e-5
# The dropouts of its configurations, which no state dict holds
_DROPOUTS = {"dropout": 0.2, "embedding_dropout": 0.2}
_MOST_NAMES = 12

StateDict = Mapping[str, torch.Tensor]


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
        OSError: The file cannot be read.
    """
    if aggregation not in _AGGREGATIONS:
        raise ValueError(
            f"aggregation={aggregation!r} cannot be converted; supported: "
            f"{', '.join(map(repr, _AGGREGATIONS))}. (The 2018 'mean' and attentions differ from "
            "the paper's equations 3 and 9, and from those here, by a factor that depends on the "
            "sentence's length, so no weights make up for it.)"
        )
    weights = _read(checkpoint)
    fields = _infer(weights)
    _compare(weights, _expected_shapes(fields))
    if fields["position_embeddings"] and pad_token_id != 0:
        raise ValueError(
            f"pad_token_id={pad_token_id}: the 2018 position embeddings ({_SOURCE_POSITIONS}) take "
            "token 0 for padding, so they can be converted with pad_token_id=0 only."
        )
    config = PervasiveAttentionConfig(
        **fields,
        **{**_DROPOUTS, **overrides},
        aggregation=_AGGREGATIONS[aggregation],  # type: ignore[arg-type]
        batch_norm_eps=_EPS,
        pad_token_id=pad_token_id,
        eos_token_id=eos_token_id,
        decoder_start_token_id=decoder_start_token_id,
    )
    model: Any = PervasiveAttentionForConditionalGeneration(config)
    model.to(weights[f"{_TRANSITION}.conv.weight"].dtype)
    model.load_state_dict(_convert(weights, config))
    return model.eval()


def _read(checkpoint: str | os.PathLike | StateDict) -> dict[str, torch.Tensor]:
    """The parameters and statistics of a state dict or its file, without the prefix of a
    DataParallel.
    """
    source = "The state dict"
    if isinstance(checkpoint, str | os.PathLike):
        source = os.fspath(checkpoint)
        try:
            checkpoint = torch.load(source, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, EOFError, RuntimeError, OSError) as error:
            if isinstance(error, OSError) and error.filename:
                raise  # one without a name comes of reading where a damaged file points
            raise ValueError(
                f"{source} cannot be read as a file of tensors, and nothing else is loaded, as "
                "other pickles can run code. Expected what torch.save(model.state_dict()) writes, "
                "such as model-best.pth."
            ) from error
    if not isinstance(checkpoint, Mapping) or any(
        not isinstance(each, torch.Tensor) for each in checkpoint.values()
    ):
        raise ValueError(
            f"{source} is not a state dict of tensors; expected what "
            "torch.save(model.state_dict()) writes, such as model-best.pth."
        )
    weights = {name.removeprefix("module."): weight for name, weight in checkpoint.items()}
    no_weights = (".conv2.mask", ".incremental_state")
    return {name: weight for name, weight in weights.items() if not name.endswith(no_weights)}


def _infer(weights: StateDict) -> dict[str, Any]:
    """The config's fields that follow from shapes; `_compare` checks that the other weights
    agree.
    """
    names = (
        _SOURCE,
        _TARGET,
        f"{_BLOCK}1.conv1.weight",
        f"{_BLOCK}1.conv2.weight",
        f"{_TRANSITION}.norm.weight",
    )
    if missing := [name for name in names if name not in weights]:
        raise ValueError(
            f"This is no state dict that can be converted. Missing: {', '.join(missing)}. "
            f"Supported: {_SUPPORTED}."
        )
    (vocab_size, source_dim), (decoder_vocab_size, target_dim) = (
        weights[_SOURCE].shape,
        weights[_TARGET].shape,
    )
    bottleneck, kernels = len(weights[names[2]]), len(weights[names[3]])
    numbers = (re.match(re.escape(_BLOCK) + r"(\d+)\.", name) for name in weights)
    num_layers = max(int(number.group(1)) for number in numbers if number)
    growth_rate = (len(weights[names[4]]) - (source_dim + target_dim) // 2) // num_layers
    fields: dict[str, Any] = {
        "vocab_size": vocab_size,
        "decoder_vocab_size": decoder_vocab_size,
        "source_embed_dim": source_dim,
        "target_embed_dim": target_dim,
        "share_encoder_decoder_embeddings": _same(weights, _SOURCE, _TARGET),
        "tie_word_embeddings": "aggregator.lin.weight"
        in weights,  # the output projection is then the embedding
        "num_layers": num_layers,
        "growth_rate": growth_rate,
        "bottleneck_factor": bottleneck // max(growth_rate, 1),
        "kernel_size": weights[names[3]].shape[-1],
        "gated": kernels == 2 * growth_rate,
        "position_embeddings": None,
    }
    if _SOURCE_POSITIONS in weights and _TARGET_POSITIONS in weights:
        # The source's row 0 belongs to padding. A sentence that has no row must fail here as it
        # does there.
        length = min(len(weights[_SOURCE_POSITIONS]) - 1, len(weights[_TARGET_POSITIONS]))
        fields.update(position_embeddings="learned", max_position_embeddings=length)
    return fields


def _expected_shapes(fields: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of all weights of the 2018 model that `fields` describe."""
    source_dim, target_dim = fields["source_embed_dim"], fields["target_embed_dim"]
    growth_rate = fields["growth_rate"]
    kernel_size, bottleneck = fields["kernel_size"], fields["bottleneck_factor"] * growth_rate
    channels = (source_dim + target_dim) // 2
    shapes: dict[str, tuple[int, ...]] = {
        _SOURCE: (fields["vocab_size"], source_dim),
        _TARGET: (fields["decoder_vocab_size"], target_dim),
        "net.features.initial_transiton.weight": (channels, source_dim + target_dim, 1, 1),
        "net.features.initial_transiton.bias": (channels,),
    }
    for number in range(1, fields["num_layers"] + 1):
        layer = f"{_BLOCK}{number}"
        shapes.update({f"{layer}.norm1.{name}": (channels,) for name in _NORM})
        shapes[f"{layer}.conv1.weight"] = (bottleneck, channels, 1, 1)
        shapes.update({f"{layer}.norm2.{name}": (bottleneck,) for name in _NORM})
        made = growth_rate * (1 + fields["gated"])
        shapes[f"{layer}.conv2.weight"] = (made, bottleneck, kernel_size, kernel_size)
        channels += growth_rate
    width = channels // 2
    shapes.update({f"{_TRANSITION}.norm.{name}": (channels,) for name in _NORM})
    shapes[f"{_TRANSITION}.conv.weight"] = (width, channels, 1, 1)
    shapes.update({f"net.features.norm_last.{name}": (width,) for name in _NORM})
    if fields["tie_word_embeddings"]:
        shapes.update(
            {"aggregator.lin.weight": (target_dim, width), "aggregator.lin.bias": (target_dim,)}
        )
        width = target_dim
    shapes["prediction.weight"] = (fields["decoder_vocab_size"], width)
    shapes["prediction.bias"] = (fields["decoder_vocab_size"],)
    return shapes


def _compare(weights: StateDict, shapes: dict[str, tuple[int, ...]]) -> None:
    """Refuse weights that are missing, unknown or of another shape, by name."""
    known = set(shapes)
    if {_SOURCE_POSITIONS, _TARGET_POSITIONS} <= weights.keys():
        known |= {_SOURCE_POSITIONS, _TARGET_POSITIONS}  # of any length
    # Counters came with torch 0.4.1; nothing is computed with them
    known |= {
        name.removesuffix("running_mean") + "num_batches_tracked"
        for name in shapes
        if "running_mean" in name
    }
    problems = {
        "missing": shapes.keys() - weights.keys(),
        "unknown": weights.keys() - known,
        "of another shape": {
            f"{name} {tuple(weights[name].shape)}, not {shape}"
            for name, shape in shapes.items()
            if name in weights and weights[name].shape != shape
        },
    }
    if "aggregator.lin.weight" in weights and not _same(weights, "prediction.weight", _TARGET):
        problems["that must be equal beside aggregator.lin"] = {"prediction.weight", _TARGET}
    if found := [
        f"{kind}: {', '.join(sorted(names)[:_MOST_NAMES])}"
        for kind, names in problems.items()
        if names
    ]:
        raise ValueError(
            f"The 2018 state dict has weights {'; weights '.join(found)}. Supported: {_SUPPORTED}."
        )


def _convert(weights: StateDict, config: PervasiveAttentionConfig) -> dict[str, torch.Tensor]:
    """This package's state dict."""
    source, target = weights[_SOURCE], weights[_TARGET]
    first = "net.features.initial_transiton"
    of_source, of_target = (
        weights[f"{first}.weight"].flatten(1).split([source.shape[1], target.shape[1]], dim=1)
    )
    converted = {
        "model.encoder.embed_tokens.weight": source,
        "model.decoder.embed_tokens.weight": target,
        "model.decoder.input_projection.weight": torch.cat([of_target, of_source], dim=1),
        "model.decoder.input_projection.bias": weights[f"{first}.bias"],
        **_convert_block(weights, config.num_layers, config.growth_rate),
        **_convert_norm(weights, "net.features.norm_last", "model.decoder.final_norm"),
        "lm_head.weight": weights["prediction.weight"],
        "lm_head.bias": weights["prediction.bias"],
    }
    if config.share_encoder_decoder_embeddings:
        converted["model.shared.weight"] = source
    if config.position_embeddings:
        length = config.max_position_embeddings
        converted["model.encoder.embed_positions.weight"] = weights[_SOURCE_POSITIONS][
            1 : length + 1
        ]
        converted["model.decoder.embed_positions.weight"] = weights[_TARGET_POSITIONS][:length]
    if config.tie_word_embeddings:
        for name in ("weight", "bias"):
            converted[f"model.decoder.output_projection.{name}"] = weights[f"aggregator.lin.{name}"]
    return converted


def _convert_block(
    weights: StateDict, num_layers: int, growth_rate: int
) -> dict[str, torch.Tensor]:
    """The weights of the dense block and its transition."""
    block = "model.decoder.dense_block"
    layers = [f"{_BLOCK}{number}" for number in range(1, num_layers + 1)]
    readers = [*(f"{layer}.norm1" for layer in layers), f"{_TRANSITION}.norm"]
    # A feature's statistics are those of the first norm that reads it
    mean, variance = (
        torch.cat(
            [
                weights[f"{readers[0]}.{name}"],
                *(weights[f"{norm}.{name}"][-growth_rate:] for norm in readers[1:]),
            ]
        )
        for name in ("running_mean", "running_var")
    )
    converted = {
        f"{block}.feature_norm.running_mean": mean,
        f"{block}.feature_norm.running_var": variance,
        f"{block}.feature_norm.num_batches_tracked": weights.get(
            f"{readers[0]}.num_batches_tracked", torch.tensor(0)
        ),
        f"{block}.transition.conv.weight": weights[f"{_TRANSITION}.conv.weight"].flatten(1),
    }
    for reader, name in zip(
        readers, [*(f"layers.{i}.norm1" for i in range(num_layers)), "transition.norm"], strict=True
    ):
        weight, bias = _with_statistics(weights, reader, mean, variance)
        converted.update({f"{block}.{name}.weight": weight, f"{block}.{name}.bias": bias})
    for number, layer in enumerate(layers):
        name = f"{block}.layers.{number}"
        kernel = weights[f"{layer}.conv2.weight"]
        converted[f"{name}.conv1.weight"] = weights[f"{layer}.conv1.weight"].flatten(1)
        converted[f"{name}.conv2.weight"] = kernel[:, :, : kernel.shape[2] // 2 + 1]
        converted.update(_convert_norm(weights, f"{layer}.norm2", f"{name}.norm2"))
    return converted


def _with_statistics(
    weights: StateDict, norm: str, mean: torch.Tensor, variance: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A norm's affine map, changed so that statistics [C] (their first channels) can replace its
    own.
    """
    weight, bias, own_mean, own_variance = (weights[f"{norm}.{name}"].double() for name in _NORM)
    channels = len(weight)
    scale = weight * torch.rsqrt(own_variance + _EPS)
    shift = bias + scale * (mean[:channels].double() - own_mean)
    return scale * torch.sqrt(variance[:channels].double() + _EPS), shift


def _convert_norm(weights: StateDict, norm: str, name: str) -> dict[str, torch.Tensor]:
    converted = {f"{name}.{part}": weights[f"{norm}.{part}"] for part in _NORM}
    return {
        **converted,
        f"{name}.num_batches_tracked": weights.get(f"{norm}.num_batches_tracked", torch.tensor(0)),
    }


def _same(weights: StateDict, *names: str) -> bool:
    first, second = (weights.get(name, torch.empty(0)) for name in names)
    return first.shape == second.shape and torch.equal(first, second)
