# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Reading text so that line n stays line n, writing whole files or none, and safe names."""

import errno
import hashlib
import importlib
import io
import json
import os
import pickle
import queue
import re
import secrets
import shutil
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import IO, Any, TextIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

STANDARD_STREAM = "-"
"""The name of standard input where a file is read, of standard output where one is written."""

VARIANTS = "\ufdd0"
"""Separates the references of a sentence that has several: a noncharacter, which no text has."""

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": "compression.zstd"}
"""Endings of compressed files, and the module that reads them: Python has the last from 3.14 on."""

_BEGINNINGS = {
    ".gz": re.compile(rb"\x1f\x8b"),
    ".bz2": re.compile(rb"BZh[1-9]1AY&SY"),
    ".xz": re.compile(rb"\xfd7zXZ\0"),
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd"),
}
_SUBTITLES = re.compile(r"\s*(?:\d+\s*|WEBVTT(?:[ \t][^\n]*)?(?:\n[^\n]*)*?)\n[\d:]+[,.]\d+ -->")
_LINES_BEFORE_A_TIME = 9  # in subtitles
_LONGEST_LINE = 2**26  # bytes
_LONGEST_WAIT = 1.0  # seconds that lines of standard input are waited for, all together
_CHARACTERS_AHEAD = 2**22  # of standard input, so that who writes need not read meanwhile


@contextmanager
def open_for_writing(
    path: Path | str,
    *,
    binary: bool = False,
    keep_partial: bool = False,
    kept_lines: int | None = None,
) -> Iterator[IO[Any]]:
    """Opens a file of UTF-8 text or bytes that gets its name when the block ends; if the block
    raises, an old file stays.

    Args:
        path: The file, text compressed if its name ends as one of `COMPRESSIONS`; its folder is
            created if missing. "-" stands for standard output. Links are followed; devices and
            pipes are written to as they are.
        binary: Whether bytes are written, as they are.
        keep_partial: Write to `partial_name` of the path, which stays if the block raises or the
            process is killed. No other process may write there meanwhile.
        kept_lines: Write behind so many lines that an earlier process left there; None: it may have
            left none.

    Raises:
        OSError: The file cannot be made, or standard output is closed.
        ValueError: What is at `partial_name` is no file, another process's, or not what
            `kept_lines` says.
    """
    if str(path) in (STANDARD_STREAM, "/dev/stdout"):
        stream = _open_stream(sys.stdout, "standard output")
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", newline="\n")
        yield stream.buffer if binary else stream
        stream.flush()
        return
    if (
        Path(path).exists() and not Path(path).is_file()
    ):  # a device or a pipe; `open` refuses a folder
        with _open(path, "w", binary=binary) as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name[:40]}.{secrets.token_hex(6)}")
    if keep_partial:
        unfinished = partial_name(path)
    ending = compression_of(target.name)
    with _claimed(unfinished, kept_lines) if keep_partial else nullcontext():
        try:
            mode = "a" if keep_partial else "x"
            with _open(unfinished, mode, binary=binary, compression=ending) as file:
                yield file
            if target.exists():
                shutil.copymode(target, unfinished)
            os.replace(unfinished, target)
        finally:
            if unfinished.exists() and not (keep_partial and _has_content(unfinished, ending)):
                unfinished.unlink()


@contextmanager
def _claimed(path: Path, kept_lines: int | None) -> Iterator[None]:
    """Holds the file at a `partial_name` for this process, until it ends, and cuts it behind
    its first lines; see `open_for_writing`.
    """
    more_flags = getattr(os, "O_NOFOLLOW", 0)
    if not kept_lines:
        more_flags |= os.O_CREAT

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | more_flags, 0o666)

    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ValueError(f"{path} is a link or no file, and is not written to: remove it.")
    with open(path, "r+b", opener=opener) as file:
        if not _is_locked(file, path):
            raise ValueError(f"Another process is writing {path}: choose another file.")
        if kept_lines is None:
            check_no_partial(path)
        for _ in range(kept_lines or 0):
            if not file.readline().endswith(b"\n"):
                raise ValueError(f"{path} has lost lines meanwhile: start again.")
        file.truncate(file.tell())
        if fcntl is None:
            file.close()  # Windows gives no open file another name
        yield


