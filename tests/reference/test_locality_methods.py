"""The oracles of the locality methods on cases that can be worked out by hand."""

import math

import pytest
import torch
from reference.local_attention import local_attention as oracle_without_methods
from reference.locality_methods import local_attention, rel_pos


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


def test_padding_on_either_side_changes_nothing():
    query, key, value = states(batch=1)
    tables = torch.randn(2, 5, 3, dtype=torch.float64)
    bare = rel_pos(query, key, value, *tables, 2)
    for left, right in [(2, 0), (0, 2)]:
        padded = [torch.nn.functional.pad(state, (0, 0, left, right), value=9.0) for state in (query, key, value)]
        mask = torch.tensor([[False] * left + [True] * 5 + [False] * right])
        output = rel_pos(*padded, *tables, 2, key_padding_mask=mask)
        torch.testing.assert_close(output[:, :, left : left + 5], bare)
        assert output[:, :, ~mask[0]].eq(0).all()


def test_rel_pos_with_zero_tables_is_plain_attention():
    query, key, value = states()
    zeros = torch.zeros(7, 3)
    torch.testing.assert_close(rel_pos(query, key, value, zeros, zeros, 3), local_attention(query, key, value))


def test_rel_pos_by_hand():
    """Two tokens, one head, D = 1, q = 2, keys 0, clip 1: energies are 2 a^K; only the distance tells keys apart."""
    query, key, value = torch.full((1, 1, 2, 1), 2.0), torch.zeros(1, 1, 2, 1), torch.tensor([10.0, 20.0])
    key_table, value_table = torch.tensor([[0.5], [0.0], [-0.5]]), torch.tensor([[1.0], [2.0], [3.0]])
    output = rel_pos(query, key, value.view(1, 1, 2, 1), key_table, value_table, 1)
    before = math.exp(1) / (math.exp(1) + 1)  # query 1 on key 0, energy 2 * 0.5 against 0
    after = math.exp(-1) / (math.exp(-1) + 1)  # query 0 on key 1
    expected = [(1 - after) * (10 + 2) + after * (20 + 3), before * (10 + 1) + (1 - before) * (20 + 2)]
    torch.testing.assert_close(output.flatten(), torch.tensor(expected, dtype=torch.float64))


def test_rel_pos_of_one_table_per_head_takes_the_keys_head():
    query, key, value = (torch.zeros(1, 2, 1, 1, dtype=torch.float64) for _ in range(3))
    value_table = torch.tensor([1.0, 5.0]).view(2, 1, 1)
    output = rel_pos(query, key, value, torch.zeros(2, 1, 1), value_table, 0, head_area=3)
    torch.testing.assert_close(output.flatten(), torch.tensor([3.0, 3.0], dtype=torch.float64))
    separate = rel_pos(query, key, value, torch.zeros(2, 1, 1), value_table, 0)
    torch.testing.assert_close(separate.flatten(), torch.tensor([1.0, 5.0], dtype=torch.float64))


def test_cached_rel_pos_equals_the_full_forward():
    query, key, value = states()
    tables = torch.randn(2, 5, 3, dtype=torch.float64)
    full = rel_pos(query, key, value, *tables, 2, causal=True, window=7)
    step = rel_pos(query[:, :, -1:], key, value, *tables, 2, causal=True, window=7)
    torch.testing.assert_close(step, full[:, :, -1:])
