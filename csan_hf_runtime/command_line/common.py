# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Shared by commands: types of options, lines beside progress bars."""

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    NonNegativeInt: TypeAlias = int
    NotEmptyStr: TypeAlias = str
    PositiveInt: TypeAlias = int
else:
    from jsonargparse.typing import NonNegativeInt, NotEmptyStr, PositiveInt

__all__ = ["ModelOptions", "NonNegativeInt", "NotEmptyStr", "PositiveInt", "beside_bars"]


@dataclass(frozen=True)
class ModelOptions:
    """How models are loaded.

    Attributes:
        device: cpu, cuda, cuda:1... (default: the GPU if there is one)
        dtype: type of the weights and of the computation
        trust_remote_code: run model code from the checkpoint
        quiet: no progress bar
    """

    device: str | None = None
    dtype: Literal["bfloat16", "float16", "float32"] = "float32"
    trust_remote_code: bool = False
    quiet: bool = False

    def for_loading(self) -> dict[str, Any]:
        """The arguments of `csan_hf.evaluation.loading`."""
        return {
            "device": self.device,
            "dtype": self.dtype,
            "trust_remote_code": self.trust_remote_code,
            "progress": not self.quiet,
        }


def beside_bars() -> AbstractContextManager[Any]:
    """A context for writing lines while bars are shown: on a terminal it clears the bars."""
    if sys.stdout is not None and sys.stdout.isatty():
        from tqdm.auto import tqdm

        return tqdm.external_write_mode()
    return nullcontext()
