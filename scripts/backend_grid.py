# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The backends of local attention beside each other: which one `None` chooses, and what each takes.

A row is one call: a length, a window, an area of heads, terms, forward alone or with backward.
Every backend that can run it runs once, and all must agree; those within three times the fastest
run further rounds in turn. A backend that took more than three times the fastest at one length is
not tried at a longer one, as its time grows no more slowly. Times are the processor's (on a GPU the
clock's), the least of the rounds; compare them with one thread."""

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from measuring import machine, seconds_of
from torch import Tensor

from csan_hf.models.attention_call import AttentionCall, KeyArea
from csan_hf.models.backends import BACKENDS, cannot_run, fastest_backend, run
from csan_hf.models.distances import RelativePositionTerm
from csan_hf.models.gaussian import GaussianTerm

LENGTHS = (25, 64, 128, 512, 2048, 8192)
WINDOWS = (11, 129, None)
AREAS = (1, 3)
TERMS = ("none", "gaussian", "rel_pos", "both")
HEADS = 4
HEAD_WIDTH = 64
TOKENS = 1024
_SLOW = 3.0
_LONGEST_WITHOUT_WINDOW = 2048


@dataclass(frozen=True)
class Row:
    """One call of the grid; `window` None is the whole sentence."""

    length: int
    window: int | None
    area: int
    terms: str
    backward: bool

    def named(self) -> str:
        """The cells of the table that say what the row is."""
        direction = "forward and backward" if self.backward else "forward"
        return (
            f"{self.length:,} | {self.window or 'none'} | {self.area} | {self.terms} | {direction}"
        )


def rows(only: str | None) -> Iterator[Row]:
    """All rows; those that differ only in length follow one another."""
    for window, area, terms, backward in itertools.product(WINDOWS, AREAS, TERMS, (False, True)):
        for length in LENGTHS:
            row = Row(length, window, area, terms, backward)
            if (window is not None or length <= _LONGEST_WITHOUT_WINDOW) and (
                only is None or only in row.named()
            ):
                yield row


def print_grid(device: str, dtype: str, rounds: int, only: str | None = None) -> None:
    """Prints the table row by row, and the worst ratio."""
    print(
        f"{HEADS} heads of width {HEAD_WIDTH}, about {TOKENS:,} tokens; {dtype}; "
        f"{machine(device)}\n"
    )
    print("| length | window | area | terms | pass | chosen | ms | chosen / best | others, ms |")
    print("| ---: | ---: | ---: | --- | --- | --- | ---: | ---: | --- |")
    ratios: dict[str, float] = {}
    slow: dict[Row, set[str]] = defaultdict(set)
    for row in rows(only):
        slow_backends = slow[replace(row, length=0)]
        chosen, times = measure(row, device, getattr(torch, dtype), rounds, slow_backends)
        best = min(times.values())
        beside = {name: seconds for name, seconds in times.items() if name != chosen}
        slow_backends |= {name for name, seconds in beside.items() if seconds > _SLOW * best}
        others = ", ".join(f"{name} {1e3 * seconds:.2f}" for name, seconds in beside.items())
        ratio = times[chosen] / best
        print(
            f"| {row.named()} | {chosen} | {1e3 * times[chosen]:.2f} | {ratio:.2f} | "
            f"{others or '-'} |",
            flush=True,
        )
        ratios[row.named()] = ratio
    worst = max(ratios, key=lambda name: ratios[name])
    above = sum(ratio > 1.1 for ratio in ratios.values())
    print(f"\n{len(ratios)} rows; {above} above 1.10; the worst is {ratios[worst]:.2f}: {worst}")


