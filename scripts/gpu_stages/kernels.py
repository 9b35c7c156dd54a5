# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Attention alone: rounding of kernels' gradients, errors and speeds of backends."""

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import backend_grid
import torch
import torch.nn.functional as F
from backend_grid import Case, make_call
from measuring import timed
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel, varlen
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from csan_hf.models.attention_call import AttentionCall, ForwardPass, KeyArea
from csan_hf.models.backends import run

from .setting import Row, Setting, milliseconds, relative_error, row_of

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
HEADS = 8
WIDTH = 64


# --- how a kernel's gradients are rounded

MASK_SHAPES = ("none", "[I, J]", "[B, 1, I, J]", "[B, H, I, J]")
"""Of a window of 11: without padding, with padding, and repeated for every head."""


def gradients(setting: Setting) -> Iterator[Row]:
    """Rows: relative errors of a bf16 attention's output and gradients beside float64, by every
    kernel of torch and every backend.

    The keys have a part in common beside a random one, as those of a layer with biases have: a
    softmax does not see it, but its rounded gradients do.
    """
    kernels = {"math": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION}
    if setting.device == "cuda":
        kernels["efficient"] = SDPBackend.EFFICIENT_ATTENTION
        kernels["cudnn"] = SDPBackend.CUDNN_ATTENTION
    for shape, length in itertools.product(MASK_SHAPES, (48, 64)):
        inputs = _inputs(length, setting)
        mask = _mask(shape, inputs[0])
        real = _real(inputs[0])
        exactly = _by_kernel(SDPBackend.MATH, mask)
        expected = _attend_with_gradients(exactly, [part.double() for part in inputs], real)
        attends: dict[str, Attend] = {}
        for name, kernel in kernels.items():
            if mask is None:
                attends[name] = _by_kernel(kernel, None)
            elif name != "flash":
                for form in ("boolean", "-inf", "lowest number"):
                    attends[f"{name}, {form}"] = _by_kernel(kernel, _in_form(mask, form))
        padding = None if mask is None or mask.dim() == 2 else real
        for name in ("eager", "sdpa", "flash") + (() if mask is None else ("blocked",)):
            window = None if mask is None else 11
            attends[f"csan_hf {name}"] = _by_backend(name, window, padding=padding)
        for name, attend in attends.items():
            if setting.is_over:
                return
            names: Row = {"mask": shape, "tokens": length, "kernel": name}
            yield row_of(names, _errors, attend, inputs, real, expected)


def _inputs(length: int, setting: Setting) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(4, length, HEADS, WIDTH, generator=generator) for _ in range(3)]
    parts[1] = parts[1] + 2 * torch.randn(1, 1, HEADS, WIDTH, generator=generator)
    # As the projections give them: [B, T, H, D], heads and positions changed over
    return [part.to(setting.device, torch.bfloat16).transpose(1, 2) for part in parts]


def _real(query: Tensor) -> Tensor:
    """Which tokens are real, [B, T]: the sentences have 100, 90, 60 and 40 % of the longest."""
    length = query.shape[2]
    lengths = torch.tensor([1.0, 0.9, 0.6, 0.4], device=query.device) * length
    return torch.arange(length, device=query.device) < lengths[:, None]


def _mask(shape: str, query: Tensor) -> Tensor | None:
    """True = visible; a query that sees no key sees all, and its output is not looked at."""
    if shape == "none":
        return None
    places = torch.arange(query.shape[2], device=query.device)
    visible = (places[:, None] - places).abs() <= 5
    if shape == "[I, J]":
        return visible
    visible = visible & _real(query)[:, None, None, :]
    visible = visible | ~visible.any(dim=-1, keepdim=True)
    heads = HEADS if "H" in shape else 1
    return visible.repeat(1, heads, 1, 1)


def _in_form(mask: Tensor, form: str) -> Tensor:
    if form == "boolean":
        return mask
    hidden = float("-inf") if form == "-inf" else torch.finfo(torch.bfloat16).min
    return torch.zeros_like(mask, dtype=torch.bfloat16).masked_fill(~mask, hidden)


