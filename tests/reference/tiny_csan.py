# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Tiny random CSAN models and every locality that they can have, for tests of whole models."""

from __future__ import annotations

import torch

from csan_hf import CsanConfig, CsanForConditionalGeneration

LAYERS = 2
HEADS = 4
VOCABULARY = 50
ALL = list(range(LAYERS))
PAD, EOS = 0, 1
STRATEGIES = ("fixed", "layer", "query", "head")

# "Off" is spelt out: the config's own defaults are the paper's 3 x 11 area in the encoder.
PLAIN = {"local_window": None, "head_area": 1, "localness_window": None, "localness_layers": []}
ENCODER = {**PLAIN, "localness_layers": ALL}
DECODER = {**PLAIN, "decoder_localness_layers": ALL}
CROSS = {**PLAIN, "cross_localness_layers": ALL}
EVERYWHERE = {**PLAIN, "localness_layers": ALL, "decoder_localness_layers": ALL, "cross_localness_layers": ALL}


def _localities() -> dict[str, dict]:
    localities = {
        "plain": PLAIN,
        "encoder window": {**ENCODER, "local_window": 5},
        "encoder area": {**ENCODER, "local_window": 5, "head_area": 3},
        "encoder circular area": {**ENCODER, "local_window": 3, "head_area": 3, "head_boundary": "circular"},
        "decoder window": {**DECODER, "local_window": 5},
        "decoder window of one": {**DECODER, "local_window": 1},
        "decoder window in the upper layer": {**DECODER, "local_window": 5, "decoder_localness_layers": [LAYERS - 1]},
        "decoder heads": {**DECODER, "head_area": 7},
        "decoder area": {**DECODER, "local_window": 7, "head_area": 3},
        "decoder circular area": {**DECODER, "local_window": 5, "head_area": 3, "head_boundary": "circular"},
    }
    for strategy in STRATEGIES:
        gaussian = {"localness_window": strategy, "localness_window_size": 4}
        localities[f"encoder {strategy}"] = {**ENCODER, **gaussian}
        localities[f"decoder {strategy}"] = {**DECODER, **gaussian}
        localities[f"decoder window and {strategy}"] = {**DECODER, **gaussian, "local_window": 5}
        localities[f"cross {strategy}"] = {**CROSS, **gaussian}
        localities[f"everything, {strategy}"] = {**EVERYWHERE, **gaussian, "local_window": 5, "head_area": 3}
    return localities


LOCALITIES = _localities()


def tiny_model(seed: int = 0, attn_implementation: str | None = None, **options) -> CsanForConditionalGeneration:
    """A model in eval mode whose weights are large enough for outputs that differ."""
    sizes = {
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "encoder_layers": LAYERS,
        "decoder_layers": LAYERS,
        "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "max_position_embeddings": 128,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "decoder_start_token_id": PAD,
        "dropout": 0.0,
    }
    config = CsanConfig(**{**sizes, **options})
    if attn_implementation is not None:
        config._attn_implementation = attn_implementation
    model = CsanForConditionalGeneration(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" in name or "norm" in name:
                continue
            gain = 1.0 if any(part in name for part in ("query_proj", "center_proj", "window_proj")) else 1.3
            std = gain / parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else 0.1
            if name.endswith("head_window"):
                std = 2.0  # windows of 6 to 44 tokens
            parameter.copy_(std * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def padded_sources(lengths: tuple[int, ...], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random source sentences of given lengths (their </s> included), padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(3, VOCABULARY, (len(lengths), max(lengths)), generator=generator)
    attention_mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    for row, length in enumerate(lengths):
        input_ids[row, length - 1] = EOS
        input_ids[row, length:] = PAD
    return {"input_ids": input_ids, "attention_mask": attention_mask}
