# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""BLOCK, which replaces the attention, and CNN, which comes before it, against their loop oracles."""

import pytest
import torch
from reference.dispatch import Operations
from reference.locality_block import block_parameter_shapes, block_self_attention
from reference.locality_cnn import cnn_parameter_shapes, convolutions
from tiny import PLAIN, padded_sources
from tiny import csan as tiny_model

from csan_hf import CsanConfig, CsanModel
from csan_hf.models.csan_attention import AttentionMasks, CsanAttention

B, T, D_MODEL = 2, 7, 8
LENGTHS = (7, 5)  # the padding is no whole number of blocks


def make_attention(specification):
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = CsanConfig(
        d_model=D_MODEL, encoder_layers=1, decoder_layers=1, **heads, encoder_locality=[specification], dropout=0.5
    )
    attention = CsanAttention(config, "encoder").eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return attention


def padding_of(side):
    if side == "none":
        return None
    padding = torch.arange(T) < torch.tensor(LENGTHS)[:, None]
    return padding if side == "right" else padding.flip(1)


def agree(function, oracle, parameters, padding):
    """Outputs at real tokens, and the gradients of states and parameters, whatever stands at padding."""
    states = torch.randn(B, T, D_MODEL, generator=torch.Generator().manual_seed(2), requires_grad=True)
    real = torch.ones(B, T, dtype=torch.bool) if padding is None else padding
    outputs = function(states)[real], oracle(states).float()[real]
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-5)
    leaves = [states, *parameters]
    upstream = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(3))
    found, expected = (torch.autograd.grad((output * upstream).sum(), leaves) for output in outputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


# The oracle's names that Python modules cannot have, or that are the bias of one of two matrices
NAMES = {
    "forward.": "past.",
    "backward.": "future.",
    "intra.bias": "intra.source.bias",
    "inter.bias": "inter.source.bias",
    "gate.bias": "gate.local.bias",
    "gate.global.": "gate.context.",
}


def renamed(name):
    for theirs, ours in NAMES.items():
        name = name if "fusion" in name and theirs == "gate.bias" else name.replace(theirs, ours)
    return name


@pytest.mark.parametrize("length", [1, 3, 9])
@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_block_equals_the_oracle(length, side):
    attention = make_attention({"block": {"length": length, "width": 3}})
    own = dict(attention.block.named_parameters())
    parameters = {name: own[renamed(name)] for name in block_parameter_shapes(D_MODEL, 3)}
    assert len(parameters) == len(own)
    assert {name: tuple(value.shape) for name, value in parameters.items()} == block_parameter_shapes(D_MODEL, 3)
    assert list(attention.parameters()) == list(own.values()), "no projections beside it"
    padding = padding_of(side)
    leaves = [value for name, value in own.items() if length > 1 or "intra" not in name]  # no neighbour in a block
    if length > T:
        leaves = [value for name, value in own.items() if "inter" not in name]  # one block has no others
    masks = AttentionMasks(None, padding)
    agree(
        lambda states: attention(states, attention_mask=masks)[0],
        lambda states: block_self_attention(states, parameters, block_length=length, key_padding_mask=padding),
        leaves,
        padding,
    )


@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_convolutions_equal_the_oracle(side):
    attention = make_attention({"cnn": {"kernel_size": 3, "layers": 2}, "window": 3})
    own = dict(attention.cnn.named_parameters())
    assert {name: tuple(value.shape) for name, value in own.items()} == cnn_parameter_shapes(D_MODEL, 3, 2)
    padding = padding_of(side)
    agree(
        lambda states: attention.before(states, AttentionMasks(None, padding)),
        lambda states: convolutions(states, own, key_padding_mask=padding),
        list(own.values()),
        padding,
    )


def test_convolutions_have_the_model_s_dropout_in_training():
    attention = make_attention({"cnn": {"kernel_size": 3, "layers": 1}}).train()
    states = torch.randn(1, 200, D_MODEL)
    before = attention.before(states, None) - states
    still = attention.eval().before(states, None) - states
    torch.testing.assert_close(before[before != 0], 2 * still[before != 0])
    dropped = ((before == 0) & (still != 0)).sum() / (still != 0).sum()
    assert 0.4 < dropped < 0.6


@torch.no_grad()
def test_new_convolutions_are_of_the_model_s_scale():
    config = tiny_model(**{**PLAIN, "encoder_locality": [{"cnn": 7}, None]}).config
    for initialization, (depthwise, pointwise) in {
        "xavier": (0.5 * 7**-0.5, 0.5 * 32**-0.5),
        "normal": (0.02, 0.02),
    }.items():
        config.initialization = initialization
        torch.manual_seed(0)
        layer = CsanModel(config).encoder.layers[0].self_attn.cnn.get_submodule("0")
        assert layer.depthwise.weight.std().item() == pytest.approx(depthwise, rel=0.15)
        assert layer.pointwise.weight.std().item() == pytest.approx(pointwise, rel=0.15)


def test_attentions_of_a_model_with_blocks():
    """A replaced attention has weights of zero, so that the others' are where they were."""
    model = tiny_model(attn_implementation="eager", **{**PLAIN, "encoder_locality": [{"block": 3}, None]})
    attentions = model.get_encoder()(**padded_sources((6, 4)), output_attentions=True).attentions
    assert [weights.shape for weights in attentions] == [(2, 4, 6, 6)] * 2
    assert [weights.any().item() for weights in attentions] == [False, True]


@torch.no_grad()
def test_a_block_longer_than_the_sentence_costs_no_more_than_the_sentence():
    states = torch.randn(B, T, D_MODEL, generator=torch.Generator().manual_seed(2))
    masks = AttentionMasks(padding=padding_of("left"))
    expected = make_attention({"block": T})(states, attention_mask=masks)[0]
    with Operations() as operations:
        output = make_attention({"block": 200})(states, attention_mask=masks)[0]
    torch.testing.assert_close(output, expected)
    assert operations.largest < 200 * 200
