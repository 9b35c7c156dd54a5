# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The state dicts of the paper's own code (elbayadm/attn2d, 2018) as Pervasive Attention models.

That code and this package compute the same function and store it differently:

- it concatenates [x_j ; y_i], source first; here the target comes first;
- it stores k×k kernels and multiplies the rows after the present one by zero; here they do not exist;
- each of its layers has its own running statistics of the features that it reads; here a feature has one mean and one
  variance. In training they agree, as every layer reads the same features. Where they do not, the difference goes
  into the layer's affine map;
- its sentences count positions from 1 in the source and from 0 in the target, in tables of the same kind.
"""

import dataclasses
import difflib
import os
import pickle
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..models import PervasiveAttentionConfig, PervasiveAttentionForConditionalGeneration

# The 2018 name of every aggregation that exists here, and our own names of them
_AGGREGATIONS = {"max": "max", "truncated-max": "max", "average": "average", "truncated-mean": "average"}
_NO_SUCH_ATTENTION = (
    "the 2018 attention averages over the source tokens once more: with |s| tokens it is Σ_j ρ_j H_j / sqrt(|s|) "
    "(or / |s|, unscaled), where equation 9 of the paper and this package have sqrt(|s|) Σ_j ρ_j H_j. The factor "
    "between them depends on the sentence's length, so no weights make up for it"
)
_REFUSED_AGGREGATIONS = {
    "mean": (
        "it is Σ_j H_j / |s|, where equation 3 of the paper, 'truncated-mean' and this package's 'average' have "
        "Σ_j H_j / sqrt(|s|) for |s| source tokens. The factor between them depends on the sentence's length, so no "
        "weights make up for it"
    ),
    "max-attention": _NO_SUCH_ATTENTION,
    "max-attention2": _NO_SUCH_ATTENTION,
    "attention": _NO_SUCH_ATTENTION,
    "max_attention": _NO_SUCH_ATTENTION,
}
# What the 2018 options leave in a state dict, and what is supported in their place
_VARIANTS = (
    (
        r"aggregator\.project\.",
        f"aggregator mode 'max-attention' or 'max-attention2'; {_NO_SUCH_ATTENTION}. Supported: 'max', "
        "'truncated-max', 'truncated-mean'",
    ),
    (r".*\.weight_[gv]", "weight normalisation; supported: network.weight_norm 0"),
    (r"net\.features\.(denseblock|transition)(?!1\.).*", "several dense blocks; supported: one (network.num_layers)"),
    (r"net\.features\.(denseblock|transition)1\..*conv\d?\.bias", "biases; supported: network.bias 0"),
    (r"(src|trg)_embedding\.length_embedding\..*", "embedded lengths; supported: encode_length 0"),
    (r"(src|trg)_embedding\.conv\..*", "convolutional embeddings; supported: type lookup"),
)
# Parts that the 2018 options can leave out altogether
_INDISPENSABLE = (
    (
        "net.features.initial_transiton.",
        "does not halve its input; supported: network.half_inputs 1, network.type densenet",
    ),
    ("net.features.transition1.norm.", "has a transition without normalisation; supported: network.use_st 0"),
    ("net.features.denseblock1.denselayer1.norm1.", "has layers without batch norm; supported: network.norm batch"),
)
_BLOCK = "net.features.denseblock1.denselayer"
_TRANSITION = "net.features.transition1"
_EMBEDDING = "{}_embedding.label_embedding.weight"
_POSITIONS = "{}_embedding.pos_embedding.weight"
_NORM = ("weight", "bias", "running_mean", "running_var")
# That of every batch norm in the 2018 code: torch's default
_EPS = 1e-5
# The dropouts of its configurations, which no state dict holds
_DROPOUTS = {"dropout": 0.2, "embedding_dropout": 0.2}
# Fields that the weights determine
_INFERRED = {
    "vocab_size",
    "decoder_vocab_size",
    "share_encoder_decoder_embeddings",
    "tie_word_embeddings",
    "source_embed_dim",
    "target_embed_dim",
    "num_layers",
    "growth_rate",
    "kernel_size",
    "bottleneck_factor",
    "gated",
    "position_embeddings",
    "max_position_embeddings",
    "batch_norm_eps",
}
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
    """Makes a Pervasive Attention model of a state dict of the authors' 2018 code (model convs2s2D, type densenet).

    It computes the same logits. The 2018 code lets a batch's padding into the network; here a sentence's logits are
    those that the 2018 code gives for the sentence alone. Its sources end without an end-of-sentence token. Of two
    tables of positions the shorter one sets `max_position_embeddings`.

    ```python
    model = convert_attn2d("save/l24/model-best.pth")
    ```

    Args:
        checkpoint: The file that their trainer saved (`model.pth`, `model-best.pth`), or the state dict itself.
        aggregation: What the weights do not tell: the 2018 `aggregator.mode`, `"max"`, `"truncated-max"` or
            `"truncated-mean"`, or this package's name for the latter, `"average"`.
        pad_token_id: Padding, `<PAD>` of their vocabulary files.
        eos_token_id: End of a target sentence, their `<EOS>`.
        decoder_start_token_id: First input of the decoder, their `<BOS>`.
        **overrides: Fields of `PervasiveAttentionConfig` that the weights do not determine: `dropout` and
            `embedding_dropout` (default: 0.2 as in their configurations), `use_cache`, ...

    Returns:
        The model in evaluation mode on the CPU, with the data type of the weights. Its weights are copies.

    Raises:
        ValueError: The file holds no state dict, weights are missing, unknown, damaged or of another shape, or they
            belong to a variant that this package cannot represent; the message names them. Also where `aggregation`
            is such a variant, or an override names no field or one that the weights determine.
        OSError: The file cannot be read.
    """
    aggregation = _check_aggregation(aggregation)
    _check_overrides(overrides)
    weights = _drop_buffers(_read(checkpoint))
    _refuse_variants(weights)
    fields = _infer(weights)
    _compare(weights, _expected_shapes(fields))
    if fields["position_embeddings"] and pad_token_id != 0:
        raise ValueError(
            f"pad_token_id={pad_token_id}: the 2018 position embeddings ({_POSITIONS.format('src')}) take token 0 for "
            "padding whatever the vocabulary, so they can be converted with pad_token_id=0 only."
        )
    config = PervasiveAttentionConfig(
        **fields,
        **{**_DROPOUTS, **overrides},
        aggregation=aggregation,  # type: ignore[arg-type]
        batch_norm_eps=_EPS,
        pad_token_id=pad_token_id,
        eos_token_id=eos_token_id,
        decoder_start_token_id=decoder_start_token_id,
    )
    model: Any = PervasiveAttentionForConditionalGeneration(config)
    model.to(weights[f"{_TRANSITION}.conv.weight"].dtype)
    model.load_state_dict(_convert(weights, config))
    return model.eval()


def _check_aggregation(aggregation: str) -> str:
    """Returns this package's name of a 2018 aggregation, or refuses it."""
    if aggregation in _AGGREGATIONS:
        return _AGGREGATIONS[aggregation]
    reason = _REFUSED_AGGREGATIONS.get(aggregation, "there is no such mode")
    raise ValueError(
        f"aggregation={aggregation!r} cannot be converted: {reason}. Supported: {', '.join(map(repr, _AGGREGATIONS))}."
    )


