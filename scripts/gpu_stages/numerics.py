# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Every family, locality method and backend beside the same model in float64 on the CPU: logits,
gradients, translations.
"""

import copy
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from measuring import Row, relative_error
from networks import Size, make, make_pairs
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from csan_hf import ConvS2SConfig, CsanConfig, PervasiveAttentionConfig, RnnSearchConfig
from csan_hf.models import backends
from csan_hf.models.locality import locality_presets

from .setting import Measurement, Setting

LAYERS = 2
VOCABULARY = 200
TOKENS: dict[str, Any] = {"vocab_size": VOCABULARY, "dropout": 0.0}
SIZE = Size(d_model=128, layers=LAYERS, heads=4, ffn=256, vocabulary=VOCABULARY)
LINE_TOKEN = 5
TRANSFORMER = {**SIZE.fields(), "dropout": 0.0, "max_position_embeddings": 512}
GRIDS: dict[str, dict[str, Any]] = {
    "dense": {},
    "gated": {"gated": True},
    "attention": {"aggregation": "max_attention"},
    "residual": {"block": "residual", "ffn_dim": 64, "aggregation": "gated_max"},
}
LOCAL_BACKENDS = ("eager", "sdpa", "blocked", "flash")
"""The last is "sdpa" with FlashAttention at all lengths."""


@dataclass(frozen=True)
class Precision:
    """How a model is run.

    Attributes:
        weights: Type of the weights.
        autocast: Type of autocast, None = none.
        logits: Largest error of logits that rounding explains.
        gradients: The same of gradients.
    """

    weights: torch.dtype
    autocast: torch.dtype | None
    logits: float
    gradients: float


PRECISIONS = {
    "float32": Precision(torch.float32, None, logits=1e-5, gradients=1e-4),
    "bf16 autocast": Precision(torch.float32, torch.bfloat16, logits=2e-2, gradients=4e-2),
    "bf16": Precision(torch.bfloat16, None, logits=3e-2, gradients=6e-2),
    "fp16 autocast": Precision(torch.float32, torch.float16, logits=3e-3, gradients=8e-3),
    "fp16": Precision(torch.float16, None, logits=4e-3, gradients=1e-2),
}
LOSS_SCALE = 256.0
"""Of float16, as a gradient scaler's."""
MAXIMA = 10.0
"""Times more that rounding moves gradients of Pervasive Attention, as another cell is the maximum
or is above zero.
"""


def all_models(setting: Setting) -> Iterator[tuple[str, Any]]:
    """Names and models, with random weights; those whose names match the setting's pattern."""
    for name, config in _configs():
        if re.search(setting.only, name):
            yield name, make(config)


def _configs() -> Iterator[tuple[str, PreTrainedConfig]]:
    yield "CSAN plain", CsanConfig.preset(None, **TRANSFORMER)
    for name in locality_presets():
        marks = {"line_token_id": LINE_TOKEN} if name == "lines" else {}
        yield f"CSAN {name}", CsanConfig.preset(name, **TRANSFORMER, **marks)
    bias = [{"relative_bias": True}] * LAYERS
    yield (
        "CSAN relative_bias",
        CsanConfig.preset(None, **TRANSFORMER, encoder_locality=bias, decoder_locality=bias),
    )
    yield (
        "CSAN decoder windows",
        CsanConfig.preset(None, **TRANSFORMER, decoder_locality=[{"window": 9}] * LAYERS),
    )
    grid = {"source_embed_dim": 32, "target_embed_dim": 32, "num_layers": 4, "growth_rate": 16}
    for name, fields in GRIDS.items():
        yield f"Pervasive Attention {name}", PervasiveAttentionConfig(**TOKENS, **grid, **fields)
    yield (
        "RNNsearch",
        RnnSearchConfig(**TOKENS, source_embed_dim=64, target_embed_dim=64, hidden_size=128),
    )
    yield (
        "ConvS2S",
        ConvS2SConfig(**TOKENS, embed_dim=64, hidden_size=64, encoder_layers=3, decoder_layers=3),
    )


def make_batch(device: str, *, left: bool = False) -> dict[str, Tensor]:
    """Random pairs of 20 to 48 tokens, padded on the right, the sources on the left if `left`."""
    lengths = torch.tensor([[48, 20, 33, 41], [40, 27, 36, 22]])
    batch = make_pairs(lengths, VOCABULARY, device)
    if left:
        shifted = [torch.cat([row[row == 0], row[row != 0]]) for row in batch["input_ids"]]
        batch["input_ids"] = torch.stack(shifted)
        batch["attention_mask"] = (batch["input_ids"] != 0).long()
    return batch


