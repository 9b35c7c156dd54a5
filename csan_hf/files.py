# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Writing files so that nothing is left half-written, reading text so that line n stays line n, and safe names."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import io
import json
import os
import pickle
import re
import secrets
import stat
import sys
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

STANDARD_STREAM = "-"
"""Standard input where a file is read, standard output where one is written, as Unix tools have it."""

_RESERVED_ON_WINDOWS = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)
_STANDARD = {"/dev/stdout": 1, "/dev/stderr": 2}
_MOST_LINKS = 40  # as Linux follows
_LONGEST_NAME = 200  # bytes; most file systems allow 255, with what is put before and behind

# ---- writing


@contextmanager
def open_for_writing(path: Path | str, *, binary: bool = False, keep_partial: bool = False) -> Iterator[IO[Any]]:
    """Opens a file for writing, so that its name never stands for half of a content.

    A regular file is written under a temporary name beside it, `.NAME.DIGITS`, which takes the file's name when the
    block ends and is deleted if the block raises; what stood there before stays until then. The new file has the
    permissions and the owner of the one that it replaces, or what the umask says. A symbolic link is followed. A
    device, a pipe and standard output (`/dev/stdout`, `/dev/fd/N`) are written to as they are.

    Args:
        path: The file; its folder is created if missing. The string "-" stands for standard output.
        binary: Whether bytes are written instead of UTF-8 text with line feeds.
        keep_partial: If the block raises, what it has written stays as `partial_name` of the path.

    Raises:
        OSError: If it cannot be written; a folder is never replaced.
    """
    if path == STANDARD_STREAM:
        yield _standard_output(binary)
        sys.stdout.flush()
        return
    path = Path(path)
    kind: dict[str, Any] = {"mode": "wb"} if binary else {"mode": "w", "encoding": "utf-8", "newline": "\n"}
    descriptor = _open_descriptor(path)
    if descriptor is not None:
        with open(os.dup(descriptor), **kind) as file:
            yield file
        return
    before = _stat(path)
    if before is not None and not stat.S_ISREG(before.st_mode):
        with open(path, **kind) as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{_shortened(target.name)}.{secrets.randbelow(10**12):012d}")
    try:
        new = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less what the umask takes away
        with open(new, **kind) as file:
            if before is not None:
                _copy_permissions(before, temporary)
            yield file
        os.replace(temporary, target)
    except BaseException as error:
        # A full disk does not say which; any other error of the block may be about something else
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
            error.filename = str(path)
        if keep_partial and temporary.exists() and temporary.stat().st_size > 0:
            os.replace(temporary, partial_name(path))
        raise
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: Path | str) -> None:
    """Checks that `open_for_writing` can make a file, before the work whose result is written to it.

    Args:
        path: The file; nothing is written to it, and no folder made.

    Raises:
        OSError: If it is a folder, or the folder that it is to lie in cannot be written to or made.
    """
    if path == STANDARD_STREAM or _open_descriptor(Path(path)) is not None:
        return
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_dir() and not target.is_file():  # a device or a pipe
        return
    folder = next(parent for parent in target.parents if parent.exists())
    if target.is_dir():
        problem = errno.EISDIR
    elif not folder.is_dir():
        problem = errno.ENOTDIR
    elif not os.access(folder, os.W_OK | os.X_OK):
        problem = errno.EACCES
    else:
        return
    raise OSError(problem, os.strerror(problem), str(path))


def _standard_output(binary: bool) -> IO[Any]:
    if binary:
        return sys.stdout.buffer
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    return sys.stdout


def partial_name(path: Path | str) -> Path:
    """Returns the name `FILE.partial` under which `open_for_writing` keeps half of a file."""
    target = Path(os.path.realpath(path))
    return target.with_name(f"{_shortened(target.name)}.partial")


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _open_descriptor(path: Path) -> int | None:
    """Returns the descriptor of this process that a path leads to; opening it anew would forget its position."""
    name = os.path.abspath(path)
    for _ in range(_MOST_LINKS):
        if match := re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", name):
            return int(match[1])
        if name in _STANDARD:
            return _STANDARD[name]
        if not os.path.islink(name):
            break
        name = os.path.normpath(os.path.join(os.path.dirname(name), os.readlink(name)))
    return None