def _check_overrides(overrides: dict[str, Any]) -> None:
    """Refuses names that are no fields, and fields that the weights determine."""
    fields = {field.name for field in dataclasses.fields(PervasiveAttentionConfig)}
    for name in overrides:
        if name in _INFERRED:
            raise ValueError(f"{name!r} follows from the checkpoint and cannot be set to {overrides[name]!r}.")
        if name not in fields:
            close = difflib.get_close_matches(name, fields - _INFERRED, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"PervasiveAttentionConfig has no field {name!r}.{hint}")


def _read(checkpoint: str | os.PathLike | StateDict) -> StateDict:
    """Returns the state dict, loaded from its file, without the prefix of a DataParallel."""
    source = "The state dict"
    if isinstance(checkpoint, str | os.PathLike):
        source = os.fspath(checkpoint)
        checkpoint = _load(source)
    if not isinstance(checkpoint, Mapping):
        raise ValueError(f"Expected a path or a state dict, got {type(checkpoint).__name__}.")
    foreign = [str(name) for name, value in checkpoint.items() if not isinstance(value, torch.Tensor)]
    if foreign or not checkpoint:
        raise ValueError(
            f"{source} is not a state dict of tensors ({_join(foreign) or 'empty'}); expected what "
            "torch.save(model.state_dict()) writes, such as model-best.pth."
        )
    if all(name.startswith("module.") for name in checkpoint):
        return {name.removeprefix("module."): weight for name, weight in checkpoint.items()}
    return dict(checkpoint)


