# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The oracles of BLOCK and CNN on cases that can be worked out by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from reference.locality_block import block_parameter_shapes, block_self_attention, masked_self_attention, summary_of
from reference.locality_cnn import cnn_parameter_shapes, convolutions


def random_parameters(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    return {name: torch.randn(shape, dtype=torch.float64, requires_grad=True) / 2 for name, shape in shapes.items()}


@pytest.fixture
def block_parameters_of_width_3() -> dict[str, torch.Tensor]:
    return random_parameters(block_parameter_shapes(4, 3))


def padded_alike(function, parameters) -> None:
    """Three tokens of padding on either side change nothing, and padding yields zeros."""
    states = torch.randn(1, 6, 4, dtype=torch.float64)
    bare = function(states, parameters)
    for left in (0, 1, 3):
        padded = F.pad(states, (0, 0, left, 3 - left), value=9.0)
        mask = torch.tensor([[False] * left + [True] * 6 + [False] * (3 - left)])
        output = function(padded, parameters, key_padding_mask=mask)
        torch.testing.assert_close(output[:, left : left + 6], bare)
        assert output[~mask].eq(0).all()


def dependencies(function, length: int) -> list[list[int]]:
    """For every output position the input positions it depends on."""
    states = torch.randn(1, length, 4, dtype=torch.float64, requires_grad=True)
    output = function(states)
    rows = []
    for i in range(length):
        (gradient,) = torch.autograd.grad(output[0, i].square().sum(), states, retain_graph=True)
        rows.append([j for j in range(length) if gradient[0, j].abs().sum() > 0])
    return rows


def test_masked_self_attention_by_hand():
    """One feature, scores 5 tanh((2a + b + 1) / 5): the third token, a = 3, on the first two."""
    one = torch.ones(1, 1, dtype=torch.float64)
    parameters = {"intra.target.weight": 2 * one, "intra.source.weight": one, "intra.bias": one[0]}
    first, second, third = (torch.tensor([x], dtype=torch.float64) for x in (-6.0, -4.0, 3.0))
    past = masked_self_attention([first, second, third], parameters, "intra", "forward")
    on_first, on_second = math.exp(5 * math.tanh(1 / 5)), math.exp(5 * math.tanh(3 / 5))
    assert past[2].item() == pytest.approx((-6 * on_first - 4 * on_second) / (on_first + on_second))


def test_summary_by_hand():
    """One feature: scores 3 elu(2 h + 1), so 9 for h = 1 and 3 (e^-1 - 1) for h = -1."""
    one = torch.ones(1, 1, dtype=torch.float64)
    parameters = {"s.hidden.weight": 2 * one, "s.hidden.bias": one[0], "s.score.weight": 3 * one}
    summary = summary_of([one[0], -one[0]], parameters, "s")
    assert summary.item() == pytest.approx(math.tanh((9 - 3 * (math.exp(-1) - 1)) / 2))


def test_block_sees_its_block_and_the_blocks_of_its_direction(block_parameters_of_width_3):
    """With the backward half of the output projection at zero a token sees its own block and the ones before."""
    parameters = dict(block_parameters_of_width_3)
    output_weight = parameters["output.weight"].clone()
    output_weight[:, 3:] = 0
    parameters["output.weight"] = output_weight
    rows = dependencies(lambda states: block_self_attention(states, parameters, block_length=2), 5)
    # The last token of the last block seen reaches nothing: forward, no token of its block attends to it
    assert rows == [[0], [0, 1], [0, 2], [0, 2, 3], [0, 2, 4]]


def test_block_of_padded_sentences(block_parameters_of_width_3):
    padded_alike(block_self_attention, block_parameters_of_width_3)


def test_every_block_parameter_has_a_gradient(block_parameters_of_width_3):
    output = block_self_attention(torch.randn(1, 9, 4), block_parameters_of_width_3, block_length=3)
    gradients = torch.autograd.grad(output.square().sum(), list(block_parameters_of_width_3.values()))
    for name, gradient in zip(block_parameters_of_width_3, gradients, strict=True):
        assert gradient.abs().sum() > 0, name


def test_convolutions_equal_torchs():
    parameters = random_parameters(cnn_parameter_shapes(4, 3, 2))
    x = states = torch.randn(2, 5, 4, dtype=torch.float64)
    for n in range(2):
        normed = F.layer_norm(x, (4,), parameters[f"{n}.norm.weight"], parameters[f"{n}.norm.bias"])
        taps = F.conv1d(normed.transpose(1, 2), parameters[f"{n}.depthwise.weight"], padding=1, groups=4)
        taps = F.conv1d(taps, parameters[f"{n}.pointwise.weight"], parameters[f"{n}.pointwise.bias"])
        x = x + F.relu(taps).transpose(1, 2)
    torch.testing.assert_close(convolutions(states, parameters), x)


def test_convolutions_of_padded_sentences():
    padded_alike(convolutions, random_parameters(cnn_parameter_shapes(4, 3, 2)))
