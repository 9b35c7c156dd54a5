# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Errors and notices of a run, for people."""

import contextlib
import sys
from collections.abc import Iterator

from huggingface_hub.errors import StrictDataclassError

from csan_hf_runtime import is_main_process


class RecipeError(ValueError):
    """A recipe or a command line that cannot be run; the message says where and what to do."""


_MENDABLE: tuple[type[Exception], ...] = (ValueError, OSError, ImportError, StrictDataclassError)


@contextlib.contextmanager
def refusing(what: str, *further: type[Exception]) -> Iterator[None]:
    """Turns the errors that a user can mend, and `further` ones, into a `RecipeError` that begins
    with `what`.
    """
    try:
        yield
    except (*_MENDABLE, *further) as error:
        raise RecipeError(f"{what}: {error}") from error


def notify(text: str) -> None:
    """Prints a notice for people, in the main process."""
    if is_main_process():
        print(text, file=sys.stderr, flush=True)
