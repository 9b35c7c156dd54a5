# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""float64 stays float64 in every backend, and torch.func transforms all of them."""

import pytest
import torch

from csan_hf import CsanConfig, local_attention
from csan_hf.models.csan_attention import CsanAttention

BACKENDS = ("eager", "sdpa", "blocked")
KINDS = ("query", "key", "value", "bias")


def tensors(*batch: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = dict.fromkeys(KINDS[:3], (1, 3, 7, 2)) | {"bias": (1, 3, 7, 7)}
    return {
        name: torch.randn((*batch, *shape), generator=generator, dtype=torch.float64) for name, shape in shapes.items()
    }


def attend(backend: str, head_area: int, **given: torch.Tensor) -> torch.Tensor:
    mask = torch.tensor([[True] * 6 + [False]])
    return local_attention(**given, window=3, head_area=head_area, key_padding_mask=mask, backend=backend)


@pytest.mark.parametrize("head_area", [1, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_those_of_finite_differences(backend, head_area):
    leaves = [tensor.requires_grad_() for tensor in tensors().values()]

    def function(*values: torch.Tensor) -> torch.Tensor:
        return attend(backend, head_area, **dict(zip(KINDS, values, strict=True)))

    assert function(*leaves).dtype == torch.float64
    assert torch.autograd.gradcheck(function, leaves, fast_mode=True)


@pytest.mark.parametrize("backend", [*BACKENDS, "flex_attention"])
def test_outputs_in_float64_are_exact(backend):
    """To 1e-14, which no float32 in between would leave."""
    given = tensors()
    scores = given["query"] @ given["key"].mT * 2**-0.5 + given["bias"]
    expected = scores.softmax(dim=-1) @ given["value"]
    window = 13 if backend == "blocked" else None
    torch.testing.assert_close(local_attention(**given, window=window, backend=backend), expected, rtol=0, atol=1e-14)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("head_area", [1, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_torch_func_equals_autograd(backend, head_area):
    """`grad`, and `vmap` of it over two batches. (sdpa's fused kernel gives no gradient of a mask there.)"""
    given = tensors(2)
    bias = given.pop("bias")

    def loss(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return attend(backend, head_area, query=query, key=key, value=value, bias=bias[0]).square().sum()

    gradient = torch.func.grad(loss, argnums=(0, 1, 2))
    found = torch.func.vmap(gradient)(*given.values())
    for row in range(2):
        leaves = [tensor[row].clone().requires_grad_() for tensor in given.values()]
        expected = torch.autograd.grad(loss(*leaves), leaves)
        for name, own, stacked, reference in zip(given, gradient(*leaves), found, expected, strict=True):
            torch.testing.assert_close(own, reference, msg=name)
            torch.testing.assert_close(stacked[row], reference, msg=name)


@pytest.mark.parametrize(
    "specification",
    [
        {"gaussian": "query"},
        {"gaussian": "layer"},
        {"gaussian": {"width": "fixed", "size": 2.3}, "relative_positions": 1},
        {"gaussian": "head", "window": 5},
        {"neighbor": True},
        {"local_hard": 1.7},
    ],
)
def test_locality_methods_stay_in_float64(specification):
    """Finite differences of 1e-6 drown in float32."""
    torch.manual_seed(0)
    sizes = {"d_model": 4, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_layers": 1}
    attention = CsanAttention(CsanConfig(**sizes, encoder_locality=[specification]), "encoder").double()
    states = torch.randn(1, 4, 4, dtype=torch.float64, requires_grad=True)
    assert attention(states)[0].dtype == torch.float64
    parameters = list(attention.parameters())
    for parameter in parameters:
        torch.nn.init.normal_(parameter, std=0.7)
    inputs = [states, *parameters]
    assert torch.autograd.gradcheck(lambda *_: attention(states)[0], inputs, fast_mode=True)