def _load(path: str) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError, RuntimeError, ValueError, KeyError, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # it names the file; one without a name comes of reading where a damaged file points
        raise ValueError(
            f"{path} cannot be read as a file of tensors, and nothing else is loaded, as other pickles can run code. "
            "Expected what torch.save(model.state_dict()) writes, such as model-best.pth. "
            f"({type(error).__name__}: {(str(error) or 'no message').splitlines()[0]})"
        ) from error


def _drop_buffers(weights: StateDict) -> dict[str, torch.Tensor]:
    """Leaves out what is no parameter and no statistic: masks, which must be those of the paper, and states."""
    kept = {}
    for name, weight in weights.items():
        if name.endswith(".conv2.mask"):
            live = weight.shape[2] // 2 + 1 if weight.ndim == 4 else 0
            if not live or not (weight[:, :, :live] == 1).all() or weight[:, :, live:].any():
                raise ValueError(f"{name} does not mask exactly the rows after the present one.")
        elif not name.endswith(".incremental_state"):
            kept[name] = weight
    return kept


def _refuse_variants(weights: StateDict) -> None:
    for pattern, reason in _VARIANTS:
        if found := [name for name in weights if re.match(pattern, name)]:
            raise ValueError(f"The 2018 model has {reason}. Found: {_join(found)}.")
    if not any(name.startswith(("src_embedding.", "net.")) for name in weights):
        raise ValueError(f"This is no state dict of the 2018 convs2s2D. Found: {_join(weights)}.")
    for prefix, reason in _INDISPENSABLE:
        if not any(name.startswith(prefix) for name in weights):
            raise ValueError(f"The 2018 model {reason}. Missing: {prefix}weight.")


