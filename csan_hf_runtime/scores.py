# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Which tokens of a translation its score counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def is_scored(
    tokens: np.ndarray, *, ends: ArrayLike | None, special: set[int], padding: int | None
) -> np.ndarray:
    """Returns which of generated tokens [..., T] count: up to the first end, without languages.

    Args:
        tokens: The tokens, without the start of the decoder.
        ends: The tokens that end a sentence, or the one; None = there is none.
        special: Special tokens, perhaps with `ends` and `padding` among them.
        padding: The token of padding, which counts where more follows, so that it was generated;
            None = there is none.
    """
    is_end = np.isin(tokens, [] if ends is None else ends)
    counted = is_end | ~np.isin(tokens, sorted(special - {padding}))
    counted &= is_end.cumsum(axis=-1) - is_end == 0
    is_real = counted & (is_end | (tokens != padding))
    is_within = np.logical_or.accumulate(is_real[..., ::-1], axis=-1)[..., ::-1]
    return counted & is_within
