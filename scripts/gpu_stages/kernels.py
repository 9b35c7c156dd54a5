# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Attention alone: errors and speeds of backends."""

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from backend_grid import Case, cases, make_call, milliseconds_of
from measuring import Row, relative_error, timed
from torch import Tensor
from torch.nn.attention import varlen
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from csan_hf.models.attention_call import AttentionCall, ForwardPass, KeyArea
from csan_hf.models.backends import run

from .setting import Measurement, Setting, milliseconds

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
HEADS = 8
WIDTH = 64


# --- FlashAttention's windows, and FlexAttention, compiled


LENGTH = 300
_without_padding = partial(Case, LENGTH, padding=False)
CASES = {
    "window": _without_padding(window=65),
    "window, padding": Case(LENGTH, window=65),
    "window, causal": _without_padding(window=65, causal=True),
    "area": _without_padding(window=65, area=3),
    "area, padding": Case(LENGTH, window=65, area=3),
    "area, causal": _without_padding(window=65, area=3, causal=True),
    "all positions, padding": Case(LENGTH),
    "Gaussian": Case(LENGTH, terms="gaussian"),
    "Gaussian, window": _without_padding(window=65, terms="gaussian"),
    "Gaussian, cut off": Case(LENGTH, terms="cut_off"),
    "bias of every pair": _without_padding(terms="bias"),
    "directions": Case(LENGTH, terms="directions"),
    "relative bias": _without_padding(window=65, terms="relative_bias"),
}


def flex(setting: Setting) -> Iterator[Measurement]:
    """Errors of FlashAttention's and FlexAttention's output and gradients beside `eager` in
    float64 on the CPU, and the seconds of the first call, in which FlexAttention compiles.
    """
    dtypes = {"float32": torch.float32, "bf16": torch.bfloat16}
    backends = ("flash", "flex_attention")
    for backend, (name, case), precision in itertools.product(backends, CASES.items(), dtypes):
        if not re.search(setting.only, backend):
            continue
        if backend == "flash" and (case.terms != "none" or precision == "float32"):
            continue
        if setting.device == "cpu" and (backend == "flash" or precision != "float32"):
            continue
        names: Row = {"backend": backend, "case": name, "precision": precision}
        yield names, partial(_kernel_errors, backend, case, dtypes[precision], setting)


def _kernel_errors(backend: str, case: Case, dtype: torch.dtype, setting: Setting) -> Row:
    case = replace(case, backward=setting.device != "cpu")
    call, leaves = make_call(case, setting.device, dtype, tokens=2 * LENGTH)
    exact, exact_leaves = make_call(case, "cpu", dtype, tokens=2 * LENGTH, exact=True)
    results, first_seconds = timed(
        lambda: _with_gradients(partial(run, call, backend), leaves, call.key_padding_mask),
        setting.device,
    )
    expected = _with_gradients(partial(run, exact, "eager"), exact_leaves, exact.key_padding_mask)
    errors = list(map(relative_error, results, expected))
    return {
        "output": errors[0],
        "worst gradient": max(errors[1:]) if case.backward else None,
        "first call, s": first_seconds,
    }


def _with_gradients(
    attend: Callable[[], Tensor], leaves: list[Tensor], real: Tensor | None
) -> list[Tensor]:
    """The output, and the gradients of the leaves if they have one, from real queries alone."""
    output = attend()
    if real is not None:
        output = output.masked_fill(~real[:, None, :, None], 0.0)
    if not output.requires_grad:
        return [output]
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(output.shape, generator=generator).to(torch.bfloat16)
    return [output, *torch.autograd.grad(output, leaves, grad.to(output))]


# --- speeds


def attention(setting: Setting) -> Iterator[Measurement]:
    """Milliseconds of attention in bf16 over 16,384 tokens, forward and with backward, beside
    FlashAttention's sliding window.
    """
    length, window = (256, 33) if setting.tiny else (16384, 513)
    shape = (1, HEADS, length, WIDTH)
    dtype = torch.float32 if setting.tiny else torch.bfloat16
    inputs = [torch.randn(shape, device=setting.device, dtype=dtype) for _ in range(3)]
    attends: dict[str, Attend] = {
        "FlashAttention, sliding window (torch's varlen)": _flash_window(length, window),
        "FlashAttention, all pairs": F.scaled_dot_product_attention,
        "FlexAttention alone, window": _flex_window(length, window, setting),
    }
    for backend, head_area in itertools.product(("flash", "blocked", "flex_attention"), (1, 3)):
        name = f"csan_hf {backend}, heads {head_area}"
        if backend != "flash":
            attends[f"{name}, with its mask"] = _by_backend(backend, window, head_area)
        attends[name] = _by_backend(backend, window, head_area, shared=ForwardPass())
    for name, attend in attends.items():
        names: Row = {"tokens": length, "window": window, "attention": name}
        yield names, partial(_attention_times, attend, inputs, setting)


def _attention_times(attend: Attend, inputs: list[Tensor], setting: Setting) -> Row:
    def forward() -> None:
        with torch.no_grad():
            attend(*inputs)

    leaves = [part.detach().requires_grad_() for part in inputs]
    grad = torch.randn_like(inputs[0])

    def both() -> None:
        torch.autograd.grad(attend(*leaves), leaves, grad)

    return {
        "forward, ms": milliseconds(forward, setting),
        "with backward, ms": milliseconds(both, setting),
    }


def _by_backend(
    backend: str,
    window: int | None,
    head_area: int = 1,
    *,
    shared: ForwardPass | None = None,
) -> Attend:
    """A backend; `shared` keeps the masks of the call before, as layers of a model do."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        call = AttentionCall(
            query,
            key,
            value,
            KeyArea(window, head_area),
            scale=WIDTH**-0.5,
            shared=shared or ForwardPass(),
        )
        return run(call, backend)

    return attend


def _flash_window(length: int, window: int) -> Attend:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ends = torch.tensor([0, length], device=query.device, dtype=torch.int32)
        parts = [part[0].transpose(0, 1).contiguous() for part in (query, key, value)]
        side = window // 2
        output = varlen.varlen_attn(*parts, ends, ends, length, length, window_size=(side, side))
        return output.transpose(0, 1)[None]

    return attend


def _flex_window(length: int, window: int, setting: Setting) -> Attend:
    def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() <= window // 2

    mask = create_block_mask(sees, None, None, length, length, device=setting.device)
    compiled = flex_attention if setting.device == "cpu" else torch.compile(flex_attention)
    return lambda query, key, value: compiled(query, key, value, block_mask=mask)


def backends(setting: Setting) -> Iterator[Measurement]:
    """Milliseconds of every backend for about 16,384 tokens in bf16; see `backend_grid`."""
    tokens = 64 if setting.tiny else 16384
    lengths = (16, 32) if setting.tiny else (32, 128, 512, 2048, 8192)
    dtype = torch.float32 if setting.device == "cpu" else torch.bfloat16
    rounds = 1 if setting.tiny else 3
    measure = partial(
        milliseconds_of, device=setting.device, dtype=dtype, rounds=rounds, tokens=tokens
    )
    for case, slow in cases(lengths, terms=("none", "gaussian")):
        slow.add("flex_attention")  # it compiles for seconds and is never chosen by default
        yield case.cells(), partial(measure, case, slow=slow)
