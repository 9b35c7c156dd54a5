# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Which backend a call runs by that names none, and the table that measures the choice."""

import importlib
from pathlib import Path

import pytest
import torch

from csan_hf.models.attention_call import AttentionCall, KeyArea
from csan_hf.models.backends import fastest_backend
from csan_hf.models.distances import RelativePositionTerm
from csan_hf.models.functional import DenseBias
from csan_hf.models.gaussian import GaussianTerm


def choice(length, area, *terms, keys=None, dtype=torch.float32, train=False):
    query, key = (
        torch.empty(1, 1, 1, 1, dtype=dtype).expand(1, 4, size, 8)
        for size in (length, keys or length)
    )
    if train:
        query = query.clone().requires_grad_()
    return fastest_backend(AttentionCall(query, key, key, area, 0.3, terms=terms))


def gaussian(length, train=False):
    return GaussianTerm(torch.zeros(1, 1, length, requires_grad=train), torch.ones(1, 1, 1))


@pytest.mark.parametrize("train", [False, True])
def test_blocks_are_for_sentences_longer_than_the_window(train):
    for window, head_area in ((11, 1), (11, 3), (129, 1), (129, 3)):
        area = KeyArea(window, head_area)
        assert choice(25, area, train=train) == "sdpa"
        assert choice(1024, area, train=train) == "blocked"
    assert choice(300, KeyArea(11), train=train) == "blocked"
    assert choice(250, KeyArea(129), train=train) == "sdpa"
    assert choice(1, KeyArea(11, causal=True), keys=4096) == "sdpa"


def test_what_a_fused_kernel_cannot_do_is_written_out_in_chunks_where_it_is_long():
    assert choice(25, KeyArea(), gaussian(25)) == "sdpa"
    in_float32 = choice(25, KeyArea(), gaussian(25), dtype=torch.bfloat16)
    assert in_float32 == "eager", "sdpa would compute in float32"
    assert choice(25, KeyArea(), gaussian(25, train=True)) == "eager"
    assert choice(2048, KeyArea(), gaussian(2048)) == "chunked"
    assert choice(1, KeyArea(causal=True), gaussian(1), keys=4096) == "sdpa"
    values, again = (
        RelativePositionTerm(torch.zeros(1, 1, 1, 3), torch.zeros(3, 8)) for _ in range(2)
    )
    assert choice(2048, KeyArea(), values) == "chunked"
    assert choice(2048, KeyArea(), values, train=True) == "eager"
    assert choice(2048, KeyArea(), values, gaussian(2048), train=True) == "chunked"
    of_one_class = choice(2048, KeyArea(), values, again, train=True)
    assert of_one_class == "eager", "terms of one class hold tensors each"
    assert choice(2048, KeyArea(), DenseBias(torch.zeros(1))) == "chunked"


def test_the_grid_measures_every_backend_beside_the_choice(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    grid = importlib.import_module("backend_grid")
    small = {"LENGTHS": (9,), "WINDOWS": (3,), "AREAS": (3,), "TERMS": ("none", "both")}
    for name, values in small.items():
        monkeypatch.setattr(grid, name, values)
    written = {"eager", "chunked", "blocked"}
    expected = {
        ("none", "forward"): {*written, "sdpa", "flex_attention"},
        ("none", "both"): {*written, "sdpa"},
        ("both", "forward"): written,
        ("both", "both"): written,
    }
    measured = {}
    for row in grid.rows(rounds=1):
        backends = {name for name in grid.BACKENDS if row[name] is not None}
        assert row["chosen"] in backends
        measured[row["terms"], row["pass"]] = backends
    assert measured == expected
    monkeypatch.setattr(
        grid, "run", lambda call, name: torch.full(call.query.shape, float(name == "blocked"))
    )
    with pytest.raises(ValueError, match="blocked and eager differ by 1"):
        list(grid.rows(rounds=1))