def _is_locked(file: IO[bytes], path: Path) -> bool:
    """Takes the lock of a file, where there are any; whether it is this process's now."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    # Who held the lock before may have given the file its name
    return path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())


def check_no_partial(path: Path) -> None:
    """Raises `ValueError` if a file at a `partial_name` holds what a stopped command has left."""
    if path.is_file() and path.stat().st_size:
        go_on = "" if compression_of(path.stem) else "go on with --resume, or "
        raise ValueError(
            f"{path} holds what another command has written: if that was stopped, {go_on}remove "
            "the file; else choose another one."
        )


def _open(path: Path | str, mode: str, *, binary: bool, compression: str = "") -> IO[Any]:
    if binary:
        return open(path, f"{mode}b")
    opener: Callable[..., IO[Any]] = open
    if compression:
        opener = _compression_module(compression, str(path)).open
    return opener(path, f"{mode}t", encoding="utf-8", newline="\n")


def _has_content(path: Path, compression: str) -> bool:
    size = path.stat().st_size
    if not compression or not size:
        return size > 0
    reading = _open(path, "r", binary=False, compression=compression)
    with suppress(EOFError, OSError), reading as file:  # of a full disk
        return file.read(1) != ""
    return True


def compression_of(name: Path | str) -> str:
    """Returns the ending of a compressed file's name, one of `COMPRESSIONS`, or ""."""
    ending = os.path.splitext(name)[1].lower()
    return ending if ending in COMPRESSIONS else ""


def uncompressed_name(name: Path | str) -> str:
    """Returns a file's name without the ending of a compression."""
    return os.path.splitext(name)[0] if compression_of(name) else str(name)


def _compression_module(compression: str, name: str) -> ModuleType:
    """The module for files of a compression; `ValueError` where this Python does not have it."""
    try:
        return importlib.import_module(COMPRESSIONS[compression])
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{name}: {compression} is a compression that this Python does not have ({error}): "
            "unpack the file, or use .gz."
        ) from error


def _open_stream(stream: TextIO | None, name: str) -> TextIO:
    if stream is None:  # so Python has it where the shell closed it: `<&-`, `>&-`
        raise OSError(f"{name} is closed")
    return stream


def check_new_directory(directory: Path) -> None:
    """Raises `ValueError` unless a directory is missing or empty."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(f"{directory} is not empty: choose a new directory.")


@contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """Makes a directory that gets its name when the block ends; if the block raises, nothing stays.

    Raises:
        ValueError: See `check_new_directory`.
    """
    check_new_directory(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{directory.name}.", dir=directory.parent
    ) as temporary:
        staging = Path(temporary, "new")
        staging.mkdir()
        yield staging
        if directory.exists():
            directory.rmdir()
        os.rename(staging, directory)


def partial_name(path: Path | str) -> Path:
    """Returns the name `FILE.partial` under which `open_for_writing` keeps half of a file."""
    return Path(f"{os.path.realpath(path)}.partial")


def whole_lines(path: Path) -> int:
    """Counts the lines of a file that have their end; 0 if there is no file."""
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        return sum(line.endswith(b"\n") for line in file)


def check_writable(path: Path | str, inputs: Iterable[Path | str | None] = ()) -> None:
    """Checks that `open_for_writing` can make a file, before the work whose result is written to
    it.

    Args:
        path: The file.
        inputs: Files that are read for it; None stands for none.

    Raises:
        ValueError: The file, or its `partial_name`, is one of the inputs, which would be lost.
        OSError: The file cannot be made.
    """
    if path == STANDARD_STREAM:
        _open_stream(sys.stdout, "standard output")
        return
    target = Path(os.path.realpath(path))
    written = (target, partial_name(path))
    for name in inputs:
        if name is not None and os.path.isfile(name) and Path(os.path.realpath(name)) in written:
            raise ValueError(f"{path} is read, too, and would be overwritten: choose another file.")
    if Path(path).exists() and not target.is_dir():  # a pipe in /dev/fd exists by this name alone
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


def check_readable(path: Path | str) -> None:
    """Raises `OSError` if `read_lines` finds no file, before the work that reads it."""
    if path == STANDARD_STREAM:
        _open_stream(sys.stdin, "standard input")
    else:
        os.stat(path)


def apply_umask(paths: Iterable[Path]) -> None:
    """Gives files the permissions of the umask; safetensors writes its own for the owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    for path in paths:
        path.chmod(0o666 & ~mask)


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


