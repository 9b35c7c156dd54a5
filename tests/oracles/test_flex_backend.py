# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""FlexAttention: what it refuses, and its block masks. Its outputs: test_local_attention.py."""

from itertools import product

import pytest
import torch
from reference.dispatch import Operations
from reference.local_attention import visible_positions
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from csan_hf.models import backend_flex
from csan_hf.models.attention_call import AttentionCall, KeyArea
from csan_hf.models.backends import run
from csan_hf.models.distances import DirectionTerm, RelativeBiasTerm
from csan_hf.models.functional import DenseBias
from csan_hf.models.gaussian import CutOffGaussianTerm, GaussianTerm


def call_of(
    area: KeyArea, queries: int, keys: int, real: Tensor | None, terms: tuple = ()
) -> AttentionCall:
    query, key = torch.empty(2, 4, queries, 2), torch.empty(2, 4, keys, 2)
    return AttentionCall(query, key, key, area, 0.7, real, terms=terms)


def visible_by_definition(call: AttentionCall) -> Tensor:
    """[B, H, I, N, J], query by query."""
    batch, heads, queries, _ = call.query.shape
    keys = call.key.shape[2]
    area = call.area
    visible = torch.zeros(batch, heads, queries, area.head_area, keys, dtype=torch.bool)
    for b, h, i, slot in product(*map(range, visible.shape[:-1])):
        position, head = i + keys - queries, h + slot - area.head_area // 2
        real = None if call.key_padding_mask is None else call.key_padding_mask[b].tolist()
        if area.head_boundary == "circular" or 0 <= head < heads:
            seen = visible_positions(position, keys, area.window, real, area.causal)
            if call.terms:
                seen = [j for j in seen if (j <= position if h < 2 else j >= position)]
            visible[b, h, i, slot, seen] = True
    return visible


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("area", "queries", "keys", "terms"),
    [
        (KeyArea(3), 9, 9, ()),
        (KeyArea(9, 3), 10, 10, ()),
        (KeyArea(None, 3, "circular"), 5, 7, ()),
        (KeyArea(5, 3, causal=True), 3, 11, ()),
        (KeyArea(None, causal=True), 9, 9, ()),
        (KeyArea(13, 7), 8, 8, (DirectionTerm(2),)),
    ],
)
def test_the_block_mask_is_the_visibility(area, queries, keys, terms, padded, monkeypatch):
    """Cells that a block leaves out are invisible, those of a block that is not looked into are all
    visible.
    """
    monkeypatch.setattr(backend_flex, "BLOCK", 2)
    real = torch.arange(keys) < torch.tensor([[keys], [keys - 3]]) if padded else None
    call = call_of(area, queries, keys, real, terms)
    mask = backend_flex.flex_block_mask(call)
    expected = visible_by_definition(call)
    slot = mask.seq_lengths[1] // area.head_area
    expected = torch.nn.functional.pad(expected, (0, slot - keys)).flatten(-2)  # [B, H, I, places]
    cells = create_mask(mask.mask_mod, 2, 4, queries, expected.shape[-1], device="cpu")
    assert torch.equal(cells, expected)

    def cells_of(numbers: Tensor, order: Tensor) -> Tensor:
        listed = torch.zeros(*order.shape, dtype=torch.bool)
        places = torch.arange(order.shape[-1]) < numbers.unsqueeze(-1)
        listed.scatter_(-1, order.long(), places)
        blocks = listed.repeat_interleave(2, dim=-1).repeat_interleave(2, dim=-2)
        return blocks[:, :, :queries, : expected.shape[-1]].expand_as(expected)

    partial = cells_of(mask.kv_num_blocks, mask.kv_indices)
    whole = cells_of(mask.full_kv_num_blocks, mask.full_kv_indices)
    assert not (expected & ~partial & ~whole).any()
    assert not (whole & ~expected).any()
    assert not (partial & whole).any()
    assert whole.any() or terms or area.window == 3
    if area.window is not None and keys > area.window:
        assert not (partial | whole).all(), "blocks beyond the window are left out"


def test_the_block_mask_of_16k_positions_is_small():
    """Its cells are 3.2 thousand millions; no tensor on the way holds more than a block's worth of
    each.
    """
    length = 16_384
    states = torch.empty(1, 4, 1, 2).expand(1, 4, length, 2)
    real = torch.ones(1, length, dtype=torch.bool)
    call = AttentionCall(states, states, states, KeyArea(129, 3), 0.7, real)
    with Operations() as operations:
        mask = backend_flex.flex_block_mask(call)
    assert mask.kv_indices.shape == (1, 4, 128, 384)
    assert operations.largest <= 2 * 4 * 128 * 384
    assert operations.peak < 32 * 2**20
    assert mask.kv_num_blocks.max() + mask.full_kv_num_blocks.max() <= 3 * 3


def random_call(area: KeyArea, term: type | None, padded: bool) -> tuple[AttentionCall, list]:
    """A call, and the tensors that gradients are taken of."""
    generator = torch.Generator().manual_seed(0)

    def leaf(*shape: int) -> Tensor:
        values = torch.rand(shape, generator=generator, dtype=torch.float64) * 4 - 2
        return values.requires_grad_()

    leaves = [leaf(2, 4, 150, 16) for _ in range(3)]
    terms: list = []
    if term is GaussianTerm:
        leaves += [leaf(2, 4, 150), leaf(2, 4, 150)]
        terms = [GaussianTerm(75 + 20 * leaves[3], 9 + 4 * leaves[4])]
    elif term is CutOffGaussianTerm:
        leaves.append(leaf(2, 4, 150))
        terms = [CutOffGaussianTerm(75 + 20 * leaves[3], torch.full((1, 1, 1), 12.0))]
    elif term is DenseBias:
        leaves.append(leaf(2, 4, 150, 150))
        terms = [DenseBias(leaves[3])]
    elif term is RelativeBiasTerm:
        leaves.append(leaf(4, 8))
        terms = [RelativeBiasTerm(leaves[3], 32, False), DirectionTerm(2)]
    real = torch.arange(150) < torch.tensor([[150], [90]]) if padded else None
    return AttentionCall(*leaves[:3], area, 0.3, real, terms=terms), leaves


@pytest.mark.parametrize(
    ("area", "term", "padded"),
    [
        (KeyArea(9, 3), None, True),
        (KeyArea(9, causal=True), GaussianTerm, False),
        (KeyArea(), CutOffGaussianTerm, True),
        (KeyArea(), DenseBias, False),
        (KeyArea(9), RelativeBiasTerm, False),
    ],
)
def test_it_can_be_compiled_with_its_backward(area, term, padded, monkeypatch):
    """As a whole, without falling back; torch alone refuses the backward pass on CPUs, not its
    trace.
    """
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    kernel = backend_flex.compiled_kernel("aot_eager")
    monkeypatch.setattr(backend_flex, "flex_attention", kernel)
    results = []
    for attend in (backend_flex.flex_local_attention, lambda call: run(call, "eager")):
        call, leaves = random_call(area, term, padded)
        output = attend(call)
        grad = torch.linspace(-1, 1, output.numel()).view_as(output)
        results.append([output, *torch.autograd.grad(output, leaves, grad)])
    for compiled, expected in zip(*results, strict=True):
        assert (compiled - expected).norm() <= 1e-10 * expected.norm()
