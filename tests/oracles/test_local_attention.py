# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Every backend of local_attention against the loop oracle, in outputs and gradients, over random
shapes.
"""

import math
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import local_attention as oracle
from reference.dispatch import Operations
from torch import Tensor
from torch.testing import assert_close

from csan_hf import local_attention
from csan_hf.models import backend_blocked, backend_dense
from csan_hf.models.attention_call import Term
from csan_hf.models.gaussian import GaussianTerm

BACKENDS = ("eager", "chunked", "sdpa", "blocked")
ALL = (*BACKENDS, "flex_attention")
ALL_PAIRS = ("eager", "chunked", "sdpa", "flex_attention")
every_backend = pytest.mark.parametrize("backend", ALL)
every_differentiable = pytest.mark.parametrize("backend", BACKENDS)
NEEDS_A_WINDOW = ("blocked",)
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-13}  # no float32 in between would leave this
BFLOAT16_EPS = torch.finfo(torch.bfloat16).eps  # 2^-7, one unit in the last place of 1.0


pytestmark = pytest.mark.usefixtures("flex_without_compiler")


@pytest.fixture(autouse=True)
def _several_chunks(monkeypatch):
    monkeypatch.setattr(backend_dense, "CHUNK_CELLS", 600)
    monkeypatch.setattr(backend_dense, "LEAST_CHUNK", 3)
    monkeypatch.setattr(
        backend_blocked, "_VALUES_OF_A_RUN", 4000
    )  # two blocks, with an area of three


@dataclass(frozen=True)
class Case:
    """One call of local_attention; the tensors follow from it and its seed."""

    batch: int = 2
    heads: int = 3
    head_width: int = 4
    queries: int = 13
    keys: int = 13
    window: int | None = 5
    head_area: int = 3
    head_boundary: str = "mask"
    causal: bool = False
    real: tuple[tuple[bool, ...], ...] | None = None  # key_padding_mask
    bias: tuple[int, ...] | str | None = None  # the shape of a dense bias, or "gaussian"
    width_shape: tuple[int, ...] | None = (
        None  # of a Gaussian's width, None = that of its center [B, H, I]
    )
    scale: float | None = None
    seed: int = 1

    def options(self) -> dict:
        names = ("window", "head_area", "head_boundary", "causal", "scale")
        mask = None if self.real is None else torch.tensor(self.real)
        return {"key_padding_mask": mask, **{name: getattr(self, name) for name in names}}


def _uniform(low: int, high: int, step: int = 1) -> st.SearchStrategy[int]:
    """Like st.integers, which prefers small numbers and so draws few areas and windows worth the
    name.
    """
    return st.sampled_from(range(low, high + 1, step))


def _padding(draw, batch: int, keys: int) -> tuple[tuple[bool, ...], ...] | None:
    """Rows padded on the right, on the left or anywhere; a row may be padding altogether."""
    kind = draw(st.sampled_from(["none", "right", "left", "scattered"]))
    if kind == "none":
        return None
    rows = []
    for _ in range(batch):
        if kind == "scattered":
            rows.append(tuple(draw(st.lists(st.booleans(), min_size=keys, max_size=keys))))
        else:
            length = draw(_uniform(0, keys))
            row = (True,) * length + (False,) * (keys - length)
            rows.append(row if kind == "right" else row[::-1])
    return tuple(rows)


def _broadcastable(draw, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size if draw(st.booleans()) else 1 for size in shape)


@st.composite
def cases(draw, needs_a_window: bool) -> Case:
    lengths = st.sampled_from([8, 8, 8, 24, 24, 70]).flatmap(lambda longest: _uniform(1, longest))
    queries = draw(lengths)
    heads = draw(_uniform(1, 5 if queries <= 24 else 2))
    batch = draw(_uniform(1, 3 if queries <= 8 else 1))
    kind = draw(
        st.sampled_from(
            ["self", "self", "causal", "decode"] + ([] if needs_a_window else ["cross"])
        )
    )
    keys = queries
    if kind == "decode":
        queries = draw(_uniform(1, min(keys, 4)))
    elif kind == "cross":
        keys = draw(lengths)
    window = draw(_uniform(1, 2 * keys + 5, step=2))
    if kind == "cross" or (not needs_a_window and draw(_uniform(1, 6)) == 1):
        window = None
    head_boundary = draw(st.sampled_from(["mask", "circular"]))
    head_area = draw(_uniform(1, heads if head_boundary == "circular" else 2 * heads - 1, step=2))
    shape = (batch, heads, queries, keys)
    bias = draw(st.sampled_from([None, "gaussian", "gaussian", "dense"]))
    if bias == "dense":
        bias = _broadcastable(draw, shape)
    return Case(
        batch=batch,
        heads=heads,
        head_width=draw(st.integers(1, 6)),
        queries=queries,
        keys=keys,
        window=window,
        head_area=head_area,
        head_boundary=head_boundary,
        causal=kind in ("causal", "decode"),
        real=_padding(draw, batch, keys),
        bias=bias,
        width_shape=_broadcastable(draw, shape[:3]) if bias == "gaussian" else None,
        scale=draw(st.sampled_from([None, None, 0.7])),
        seed=draw(st.integers(0, 2**16)),
    )


def draw_tensors(case: Case) -> dict[str, Tensor]:
    """Float32 leaves of a case, and the upstream gradient `upstream`."""
    generator = torch.Generator().manual_seed(case.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    B = case.batch
    H = case.heads
    D = case.head_width
    tensors = {
        "query": normal(B, H, case.queries, D),
        "key": normal(B, H, case.keys, D),
        "value": normal(B, H, case.keys, D),
        "upstream": normal(B, H, case.queries, D),
    }
    if case.bias == "gaussian":
        # Widths above a third of the length keep |G| under 20: float32's own rounding of G stays
        # below 1e-5.
        uniform = torch.rand(2, B, H, case.queries, generator=generator)
        tensors["center"] = case.keys * uniform[0]
        tensors["width"] = case.keys * (0.35 + uniform[1]) + 0.5
        if case.width_shape is not None:
            tensors["width"] = tensors["width"][
                tuple(slice(size) for size in case.width_shape)
            ].clone()
    elif case.bias is not None:
        tensors["bias"] = normal(*case.bias)
    return tensors


def run_oracle(case: Case, tensors: dict[str, Tensor], rounding=None) -> dict[str, Tensor]:
    """Output and gradients in float64 of the oracle."""
    leaves = {
        name: tensor.double().requires_grad_(name != "upstream") for name, tensor in tensors.items()
    }
    bias = leaves.get("bias")
    if case.bias == "gaussian":
        width = leaves["width"].expand_as(leaves["center"])
        bias = oracle.gaussian_energy(leaves["center"], width, case.keys)
    output = oracle.local_attention(
        leaves["query"],
        leaves["key"],
        leaves["value"],
        bias=bias,
        rounding=rounding,
        **case.options(),
    )
    return _results(output, leaves)


def run_product(case: Case, tensors: dict[str, Tensor], backend: str | None) -> dict[str, Tensor]:
    """Output and gradients of a backend, of FlexAttention the output alone."""
    differentiable = backend != "flex_attention"  # which has no backward on CPU
    leaves = {
        name: t.clone().requires_grad_(differentiable and name != "upstream")
        for name, t in tensors.items()
    }
    bias = leaves.get("bias")
    if case.bias == "gaussian":
        bias = GaussianTerm(leaves["center"], leaves["width"])
    output = local_attention(
        leaves["query"],
        leaves["key"],
        leaves["value"],
        bias=bias,
        backend=backend,
        **case.options(),
    )
    assert output.dtype == tensors["query"].dtype
    return _results(output, leaves) if differentiable else {"output": output}


def _results(output: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    results = {"output": output.detach()}
    upstream = leaves.pop("upstream")
    if output.requires_grad:
        output.backward(upstream)
    for name, leaf in leaves.items():
        results[name] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    return results


def assert_results_close(
    actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: dict[str, float]
) -> None:
    assert actual.keys() == expected.keys()
    for name, reference in expected.items():
        assert actual[name].shape == reference.shape, name
        assert actual[name].isfinite().all(), f"{name} is not finite"
        error = (actual[name].double() - reference).abs().max().item()
        assert error <= tolerance[name], f"{name}: error {error:.3g} > {tolerance[name]:.3g}"


@cache
def expected_in_float32(case: Case) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Tensors of a case, and what the oracle makes of them; once for all backends."""
    tensors = draw_tensors(case)
    return tensors, run_oracle(case, tensors)


