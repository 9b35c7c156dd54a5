# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Attention alone: rounding of kernels' gradients, FlexAttention compiled, speeds of backends."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import backend_grid
import torch
import torch.nn.functional as F
from measuring import seconds_of
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel, varlen
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from csan_hf.models.attention_call import AttentionCall, KeyArea, Term
from csan_hf.models.backends import cannot_run, run
from csan_hf.models.distances import DirectionTerm, RelativeBiasTerm
from csan_hf.models.functional import DenseBias
from csan_hf.models.gaussian import GaussianTerm

from .setting import Row, Setting, milliseconds, relative_error, row_of

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
HEADS = 8
WIDTH = 64


# --- how a kernel's gradients are rounded


def gradients(setting: Setting) -> Iterator[Row]:
    """Rows: relative errors of a bf16 attention's output and gradients, for a window of 11 and for
    none, by every kernel of torch and every backend.

    The keys have a common part of size `offset` beside a random one of size 1, as those of a layer
    with biases have; a softmax does not see it, but its rounded gradients do.
    """
    kernels = {"math": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION}
    if setting.device == "cuda":
        kernels["efficient"] = SDPBackend.EFFICIENT_ATTENTION
        kernels["cudnn"] = SDPBackend.CUDNN_ATTENTION
    masks = ("none", "boolean", "-inf", "lowest number")
    for window, offset in itertools.product((None, 11), (0.0, 2.0)):
        inputs = _inputs(offset, setting)
        expected = _with_gradients(_exactly(window), [part.double() for part in inputs])
        attends: dict[str, Attend] = {}
        for (name, kernel), mask in itertools.product(kernels.items(), masks):
            if (mask == "none") == (window is None) and not (mask != "none" and name == "flash"):
                attends[f"{name}, mask {mask}"] = _by_kernel(kernel, mask, window)
        for name in ("eager", "sdpa") if window is None else ("eager", "sdpa", "blocked"):
            attends[f"csan_hf {name}"] = _by_backend(name, window)
        for name, attend in attends.items():
            if setting.is_over:
                return
            names = {"window": str(window), "offset": offset, "kernel": name}
            yield row_of(names, lambda: _errors(_with_gradients(attend, inputs), expected))


def _inputs(offset: float, setting: Setting) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    length = 24 if setting.tiny else 64
    parts = [torch.randn(8, HEADS, length, WIDTH, generator=generator) for _ in range(3)]
    parts[1] = parts[1] + offset * torch.randn(1, HEADS, 1, WIDTH, generator=generator)
    return [part.to(setting.device, torch.bfloat16) for part in parts]


