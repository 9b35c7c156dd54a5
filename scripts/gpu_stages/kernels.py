# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Attention alone: rounding of kernels' gradients, errors and speeds of backends."""

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import backend_grid
import torch
import torch.nn.functional as F
from measuring import seconds_of
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel, varlen
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from csan_hf.models.attention_call import AttentionCall, KeyArea, SharedMasks, Term
from csan_hf.models.backends import cannot_run, run
from csan_hf.models.distances import DirectionTerm, RelativeBiasTerm
from csan_hf.models.functional import DenseBias
from csan_hf.models.gaussian import CutOffGaussianTerm, GaussianTerm

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
        expected = _with_gradients(_exactly(mask), [part.double() for part in inputs])
        attends: dict[str, Attend] = {}
        for name, kernel in kernels.items():
            if mask is None:
                attends[name] = _by_kernel(kernel, None)
            elif name != "flash":
                for form in ("boolean", "-inf", "lowest number"):
                    attends[f"{name}, {form}"] = _by_kernel(kernel, _in_form(mask, form))
        padding = None if mask is None or mask.dim() == 2 else _real(inputs[0])
        for name in ("eager", "sdpa", "flash") + (() if mask is None else ("blocked",)):
            window = None if mask is None else 11
            attends[f"csan_hf {name}"] = _by_backend(name, window, padding=padding)
        for name, attend in attends.items():
            if setting.is_over:
                return
            names: Row = {"mask": shape, "tokens": length, "kernel": name}
            yield row_of(names, _errors, attend, inputs, expected)


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