def compare_exactly(case: Case, backend: str | None, dtype: torch.dtype = torch.float32) -> None:
    tensors, expected = expected_in_float32(case)
    if backend == "flex_attention":
        expected = {"output": expected["output"]}
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    tolerance = {
        name: TOLERANCES[dtype] * max(1.0, t.abs().max().item()) for name, t in expected.items()
    }
    assert_results_close(run_product(case, tensors, backend), expected, tolerance)


def bfloat16_tolerance(
    expected: dict, rounded: dict, tensors: dict[str, Tensor]
) -> dict[str, float]:
    """What bfloat16 storage alone may cost, per tensor.

    A backend stores energies, weights and outputs (and their gradients) rounded, as the oracle did
    for `rounded`, and may err twice as far where its roundings fall otherwise. On top come two
    units in the last place of the largest number that the tensor's sums are made of: its last
    rounding, and sums that cancel to nothing."""

    def largest_row(name: str) -> float:
        return tensors[name].double().norm(dim=-1).max().item()

    weight_gradient = largest_row("upstream") * largest_row("value")
    terms = {
        "output": largest_row("value"),
        "value": largest_row("upstream"),
        "query": weight_gradient * largest_row("key"),
        "key": weight_gradient * largest_row("query"),
        "bias": weight_gradient,
        "center": weight_gradient,
        "width": weight_gradient,
    }
    return {
        name: 2 * (rounded[name] - reference).abs().max().item()
        + 2 * BFLOAT16_EPS * max(reference.abs().max().item(), terms[name])
        for name, reference in expected.items()
    }