def _with_gradients(attend: Attend, inputs: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of query, key and value."""
    leaves = [part.detach().requires_grad_() for part in inputs]
    output = attend(*leaves)
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(output.shape, generator=generator).to(torch.bfloat16)
    return [output, *torch.autograd.grad(output, leaves, grad.to(output))]


def _errors(results: list[Tensor], expected: list[Tensor]) -> Row:
    names = ("output", "query", "key", "value")
    return {
        name: relative_error(result, exact.cpu())
        for name, result, exact in zip(names, results, expected, strict=True)
    }


def _visible(query: Tensor, window: int | None) -> Tensor | None:
    if window is None:
        return None
    places = torch.arange(query.shape[2], device=query.device)
    return (places[:, None] - places).abs() <= window // 2


def _exactly(window: int | None) -> Attend:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        energies = query @ key.transpose(-1, -2) * WIDTH**-0.5
        visible = _visible(query, window)
        if visible is not None:
            energies = energies.masked_fill(~visible, float("-inf"))
        return energies.softmax(dim=-1) @ value

    return attend


def _by_kernel(kernel: SDPBackend, mask_form: str, window: int | None) -> Attend:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = _visible(query, window)
        if mask is not None and mask_form != "boolean":
            lowest = torch.finfo(query.dtype).min
            hidden = float("-inf") if mask_form == "-inf" else lowest
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, hidden)
        with sdpa_kernel(kernel):
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    return attend


def _by_backend(backend: str, window: int | None, head_area: int = 1) -> Attend:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        area = KeyArea(window, head_area)
        call = AttentionCall(query, key, value, area, scale=WIDTH**-0.5)
        if reason := cannot_run(call, backend):
            raise ValueError(reason)
        return run(call, backend)

    return attend


# --- FlexAttention, compiled


@dataclass(frozen=True)
class FlexCase:
    """A call of FlexAttention; `terms` are made for tensors of the call's sizes."""

    window: int | None = None
    head_area: int = 1
    causal: bool = False
    padding: bool = False
    terms: str = ""


FLEX_CASES = {
    "window": FlexCase(window=65),
    "window, padding": FlexCase(window=65, padding=True),
    "window, causal": FlexCase(window=65, causal=True),
    "area": FlexCase(window=65, head_area=3),
    "area, padding": FlexCase(window=65, head_area=3, padding=True),
    "all positions, padding": FlexCase(padding=True),
    "Gaussian": FlexCase(padding=True, terms="gaussian"),
    "Gaussian, window": FlexCase(window=65, terms="gaussian"),
    "bias of every pair": FlexCase(terms="bias"),
    "directions": FlexCase(padding=True, terms="directions"),
    "relative bias": FlexCase(window=65, terms="relative_bias"),
}


def flex(setting: Setting) -> Iterator[Row]:
    """Rows: errors of FlexAttention's output and gradients beside `eager` in float64 on the CPU,
    and the seconds of its first call, which compiles.
    """
    dtypes = {"float32": torch.float32, "bf16": torch.bfloat16}
    for name, case in FLEX_CASES.items():
        for dtype_name, dtype in dtypes.items():
            if setting.is_over or (setting.device == "cpu" and dtype != torch.float32):
                return
            names = {"case": name, "precision": dtype_name}
            yield row_of(names, lambda: _flex_errors(case, dtype, setting))


def _flex_errors(case: FlexCase, dtype: torch.dtype, setting: Setting) -> Row:
    has_backward = setting.device != "cpu"
    call, leaves = _flex_call(case, setting.device, dtype, has_backward)
    exact, exact_leaves = _flex_call(case, "cpu", torch.float64, has_backward)
    outputs: dict[str, list[Tensor]] = {}

    def attend() -> None:
        output = run(call, "flex_attention")
        outputs["flex"] = [output]
        if has_backward:
            grad = torch.linspace(-1, 1, output.numel()).view_as(output).to(output)
            outputs["flex"] += torch.autograd.grad(output, leaves, grad)

    first_seconds = seconds_of(attend, setting.device)
    expected = run(exact, "eager")
    results = [expected]
    if has_backward:
        grad = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view_as(expected)
        results += torch.autograd.grad(expected, exact_leaves, grad)
    errors = [
        relative_error(value, exact_value.detach())
        for value, exact_value in zip(outputs["flex"], results, strict=True)
    ]
    return {
        "output": errors[0],
        "worst gradient": max(errors[1:]) if has_backward else None,
        "first call, s": first_seconds,
    }


def _flex_call(
    case: FlexCase, device: str, dtype: torch.dtype, with_backward: bool
) -> tuple[AttentionCall, list[Tensor]]:
    """The call, and the tensors that gradients are taken of."""
    generator = torch.Generator().manual_seed(0)
    batch, heads, length, width = 2, 4, 300, 32

    def leaf(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        tensor = torch.rand(shape, generator=generator) * scale + shift
        tensor = tensor.to(device, dtype).requires_grad_(with_backward)
        leaves.append(tensor)
        return tensor

    leaves: list[Tensor] = []
    query, key, value = (leaf(batch, heads, length, width, scale=2, shift=-1) for _ in range(3))
    terms: list[Term] = []
    if case.terms == "gaussian":
        center = leaf(batch, heads, length, scale=length)
        terms.append(GaussianTerm(center, leaf(batch, heads, length, scale=length, shift=4)))
    elif case.terms == "bias":
        terms.append(DenseBias(leaf(batch, heads, length, length)))
    elif case.terms == "directions":
        terms.append(DirectionTerm(heads // 2))
    elif case.terms == "relative_bias":
        terms.append(RelativeBiasTerm(leaf(heads, 32), 128, False))
    padding = None
    if case.padding:
        lengths = torch.tensor([[length], [length - 70]])
        padding = (torch.arange(length) < lengths).to(device)
    area = KeyArea(case.window, case.head_area, causal=case.causal)
    call = AttentionCall(
        query, key, value, area, scale=width**-0.5, key_padding_mask=padding, terms=terms
    )
    return call, leaves


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
    for head_area in (1, 3):
        for backend in ("flex_attention", "blocked", "chunked"):
            name = f"csan_hf {backend}, {head_area} head{'s' if head_area > 1 else ''}"
            attends[name] = _by_backend(backend, window, head_area)
    for name, attend in attends.items():
        if setting.is_over:
            return
        names: dict[str, str | float] = {"tokens": length, "window": window, "attention": name}
        yield row_of(names, lambda: _attention_times(attend, inputs, setting))


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


def backends(setting: Setting) -> Iterator[Row]:
    """Rows: milliseconds of every backend for about 16,384 tokens in bf16; see `backend_grid`."""
    dtype = torch.float32 if setting.device == "cpu" else torch.bfloat16
    tokens = 64 if setting.tiny else 16384
    lengths = (16, 32) if setting.tiny else (32, 128, 512, 2048, 8192)
    columns = ("eager", "sdpa", "blocked", "flex_attention", "chunked")
    cases = itertools.product((11, 129, None), (1, 3), ("none", "gaussian"), (False, True))
    for window, area, terms, backward in cases:
        slow: set[str] = set()
        for length in lengths:
            if setting.is_over:
                return
            if window is None and length > 2048:
                continue
            case = backend_grid.Row(length, window, area, terms, backward)
            names: dict[str, str | float] = {
                "length": length,
                "window": str(window),
                "heads": area,
                "terms": terms,
                "pass": "both" if backward else "forward",
            }

            def measure() -> Row:
                chosen, seconds = backend_grid.measure(
                    case, setting.device, dtype, 1 if setting.tiny else 3, slow, tokens=tokens
                )
                best = min(seconds.values())
                slow.update(name for name, time in seconds.items() if time > 3 * best)
                times = {name: 1e3 * seconds[name] if name in seconds else None for name in columns}
                return {**times, "chosen": chosen, "chosen / best": seconds[chosen] / best}

            yield row_of(names, measure)