def _shortened(name: str) -> str:
    """Shortens a name to leave room for a prefix and a suffix; most file systems allow 255 bytes."""
    return os.fsdecode(os.fsencode(name)[:200])


def _copy_permissions(before: os.stat_result, path: Path) -> None:
    with contextlib.suppress(PermissionError, AttributeError):  # only root may give files away; Windows has no owners
        os.chown(path, before.st_uid, before.st_gid)
    os.chmod(path, stat.S_IMODE(before.st_mode))


def apply_umask(paths: Iterable[Path]) -> None:
    """Gives files the permissions of the umask; safetensors writes its own for the owner alone."""
    for path in paths:
        probe = path.with_name(f".{_shortened(path.name)}.{secrets.randbelow(10**12):012d}")
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        mode = stat.S_IMODE(probe.stat().st_mode)
        probe.unlink()
        path.chmod(mode)


def write_text(path: Path | str, text: str) -> None:
    """Writes a UTF-8 file; see `open_for_writing`."""
    with open_for_writing(path) as file:
        file.write(text)


def write_bytes(path: Path | str, content: bytes) -> None:
    """Writes a file as it is; see `open_for_writing`."""
    with open_for_writing(path, binary=True) as file:
        file.write(content)


def write_lines(path: Path | str, lines: Iterable[str]) -> None:
    """Writes one sentence a line, as they come; a line break inside a sentence becomes a space."""
    with open_for_writing(path) as file:
        file.writelines(f"{one_line(line)}\n" for line in lines)


def one_line(text: str) -> str:
    """Returns a text with a space for each line break of any kind."""
    return " ".join(text.splitlines())


def digest_of_lines(lines: Iterable[str]) -> str:
    """Returns the SHA-256 of a file that `write_lines` would write."""
    return hashlib.sha256("".join(f"{one_line(line)}\n" for line in lines).encode()).hexdigest()


def printable(text: str) -> str:
    """Returns a text in which what has no picture, such as a line feed, is written as "\\n"."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def write_json(path: Path | str, value: Any) -> None:
    """Writes indented JSON, keys in the order given."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


# ---- names


