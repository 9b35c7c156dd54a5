# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The Gaussian localness module against the loop oracle, for its four window strategies."""

import pytest
import torch
from reference.localness import gaussian_energy, localness
from torch import Tensor

from csan_hf import CsanConfig
from csan_hf.models.attention_call import AttentionCall, KeyArea
from csan_hf.models.backend_dense import DenseCells
from csan_hf.models.gaussian import MINIMUM_WINDOW, GaussianLocalness, GaussianTerm, raise_to_floor

STRATEGIES = ("fixed", "layer", "query", "head")
B, H, D = 3, 4, 5
LENGTHS = (7, 4, 1)  # real lengths of the batch's rows


def make_module(strategy: str, is_causal: bool, **options) -> GaussianLocalness:
    config = CsanConfig(
        vocab_size=11,
        d_model=H * D,
        encoder_attention_heads=H,
        decoder_attention_heads=H,
        local_window=None,
        head_area=1,
        localness_window=strategy,
        decoder_localness_layers=[0],
        **options,
    )
    part = "decoder" if is_causal else "encoder"
    [method] = config.layer_locality(part, 0).methods
    module = method.build(config.attention_site(part, 0))
    torch.manual_seed(3)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return module


def term_of(
    module: GaussianLocalness,
    query: Tensor,
    key: Tensor,
    key_padding_mask: Tensor | None = None,
    *,
    causal: bool = False,
    query_offset: int = 0,
) -> GaussianTerm:
    key_start = query_offset + query.shape[2] - key.shape[2] if causal else 0
    area = KeyArea(causal=causal)
    return module(AttentionCall(query, key, key, area, 1.0, key_padding_mask, query_offset, key_start))


def dense(term: GaussianTerm, keys: int, offset: int = 0) -> Tensor:
    """G of `keys` keys from position `offset` on, [B, H, I, keys] or broadcastable."""
    states = torch.empty(1, H, keys, D)
    return term.energy(DenseCells(AttentionCall(states, states, states, KeyArea(), 1.0, key_start=offset)))


def oracle_of(module: GaussianLocalness, strategy: str, query: Tensor, key: Tensor, **options):
    return localness(
        query,
        key,
        strategy=strategy,
        w_p=module.query_proj.weight,
        u_p=module.center_proj.weight,
        u_d=module.window_proj.weight if strategy in ("layer", "query") else None,
        w_d=module.key_proj.weight if strategy == "layer" else None,
        z_head=module.head_window if strategy == "head" else None,
        minimum_window=MINIMUM_WINDOW,
        **options,
    )


def right_padding(keys: int) -> Tensor:
    return torch.arange(keys) < torch.tensor(LENGTHS)[:, None]


def assert_same_gaussian(bias: GaussianTerm, center: Tensor, width: Tensor, keys: int, offset: int = 0) -> None:
    torch.testing.assert_close(bias.center.double().expand_as(center), center, rtol=0, atol=1e-5)
    # The floor may be applied to the width or when G is computed from it.
    floored = bias.width.clamp_min(MINIMUM_WINDOW).double().expand_as(width)
    torch.testing.assert_close(floored, width, rtol=0, atol=1e-5)
    expected = gaussian_energy(center, width, keys, offset)
    found = dense(bias, keys, offset)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double().expand_as(expected), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", ["encoder", "cross", "causal"])
