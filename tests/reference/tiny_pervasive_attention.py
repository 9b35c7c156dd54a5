# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Tiny random Pervasive Attention models and batches for them, for tests of whole models."""

from __future__ import annotations

import torch
from torch import Tensor

from csan_hf import PervasiveAttentionConfig, PervasiveAttentionForConditionalGeneration

PAD, EOS = 0, 1  # PAD starts the decoder, too
SOURCE_VOCABULARY, TARGET_VOCABULARY = 13, 11
AGGREGATIONS = ("max", "average", "attention", "max_attention")
# Widths that differ on the two sides, and odd channel counts: f0 / 2 = 5, C = 11, f_L = 5.
SIZES = {
    "vocab_size": SOURCE_VOCABULARY,
    "decoder_vocab_size": TARGET_VOCABULARY,
    "source_embed_dim": 4,
    "target_embed_dim": 6,
    "num_layers": 2,
    "growth_rate": 3,
    "dropout": 0.0,
    "max_position_embeddings": 128,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "decoder_start_token_id": PAD,
}
SHARED = {
    "share_encoder_decoder_embeddings": True,
    "vocab_size": TARGET_VOCABULARY,
    "decoder_vocab_size": None,
    "source_embed_dim": 4,
    "target_embed_dim": 4,
}


def tiny_model(seed: int = 0, **options) -> PervasiveAttentionForConditionalGeneration:
    """A model in eval mode; no norm is the identity, and no running statistic is its initial value."""
    model = PervasiveAttentionForConditionalGeneration(PervasiveAttentionConfig(**{**SIZES, **options}))
    generator = torch.Generator().manual_seed(seed)

    def normal(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, generator=generator)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.3 * normal(parameter))
            elif parameter.ndim == 1:
                parameter.copy_(0.3 * normal(parameter))
            elif "embed" in name or "shared" in name:
                parameter.copy_(normal(parameter))
            else:
                parameter.copy_(normal(parameter) / parameter[0].numel() ** 0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(0.3 * normal(buffer))
            elif name.endswith("running_var"):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
    return model.eval()


def mask_of(lengths: tuple[int, ...], width: int | None = None) -> Tensor:
    """[B, width], 1 for the first `length` places of every sentence."""
    return (torch.arange(width or max(lengths)) < torch.tensor(lengths)[:, None]).long()


def padded_sources(lengths: tuple[int, ...], width: int | None = None, seed: int = 0, words: int = 10) -> dict:
    """Random source sentences of given lengths (their </s> included), padded on the right to `width`."""
    generator = torch.Generator().manual_seed(seed)
    mask = mask_of(lengths, width)
    input_ids = torch.full(mask.shape, PAD)
    for row, length in enumerate(lengths):
        input_ids[row, :length] = torch.randint(2, words, (length,), generator=generator)
        input_ids[row, length - 1] = EOS
    return {"input_ids": input_ids, "attention_mask": mask}


def padded_targets(lengths: tuple[int, ...], width: int | None = None, seed: int = 1) -> dict:
    """Random decoder inputs of given lengths, the start token first, padded on the right to `width`."""
    generator = torch.Generator().manual_seed(seed)
    mask = mask_of(lengths, width)
    ids = torch.full(mask.shape, PAD)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(2, TARGET_VOCABULARY, (length,), generator=generator)
        ids[row, 0] = PAD
    return {"decoder_input_ids": ids, "decoder_attention_mask": mask}


def padded_batch(sources: tuple[int, ...], targets: tuple[int, ...], **widths: int | None) -> dict[str, Tensor]:
    """A whole batch; source_width and target_width ask for more padding than the longest sentence needs."""
    return {
        **padded_sources(sources, widths.get("source_width")),
        **padded_targets(targets, widths.get("target_width")),
    }


def labels_of(lengths: tuple[int, ...], seed: int = 2) -> Tensor:
    """Random labels of given lengths, </s> last, padded with -100."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.full((len(lengths), max(lengths)), -100)
    for row, length in enumerate(lengths):
        labels[row, :length] = torch.randint(2, TARGET_VOCABULARY, (length,), generator=generator)
        labels[row, length - 1] = EOS
    return labels
