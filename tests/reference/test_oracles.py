# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The oracles of the locality methods on cases that can be worked out by hand."""

import math

import pytest
import torch
from reference.locality_block import (
    block_parameter_shapes,
    block_self_attention,
    masked_self_attention,
    summary_of,
)
from reference.locality_methods import (
    Gaussian,
    Predictor,
    RelativePositions,
    local_attention,
)
from torch import Tensor
from torch.testing import assert_close


def states(batch: int = 2, heads: int = 4, length: int = 5, width: int = 3) -> list[Tensor]:
    return [torch.randn(batch, heads, length, width, dtype=torch.float64) for _ in range(3)]


def test_rel_pos_by_hand():
    """Two tokens, one head, D = 1, q = 2, keys 0, clip 1: energies are 2 a^K; only the distance
    tells keys apart.
    """
    query = torch.full((1, 1, 2, 1), 2.0)
    key = torch.zeros(1, 1, 2, 1)
    value = torch.tensor([10.0, 20.0])
    key_table, value_table = (
        torch.tensor([[0.5], [0.0], [-0.5]]),
        torch.tensor([[1.0], [2.0], [3.0]]),
    )
    output = local_attention(
        query, key, value.view(1, 1, 2, 1), [RelativePositions(key_table, value_table, 1)]
    )
    before = math.exp(1) / (math.exp(1) + 1)  # query 1 on key 0, energy 2 * 0.5 against 0
    after = math.exp(-1) / (math.exp(-1) + 1)  # query 0 on key 1
    expected = [
        (1 - after) * (10 + 2) + after * (20 + 3),
        before * (10 + 1) + (1 - before) * (20 + 2),
    ]
    assert_close(output.flatten(), torch.tensor(expected, dtype=torch.float64))


def predictor(width: int, value: float = 0.0, of_keys: bool = False) -> Predictor:
    """Of four heads of width 3, whose last layer has equal weights."""
    weights = (
        torch.randn(width, 12, dtype=torch.float64),
        torch.full((4, width), value, dtype=torch.float64),
    )
    return Predictor(*weights, of_keys)


@pytest.mark.parametrize(
    ("method", "center", "width"),
    [
        (Gaussian(width=predictor(6)), 3, 2.5),
        (Gaussian(center=predictor(6)), 2.5, 10),
        (Gaussian(center=predictor(12), width=predictor(12)), 2.5, 2.5),
        (Gaussian(center=predictor(12), width=predictor(12, of_keys=True)), 2.5, 2.5),
        (Gaussian(center=predictor(12), width=torch.zeros(4)), 2.5, 25),
        (Gaussian(width=torch.full((4,), -100.0), minimum_width=0.7), 3, 0.7),
    ],
    ids=["NEIGHBOR", "LOCAL_HARD", "LOCAL_SOFT", "layer", "head", "floor"],
)
def test_gaussian_by_hand(method, center, width):
    """Query 3 of five tokens; a predictor of zero gives half of them."""
    query, key, value = states(batch=1)
    output = local_attention(torch.zeros_like(query), key, value, [method])
    weights = torch.tensor(
        [math.exp(-2 * (j - center) ** 2 / width**2) for j in range(5)], dtype=torch.float64
    )
    assert_close(output[0, 2, 3], (weights / weights.sum()) @ value[0, 2])


# BLOCK and CNN


def random_parameters(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    return {
        name: torch.randn(shape, dtype=torch.float64, requires_grad=True) / 2
        for name, shape in shapes.items()
    }


def test_masked_self_attention_by_hand():
    """One feature, scores 5 tanh((2a + b + 1) / 5): the third token, a = 3, on the first two."""
    one = torch.ones(1, 1, dtype=torch.float64)
    parameters = {
        "intra.target.weight": 2 * one,
        "intra.source.weight": one,
        "intra.source.bias": one[0],
    }
    first, second, third = (torch.tensor([x], dtype=torch.float64) for x in (-6.0, -4.0, 3.0))
    past = masked_self_attention([first, second, third], parameters, "intra", "past")
    on_first, on_second = math.exp(5 * math.tanh(1 / 5)), math.exp(5 * math.tanh(3 / 5))
    assert past[2].item() == pytest.approx((-6 * on_first - 4 * on_second) / (on_first + on_second))


def test_summary_by_hand():
    """One feature: scores 3 elu(2 h + 1), so 9 for h = 1 and 3 (e^-1 - 1) for h = -1."""
    one = torch.ones(1, 1, dtype=torch.float64)
    parameters = {"s.hidden.weight": 2 * one, "s.hidden.bias": one[0], "s.score.weight": 3 * one}
    summary = summary_of([one[0], -one[0]], parameters, "s")
    assert summary.item() == pytest.approx(math.tanh((9 - 3 * (math.exp(-1) - 1)) / 2))


def test_block_sees_its_block_and_the_blocks_of_its_direction():
    """With the future half of the output projection at zero a token sees its own block and the
    ones before.
    """
    parameters = random_parameters(block_parameter_shapes(4, 3))
    parameters["output.weight"] = parameters["output.weight"] * torch.tensor([1.0] * 3 + [0.0] * 3)
    tokens = torch.randn(1, 5, 4, dtype=torch.float64, requires_grad=True)
    output = block_self_attention(tokens, parameters, block_length=2)
    rows = []
    for i in range(5):
        (gradient,) = torch.autograd.grad(output[0, i].square().sum(), tokens, retain_graph=True)
        rows.append(gradient[0].any(dim=-1).nonzero().flatten().tolist())
    # The last token of the last block seen reaches nothing: no token of its block attends
    # to it
    assert rows == [[0], [0, 1], [0, 2], [0, 2, 3], [0, 2, 4]]
