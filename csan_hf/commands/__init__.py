# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The functions behind `csan-hf`; csan_hf_cli.py holds their table and reads their signatures."""

import sys
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tqdm.auto import tqdm

from csan_hf.data.readers import check_parallel
from csan_hf_runtime.text_files import VARIANTS, open_lines

if TYPE_CHECKING:
    NonNegativeInt: TypeAlias = int
    NotEmptyStr: TypeAlias = str
    PositiveInt: TypeAlias = int
else:
    from jsonargparse.typing import NonNegativeInt, NotEmptyStr, PositiveInt

__all__ = [
    "Dtype",
    "NonNegativeInt",
    "NotEmptyStr",
    "PositiveInt",
    "beside_bars",
    "join_references",
    "open_parallel",
]

Dtype = Literal["bfloat16", "float16", "float32"]


def beside_bars() -> AbstractContextManager[Any]:
    """A context for writing lines while bars are shown: on a terminal it clears the bars."""
    if sys.stdout is not None and sys.stdout.isatty():
        return tqdm.external_write_mode()
    return nullcontext()


def open_parallel(*paths: Path | str) -> list[Collection[str]]:
    """Opens files whose lines belong together.

    Raises:
        ValueError: Their numbers of lines differ.
    """
    files = [open_lines(path) for path in paths]
    for path, lines in zip(paths[1:], files[1:], strict=True):
        check_parallel((paths[0], path), (files[0], lines))
    return files


def join_references(files: list[Collection[str]]) -> Collection[str]:
    """Returns the references of each line, of one file or several."""
    if len(files) == 1:
        return files[0]
    return [VARIANTS.join(variants) for variants in zip(*files, strict=True)]