def _with_gradients(attend: Attend, inputs: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of query, key and value, from real queries alone."""
    leaves = [part.detach().requires_grad_() for part in inputs]
    real = _real(inputs[0])[:, None, :, None]
    output = attend(*leaves).masked_fill(~real, 0.0)
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(output.shape, generator=generator).to(torch.bfloat16)
    return [output, *torch.autograd.grad(output, leaves, grad.to(output))]


def _errors(attend: Attend, inputs: list[Tensor], expected: list[Tensor]) -> Row:
    results = _with_gradients(attend, inputs)
    names = ("output", "query", "key", "value")
    return {
        name: relative_error(result, exact.detach().cpu())
        for name, result, exact in zip(names, results, expected, strict=True)
    }


def _exactly(mask: Tensor | None) -> Attend:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        energies = query @ key.transpose(-1, -2) * WIDTH**-0.5
        if mask is not None:
            energies = energies.masked_fill(~mask, float("-inf"))
        return energies.softmax(dim=-1) @ value

    return attend


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
    shared: SharedMasks | None = None,
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
            shared=shared or SharedMasks(),
        )
        if reason := cannot_run(call, backend):
            raise ValueError(reason)
        return run(call, backend)

    return attend


# --- FlashAttention's windows, and FlexAttention, compiled


@dataclass(frozen=True)
class Case:
    """A call; `terms` are made for tensors of the call's sizes."""

    window: int | None = None
    head_area: int = 1
    causal: bool = False
    padding: bool = False
    terms: str = ""


CASES = {
    "window": Case(window=65),
    "window, padding": Case(window=65, padding=True),
    "window, causal": Case(window=65, causal=True),
    "area": Case(window=65, head_area=3),
    "area, padding": Case(window=65, head_area=3, padding=True),
    "area, causal": Case(window=65, head_area=3, causal=True),
    "all positions, padding": Case(padding=True),
    "Gaussian": Case(padding=True, terms="gaussian"),
    "Gaussian, window": Case(window=65, terms="gaussian"),
    "Gaussian, cut off": Case(padding=True, terms="cut_off"),
    "bias of every pair": Case(terms="bias"),
    "directions": Case(padding=True, terms="directions"),
    "relative bias": Case(window=65, terms="relative_bias"),
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
        if backend == "flash" and (case.terms or precision == "float32"):
            continue
        if setting.device == "cpu" and (backend == "flash" or precision != "float32"):
            continue
        names: Row = {"backend": backend, "case": name, "precision": precision}
        yield row_of(names, _kernel_errors, backend, case, dtypes[precision], setting)


def _kernel_errors(backend: str, case: Case, dtype: torch.dtype, setting: Setting) -> Row:
    has_backward = setting.device != "cpu"
    call, leaves = _call_of(case, setting.device, dtype, rounded=dtype, with_backward=has_backward)
    exact, exact_leaves = _call_of(
        case, "cpu", torch.float64, rounded=dtype, with_backward=has_backward
    )
    results: list[Tensor] = []
    first_seconds = seconds_of(
        lambda: results.extend(_output_and_gradients(call, leaves, backend)), setting.device
    )
    expected = _output_and_gradients(exact, exact_leaves, "eager")
    errors = [
        relative_error(value, exact_value.detach())
        for value, exact_value in zip(results, expected, strict=True)
    ]
    return {
        "output": errors[0],
        "worst gradient": max(errors[1:]) if has_backward else None,
        "first call, s": first_seconds,
    }


def _output_and_gradients(call: AttentionCall, leaves: list[Tensor], backend: str) -> list[Tensor]:
    """The output of real queries, and the gradients of the leaves that have one."""
    output = run(call, backend)
    if call.key_padding_mask is not None:
        output = output * call.key_padding_mask[:, None, :, None]
    if not leaves[0].requires_grad:
        return [output]
    grad = torch.linspace(-1, 1, output.numel(), dtype=torch.float64, device=output.device)
    return [output, *torch.autograd.grad(output, leaves, grad.view_as(output).to(output))]


def _call_of(
    case: Case,
    device: str,
    dtype: torch.dtype,
    *,
    rounded: torch.dtype,
    with_backward: bool,
) -> tuple[AttentionCall, list[Tensor]]:
    """The call, and the tensors that gradients are taken of."""
    generator = torch.Generator().manual_seed(0)
    batch, heads, length, width = 2, 4, 300, 32

    def leaf(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        tensor = torch.rand(shape, generator=generator) * scale + shift
        # Rounded as the kernel's input is, also where the computation is exact
        tensor = tensor.to(rounded).to(device, dtype).requires_grad_(with_backward)
        leaves.append(tensor)
        return tensor

    leaves: list[Tensor] = []
    query, key, value = (leaf(batch, heads, length, width, scale=2, shift=-1) for _ in range(3))
    terms: list[Term] = []
    if case.terms in ("gaussian", "cut_off"):
        center = leaf(batch, heads, length, scale=length)
        if case.terms == "gaussian":
            window = leaf(batch, heads, length, scale=length, shift=4)
            terms.append(GaussianTerm(center, window))
        else:
            terms.append(CutOffGaussianTerm(center, center.new_full((1, 1, 1), 20.0)))
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
    for backend, head_area in itertools.product(("flash", "blocked", "flex_attention"), (1, 3)):
        name = f"csan_hf {backend}, heads {head_area}"
        if backend != "flash":
            attends[f"{name}, with its mask"] = _by_backend(backend, window, head_area)
        attends[name] = _by_backend(backend, window, head_area, shared=SharedMasks())
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
    cases = itertools.product((11, 129, None), (1, 3), ("none", "gaussian"), (False, True))
    for window, area, terms, backward in cases:
        slow = {"flex_attention"}
        for length in lengths:
            if setting.is_over:
                return
            if window is None and length > 2048:
                continue
            case = backend_grid.Row(length, window, area, terms, backward)
            names: Row = {
                "length": length,
                "window": str(window),
                "heads": area,
                "terms": terms,
                "pass": "both" if backward else "forward",
            }
            yield row_of(names, _backend_times, case, tokens, slow, setting)


def _backend_times(case: backend_grid.Row, tokens: int, slow: set[str], setting: Setting) -> Row:
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