def measure(
    row: Row,
    device: str,
    dtype: torch.dtype,
    rounds: int,
    skipped: set[str],
    *,
    tokens: int = TOKENS,
) -> tuple[str, dict[str, float]]:
    """The backend chosen, and the seconds of it and of all others but the `skipped`."""
    call, leaves = make_row(row, device, dtype, tokens)

    def seconds(name: str) -> float:
        start = time.process_time()
        taken = seconds_of(lambda: _step(call, leaves, name, row.backward), device)
        return taken if device != "cpu" else time.process_time() - start

    with torch.set_grad_enabled(row.backward):
        chosen = fastest_backend(call)
        names = [name for name in BACKENDS if name == chosen or name not in skipped]
        names = [name for name in names if cannot_run(call, name) is None]
        check_outputs(call, names, row)
        if device != "cpu":  # kernels are compiled and memory is taken in the first call
            for name in names:
                seconds(name)
        times = {name: seconds(name) for name in names}
        for _ in range(rounds):
            best = min(times.values())
            for name in names:
                if times[name] <= _SLOW * best or name == chosen:
                    times[name] = min(times[name], seconds(name))
    return chosen, times


def make_row(
    row: Row, device: str, dtype: torch.dtype, tokens: int
) -> tuple[AttentionCall, list[Tensor]]:
    """The call of a row with about so many tokens, and the tensors that gradients are taken of."""
    generator = torch.Generator().manual_seed(0)
    batch = max(1, tokens // row.length)

    def leaf(*shape: int, scale: float = 1.0, shift: float = 0.0, exact: bool = False) -> Tensor:
        tensor = torch.rand(shape, generator=generator) * scale + shift
        return tensor.to(device, torch.float32 if exact else dtype).requires_grad_(row.backward)

    # As the projections give them: [B, T, H, D], heads and positions changed over
    parts = [leaf(batch, row.length, HEADS, HEAD_WIDTH, scale=2, shift=-1) for _ in range(3)]
    leaves = list(parts)
    terms: list[Any] = []
    if row.terms in ("gaussian", "both"):
        center = leaf(batch, HEADS, row.length, scale=row.length, exact=True)
        # Not so narrow that energies are too large for float32
        width = leaf(batch, HEADS, row.length, scale=row.length, shift=row.length / 4, exact=True)
        terms.append(GaussianTerm(center, width))
        leaves += [center, width]
    if row.terms in ("rel_pos", "both"):
        energies = leaf(batch, HEADS, row.length, 33, exact=True)
        values = leaf(33, HEAD_WIDTH)
        terms.append(RelativePositionTerm(energies, values))
        leaves += [energies, values]
    lengths = torch.randint(4 * row.length // 5, row.length + 1, (batch, 1), generator=generator)
    lengths[0] = row.length
    padding = (torch.arange(row.length) < lengths).to(device) if batch > 1 else None
    query, key, value = (part.transpose(1, 2) for part in parts)
    call = AttentionCall(
        query,
        key,
        value,
        area=KeyArea(row.window, row.area),
        scale=HEAD_WIDTH**-0.5,
        key_padding_mask=padding,
        is_self_attention=True,
        terms=terms,
    )
    return call, leaves


def check_outputs(call: AttentionCall, names: list[str], row: Row) -> None:
    """Raise `ValueError` where two backends disagree: times of wrong results are worth nothing.
    Warms up, too.
    """
    real = call.key_padding_mask
    rows = slice(None) if real is None else real[:, None].expand(call.query.shape[:3])
    with torch.no_grad():
        outputs = [run(call, name)[rows].float() for name in names]
    tolerance = 1e-4 if call.query.dtype == torch.float32 else 3e-2
    for name, output in zip(names, outputs, strict=True):
        difference = (output - outputs[0]).abs().max().item()
        if not difference <= tolerance:
            raise ValueError(f"{row.named()}: {name} and {names[0]} differ by {difference:.1e}.")


def _step(call: AttentionCall, leaves: list[Tensor], name: str, backward: bool) -> None:
    # The masks are shared with the call before, as with the layer before in a model
    output = run(call, name)
    if backward:
        torch.autograd.grad(output, leaves, torch.ones_like(output))
