# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Networks of one size, CSAN and its anchors, and the steps that benchmarks and GPU stages time."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForSeq2SeqLM,
    LEDConfig,
    LongT5Config,
    LongT5EncoderModel,
    MarianConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.led.modeling_led import LEDEncoder

from csan_hf import CsanConfig
from csan_hf.training import LabelSmoothedCrossEntropy
from csan_hf.training.loss import TaughtLabels, TrainingLoss

Step = Callable[[], object]
MOST_POSITIONS = 4096


class Size(NamedTuple):
    """Sizes of a Transformer, of encoder and decoder alike."""

    d_model: int
    layers: int
    heads: int
    ffn: int
    vocabulary: int

    def fields(self) -> dict[str, Any]:
        """The fields of a config of CSAN, Marian or LED."""
        fields = {"vocab_size": self.vocabulary, "d_model": self.d_model}
        for side in ("encoder", "decoder"):
            fields[f"{side}_layers"] = self.layers
            fields[f"{side}_attention_heads"] = self.heads
            fields[f"{side}_ffn_dim"] = self.ffn
        return fields


SMALL = Size(d_model=256, layers=3, heads=4, ffn=1024, vocabulary=8000)
BASE = Size(d_model=512, layers=6, heads=8, ffn=2048, vocabulary=32000)


def make(config: PreTrainedConfig) -> Any:
    """The model of a config, with the same random weights every time."""
    torch.manual_seed(0)
    return AutoModelForSeq2SeqLM.from_config(config, trust_remote_code=False)


def make_marian(size: Size) -> PreTrainedModel:
    """transformers' Marian with CSAN's defaults, the anchor of training and search."""
    config = MarianConfig(
        **size.fields(),
        max_position_embeddings=MOST_POSITIONS,
        activation_function="relu",
        scale_embedding=True,
        dropout=0.1,
        pad_token_id=0,
        eos_token_id=1,
        forced_eos_token_id=None,
        decoder_start_token_id=0,
    )
    return make(config)


def make_csan(preset: str | None, size: Size, **fields: Any) -> PreTrainedModel:
    """A CSAN with a preset of locality; None = locality off."""
    return make(CsanConfig.preset(preset, **size.fields(), **fields))


def make_encoder(name: str, window: int, length: int, size: Size) -> nn.Module:
    """An encoder of texts of this length, without dropout.

    Args:
        name: `"LED"`, `"LongT5 (local)"`, `"1D-CSAN"`, any that begins with `"2D"` (areas of 3
            heads), or `"full attention"` (CSAN's without a window).
    """
    torch.manual_seed(0)
    if name == "LED":
        led = LEDConfig(
            **size.fields(),
            max_encoder_position_embeddings=length,
            attention_window=window - 1,
            dropout=0.0,
            attention_dropout=0.0,
        )
        return LEDEncoder(led)
    if name == "LongT5 (local)":
        long_t5 = LongT5Config(
            vocab_size=size.vocabulary,
            d_model=size.d_model,
            d_kv=size.d_model // size.heads,
            d_ff=size.ffn,
            num_layers=size.layers,
            num_heads=size.heads,
            dropout_rate=0.0,
            local_radius=(window - 1) // 2,
        )
        return LongT5EncoderModel(long_t5)
    csan = make_csan(
        None,
        size,
        dropout=0.0,
        max_position_embeddings=length,
        local_window=None if name == "full attention" else window,
        head_area=3 if name.startswith("2D") else 1,
    )
    return csan.get_encoder()


def random_ids(*shape: int, vocabulary: int, device: str = "cpu") -> Tensor:
    """Random tokens, the same every time, none of them special."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(4, vocabulary, shape, generator=generator).to(device)


def random_text(length: int, vocabulary: int, device: str = "cpu") -> dict[str, Tensor]:
    """One random source without padding, as a model takes it."""
    ids = random_ids(1, length, vocabulary=vocabulary, device=device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def make_pairs(lengths: Tensor, vocabulary: int, device: str) -> dict[str, Tensor]:
    """Random sentence pairs of these lengths [2, B], padded on the right."""
    generator = torch.Generator().manual_seed(1)
    batch = {}
    for name, sizes in zip(("input_ids", "labels"), lengths, strict=True):
        longest = int(sizes.max())
        ids = torch.randint(2, vocabulary, (len(sizes), longest), generator=generator)
        padding = torch.arange(longest) >= sizes[:, None]
        batch[name] = ids.masked_fill(padding, -100 if name == "labels" else 0).to(device)
    batch["attention_mask"] = (batch["input_ids"] != 0).long()
    return batch


def bf16_autocast(tokens: Tensor, enabled: bool) -> torch.autocast:
    """Autocast to bf16 on the device of a model's tokens."""
    return torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=enabled)


def training_step(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    *,
    bf16: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
) -> Step:
    """A forward pass, in bf16 autocast or not, a backward pass, and an optimizer's update if there
    is one.
    """
    model.train()
    autocast = bf16_autocast(batch["labels"], bf16)

    def step() -> None:
        with autocast:
            loss = model(**batch).loss
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        model.zero_grad(set_to_none=True)

    return step


def output_step(
    positions: int, size: Size, *, in_pieces: bool, device: str = "cpu", bf16: bool = False
) -> Callable[[], Tensor]:
    """The output layer and its smoothed loss, forward and backward, as the Trainer computes them or
    with all logits at once; returns the gradient of the weights.
    """
    torch.manual_seed(0)
    states = torch.randn(1, positions, size.d_model, device=device, requires_grad=True)
    project = nn.Linear(size.d_model, size.vocabulary, bias=False, device=device)
    labels = random_ids(1, positions, vocabulary=size.vocabulary, device=device)
    criterion = LabelSmoothedCrossEntropy(0.1)
    training_loss = TrainingLoss(criterion, TaughtLabels(labels), None)
    autocast = bf16_autocast(labels, bf16)

    def step() -> Tensor:
        with autocast:
            if in_pieces:
                loss = training_loss(states, project)
            else:
                loss = criterion.summed(project(states[0]), labels[0]) / positions
        _, of_weights = torch.autograd.grad(loss, [states, project.weight])
        return of_weights

    return step


def encoding_step(
    encoder: nn.Module, source: Mapping[str, Tensor], *, backward: bool, bf16: bool = False
) -> Step:
    """A forward pass of an encoder in eval mode, or one in training mode with its backward pass."""
    autocast = bf16_autocast(source["input_ids"], bf16)

    def step() -> None:
        encoder.train(backward)
        with torch.set_grad_enabled(backward), autocast:
            states = encoder(**source).last_hidden_state
        if backward:
            states.float().square().mean().backward()
            encoder.zero_grad(set_to_none=True)

    return step


def search_step(
    model: PreTrainedModel,
    source: Mapping[str, Tensor],
    tokens: int,
    *,
    bf16: bool = False,
    **options: Any,
) -> Step:
    """Generation of exactly so many tokens, in bf16 autocast or not: no model gains by stopping
    early.
    """
    model.eval()
    autocast = bf16_autocast(source["input_ids"], bf16)

    def step() -> None:
        with autocast:
            model.generate(
                **source,
                do_sample=False,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                **options,
            )

    return step