@cache
def expected_in_bfloat16(case: Case) -> tuple[dict[str, Tensor], ...]:
    """Tensors rounded, but for centers and widths, which stay float32; what the oracle makes of
    them, exactly and with rounding.
    """
    tensors = {
        name: tensor if name in ("center", "width") else tensor.bfloat16()
        for name, tensor in draw_tensors(case).items()
    }
    rounded = run_oracle(case, tensors, rounding=oracle.round_to_bfloat16)
    return tensors, run_oracle(case, tensors), rounded


def compare_in_bfloat16(case: Case, backend: str | None) -> int:
    """To the float64 oracle on the rounded inputs; returns how many gradients were held as a whole,
    too.

    (The bounds above are for the worst number of a tensor, and a gradient of zeros could be within
    them.)"""
    tensors, expected, rounded = expected_in_bfloat16(case)
    tolerance = bfloat16_tolerance(expected, rounded, tensors)
    actual = run_product(case, tensors, backend)
    assert_results_close(actual, expected, tolerance)
    held = 0
    for name in {"center", "width"} & expected.keys():
        size = expected[name].norm()
        error = (actual[name].double() - expected[name]).norm()
        bound = 4 * (rounded[name] - expected[name]).norm() + 8 * BFLOAT16_EPS * size
        if (
            expected[name].numel() >= 16 and bound < size
        ):  # enough numbers for an average, and zeros are beyond
            assert error < bound, (
                f"the gradient of {name} as a whole: error {error:.3g} > {bound:.3g}"
            )
            held += 1
    return held


@pytest.mark.parametrize("backend", [*ALL, None])
def test_float32_equals_oracle(backend):
    @settings(max_examples={"chunked": 60, "flex_attention": 20}.get(backend, 100))
    @given(cases(needs_a_window=backend in NEEDS_A_WINDOW))
    def compare(case):
        compare_exactly(case, backend)

    compare()


@every_differentiable
def test_bfloat16_equals_oracle(backend):
    held = []

    @settings(max_examples=60)
    @given(cases(needs_a_window=backend in NEEDS_A_WINDOW))
    def compare(case):
        held.append(compare_in_bfloat16(case, backend))

    compare()
    assert sum(held) >= 3


@every_backend
@pytest.mark.parametrize(
    "case",
    [
        Case(queries=180, keys=180, window=11, real=((True,) * 180, (True,) * 70 + (False,) * 110)),
        Case(
            queries=180,
            keys=180,
            window=5,
            real=((False,) * 50 + (True,) * 130, (True,) * 180),
            head_boundary="circular",
        ),
        Case(
            queries=180,
            keys=180,
            batch=1,
            window=7,
            head_area=1,
            real=(((True,) * 80 + (False,) * 10) * 2,),
        ),
        Case(
            queries=110,
            keys=180,
            batch=1,
            window=9,
            causal=True,
            real=((False,) * 40 + (True,) * 140,),
        ),
        Case(bias=(13,)),
        Case(bias=(13, 1)),
        Case(bias=()),
    ],
    ids=lambda case: f"I{case.queries}-J{case.keys}-M{case.window}-N{case.head_area}-H{case.heads}",
)
def test_chosen_cases_equal_oracle(backend, case):
    """Lengths and shapes that the random cases do not have."""
    compare_exactly(case, backend)
    compare_exactly(case, backend, torch.float64)
    if backend in BACKENDS:
        compare_in_bfloat16(case, backend)


