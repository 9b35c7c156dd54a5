# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The backends of local attention beside each other: which one `None` chooses, and what each takes.

A row is one call: a length, a window, an area of heads, terms, forward alone or with backward.
Every backend that can run it runs once, and all must agree; those within three times the fastest
run further rounds in turn. A backend of all pairs that took more than three times the fastest at
one length is not tried at a longer one; blocks take as long for short texts as for long ones. Times
are the least of the rounds; compare those of a processor with one thread."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from measuring import Row, seconds_of
from torch import Tensor

from csan_hf.models.attention_call import AttentionCall, KeyArea, Term
from csan_hf.models.backends import BACKENDS, cannot_run, fastest_backend, run
from csan_hf.models.distances import DirectionTerm, RelativeBiasTerm, RelativePositionTerm
from csan_hf.models.functional import DenseBias
from csan_hf.models.gaussian import CutOffGaussianTerm, GaussianTerm

LENGTHS = (25, 64, 128, 512, 2048, 8192)
WINDOWS = (11, 129, None)
AREAS = (1, 3)
TERMS = ("none", "gaussian", "rel_pos", "both")
HEADS = 4
HEAD_WIDTH = 64
TOKENS = 1024
_SLOW = 3.0
_ALL_PAIRS = ("eager", "chunked", "flex_attention")
_LONGEST_WITHOUT_WINDOW = 2048


@dataclass(frozen=True)
class Case:
    """A call; `window` None is the whole sentence.

    `terms` are those of `TERMS`, or "cut_off", "bias", "directions", "relative_bias".
    """

    length: int
    window: int | None = None
    area: int = 1
    terms: str = "none"
    backward: bool = False
    causal: bool = False
    padding: bool = True

    def cells(self) -> Row:
        """The cells of a row that say what the call is."""
        return {
            "length": self.length,
            "window": str(self.window),
            "heads": self.area,
            "terms": self.terms,
            "pass": "both" if self.backward else "forward",
        }


def cases(lengths: Sequence[int], terms: Sequence[str]) -> Iterator[tuple[Case, set[str]]]:
    """All calls, each with the backends that are too slow for it: one set for those that differ
    only in length, which follow one another.
    """
    for window, area, names, backward in itertools.product(WINDOWS, AREAS, terms, (False, True)):
        slow: set[str] = set()
        for length in lengths:
            if window is not None or length <= _LONGEST_WITHOUT_WINDOW:
                yield Case(length, window, area, names, backward), slow


def rows(rounds: int, only: str = "") -> Iterator[Row]:
    """Rows of a processor, for the cases whose text contains `only`: "window=11, area=3"."""
    for case, slow in cases(LENGTHS, TERMS):
        if only in str(case):
            yield case.cells() | milliseconds_of(case, "cpu", torch.float32, rounds, slow)


def milliseconds_of(
    case: Case,
    device: str,
    dtype: torch.dtype,
    rounds: int,
    slow: set[str],
    *,
    tokens: int = TOKENS,
) -> Row:
    """Milliseconds of all backends but the `slow`, and the one chosen; adds to `slow` what is not
    to be tried at greater lengths.
    """
    call, leaves = make_call(case, device, dtype, tokens)

    def step(name: str) -> None:
        # The masks are shared with the call before, as with the layer before in a model
        output = run(call, name)
        if case.backward:
            torch.autograd.grad(output, leaves, torch.ones_like(output))

    def seconds(name: str) -> float:
        return seconds_of(partial(step, name), device)

    with torch.set_grad_enabled(case.backward):
        chosen = fastest_backend(call)
        names = [name for name in BACKENDS if name == chosen or name not in slow]
        names = [name for name in names if cannot_run(call, name) is None]
        check_outputs(call, names, case)
        if device != "cpu":  # kernels are compiled and memory is taken in the first call
            for name in names:
                seconds(name)
        times = {name: seconds(name) for name in names}
        for _ in range(rounds):
            best = min(times.values())
            for name in names:
                if times[name] <= _SLOW * best or name == chosen:
                    times[name] = min(times[name], seconds(name))
    best = min(times.values())
    slow.update(name for name in _ALL_PAIRS if times.get(name, 0.0) > _SLOW * best)
    row: Row = {name: 1e3 * times[name] if name in times else None for name in BACKENDS}
    return {**row, "chosen": chosen, "chosen / best": times[chosen] / best}


def make_call(
    case: Case, device: str, dtype: torch.dtype, tokens: int, *, exact: bool = False
) -> tuple[AttentionCall, list[Tensor]]:
    """The call of a case with about so many tokens, and the tensors that gradients are taken of.

    `exact` gives the same numbers in float64.
    """
    generator = torch.Generator().manual_seed(0)
    length = case.length
    batch = max(1, tokens // length)
    leaves: list[Tensor] = []

    def leaf(
        *shape: int, scale: float = 1.0, shift: float = 0.0, precision: torch.dtype = dtype
    ) -> Tensor:
        tensor = torch.rand(shape, generator=generator) * scale + shift
        tensor = tensor.to(dtype).to(device, torch.float64 if exact else precision)
        leaves.append(tensor.requires_grad_(case.backward))
        return tensor

    # As the projections give them: [B, T, H, D], heads and positions changed over
    parts = [leaf(batch, length, HEADS, HEAD_WIDTH, scale=2, shift=-1) for _ in range(3)]
    query, key, value = (part.transpose(1, 2) for part in parts)
    terms: list[Term] = []
    if case.terms in ("gaussian", "both", "cut_off"):
        center = leaf(batch, HEADS, length, scale=length, precision=torch.float32)
    if case.terms in ("gaussian", "both"):
        # Not so narrow that energies are too large for float32
        width = leaf(batch, HEADS, length, scale=length, shift=length / 4, precision=torch.float32)
        terms.append(GaussianTerm(center, width))
    if case.terms in ("rel_pos", "both"):
        energies = leaf(batch, HEADS, length, 33, precision=torch.float32)
        terms.append(RelativePositionTerm(energies, leaf(33, HEAD_WIDTH)))
    if case.terms == "cut_off":
        terms.append(CutOffGaussianTerm(center, center.new_full((1, 1, 1), 20.0)))
    if case.terms == "bias":
        terms.append(DenseBias(leaf(batch, HEADS, length, length)))
    if case.terms == "directions":
        terms.append(DirectionTerm(HEADS // 2))
    if case.terms == "relative_bias":
        terms.append(RelativeBiasTerm(leaf(HEADS, 32), 128, False))
    padding = None
    if case.padding and batch > 1:
        lengths = torch.randint(4 * length // 5, length + 1, (batch, 1), generator=generator)
        lengths[0] = length
        padding = (torch.arange(length) < lengths).to(device)
    call = AttentionCall(
        query,
        key,
        value,
        area=KeyArea(case.window, case.area, causal=case.causal),
        scale=HEAD_WIDTH**-0.5,
        key_padding_mask=padding,
        is_self_attention=True,
        terms=terms,
    )
    return call, leaves


def check_outputs(call: AttentionCall, names: list[str], case: Case) -> None:
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
            raise ValueError(f"{case}: {name} and {names[0]} differ by {difference:.1e}.")