def results(
    model: PreTrainedModel, batch: dict[str, Tensor], precision: Precision
) -> tuple[Tensor, Tensor]:
    """Logits of the real targets, and all gradients in one vector."""
    scale = LOSS_SCALE if torch.float16 in (precision.weights, precision.autocast) else 1.0
    with torch.autocast(
        model.device.type, dtype=precision.autocast, enabled=precision.autocast is not None
    ):
        output = model(**batch)
    (output.loss.float() * scale).backward()
    gradients = [
        parameter.grad.flatten().double()
        for _, parameter in sorted(model.named_parameters())
        if parameter.grad is not None
    ]
    model.zero_grad(set_to_none=True)
    logits = output.logits[batch["labels"] != -100]
    return logits.double().cpu(), torch.cat(gradients).cpu() / scale


def expected_results(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """The logits and gradients in float64 on the CPU."""
    exact = copy.deepcopy(model).double()
    if exact.config.model_type == "csan":
        exact.set_attn_implementation("eager")
    return results(exact.train(), make_batch("cpu"), Precision(torch.float64, None, 0.0, 0.0))


def models(setting: Setting) -> Iterator[Measurement]:
    """Relative errors of logits and gradients."""
    precisions = ["float32"] if setting.tiny else list(PRECISIONS)
    for name, model in all_models(setting):
        model.train()
        expected = expected_results(model)
        is_csan = model.config.model_type == "csan"
        choices = LOCAL_BACKENDS if is_csan else ("-",)
        for backend, precision in itertools.product(choices, precisions):
            # FlashAttention takes half precision on a GPU
            if backend == "flash" and (setting.device == "cpu" or precision == "float32"):
                continue
            names: Row = {"model": name, "backend": backend, "precision": precision}
            yield names, partial(_errors, model, backend, precision, expected, setting)


def _errors(
    model: PreTrainedModel,
    backend: str,
    precision_name: str,
    expected: tuple[Tensor, Tensor],
    setting: Setting,
) -> Row:
    precision = PRECISIONS[precision_name]
    moved = copy.deepcopy(model).to(setting.device, precision.weights)
    if backend != "-":
        moved.set_attn_implementation("sdpa" if backend == "flash" else backend)
    bound = precision.gradients
    if model.config.model_type == "pervasive_attention":
        bound *= MAXIMA
    shortest = 1 if backend == "flash" else backends.GPU_FLASH_FROM
    errors: Row = {}
    is_rounding = True
    for side in ("", ", left padding"):
        batch = make_batch(setting.device, left=bool(side))
        with (
            torch.backends.cudnn.flags(enabled=True, allow_tf32=False),
            mock.patch.object(backends, "GPU_FLASH_FROM", shortest),
        ):
            logits, gradients = results(moved, batch, precision)
        logits_error = relative_error(logits, expected[0])
        gradients_error = relative_error(gradients, expected[1])
        errors |= {f"logits{side}": logits_error, f"gradients{side}": gradients_error}
        is_rounding &= logits_error <= precision.logits and gradients_error <= bound
    return {**errors, "rounding alone": "yes" if is_rounding else "NO"}


def tokens(setting: Setting) -> Iterator[Measurement]:
    """Of how many sentences the translation is that of the CPU in float64."""
    for name, model in all_models(setting):
        yield {"model": name}, partial(_shares_of_equal, model, setting)


def _shares_of_equal(model: PreTrainedModel, setting: Setting) -> Row:
    searches: dict[str, dict[str, Any]] = {
        "greedy": {},
        "greedy, no cache": {"use_cache": False},
        "beam 4": {"num_beams": 4},
    }
    length = 6 if setting.tiny else 20
    make_distinct(model)
    exact = copy.deepcopy(model).double()
    moved = copy.deepcopy(model).to(setting.device)
    row: Row = {}
    for name, options in searches.items():
        expected = translate(exact, length, **options)
        row[name] = share_of_equal(translate(moved, length, **options), expected)
    return row


def make_distinct(model: PreTrainedModel) -> None:
    """Enlarges a model's weights so that the tokens of its translations differ."""
    model.eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(3.0)


def translate(model: PreTrainedModel, length: int, **options: Any) -> Tensor:
    """Translations of the random pairs' sources by so many tokens each, on the CPU."""
    batch = make_batch(model.device.type)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        return model.generate(
            batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=length,
            min_new_tokens=length,
            **options,
        ).cpu()


def share_of_equal(translated: Tensor, expected: Tensor) -> float:
    """Share of sentences with the same tokens."""
    return (translated == expected).all(dim=-1).double().mean().item()