# What some system does not take, and what a terminal obeys: control characters and those that turn the direction
_NOT_IN_NAMES = re.compile(r"[/\\:*?\"<>|\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def check_file_name(name: Any, what: str) -> str:
    """Returns a name from a recipe or a checkpoint, if it can only mean a file in the folder that it is used in.

    Args:
        name: The name.
        what: How an error names it, for example "the test set".

    Raises:
        ValueError: If it is empty, hidden or too long, leads elsewhere, or is not a valid file name on every system.
    """
    shown = f"{what} {str(name)[:80]!r}"
    if not isinstance(name, str) or not name:
        raise ValueError(f"{shown} must be a name, of letters, digits and _.-")
    if _NOT_IN_NAMES.search(name) or name.startswith((".", "~")) or name.endswith((" ", ".")):
        raise ValueError(f"{shown} cannot be the name of a file: use letters, digits and _.-")
    if _RESERVED_ON_WINDOWS.fullmatch(name):
        raise ValueError(f"{shown} is the name of a device on Windows: choose another")
    if len(name.encode("utf-8", errors="surrogateescape")) > _LONGEST_NAME:
        raise ValueError(f"{shown}... is too long for the name of a file: use at most {_LONGEST_NAME} bytes")
    return name


def path_inside(folder: Path | str, *names: str) -> Path:
    """Returns the path of a file inside a folder; links in the folder must not lead out of it.

    Raises:
        ValueError: If a name is not valid (`check_file_name`), or if the path leads elsewhere.
    """
    path = Path(folder, *(check_file_name(name, "the file") for name in names))
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise ValueError(f"{path} is a link that leads out of {folder}: remove it.")
    return path


# ---- reading

LONGEST_LINE = 2**26
"""In bytes; a file with longer lines is hardly text, and could fill the memory."""


def check_folder_or_name(name: str | os.PathLike, what: str) -> None:
    """Checks a folder or a name on the Hub, as far as that is possible without asking the Hub.

    Args:
        name: The folder or name.
        what: What it should be, for the message: "model".

    Raises:
        FileNotFoundError: It can only be a folder, or lies in one that is here, and does not exist.
    """
    path = Path(name).expanduser()
    if path.exists():
        return
    # A name on the Hub is OWNER/NAME
    is_path = path.is_absolute() or str(name).startswith((".", "~")) or len(path.parts) > 2
    if is_path or (len(path.parts) == 2 and path.parent.is_dir()):
        raise FileNotFoundError(f"There is no folder {name} to read the {what} from.")


@contextmanager
def reading_folder_or_name(name: str | os.PathLike, what: str) -> Iterator[None]:
    """Makes errors in its body name the folder or the name on the Hub that could not be read.

    Args:
        name: The folder or name.
        what: What is read, for the message: "model".

    Raises:
        FileNotFoundError: There is no such folder; see `check_folder_or_name`.
        OSError: The name is not on the Hub, or the Hub is out of reach. Or its weights are damaged, or a pickle that
            would run code.
    """
    from safetensors import SafetensorError  # few who import this file read weights

    check_folder_or_name(name, what)
    try:
        yield
    except (SafetensorError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0]
        raise OSError(
            f"The weights in {name} are damaged, incomplete or unsafe ({reason}); copy or download them again."
        ) from error
    except OSError as error:
        if Path(name).expanduser().exists():  # which the error names
            raise
        raise OSError(f"There is no folder {name} here, and that name cannot be read from the Hub: {error}") from error


def read_lines(path: Path | str) -> Iterator[str]:
    r"""Yields the lines of UTF-8 text as they are read.

    Only "\n" and "\r\n" end a line: other characters that Python counts as line ends (U+2028, a lone "\r", ...) are
    text, as NUL is. An empty line is a line. A byte order mark at the beginning is skipped.

    Args:
        path: A file, gzipped if its name ends in ".gz"; the string "-" stands for standard input.

    Raises:
        ValueError: Bytes that are not UTF-8, a damaged gzip file or a line of more than `LONGEST_LINE` bytes; the
            message names file and line.
        OSError: The file cannot be read.
    """
    name = "standard input" if path == STANDARD_STREAM else str(path)
    number = 0
    try:
        with _open_for_reading(path) as file:
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                yield _decode(name, number, line)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{name}, after line {number}: the gzip file is damaged ({error})") from error


class TextFile(Collection[str]):
    """The lines of a file, read anew in every iteration, so that only one of them is in memory.

    The file is read once at the start, so that errors in it are found before any work is done.

    Args:
        path: A regular file; see `read_lines`, also for what is raised.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._lines = sum(1 for _ in read_lines(path))

    def __len__(self) -> int:
        return self._lines

    def __iter__(self) -> Iterator[str]:
        return read_lines(self._path)

    def __contains__(self, line: object) -> bool:
        return any(line == own for own in self)


def open_lines(path: Path | str) -> Collection[str]:
    """Returns the lines of a file: a `TextFile`, or a list of what can be read only once (a pipe, standard input).

    Raises:
        ValueError: See `read_lines`.
        OSError: The file cannot be read.
    """
    if path == STANDARD_STREAM or not Path(path).is_file():
        return list(read_lines(path))
    return TextFile(path)


@contextmanager
def _open_for_reading(path: Path | str) -> Iterator[BinaryIO]:
    if path == STANDARD_STREAM:
        if sys.stdin is None:
            raise ValueError("standard input is closed")
        yield sys.stdin.buffer  # it stays open
        return
    compressed = str(path).endswith(".gz")
    with cast(BinaryIO, gzip.open(path, "rb")) if compressed else open(path, "rb") as file:
        yield file


def _decode(name: str, number: int, line: bytes) -> str:
    if len(line) > LONGEST_LINE:
        raise ValueError(f"{name}, line {number}: longer than {LONGEST_LINE:,} bytes; is this text?")
    if number == 1:
        line = line.removeprefix(b"\xef\xbb\xbf")
    if line.endswith(b"\n"):
        line = line[:-1].removesuffix(b"\r")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name}, line {number}: not UTF-8 (byte 0x{line[error.start]:02x} at position {error.start + 1}); "
            "convert the file"
        ) from error
