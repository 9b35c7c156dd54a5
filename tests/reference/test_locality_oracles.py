# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The oracles of the locality methods on cases that can be worked out by hand."""

import math

import pytest
import torch
from reference.local_attention import local_attention as oracle_without_methods
from reference.locality_methods import BiDirectional, Gaussian, Predictor, RelativePositions, local_attention
from reference.localness import gaussian_energy, localness


def states(batch: int = 2, heads: int = 4, length: int = 5, width: int = 3) -> list[torch.Tensor]:
    return [torch.randn(batch, heads, length, width, dtype=torch.float64) for _ in range(3)]


@pytest.mark.parametrize(("window", "area", "boundary"), [(None, 1, "mask"), (3, 3, "mask"), (3, 3, "circular")])
@pytest.mark.parametrize("causal", [False, True])
def test_without_a_method_it_is_windowed_attention(window, area, boundary, causal):
    query, key, value = states()
    options = {"window": window, "head_area": area, "head_boundary": boundary, "causal": causal}
    torch.testing.assert_close(
        local_attention(query, key, value, **options), oracle_without_methods(query, key, value, **options)
    )


def test_rel_pos_by_hand():
    """Two tokens, one head, D = 1, q = 2, keys 0, clip 1: energies are 2 a^K; only the distance tells keys apart."""
    query, key, value = torch.full((1, 1, 2, 1), 2.0), torch.zeros(1, 1, 2, 1), torch.tensor([10.0, 20.0])
    key_table, value_table = torch.tensor([[0.5], [0.0], [-0.5]]), torch.tensor([[1.0], [2.0], [3.0]])
    output = local_attention(query, key, value.view(1, 1, 2, 1), [RelativePositions(key_table, value_table, 1)])
    before = math.exp(1) / (math.exp(1) + 1)  # query 1 on key 0, energy 2 * 0.5 against 0
    after = math.exp(-1) / (math.exp(-1) + 1)  # query 0 on key 1
    expected = [(1 - after) * (10 + 2) + after * (20 + 3), before * (10 + 1) + (1 - before) * (20 + 2)]
    torch.testing.assert_close(output.flatten(), torch.tensor(expected, dtype=torch.float64))


def test_rel_pos_of_one_table_per_head_takes_the_keys_head():
    query, key, value = (torch.zeros(1, 2, 1, 1, dtype=torch.float64) for _ in range(3))
    value_table = torch.tensor([1.0, 5.0]).view(2, 1, 1)
    output = local_attention(query, key, value, [RelativePositions(torch.zeros(2, 1, 1), value_table, 0)], head_area=3)
    torch.testing.assert_close(output.flatten(), torch.tensor([3.0, 3.0], dtype=torch.float64))
    separate = local_attention(query, key, value, [RelativePositions(torch.zeros(2, 1, 1), value_table, 0)])
    torch.testing.assert_close(separate.flatten(), torch.tensor([1.0, 5.0], dtype=torch.float64))


def test_bi_direct_first_half_sees_the_past_second_half_the_future():
    query, key, value = states()
    output = local_attention(query, key, value, [BiDirectional()])
    torch.testing.assert_close(output[:, :2, 0], value[:, :2, 0])  # the first token's past is itself
    torch.testing.assert_close(output[:, 2:, -1], value[:, 2:, -1])
    whole = local_attention(query, key, value)
    torch.testing.assert_close(output[:, :2, -1], whole[:, :2, -1])
    torch.testing.assert_close(output[:, 2:, 0], whole[:, 2:, 0])
    causal = local_attention(query, key, value, causal=True)
    torch.testing.assert_close(output[:, :2], causal[:, :2])


def test_window_and_bi_direct_leave_the_past_half_of_the_window():
    query, key, value = torch.zeros(3, 1, 2, 5, 1, dtype=torch.float64)
    value = torch.arange(5.0, dtype=torch.float64).view(1, 1, 5, 1).expand(1, 2, 5, 1)
    output = local_attention(query, key, value, [BiDirectional()], window=3)
    assert output[0, 0, :, 0].tolist() == [0.0, 0.5, 1.5, 2.5, 3.5]
    assert output[0, 1, :, 0].tolist() == [0.5, 1.5, 2.5, 3.5, 4.0]


