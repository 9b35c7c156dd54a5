# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The backends of local attention beside each other: which one `None` chooses, and what each takes.

A row is one call: a length, a window, an area of heads, terms, forward alone or with backward.
Every backend that can run it runs once, and all must agree; those within three times the fastest
run further rounds in turn. A backend that took more than three times the fastest at one length is
not tried at a longer one, as its time grows no more slowly. Times are the processor's (on a GPU the
clock's), the least of the rounds; compare them with one thread."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from measuring import machine, processor_seconds, seconds_of
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

    def named(self) -> str:
        """The cells of the table that say what the call is."""
        direction = "forward and backward" if self.backward else "forward"
        return (
            f"{self.length:,} | {self.window or 'none'} | {self.area} | {self.terms} | {direction}"
        )

    @property
    def without_length(self) -> "Case":
        """What calls have in common that differ only in length."""
        return replace(self, length=0)


def cases(lengths: Sequence[int], terms: Sequence[str]) -> Iterator[Case]:
    """All calls; those that differ only in length follow one another."""
    for window, area, names, backward in itertools.product(WINDOWS, AREAS, terms, (False, True)):
        for length in lengths:
            if window is not None or length <= _LONGEST_WITHOUT_WINDOW:
                yield Case(length, window, area, names, backward)


def print_grid(rounds: int, only: str = "") -> None:
    """Prints the table of a processor row by row, and the worst ratio."""
    print(f"{HEADS} heads of width {HEAD_WIDTH}, about {TOKENS:,} tokens; float32; {machine()}\n")
    print("| length | window | area | terms | pass | chosen | ms | chosen / best | others, ms |")
    print("| ---: | ---: | ---: | --- | --- | --- | ---: | ---: | --- |")
    ratios: dict[str, float] = {}
    slow: dict[Case, set[str]] = defaultdict(set)
    for case in cases(LENGTHS, TERMS):
        if only not in case.named():
            continue
        slow_backends = slow[case.without_length]
        chosen, times = measure(case, "cpu", torch.float32, rounds, slow_backends)
        best = min(times.values())
        beside = {name: seconds for name, seconds in times.items() if name != chosen}
        slow_backends |= {name for name, seconds in beside.items() if seconds > _SLOW * best}
        others = ", ".join(f"{name} {1e3 * seconds:.2f}" for name, seconds in beside.items())
        ratio = times[chosen] / best
        print(
            f"| {case.named()} | {chosen} | {1e3 * times[chosen]:.2f} | {ratio:.2f} | "
            f"{others or '-'} |",
            flush=True,
        )
        ratios[case.named()] = ratio
    worst = max(ratios, key=lambda name: ratios[name])
    above = sum(ratio > 1.1 for ratio in ratios.values())
    print(f"\n{len(ratios)} rows; {above} above 1.10; the worst is {ratios[worst]:.2f}: {worst}")


def measure(
    case: Case,
    device: str,
    dtype: torch.dtype,
    rounds: int,
    skipped: set[str],
    *,
    tokens: int = TOKENS,
) -> tuple[str, dict[str, float]]:
    """The backend chosen, and the seconds of it and of all others but the `skipped`."""
    call, leaves = make_call(case, device, dtype, tokens)

    def seconds(name: str) -> float:
        def step() -> None:
            # The masks are shared with the call before, as with the layer before in a model
            output = run(call, name)
            if case.backward:
                torch.autograd.grad(output, leaves, torch.ones_like(output))

        return processor_seconds(step) if device == "cpu" else seconds_of(step, device)

    with torch.set_grad_enabled(case.backward):
        chosen = fastest_backend(call)
        names = [name for name in BACKENDS if name == chosen or name not in skipped]
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
    return chosen, times


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
            raise ValueError(f"{case.named()}: {name} and {names[0]} differ by {difference:.1e}.")