@every_differentiable
def test_narrow_gaussian(backend):
    """A Gaussian without width picks the key at its center, and its gradients stay finite far away
    from it.
    """
    length = 31
    center = torch.arange(length, dtype=torch.float32).expand(1, 2, length).clone().requires_grad_()
    width = torch.zeros(1, 2, length, requires_grad=True)
    query, key, value = (torch.randn(1, 2, length, 4, requires_grad=True) for _ in range(3))
    output = local_attention(
        query, key, value, window=11, bias=GaussianTerm(center, width), backend=backend
    )
    assert_close(output, value)
    output.sum().backward()
    assert all(leaf.grad.isfinite().all() for leaf in (query, key, value, center, width))


@every_differentiable
def test_dropout(backend):
    """Dropout acts on the weights: it keeps the mean, and hits values of other heads and positions
    alone.
    """
    query = torch.zeros(8, 4, 40, 2)
    value = torch.ones(8, 4, 40, 2)
    options = {"window": 5, "head_area": 3, "backend": backend}
    dropped = local_attention(query, query, value, dropout_p=0.5, **options)
    assert dropped.std() > 0.1
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.03)
    assert_close(local_attention(query, query, value, dropout_p=0.0, **options), value)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("backend", "window"), [("blocked", 11), ("chunked", None)])
def test_memory_is_linear_in_length(backend, window, causal, monkeypatch):
    """What forward and backward hold together, and the largest tensor, grow with the length and not
    its square.
    """
    monkeypatch.setattr(backend_dense, "CHUNK_CELLS", 2**13)

    def measured(length: int) -> Operations:
        leaves = [torch.randn(1, 2, length, 4, requires_grad=True) for _ in range(3)]
        center = torch.zeros(1, 2, length, requires_grad=True)
        width = torch.ones(1, 2, length)
        with Operations() as operations:
            output = local_attention(
                *leaves,
                window=window,
                head_area=3,
                bias=GaussianTerm(center, width),
                key_padding_mask=torch.ones(1, length, dtype=torch.bool),
                causal=causal,
                backend=backend,
            )
            torch.autograd.grad(output.sum(), [*leaves, center])
        return operations

    short, long = measured(256), measured(512)
    assert long.largest < 2.5 * short.largest
    assert long.peak < 2.5 * short.peak
    assert long.largest < 512 * 512


@every_backend
def test_a_bias_of_minus_infinity_hides(backend):
    """As a padding mask would; a query from which everything is hidden yields zeros, and gradients
    stay finite.
    """
    tensors = [torch.randn(1, 3, 7, 4) for _ in range(3)]
    bias = torch.zeros(7, 7)
    bias[:, 5:] = bias[2] = -math.inf
    real = torch.tensor([[True] * 5 + [False] * 2])
    expected = local_attention(
        *tensors, window=3, head_area=3, key_padding_mask=real, backend=backend
    )
    expected[:, :, 2] = 0.0
    output = local_attention(*tensors, window=3, head_area=3, bias=bias, backend=backend)
    assert_close(output, expected)
    if backend != "flex_attention":
        leaves = [tensor.clone().requires_grad_() for tensor in [*tensors, bias]]
        local_attention(
            *leaves[:3], window=3, head_area=3, bias=leaves[3], backend=backend
        ).sum().backward()
        assert all(leaf.grad.isfinite().all() for leaf in leaves)


class Even(Term):
    """A term that says the same of all keys."""

    def visible(self, cells):
        return cells.query_position % 2 == 0