def _errors(attend: Attend, inputs: list[Tensor], real: Tensor, expected: list[Tensor]) -> Row:
    results = _attend_with_gradients(attend, inputs, real)
    names = ("output", "query", "key", "value")
    return dict(zip(names, map(relative_error, results, expected), strict=True))


def _attend_with_gradients(attend: Attend, inputs: list[Tensor], real: Tensor) -> list[Tensor]:
    leaves = [part.detach().requires_grad_() for part in inputs]
    return _with_gradients(partial(attend, *leaves), leaves, real)


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


def _by_kernel(kernel: SDPBackend, mask: Tensor | None) -> Attend:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(kernel):
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    return attend


def _by_backend(
    backend: str,
    window: int | None,
    head_area: int = 1,
    *,
    padding: Tensor | None = None,
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
            key_padding_mask=padding,
            shared=shared or ForwardPass(),
        )
        return run(call, backend)

    return attend


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


def flex(setting: Setting) -> Iterator[Row]:
    """Rows: errors of FlashAttention's and FlexAttention's output and gradients beside `eager` in
    float64 on the CPU, and the seconds of the first call, in which FlexAttention compiles.
    """
    dtypes = {"float32": torch.float32, "bf16": torch.bfloat16}
    backends = ("flash", "flex_attention")
    for backend, (name, case), precision in itertools.product(backends, CASES.items(), dtypes):
        if setting.is_over:
            return
        if not re.search(setting.only, backend):
            continue
        if backend == "flash" and (case.terms != "none" or precision == "float32"):
            continue
        if setting.device == "cpu" and (backend == "flash" or precision != "float32"):
            continue
        names: Row = {"backend": backend, "case": name, "precision": precision}
        yield row_of(names, _kernel_errors, backend, case, dtypes[precision], setting)


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


# --- speeds


def attention(setting: Setting) -> Iterator[Row]:
    """Rows: milliseconds of attention in bf16 over 16,384 tokens, forward and with backward, beside
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
        if setting.is_over:
            return
        names: Row = {"tokens": length, "window": window, "attention": name}
        yield row_of(names, _attention_times, attend, inputs, setting)


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


COLUMNS = ("eager", "sdpa", "blocked", "flash", "chunked")
"""Without FlexAttention, which compiles for seconds and is never chosen by default."""


def backends(setting: Setting) -> Iterator[Row]:
    """Rows: milliseconds of every backend for about 16,384 tokens in bf16; see `backend_grid`."""
    tokens = 64 if setting.tiny else 16384
    lengths = (16, 32) if setting.tiny else (32, 128, 512, 2048, 8192)
    slow: dict[Case, set[str]] = defaultdict(lambda: {"flex_attention"})
    for case in backend_grid.cases(lengths, terms=("none", "gaussian")):
        if setting.is_over:
            return
        names: Row = {
            "length": case.length,
            "window": str(case.window),
            "heads": case.area,
            "terms": case.terms,
            "pass": "both" if case.backward else "forward",
        }
        yield row_of(names, _backend_times, case, tokens, slow[case.without_length], setting)


def _backend_times(case: Case, tokens: int, slow: set[str], setting: Setting) -> Row:
    """Milliseconds by backend; adds those of all pairs that took three
    times the least to `slow`."""
    dtype = torch.float32 if setting.device == "cpu" else torch.bfloat16
    rounds = 1 if setting.tiny else 3
    chosen, seconds = backend_grid.measure(case, setting.device, dtype, rounds, slow, tokens=tokens)
    best = min(seconds.values())
    # Blocks take as long for short texts as for long ones
    slow.update(name for name in ("eager", "chunked") if seconds.get(name, 0.0) > 3 * best)
    row: Row = {name: 1e3 * seconds[name] if name in seconds else None for name in COLUMNS}
    return {**row, "chosen": chosen, "chosen / best": seconds[chosen] / best}
