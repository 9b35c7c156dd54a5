# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The functions behind `csan-hf`; its table and its way to read their signatures are in csan_hf_cli.py."""

from collections.abc import Collection
from pathlib import Path
from typing import Literal

from csan_hf.text_files import open_lines

Dtype = Literal["bfloat16", "float16", "float32"]


def open_parallel(*paths: Path | str) -> list[Collection[str]]:
    """Opens files whose lines belong together.

    Raises:
        ValueError: They have not the same number of lines.
    """
    files = [open_lines(path) for path in paths]
    for path, lines in zip(paths[1:], files[1:], strict=True):
        if len(lines) != len(files[0]):
            raise ValueError(
                f"{paths[0]} has {len(files[0])} lines and {path} has {len(lines)}: they must have the same number."
            )
    return files