@pytest.mark.parametrize("padded", [False, True])
def test_equals_oracle(strategy, kind, padded):
    queries, keys = (7, 7) if kind != "cross" else (5, 7)
    torch.manual_seed(0)
    query, key = torch.randn(B, H, queries, D), torch.randn(B, H, keys, D)
    mask = right_padding(keys) if padded else None
    module = make_module(strategy, is_causal=kind == "causal")
    bias = term_of(module, query, key, mask, causal=kind == "causal")
    center, width = oracle_of(module, strategy, query, key, causal=kind == "causal", key_padding_mask=mask)
    # A padded position of a causal layer is read by nobody: there, oracle and module may count as they like.
    real = mask if padded and kind == "causal" else torch.ones(B, queries, dtype=torch.bool)
    rows = real[:, None].expand(B, H, queries)
    center, width = center * rows, torch.where(rows, width, 1)
    bias = GaussianTerm(
        bias.center.expand(B, H, queries) * rows, torch.where(rows, bias.width.expand(B, H, queries), 1)
    )
    assert_same_gaussian(bias, center, width, keys)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_equal_oracle(strategy, causal):
    torch.manual_seed(0)
    query, key = (torch.randn(B, H, 7, D, requires_grad=True) for _ in range(2))
    upstream = torch.randn(B, H, 7, 7)
    mask = None if causal else right_padding(7)
    module = make_module(strategy, is_causal=causal)
    leaves = {"query": query, "key": key, **dict(module.named_parameters())}

    def gradients(loss: Tensor) -> dict[str, Tensor]:
        grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return dict(zip(leaves, grads, strict=True))

    actual = gradients(
        (dense(term_of(module, query, key, mask, causal=causal), 7).expand(B, H, 7, 7) * upstream).sum()
    )
    center, width = oracle_of(module, strategy, query, key, causal=causal, key_padding_mask=mask)
    expected = gradients((gaussian_energy(center, width, 7) * upstream).sum())
    for name, reference in expected.items():
        if reference is None:
            assert actual[name] is None or (actual[name] == 0).all()
            assert name == "key", f"{name} has no gradient"
            assert strategy != "layer"
        else:
            scale = max(1.0, reference.abs().max().item())
            torch.testing.assert_close(actual[name] / scale, reference / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("chunk", [1, 3])
def test_causal_steps_equal_the_full_forward(strategy, chunk):
    torch.manual_seed(0)
    query, key = torch.randn(B, H, 9, D), torch.randn(B, H, 9, D)
    module = make_module(strategy, is_causal=True)
    full = dense(term_of(module, query, key, causal=True), 9).expand(B, H, 9, 9)
    for start in range(0, 9, chunk):
        end = start + chunk
        step = dense(term_of(module, query[:, :, start:end], key[:, :, :end], causal=True, query_offset=start), end)
        torch.testing.assert_close(step.expand(B, H, chunk, end), full[:, :, start:end, :end], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", ["layer", "query", "head"])
@pytest.mark.parametrize("causal", [False, True])
def test_window_has_a_floor(strategy, causal):
    """With z at minus infinity D is the floor, G and its gradients are finite."""
    module = make_module(strategy, is_causal=causal)
    with torch.no_grad():
        if strategy == "head":
            module.head_window.fill_(-1e4)
        else:
            (module.query_proj if strategy == "query" else module.key_proj).weight.fill_(1.0)
            module.window_proj.weight.fill_(-1e4)
    query, key = torch.ones(1, H, 6, D, requires_grad=True), torch.ones(1, H, 6, D, requires_grad=True)
    bias = term_of(module, query, key, causal=causal)
    energies = dense(bias, 6).expand(1, H, 6, 6)
    center = bias.center.detach().expand(1, H, 6)
    expected = gaussian_energy(center, torch.full_like(center, MINIMUM_WINDOW), 6)
    torch.testing.assert_close(energies.double(), expected, rtol=1e-4, atol=1e-5)
    energies.sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters() if p.grad is not None)
    assert query.grad.isfinite().all()


def test_a_window_below_the_floor_can_widen_again():
    """A clamp would leave it without a gradient; from 0.12 tokens on the window is as predicted."""
    predicted = torch.tensor([0.0, 0.03, 0.12, 4.0], requires_grad=True)
    widths = raise_to_floor(predicted)
    torch.testing.assert_close(widths.detach(), torch.tensor([0.1, 0.103, 0.12, 4.0]))
    energies = GaussianTerm(torch.full((1, 1, 4), 1.3), widths[None, None])
    dense(energies, 3).sum().backward()
    assert (predicted.grad > 0).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sentence_of_padding_stays_finite(strategy):
    torch.manual_seed(0)
    query, key = (torch.randn(2, H, 6, D, requires_grad=True) for _ in range(2))
    mask = torch.tensor([[True] * 6, [False] * 6])
    module = make_module(strategy, is_causal=False)
    energies = dense(term_of(module, query, key, mask), 6)
    assert energies.isfinite().all()
    energies.sum().backward()
    assert query.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in module.parameters() if p.grad is not None)


def test_half_precision_is_computed_in_float32():
    module = make_module("query", is_causal=False).bfloat16()
    query, key = (torch.randn(1, H, 40, D, dtype=torch.bfloat16) for _ in range(2))
    bias = term_of(module, query, key)
    assert bias.center.dtype == bias.width.dtype == torch.float32
    assert dense(bias, 40).dtype == torch.float32
