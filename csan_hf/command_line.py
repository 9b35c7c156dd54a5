# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What all scripts have in common: how they end when something is wrong."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Mapping
from typing import TextIO

from csan_hf.files import printable

BAD_INPUT = 2
BAD: tuple[type[Exception], ...] = (OSError, ValueError, ImportError)
INTERRUPTED = 128 + 2  # SIGINT, by the shell's convention
BROKEN_PIPE = 128 + 13  # SIGPIPE

Main = Callable[[list[str]], int | None]


def script(errors: Mapping[type[Exception], int] | None = None) -> Callable[[Main], Callable[[list[str]], int]]:
    """Makes the main function of a script end as Unix tools do, with one line on standard error at most.

    Input or output that cannot be read, written or understood (OSError, ValueError) and packages that are not
    installed (ImportError) give one line and status 2. If the reader of standard output leaves (`| head`), the
    script ends silently; a full device or a closed output gives a line. Ctrl-C gives one line and status 130; the
    arguments of the KeyboardInterrupt are added to that line.

    Args:
        errors: Further exceptions that are reported in one line, with their exit status.

    Returns:
        A decorator for `main(arguments)`, which may return None for 0; the result always returns an exit status.
    """
    statuses: dict[type[Exception], int] = {**(errors or {}), **dict.fromkeys(BAD, BAD_INPUT)}

    def decorate(main: Main) -> Callable[[list[str]], int]:
        @functools.wraps(main)
        def run(arguments: list[str]) -> int:
            _replace_closed_streams()
            try:
                try:
                    status = main(arguments) or 0
                except SystemExit:  # of argparse, which has printed its help
                    sys.stdout.flush()
                    raise
                sys.stdout.flush()
            except BrokenPipeError:
                _discard(sys.stdout)
                return BROKEN_PIPE
            except KeyboardInterrupt as stop:
                print(" ".join(["Interrupted.", *map(str, stop.args)]), file=sys.stderr)
                return INTERRUPTED
            except tuple(statuses) as error:
                _discard(sys.stdout)
                _tell(error)
                return next(status for kind, status in statuses.items() if isinstance(error, kind))
            return status

        return run

    return decorate


def _tell(error: Exception) -> None:
    """Prints an error; of several processes, which all meet the same bad input, only one does."""
    if isinstance(error, ValueError) and os.environ.get("LOCAL_RANK", "0") != "0":
        return
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{os.fsdecode(error.filename)}: {error.strerror}"
    print(f"error: {printable(' '.join(text.split()))}", file=sys.stderr)


def _replace_closed_streams() -> None:
    """Puts streams in the place of closed ones: Python has None there, and print() would lose what is printed."""
    if sys.stdout is None:
        # Not open for writing, so that a write fails as it would on the closed one
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _discard(stream: TextIO) -> None:
    """Discards what a stream has buffered and cannot write, so that Python does not try again when it exits."""
    try:
        stream.flush()
    except OSError:
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
