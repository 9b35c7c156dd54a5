# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Windows by FlashAttention against the loop oracle. Its kernel runs on GPUs alone
(`scripts/gpu.py` checks it there); here it is replaced by what it computes, segment by segment.
"""

from dataclasses import replace

import pytest
import tiny
import torch
from hypothesis import given, settings
from test_local_attention import cases, draw_tensors, run_oracle, run_product
from torch.testing import assert_close

from csan_hf import local_attention
from csan_hf.models import backend_flash, backends
from csan_hf.models.attention_call import AttentionCall, KeyArea
from csan_hf.models.backends import fastest_backend
from csan_hf.models.functional import DenseBias


def segments(bounds, length, window_size_left, window_size_right):
    """Rows of each segment, and which of its pairs see each other."""
    for start, end in zip(bounds.tolist(), bounds.tolist()[1:], strict=False):
        assert end - start <= length
        places = torch.arange(end - start)
        distance = places - places[:, None]
        left, right = (
            length if size < 0 else size for size in (window_size_left, window_size_right)
        )
        yield slice(start, end), (distance >= -left) & (distance <= right)


def slow_forward(query, key, value, bounds, key_bounds, length, *settings, scale, **sizes):
    assert bounds is key_bounds
    assert (bounds[0], bounds[-1]) == (0, len(query))
    output = torch.full_like(query, torch.nan)
    sums = query.new_full(query.shape[1::-1], torch.nan)
    for rows, visible in segments(bounds, length, **sizes):
        energies = torch.einsum("qhd,khd->hqk", query[rows], key[rows]) * scale
        energies = energies.masked_fill(~visible, -torch.inf)
        sums[:, rows] = energies.logsumexp(dim=-1)
        output[rows] = torch.einsum("hqk,khd->qhd", energies.softmax(dim=-1), value[rows])
    return output, sums, torch.zeros(2), torch.zeros(0), torch.zeros(0)


def slow_backward(
    grad, query, key, value, output, sums, bounds, key_bounds, length, *settings, scale, **sizes
):
    results = [torch.full_like(leaf, torch.nan) for leaf in (query, key, value)]
    for rows, visible in segments(bounds, length, **sizes):
        energies = torch.einsum("qhd,khd->hqk", query[rows], key[rows]) * scale
        weights = (energies - sums[:, rows, None]).exp().masked_fill(~visible, 0.0)
        of_weights = torch.einsum("qhd,khd->hqk", grad[rows], value[rows])
        common = (grad[rows] * output[rows]).sum(dim=-1).T[..., None]
        of_energies = weights * (of_weights - common) * scale
        results[0][rows] = torch.einsum("hqk,khd->qhd", of_energies, key[rows])
        results[1][rows] = torch.einsum("hqk,qhd->khd", of_energies, query[rows])
        results[2][rows] = torch.einsum("hqk,qhd->khd", weights, grad[rows])
    return tuple(results)


@pytest.fixture
def kernel_anywhere(monkeypatch):
    monkeypatch.setattr(backend_flash, "has_kernel", lambda query: True)
    monkeypatch.setattr(backend_flash, "forward_kernel", slow_forward)
    monkeypatch.setattr(backend_flash, "backward_kernel", slow_backward)


def is_one_piece(row):
    """Whether padding stands at the ends alone."""
    places = "".join("x" if is_real else " " for is_real in row)
    return " " not in places.strip()


@settings(max_examples=60)
@given(cases(needs_a_window=False))
def check_against_the_oracle(case):
    """In float64, at real queries."""
    real = case.real if case.real and all(map(is_one_piece, case.real)) else None
    fields = {"queries": case.keys, "head_width": 8, "bias": None, "width_shape": None}
    case = replace(case, real=real, **fields)
    tensors = {name: tensor.double() for name, tensor in draw_tensors(case).items()}
    is_real = torch.tensor(True) if real is None else torch.tensor(real)[:, None, :, None]
    tensors["upstream"] *= is_real
    actual = run_product(case, tensors, "flash")
    expected = run_oracle(case, tensors)
    for name, tensor in expected.items():
        assert actual[name].isfinite().all()
        counted = is_real if name == "output" else 1
        assert_close(actual[name] * counted, tensor * counted, rtol=0, atol=1e-12)


def test_windows_and_areas_equal_the_oracle(kernel_anywhere):
    check_against_the_oracle()


def test_heads_beyond_the_last_weigh_nothing(kernel_anywhere):
    """Their keys are zeros, of energy 0, which is far above the energies here."""
    query = torch.full((1, 2, 3, 8), 20.0, dtype=torch.float64, requires_grad=True)
    output = local_attention(query, -query, query, head_area=3, scale=1.0, backend="flash")
    [gradient] = torch.autograd.grad(output.sum(), query)
    assert_close(output, torch.full_like(output, 20.0))
    assert gradient.isfinite().all()


def call_of(length=1024, width=8, queries=None, value=None, **changes):
    key = torch.zeros(1).expand(2, 3, length, width)
    query = key if queries is None else key[:, :, :queries]
    value = key if value is None else value
    return AttentionCall(query, key, value, KeyArea(3), scale=1.0, **changes)


def test_it_is_the_default_where_it_can_run(kernel_anywhere, monkeypatch):
    real = torch.ones(2, 1024, dtype=torch.bool)
    scattered = real.clone()
    scattered[1, 1] = False
    assert fastest_backend(call_of()) == "flash"
    assert fastest_backend(call_of(key_padding_mask=real, is_self_attention=True)) == "flash"
    for reason in (
        {"length": 1023},
        {"width": 4},
        {"queries": 1},
        {"dropout_p": 0.1},
        {"key_padding_mask": scattered, "is_self_attention": True},
        {"key_padding_mask": real},
        {"value": torch.zeros(1).expand(2, 3, 1024, 16)},
        {"terms": [DenseBias(torch.zeros(1))]},
    ):
        assert fastest_backend(call_of(**reason)) != "flash", reason
    monkeypatch.setattr(backend_flash, "has_kernel", lambda query: False)
    assert fastest_backend(call_of()) != "flash"


def test_a_model_runs_its_windows_and_areas_by_it(kernel_anywhere, monkeypatch):
    """With padding on either side; only the states of real tokens are compared."""
    model = tiny.csan(seed=1, d_model=32, **tiny.LOCALITIES["encoder area"]).get_encoder().double()
    ids = torch.randint(3, tiny.VOCABULARY, (2, 9))
    mask = torch.tensor([[1] * 6 + [0] * 3, [0] * 2 + [1] * 7])
    real = mask.bool()
    expected = model(ids, mask).last_hidden_state[real]
    calls = []
    monkeypatch.setattr(
        backend_flash, "forward_kernel", lambda *a, **k: calls.append(0) or slow_forward(*a, **k)
    )
    monkeypatch.setattr(backends, "GPU_FLASH_FROM", 1)
    assert_close(model(ids, mask).last_hidden_state[real], expected, rtol=0, atol=1e-6)
    assert calls


def test_it_has_no_second_derivatives(kernel_anywhere):
    states = torch.randn(1, 2, 4, 8, requires_grad=True)
    output = local_attention(states, states, states, window=3, backend="flash")
    [gradient] = torch.autograd.grad(output.square().sum(), states, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_what_it_cannot_run_is_refused(kernel_anywhere, monkeypatch):
    states = torch.zeros(1, 2, 4, 8)
    scattered = torch.tensor([[True, False, True, True]])
    refused = {
        "between": {"key_padding_mask": scattered},
        "dropout": {"dropout_p": 0.1},
        "as many": {"query": states[:, :, :1], "causal": True},
    }
    for words, options in refused.items():
        arguments = {"query": states, "key": states, "value": states, "window": 3, **options}
        with pytest.raises(ValueError, match=words):
            local_attention(**arguments, backend="flash")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="needs a GPU"):
        local_attention(states, states, states, window=3, backend="flash")