def _infer(weights: StateDict) -> dict[str, Any]:
    """Returns the config's fields that follow from shapes; `_compare` checks that the other weights agree."""
    vocab_size, source_dim = _shape(weights, _EMBEDDING.format("src"), 2)
    decoder_vocab_size, target_dim = _shape(weights, _EMBEDDING.format("trg"), 2)
    bottleneck = _shape(weights, f"{_BLOCK}1.conv1.weight", 4)[0]
    kernels, _, _, kernel_size = _shape(weights, f"{_BLOCK}1.conv2.weight", 4)
    (channels,) = _shape(weights, f"{_TRANSITION}.norm.weight", 1)
    numbers = (re.match(re.escape(_BLOCK) + r"(\d+)\.", name) for name in weights)
    num_layers = max(int(number.group(1)) for number in numbers if number)
    growth_rate, rest = divmod(channels - (source_dim + target_dim) // 2, num_layers)
    if growth_rate < 1 or rest or bottleneck % growth_rate or kernels not in (growth_rate, 2 * growth_rate):
        raise ValueError(
            f"{_BLOCK}1.conv1.weight ({bottleneck} channels), {_BLOCK}1.conv2.weight ({kernels}) and "
            f"{_TRANSITION}.norm.weight ({channels}) do not make {num_layers} layers of one growth rate on "
            f"({source_dim} + {target_dim}) / 2 channels."
        )
    return {
        "vocab_size": vocab_size,
        "decoder_vocab_size": decoder_vocab_size,
        "source_embed_dim": source_dim,
        "target_embed_dim": target_dim,
        "share_encoder_decoder_embeddings": _same(weights, _EMBEDDING.format("src"), _EMBEDDING.format("trg")),
        "tie_word_embeddings": _is_tied(weights),
        "num_layers": num_layers,
        "growth_rate": growth_rate,
        "bottleneck_factor": bottleneck // growth_rate,
        "kernel_size": kernel_size,
        "gated": kernels == 2 * growth_rate,
        **_infer_positions(weights),
    }


def _is_tied(weights: StateDict) -> bool:
    """Whether the output projection is the target embedding: it is where a linear map precedes it."""
    if not any(name.startswith("aggregator.lin.") for name in weights):
        return False
    names = "prediction.weight", _EMBEDDING.format("trg")
    if set(names) <= weights.keys() and not _same(weights, *names):
        raise ValueError(f"aggregator.lin is there, so {names[0]} must equal {names[1]}, which it does not.")
    return True


def _infer_positions(weights: StateDict) -> dict[str, Any]:
    sides = [side for side in ("src", "trg") if _POSITIONS.format(side) in weights]
    if not sides:
        return {"position_embeddings": None}
    if len(sides) == 1:
        raise ValueError(f"Positions on one side only ({_POSITIONS.format(sides[0])}); supported: on both, on none.")
    source, target = (_shape(weights, _POSITIONS.format(side), 2)[0] for side in sides)
    # The source's row 0 belongs to padding. A sentence that has no row must fail here as it does there.
    return {"position_embeddings": "learned", "max_position_embeddings": min(source - 1, target)}


def _expected_shapes(fields: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of all weights of the 2018 model that `fields` describe."""
    source_dim, target_dim, growth_rate = (
        fields[name] for name in ("source_embed_dim", "target_embed_dim", "growth_rate")
    )
    kernel_size, bottleneck = fields["kernel_size"], fields["bottleneck_factor"] * growth_rate
    channels = (source_dim + target_dim) // 2
    shapes: dict[str, tuple[int, ...]] = {
        _EMBEDDING.format("src"): (fields["vocab_size"], source_dim),
        _EMBEDDING.format("trg"): (fields["decoder_vocab_size"], target_dim),
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
        shapes.update({"aggregator.lin.weight": (target_dim, width), "aggregator.lin.bias": (target_dim,)})
        width = target_dim
    shapes["prediction.weight"] = (fields["decoder_vocab_size"], width)
    shapes["prediction.bias"] = (fields["decoder_vocab_size"],)
    return shapes


def _compare(weights: StateDict, shapes: dict[str, tuple[int, ...]]) -> None:
    """Refuses weights that are missing, unknown or of another shape, by name."""
    positions = {_POSITIONS.format(side): _EMBEDDING.format(side) for side in ("src", "trg")}
    shapes = {
        **shapes,
        # A table of positions may have any length
        **{name: (len(weights[name]), shapes[tokens][1]) for name, tokens in positions.items() if name in weights},
    }
    # Counters came with torch 0.4.1; nothing is computed with them
    norms = {name.removesuffix("running_mean") + "num_batches_tracked" for name in shapes if "running_mean" in name}
    problems = {
        "missing": shapes.keys() - weights.keys(),
        "unknown": weights.keys() - shapes.keys() - norms,
        "of another shape": {
            f"{name} {tuple(weights[name].shape)}, not {shape}"
            for name, shape in shapes.items()
            if name in weights and weights[name].shape != shape
        },
        "damaged (NaN, infinite, or a negative variance)": {
            name for name in shapes.keys() & weights.keys() if _is_damaged(name, weights[name])
        },
    }
    if found := [f"{kind}: {_join(sorted(names))}" for kind, names in problems.items() if names]:
        raise ValueError("The 2018 state dict cannot be converted. Weights " + "; weights ".join(found) + ".")


def _is_damaged(name: str, weight: torch.Tensor) -> bool:
    return not weight.isfinite().all() or (name.endswith(".running_var") and bool((weight < 0).any()))


def _convert(weights: StateDict, config: PervasiveAttentionConfig) -> dict[str, torch.Tensor]:
    """Returns this package's state dict."""
    source, target = weights[_EMBEDDING.format("src")], weights[_EMBEDDING.format("trg")]
    first = "net.features.initial_transiton"
    of_source, of_target = weights[f"{first}.weight"].flatten(1).split([source.shape[1], target.shape[1]], dim=1)
    converted = {
        "model.encoder.embed_tokens.weight": source,
        "model.decoder.embed_tokens.weight": target,
        "model.decoder.input_projection.weight": torch.cat([of_target, of_source], dim=1),
        "model.decoder.input_projection.bias": weights[f"{first}.bias"],
        **_convert_block(weights, config.num_layers),
        **_convert_norm(weights, "net.features.norm_last", "model.decoder.final_norm"),
        "lm_head.weight": weights["prediction.weight"],
        "lm_head.bias": weights["prediction.bias"],
    }
    if config.share_encoder_decoder_embeddings:
        converted["model.shared.weight"] = source
    if config.position_embeddings:
        length = config.max_position_embeddings
        converted["model.encoder.embed_positions.weight"] = weights[_POSITIONS.format("src")][1 : length + 1]
        converted["model.decoder.embed_positions.weight"] = weights[_POSITIONS.format("trg")][:length]
    if config.tie_word_embeddings:
        for name in ("weight", "bias"):
            converted[f"model.decoder.output_projection.{name}"] = weights[f"aggregator.lin.{name}"]
    return converted


def _convert_block(weights: StateDict, num_layers: int) -> dict[str, torch.Tensor]:
    """Returns the weights of the dense block and its transition."""
    block = "model.decoder.dense_block"
    layers = [f"{_BLOCK}{number}" for number in range(1, num_layers + 1)]
    readers = [*(f"{layer}.norm1" for layer in layers), f"{_TRANSITION}.norm"]
    mean, variance = (_first_statistics(weights, readers, name) for name in ("running_mean", "running_var"))
    converted = {
        f"{block}.feature_norm.running_mean": mean,
        f"{block}.feature_norm.running_var": variance,
        f"{block}.feature_norm.num_batches_tracked": _batches(weights, readers[0]),
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


def _first_statistics(weights: StateDict, readers: list[str], name: str) -> torch.Tensor:
    """Returns a statistic [C] of every feature, each from the first of the `readers` that reads it."""
    parts: list[torch.Tensor] = []
    known = 0
    for reader in readers:
        parts.append(weights[f"{reader}.{name}"][known:])
        known += len(parts[-1])
    return torch.cat(parts)


def _with_statistics(
    weights: StateDict, norm: str, mean: torch.Tensor, variance: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a norm's affine map, changed so that statistics [C] (their first channels) can replace its own."""
    weight, bias, own_mean, own_variance = (weights[f"{norm}.{name}"].double() for name in _NORM)
    channels = len(weight)
    scale = weight * torch.rsqrt(own_variance + _EPS)
    shift = bias + scale * (mean[:channels].double() - own_mean)
    return scale * torch.sqrt(variance[:channels].double() + _EPS), shift


def _convert_norm(weights: StateDict, norm: str, name: str) -> dict[str, torch.Tensor]:
    converted = {f"{name}.{part}": weights[f"{norm}.{part}"] for part in _NORM}
    return {**converted, f"{name}.num_batches_tracked": _batches(weights, norm)}


def _batches(weights: StateDict, norm: str) -> torch.Tensor:
    return weights.get(f"{norm}.num_batches_tracked", torch.tensor(0))


def _same(weights: StateDict, first: str, second: str) -> bool:
    return weights[first].shape == weights[second].shape and torch.equal(weights[first], weights[second])


def _shape(weights: StateDict, name: str, dimensions: int) -> torch.Size:
    """Returns the shape of a weight, which must be there and have `dimensions` dimensions."""
    if name not in weights:
        raise ValueError(f"The 2018 state dict cannot be converted. Weights missing: {name}.")
    shape = weights[name].shape
    if len(shape) != dimensions:
        raise ValueError(f"{name} must have {dimensions} dimensions, but has the shape {tuple(shape)}.")
    return shape


def _join(names: Iterable[str]) -> str:
    """Returns names for a message, the first of many."""
    names = list(names)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
