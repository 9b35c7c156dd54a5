# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""New weights have the distributions that the configuration names."""

import pytest
import torch
from tiny import CSAN_SIZES, HEADS
from torch import Tensor, nn

from csan_hf import CsanConfig, CsanForConditionalGeneration

D, GAIN = 64, 0.5
SIZE = {
    **CSAN_SIZES,
    "vocab_size": 300,
    "decoder_vocab_size": 200,
    "share_encoder_decoder_embeddings": False,
    "tie_word_embeddings": False,
    "d_model": D,
    "encoder_layers": 3,
    "encoder_locality": [{"gaussian": "head"}, {"relative_positions": 16}, {"cnn": 7}],
}


def new_model(**options) -> CsanForConditionalGeneration:
    torch.manual_seed(0)
    return CsanForConditionalGeneration(CsanConfig(**{**SIZE, **options}))


def assert_spread(name: str, weight: Tensor, std: float) -> None:
    """Mean 0 and standard deviation `std`, to four standard errors of a sample of this size."""
    error = 4 * std * weight.numel() ** -0.5
    assert abs(weight.mean().item()) < error, name
    assert abs(weight.std().item() - std) < error, name


def test_xavier():
    """Matrices Xavier-uniform times the gain, embeddings N(0, 1/d) times the gain, of relative
    positions N(0, 1/D).
    """
    model = new_model(init_gain=GAIN)
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) or name == "lm_head":
            words = module.weight if name == "lm_head" else module.weight[1:]
            assert_spread(name, words, GAIN * D**-0.5)
        elif isinstance(module, nn.Linear):
            bound = GAIN * (6 / sum(module.weight.shape)) ** 0.5
            assert 0.95 * bound < module.weight.abs().max() <= bound, name
            assert_spread(name, module.weight, bound * 3**-0.5)
        elif isinstance(module, nn.Conv1d):
            assert_spread(name, module.weight, GAIN * module.weight[0].numel() ** -0.5)
    tables = model.model.encoder.layers[1].self_attn.relative_positions
    for name, table in tables.named_parameters():
        assert_spread(name, table, GAIN * (D // HEADS) ** -0.5)
    assert not model.model.encoder.embed_tokens.weight[model.config.pad_token_id].any()


def test_normal():
    model = new_model(initialization="normal", init_std=0.07)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            assert_spread(name, parameter[1:] if "embed_tokens" in name else parameter, 0.07)


@pytest.mark.parametrize("scheme", ["xavier", "normal"])
def test_biases_norms_and_windows(scheme):
    model = new_model(initialization=scheme)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or name.endswith("head_window"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
    assert not model.final_logits_bias.any()
