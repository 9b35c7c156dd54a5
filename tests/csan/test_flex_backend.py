"""FlexAttention against the eager backend (itself held to the loop oracle), forward; on CPU it has no backward."""

import pytest
import torch

from csan_hf import local_attention
from csan_hf.csan.gaussian import GaussianTerm

CASES = {
    "1d": {"window": 5},
    "2d": {"window": 5, "head_area": 3},
    "widest area": {"window": 3, "head_area": 7},
    "circular": {"window": 3, "head_area": 3, "head_boundary": "circular"},
    "causal": {"window": 7, "head_area": 3, "causal": True},
    "unrestricted": {"head_area": 3},
}


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*")
@pytest.mark.parametrize("bias", ["none", "dense", "gaussian"])
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_flex_equals_eager(case: str, bias: str) -> None:
    query, key, value = (torch.randn(2, 4, 21, 16) for _ in range(3))
    mask = torch.ones(2, 21, dtype=torch.bool)
    mask[0, 13:] = False
    mask[1] = False
    biases = {
        "none": None,
        "dense": torch.randn(2, 1, 21, 21),
        "gaussian": GaussianTerm(torch.rand(2, 4, 21) * 21, torch.rand(1, 4, 1) * 10),
    }
    options = {**CASES[case], "bias": biases[bias], "key_padding_mask": mask}
    expected = local_attention(query, key, value, backend="eager", **options)
    result = local_attention(query, key, value, backend="flex_attention", **options)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    assert not result[1].any()


def test_flex_refuses_what_it_cannot_do() -> None:
    states = torch.randn(1, 2, 4, 8)
    with pytest.raises(ValueError, match="dropout"):
        local_attention(states, states, states, window=3, dropout_p=0.1, backend="flex_attention")
    states.requires_grad_()
    with pytest.raises(ValueError, match="no backward on CPU"):
        local_attention(states, states, states, window=3, backend="flex_attention")
