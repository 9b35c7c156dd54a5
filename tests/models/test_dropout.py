# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Dropout drops as many elements as it should, independently, and as the seed says."""

import pytest
import torch
import torch.nn.functional as F

from csan_hf.models.seq2seq_model import drop

COUNT = 400_000


def kept_of(probability, seed=0, shape=(COUNT,)):
    torch.manual_seed(seed)
    return drop(torch.ones(shape, dtype=torch.float64), probability)


@pytest.mark.parametrize("probability", [0.001, 0.1, 0.5, 0.9])
def test_as_many_are_dropped_as_should_be(probability):
    output = kept_of(probability)
    deviation = (probability * (1 - probability) / COUNT) ** 0.5
    assert abs((output == 0).double().mean() - probability) < 4 * deviation
    rounded = round(probability * 65536) / 65536
    assert torch.equal(output[output != 0].unique(), torch.tensor([1 / (1 - rounded)], dtype=torch.float64))


def test_elements_are_dropped_independently():
    kept = kept_of(0.5).bool()
    for distance in (1, 2, 3, 4, 5, 64):  # four share a draw
        together = (kept[distance:] == kept[:-distance]).double().mean()
        assert abs(together - 0.5) < 4 * 0.5 / COUNT**0.5, distance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_is_dropped_has_no_gradient(dtype):
    torch.manual_seed(0)
    states = torch.rand(100, 90, dtype=dtype).add_(1).requires_grad_()
    output = drop(states[:, 1:], 0.25)  # not contiguous, and no multiple of four
    assert output.dtype == dtype
    output.sum().backward()
    expected = (output != 0).to(dtype) / 0.75
    torch.testing.assert_close(states.grad[:, 1:], expected)
    torch.testing.assert_close(output, states[:, 1:] * expected)
    assert states.grad[:, 0].eq(0).all()


def test_nothing_and_everything():
    states = torch.rand(COUNT)
    assert drop(states, 0.0) is states
    assert drop(states, 0.5, training=False) is states
    assert drop(states, 1.0).eq(0).all()
    assert drop(states, 1e-9).eq(states).all()


def test_where_it_is_torchs():
    """In compiled programs, under torch.func, and where there are too few elements to gain."""
    states = torch.rand(3, COUNT)
    each = torch.func.vmap(drop, in_dims=(0, None), randomness="different")(states, 0.5)
    assert not torch.equal(each[0] == 0, each[1] == 0)
    compiled = torch.compile(drop, backend="eager", fullgraph=True)
    for function, given in ((compiled, states), (drop, states[0, :100])):
        torch.manual_seed(0)
        output = function(given, 0.5)
        torch.manual_seed(0)
        assert torch.equal(output, F.dropout(given, 0.5))