def write_json(path: Path | str, value: object) -> None:
    """Writes indented JSON, keys in the order given."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def digest_of_lines(lines: Iterable[str]) -> str:
    """Returns the SHA-256 of a file that `write_lines` would write."""
    return hashlib.sha256("".join(f"{one_line(line)}\n" for line in lines).encode()).hexdigest()


def one_line(text: str) -> str:
    """Returns a text with a space for each line break of any kind."""
    return " ".join(text.splitlines())


def counted(number: int, noun: str) -> str:
    """Writes a number with its noun: 1 run, 2,000 runs."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def printable(text: str) -> str:
    """Returns a text with its unprintable characters escaped, such as a line feed as "\\n"."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# No characters that some system refuses, no control characters, changes of direction, surrogates
_FILE_NAME = re.compile(
    r"(?![.~])[^/\\:*?\"<>|\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+(?<![ .])"
)


def check_file_name(name: object, what: str) -> str:
    """Returns a name from a recipe or a checkpoint; `ValueError` if it can mean anything but a file
    in its folder.

    `what` is how the message names it, for example "the test set".
    """
    if not isinstance(name, str) or not _FILE_NAME.fullmatch(name) or len(name.encode()) > 200:
        raise ValueError(
            f"{what} {str(name)[:80]!r} cannot be the name of a file: use letters, digits and _.-"
        )
    return name


def path_inside(folder: Path | str, *names: str) -> Path:
    """Returns the path of a file inside a folder; `ValueError` if a link in the folder leads out of
    it.
    """
    path = Path(folder, *(check_file_name(name, "the file") for name in names))
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise ValueError(f"{path} is a link that leads out of {folder}: remove it.")
    return path


def read_lines(path: Path | str) -> Iterator[str]:
    r"""Yields the lines of UTF-8 text as they are read, without byte order marks before them; an
    empty line is a line.

    Only "\n" and "\r\n" end a line: other line ends of Python (U+2028, a lone "\r", ...) are text,
    as NUL is.

    Args:
        path: A file, compressed if its name or its first bytes say so (`COMPRESSIONS`); the string
            "-" stands for standard input.

    Raises:
        ValueError: Bytes that are not UTF-8, a damaged compressed file, a line that no text has, or
            subtitles; the message names file and line.
    """
    beginning = ""
    for number, line in enumerate(read_lines_with_ends(path), 1):
        # Files that were joined have several byte order marks
        line = line.removeprefix("\ufeff").removesuffix("\r\n").removesuffix("\n")
        if number <= _LINES_BEFORE_A_TIME:
            beginning += f"{line}\n"
            if _SUBTITLES.match(beginning):
                raise ValueError(
                    f"{_name_of(path)}: subtitles, whose numbers and times would be taken for "
                    "text: write their lines of text alone into a file; csan-hf translate reads "
                    "files of them that are named .srt or .vtt."
                )
        yield line


def read_lines_with_ends(path: Path | str) -> Iterator[str]:
    """Yields the lines of UTF-8 text, subtitles included, as they stand in the file, which joined
    they are; see `read_lines`.
    """
    name = _name_of(path)
    number = 0
    try:
        with _open_bytes_of(path) as stream, _unpacked(stream, name) as file:
            lines = iter(partial(file.readline, _LONGEST_LINE), b"")
            for number, line in enumerate(lines, 1):
                if len(line) >= _LONGEST_LINE:
                    raise ValueError(
                        f"{name}, line {number}: longer than {_LONGEST_LINE:,} bytes; is it text?"
                    )
                yield line.decode()
    except UnicodeDecodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x} at position {error.start + 1}"
        raise ValueError(f"{name}, line {number}: not UTF-8 ({byte}); convert the file") from error
    except EOFError as error:
        raise ValueError(
            f"{name}, after line {number}: the compressed file is damaged ({error})"
        ) from error


def _name_of(path: Path | str) -> str:
    return "standard input" if path == STANDARD_STREAM else str(path)


def _open_bytes_of(path: Path | str) -> io.BufferedReader:
    if path == STANDARD_STREAM:
        stream = _open_stream(sys.stdin, "standard input")
        # Not its own buffer, whose lock a waiting thread holds when Python ends, a fatal error
        return open(stream.fileno(), "rb", closefd=False)
    return open(path, "rb")


@contextmanager
def _unpacked(stream: io.BufferedReader, name: str) -> Iterator[io.BufferedIOBase]:
    """Yields the bytes of a file, unpacked if they are compressed; `EOFError` in the block if what
    is compressed is damaged.
    """
    beginning = stream.peek(1)
    compression = compression_of(name)
    for ending, first_bytes in _BEGINNINGS.items():
        if first_bytes.match(beginning):
            compression = ending
    if not compression or not beginning:
        yield stream
        return
    module = _compression_module(compression, name)
    of_module = [getattr(module, error, EOFError) for error in ("LZMAError", "ZstdError")]
    try:
        with module.open(stream) as file:
            yield file
    except (OSError, zlib.error, *of_module) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the file cannot be read
            raise
        raise EOFError(str(error)) from error


class _LinesAhead(queue.Queue[str | Exception | None]):
    """A queue whose size is that of its lines in characters, each with its end."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self._characters = 0

    def _qsize(self) -> int:
        return self._characters

    def _put(self, item: str | Exception | None) -> None:
        super()._put(item)
        self._characters += len(f"{item}\n")

    def _get(self) -> str | Exception | None:
        item = super()._get()
        self._characters -= len(f"{item}\n")
        return item


