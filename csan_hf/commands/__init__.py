# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The functions behind `csan-hf`, whose table is in `csan_hf_runtime.command_line`."""

from collections.abc import Collection

from csan_hf_runtime.text_files import VARIANTS


def join_references(files: list[Collection[str]]) -> Collection[str]:
    """Returns the references of each line, of one file or several."""
    if len(files) == 1:
        return files[0]
    return [VARIANTS.join(variants) for variants in zip(*files, strict=True)]
