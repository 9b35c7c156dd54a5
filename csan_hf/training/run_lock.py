"""One run in a folder at a time."""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from .options import RecipeError
from .stopping import is_disk_full

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = "_run.lock"
"""File in a run's folder that says who is training there; uploads leave out its like."""

_HELD = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Holds a folder for one run, and makes it if it is not there.

    What holds is a POSIX record lock on a file in the folder, not the file itself: the kernel gives it back when the
    process ends, also by kill -9, and passes it on to the server of a network file system (NFS 4, NFS 3 with lockd).
    It is told apart by process, so that neither another host name in a container nor a reused process id misleads it;
    and forked children, such as data workers that outlive the main process for some seconds, do not have it (with
    flock, which filelock uses, they do).

    Where the system or the file system has no locks, a line says so and the run goes on.

    Args:
        folder: of the run.

    Raises:
        RecipeError: if another process holds it, with what that wrote about itself; or if it cannot be written to.
        OSError: if the disk is full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _open(folder / LOCK_FILE)
    except OSError as error:
        if is_disk_full(error):
            raise
        raise RecipeError(
            f"{folder} cannot be written to ({error.strerror}): change that, or choose another --output_dir."
        ) from error
    try:
        _lock(descriptor, folder)
        with contextlib.suppress(OSError):  # a full disk; what it says is for people alone
            os.ftruncate(descriptor, 0)
            os.write(descriptor, _describe_this_process().encode())
        try:
            yield
        finally:
            (folder / LOCK_FILE).unlink(missing_ok=True)  # while it is held: see _is_current
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    follows_no_link = getattr(os, "O_NOFOLLOW", 0)  # what it leads to would be emptied
    return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | follows_no_link, 0o666)


def _lock(descriptor: int, folder: Path) -> None:
    """Takes the lock at once or not at all."""
    if fcntl is None:
        return
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS_HERE:
            print(
                f"{folder} lies on a file system without locks ({error.strerror}): let no other run use it.",
                file=sys.stderr,
                flush=True,
            )
            return
        if error.errno not in _HELD:
            raise
        owner = os.pread(descriptor, 1000, 0).decode(errors="replace").strip() or "another process"
        raise RecipeError(
            f"{folder} is in use by {owner}: wait for it or end it, then start the same command again; or choose "
            "another --output_dir."
        ) from error
    if not _is_current(descriptor, folder / LOCK_FILE):
        raise RecipeError(f"{folder} was in use until now: start the same command again.")


def _is_current(descriptor: int, path: Path) -> bool:
    """Says whether a file is still the one of that name: whoever gave the lock back has deleted the file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _describe_this_process() -> str:
    now = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    return f"process {os.getpid()} on {platform.node()} since {now}\n"
