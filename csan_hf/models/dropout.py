# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Dropout whose random numbers cost a CPU little."""

import torch
import torch.nn.functional as F

_DRAWS = 2**16
_FEWEST = 8192  # elements from which on the cheaper numbers pay for the operations around them


def drop(states: torch.Tensor, probability: float, training: bool = True) -> torch.Tensor:
    """`torch.nn.functional.dropout` with fewer random numbers on a CPU.

    Elsewhere, in compiled programs and for few elements it is torch's. On a CPU the probability is rounded to
    1 / 65536, and what is kept is scaled to match.

    Args:
        states: Floating-point tensor of any shape.
        probability: Probability of an element to become zero, 0 to 1.
        training: False returns `states` as they are.
    """
    if not training or probability == 0.0:
        return states
    if not _draws_itself(states, probability):
        return F.dropout(states, probability, training=True)
    return scale_kept(states, draw_kept(states, probability), probability)


def _draws_itself(states: torch.Tensor, probability: float) -> bool:
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active():
        return False  # torch's own is one operation that a compiler, a tracer and torch.func's vmap know
    plain = type(states) is torch.Tensor and states.device.type == "cpu" and 0 < probability < 1
    return plain and states.numel() >= _FEWEST and 0 < round(probability * _DRAWS) < _DRAWS


def draw_kept(states: torch.Tensor, probability: float) -> torch.Tensor:
    """Which elements dropout keeps: 1, or 0 for those that it drops, in int16.

    A 64-bit draw serves four elements: random numbers are most of what dropout costs. The probability is rounded to
    1 / 65536.
    """
    count, dropped = states.numel(), round(probability * _DRAWS)
    if dropped == _DRAWS:
        return torch.zeros_like(states, dtype=torch.int16)
    draws = torch.empty(-(-count // 4), dtype=torch.int64, device=states.device).random_(-(2**63), None)
    # In place and in integers: a result of booleans costs a CPU more than the draws
    return draws.view(torch.int16)[:count].ge_(dropped - _DRAWS // 2).view(states.shape)


def scale_kept(states: torch.Tensor, kept: torch.Tensor, probability: float) -> torch.Tensor:
    """The kept elements, scaled up so that the mean stays, and zeros for the others."""
    scale = _DRAWS / max(_DRAWS - round(probability * _DRAWS), 1)
    return states * kept.to(states.dtype) * scale