def predictors(width: int, value: float = 0.0, heads: int = 4, d: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(width, d, dtype=torch.float64), torch.full((heads, width), value, dtype=torch.float64)


def test_neighbor_by_hand():
    """A predictor of zero gives D = L / 2: five tokens, D = 2.5, sigma = 1.25."""
    query, key, value = states(batch=1)
    output = local_attention(torch.zeros_like(query), key, value, [Gaussian(width=Predictor(*predictors(6)))])
    weights = torch.tensor([math.exp(-((j - 1) ** 2) / (2 * 1.25**2)) for j in range(5)], dtype=torch.float64)
    expected = (weights / weights.sum()) @ value[0, 2]
    torch.testing.assert_close(output[0, 2, 1], expected)


def test_a_wide_gaussian_tends_to_plain_attention():
    query, key, value = states()
    plain = local_attention(query, key, value)
    wide = local_attention(query, key, value, [Gaussian(center=Predictor(*predictors(6)), fixed_width=1e6)])
    torch.testing.assert_close(wide, plain, atol=1e-9, rtol=0)
    narrow = local_attention(query, key, value, [Gaussian(fixed_width=0.1)])
    torch.testing.assert_close(narrow, value)


def test_local_hard_by_hand():
    """A predictor of zero puts P at L / 2 = 2.5 of five tokens; the default D = 10, sigma = 5."""
    query, key, value = states(batch=1)
    output = local_attention(torch.zeros_like(query), key, value, [Gaussian(center=Predictor(*predictors(6)))])
    weights = torch.tensor([math.exp(-((j - 2.5) ** 2) / 50) for j in range(5)], dtype=torch.float64)
    torch.testing.assert_close(output[0, 3, 4], (weights / weights.sum()) @ value[0, 3])


def test_the_cut_off_window_leaves_the_keys_within_the_width():
    query, key, _ = states(batch=1)
    value = torch.eye(5, dtype=torch.float64).expand(1, 4, 5, 5)
    method = Gaussian(center=Predictor(*predictors(6)), fixed_width=1.0, cut_off=True)
    weights = local_attention(query, key, value, [method])  # [1, 4, 5, 5]: the attention weights themselves
    assert (weights > 0).tolist() == torch.tensor([False, False, True, True, False]).expand(1, 4, 5, 5).tolist()


def test_local_soft_is_the_gaussian_of_both_predictions_and_of_the_other_oracle():
    query, key, value = states()
    weight, center = predictors(12, 0.3)
    width = torch.randn(4, 12, dtype=torch.float64)
    gaussian = Gaussian(center=Predictor(weight, center), width=Predictor(weight, width))
    for causal in (False, True):
        p, d = localness(query, key, strategy="query", causal=causal, w_p=weight, u_p=center, u_d=width)
        expected = oracle_without_methods(query, key, value, bias=gaussian_energy(p, d, 5), causal=causal)
        torch.testing.assert_close(local_attention(query, key, value, [gaussian], causal=causal), expected)


def test_methods_compose_under_one_softmax():
    """Gaussian + REL_POS + area + window: the energies add up, each to its own part of the pair."""
    query, key, value = states(batch=1, heads=2, length=3)
    tables = torch.randn(2, 2, 3, 3, dtype=torch.float64)
    composed = local_attention(
        query, key, value, [RelativePositions(*tables, 1), Gaussian(fixed_width=2.0)], window=3, head_area=3
    )
    energies, values = [], []
    for s in range(2):
        for j in range(2):  # query 0 of head 1 sees ranks 0 and 1 of both heads
            k, v = key[0, s, j] + tables[0, s, j + 1], value[0, s, j] + tables[1, s, j + 1]
            energies.append(query[0, 1, 0] @ k / math.sqrt(3) - j**2 / 2)
            values.append(v)
    expected = torch.softmax(torch.stack(energies), 0) @ torch.stack(values)
    torch.testing.assert_close(composed[0, 1, 0], expected)


@pytest.mark.parametrize("left", [0, 3])
def test_positions_are_ranks_whatever_the_padding(left):
    query, key, value = states(batch=1)
    weight, center = predictors(12, 0.2)
    width = torch.randn(4, 12, dtype=torch.float64)
    methods = [
        Gaussian(center=Predictor(weight, center), width=Predictor(weight, width)),
        RelativePositions(*torch.randn(2, 5, 3, dtype=torch.float64), 2),
    ]
    bare = local_attention(query, key, value, methods)
    padded = [torch.nn.functional.pad(state, (0, 0, left, 3 - left), value=9.0) for state in (query, key, value)]
    mask = torch.tensor([[False] * left + [True] * 5 + [False] * (3 - left)])
    output = local_attention(*padded, methods, key_padding_mask=mask)
    torch.testing.assert_close(output[:, :, left : left + 5], bare)
    assert output[:, :, ~mask[0]].eq(0).all()