@pytest.mark.parametrize(
    ("backend", "window"), [*((name, 5) for name in ALL), *((name, None) for name in ALL_PAIRS)]
)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("head_area", [1, 3])
@torch.no_grad()
def test_a_visibility_of_queries_alone(head_area, padded, backend, window):
    """Of views, as the model passes them."""
    tensors = [torch.randn(2, 5, 3, 4).transpose(1, 2) for _ in range(3)]
    real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2]) if padded else None
    options = {"window": window, "head_area": head_area, "key_padding_mask": real}
    expected = oracle.local_attention(*tensors, **options).float()
    expected[:, :, 1::2] = 0.0
    actual = local_attention(*tensors, **options, bias=Even(), backend=backend)
    assert_close(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", [*BACKENDS, None])
def test_tensors_without_content_and_batches_without_sentences(backend):
    for tensor in (torch.empty(2, 2, 5, 4, device="meta"), torch.zeros(0, 2, 5, 4)):
        assert (
            local_attention(tensor, tensor, tensor, window=3, backend=backend).shape == tensor.shape
        )


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("keys", "causal"), [(0, False), (0, True), (5, True)])
@pytest.mark.parametrize("backend", [*ALL, None])
def test_no_queries_give_an_empty_output(backend, keys, causal, padded):
    """An empty sentence, or a decoding step without a token."""
    query = torch.zeros(2, 3, 0, 4)
    states = torch.zeros(2, 3, keys, 4, requires_grad=backend != "flex_attention")
    real = torch.ones(2, keys, dtype=torch.bool) if padded else None
    options = {"window": 3, "head_area": 3, "causal": causal, "key_padding_mask": real}
    output = local_attention(query, states, states, backend=backend, **options)
    assert output.shape == query.shape
    if output.requires_grad:
        output.sum().backward()
        assert not states.grad.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 4}, "`window`.*4"),
        ({"head_area": 9}, "`head_area`.*9"),
        ({"head_area": 5, "head_boundary": "circular"}, "`head_area`.*5"),
        ({"head_boundary": "reflect"}, "`head_boundary`.*reflect"),
        ({"key_padding_mask": torch.ones(2, 5, dtype=torch.bool)}, r"`key_padding_mask`.*\[2, 5\]"),
        ({"key_padding_mask": torch.ones(2, 6)}, "`key_padding_mask`.*float32"),
        ({"bias": torch.zeros(3, 6)}, r"\[3, 6\]"),
        ({"bias": torch.ones(6, 6, dtype=torch.bool)}, "`bias` is added.*not True and False"),
        ({"dropout_p": 1.5}, "dropout probability.*1.5"),
        ({"backend": "SDPA"}, "'SDPA'.*`backend`.*blocked"),
        (
            {"backend": "blocked", "window": None},
            "backend='blocked' needs a window; use 'sdpa' or 'eager'",
        ),
        ({"value": torch.zeros(2, 4, 6, 8).double()}, "`value` must be torch.float32.*float64"),
        ({"key": torch.zeros(2, 3, 6, 8)}, r"`key` must be .*\[2, 4, 6, 8\], got .*\[2, 3, 6, 8\]"),
        ({"query": torch.zeros(2, 4, 5, 8)}, "5 queries and 6 keys do not fit"),
        (
            {"query": torch.zeros(2, 4, 7, 8), "causal": True, "window": None},
            "7 queries and 6 keys do not fit",
        ),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    """By name and value, here or by torch."""
    tensors = dict.fromkeys(("query", "key", "value"), torch.zeros(2, 4, 6, 8))
    with pytest.raises((ValueError, RuntimeError), match=message):
        local_attention(**{**tensors, "window": 3, **options})


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("head_area", [1, 3])
@pytest.mark.parametrize("backend", ["eager", "sdpa", "blocked"])
def test_torch_func_equals_autograd(backend, head_area):
    """`grad`, and `vmap` of it over two batches. (sdpa's fused kernel gives no gradient of a mask
    there.)
    """
    batches = [torch.randn(2, 1, 3, 7, 2, dtype=torch.float64) for _ in range(3)]
    options = {"window": 3, "head_area": head_area, "bias": torch.randn(1, 3, 7, 7).double()}
    mask = torch.tensor([[True] * 6 + [False]])

    def loss(*tensors: Tensor) -> Tensor:
        output = local_attention(*tensors, **options, key_padding_mask=mask, backend=backend)
        return output.square().sum()

    gradient = torch.func.grad(loss, argnums=(0, 1, 2))
    stacked = torch.func.vmap(gradient)(*batches)
    for row in range(2):
        leaves = [batch[row].clone().requires_grad_() for batch in batches]
        expected = torch.autograd.grad(loss(*leaves), leaves)
        assert_close(gradient(*leaves), expected)
        assert_close(tuple(batch[row] for batch in stacked), expected)
