# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What several commands take and write: types of their options, lines beside progress bars."""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    NonNegativeInt: TypeAlias = int
    NotEmptyStr: TypeAlias = str
    PositiveInt: TypeAlias = int
else:
    from jsonargparse.typing import NonNegativeInt, NotEmptyStr, PositiveInt

__all__ = ["Dtype", "NonNegativeInt", "NotEmptyStr", "PositiveInt", "beside_bars"]

Dtype = Literal["bfloat16", "float16", "float32"]


def beside_bars() -> AbstractContextManager[Any]:
    """A context for writing lines while bars are shown: on a terminal it clears the bars."""
    if sys.stdout is not None and sys.stdout.isatty():
        from tqdm.auto import tqdm

        return tqdm.external_write_mode()
    return nullcontext()
