# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Optional packages: what brings them where they are missing."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Lets imports of optional packages fail with the command that installs them.

    Args:
        extra: Name of csan_hf's extra that brings the packages: train, lab, demo, onnx.

    Raises:
        ImportError: A package is missing that is imported within.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "csan_hf").startswith("csan_hf"):
            raise
        raise ImportError(
            f"{error.name} is not installed: pip install 'csan_hf[{extra}]', in a checkout "
            f"'.[{extra}]'"
        ) from error