def read_lines_as_they_come(pause: float = 0.1) -> Iterator[str | None]:
    """Yields the lines of standard input, and None whenever none has come for `pause` seconds, or
    they took `_LONGEST_WAIT` to come.
    """
    arrived = _LinesAhead(maxsize=_CHARACTERS_AHEAD)

    def read() -> None:
        try:
            for line in read_lines(STANDARD_STREAM):
                arrived.put(line)
            arrived.put(None)  # the end
        except Exception as error:
            arrived.put(error)

    threading.Thread(target=read, daemon=True).start()
    waited = 0.0
    while True:
        start = time.monotonic()
        try:
            line = arrived.get(timeout=pause)
        except queue.Empty:
            waited = 0.0
            yield None
            continue
        waited += time.monotonic() - start
        if line is None:
            return
        if isinstance(line, Exception):
            raise line
        yield line
        if waited > _LONGEST_WAIT:
            waited = 0.0
            yield None


class TextFile(Collection[str]):
    """The lines of a file, read once at the start to find errors, and anew in every iteration; see
    `read_lines`.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._lines = sum(1 for _ in read_lines(path))

    def __len__(self) -> int:
        return self._lines

    def __iter__(self) -> Iterator[str]:
        return read_lines(self._path)

    def __contains__(self, line: object) -> bool:
        return any(line == text for text in self)


def open_lines(path: Path | str) -> Collection[str]:
    """Returns the lines of a file: a `TextFile`, or a list of what can be read only once (a pipe,
    standard input).
    """
    if path == STANDARD_STREAM or not Path(path).is_file():
        return list(read_lines(path))
    return TextFile(path)


def open_parallel(*paths: Path | str) -> list[Collection[str]]:
    """Opens files whose lines belong together.

    Raises:
        ValueError: Their numbers of lines differ.
    """
    files = [open_lines(path) for path in paths]
    for path, lines in zip(paths[1:], files[1:], strict=True):
        check_parallel((paths[0], path), (files[0], lines))
    return files


def check_parallel(paths: Sequence[Path | str], files: Sequence[Sized]) -> None:
    """Checks that two files have equally many lines."""
    first_count, second_count = map(len, files)
    if first_count != second_count:
        short, long = paths if first_count < second_count else paths[::-1]
        raise ValueError(
            f"{paths[0]} has {first_count:,} lines and {paths[1]} has {second_count:,}: "
            f"line {min(first_count, second_count) + 1:,} of {long} has no partner in {short}"
        )


def check_folder_or_name(name: str | os.PathLike, what: str) -> None:
    """Raises `FileNotFoundError` for what can be no name on the Hub, OWNER/NAME, and is no folder
    here.
    """
    path = Path(name).expanduser()
    is_path = path.is_absolute() or str(name).startswith((".", "~")) or len(path.parts) > 2
    if not path.exists() and (is_path or (len(path.parts) == 2 and path.parent.is_dir())):
        raise FileNotFoundError(f"There is no folder {name} to read the {what} from.")


@contextmanager
def reading_folder_or_name(name: str | os.PathLike, what: str) -> Iterator[None]:
    """Raises an `OSError` of one line for weights that are damaged or would run code while a
    checkpoint is read; see also `check_folder_or_name`.
    """
    from safetensors import SafetensorError  # loaded only where weights are

    check_folder_or_name(name, what)
    try:
        yield
    except (SafetensorError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0]
        raise OSError(
            f"The weights in {name} are damaged, incomplete or unsafe ({reason}); copy or download "
            "them again."
        ) from error
    except OSError as error:
        if Path(name).expanduser().exists():  # the error names the folder
            raise
        raise OSError(
            f"There is no folder {name} here, and that name cannot be read from the Hub: {error}"
        ) from error
