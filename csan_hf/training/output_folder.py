# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The folder of a run: what it may hold, and the lock that keeps a second run out."""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from csan_hf.text_files import write_text

from .checkpoints import SAVING, list_checkpoints
from .recipe import Recipe, RecipeError
from .stopping import PREPARED_DATA, is_disk_full

MARK = ".csan_hf_run"
"""File that marks a folder as that of a run; `--overwrite` deletes nothing in a folder without it."""

DAMAGED = "_damaged-"
"""Prefix that a damaged checkpoint gets when it is set aside."""

_FILES = (
    *("recipe.yaml", "results.json", "training.png", "locality.png", "README.md", "config.json"),
    *("generation_config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"),
    *("tokenizer_config.json", "special_tokens_map.json", "training_args.bin"),
)
_FOLDERS = ("runs", "hypotheses", "plots", "target_tokenizer", PREPARED_DATA, SAVING)


def entries_of_run(output: Path) -> list[Path]:
    """Lists the entries of a folder that have names that a run writes."""
    named = [output / name for name in (*_FILES, *_FOLDERS)]
    found = [*list_checkpoints(output), *output.glob(f"{DAMAGED}checkpoint-*"), *output.glob("model-*.safetensors")]
    return found + [path for path in named if path.exists() or path.is_symlink()]


def check_output_folder(recipe: Recipe, output: Path) -> None:
    """Checks that a run would overwrite nothing but the files of an earlier run.

    Raises:
        RecipeError: If `output` is a file; if it holds files with names that a run writes, but no mark of a run; or if
            a checkpoint that the run would resume from or delete is a link, whose target would be changed.
    """
    if output.exists() and not output.is_dir():
        raise RecipeError(f"output_dir is {output}, which is a file: choose another.")
    starts_anew = recipe.overwrite or not recipe.resume
    links = [path for path in list_checkpoints(output) if path.is_symlink()]
    if links and not starts_anew:
        raise RecipeError(
            f"{links[0]} is a link: a run changes and deletes its checkpoints, here those that the link leads to. Put "
            "a copy in its place, or remove it."
        )
    foreign = entries_of_run(output)
    if not foreign or (output / MARK).is_file():
        return
    names = ", ".join(path.name for path in foreign[:3]) + (", ..." if len(foreign) > 3 else "")
    if starts_anew or not list_checkpoints(output):  # those of an older version had no mark and can be resumed
        raise RecipeError(
            f"{output} holds {names}, but no mark of a run ({MARK}), so somebody else may have written that: nothing "
            "was changed. Choose another --output_dir, or move these files elsewhere."
        )


def mark_run(output: Path) -> None:
    """Marks a folder as that of a run."""
    write_text(output / MARK, "A run of csan_hf made this folder; --overwrite deletes what it wrote.\n")


def delete_run(output: Path) -> None:
    """Deletes the files of a run; the mark, and what else lies in the folder, stay."""
    for path in entries_of_run(output):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


# ---- one run at a time

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = "_run.lock"
"""File in a run's folder that says which process is training there; it is never uploaded."""


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Holds a folder for one run, and makes it if it is not there; one that stays empty is removed.

    The folder is held by a POSIX record lock on a file in it. The kernel releases the lock when the process ends, also
    by kill -9. Forked children, such as data workers that outlive the main process for some seconds, do not hold it
    (with flock, which filelock uses, they would). Where the file system has no locks, a line says so.

    Args:
        folder: The run's folder.

    Raises:
        RecipeError: If another process holds it, which the message describes; or if it cannot be written to.
        OSError: If the disk is full.
    """
    is_new = not folder.exists()
    no_link = getattr(os, "O_NOFOLLOW", 0)  # the file that a link leads to would be emptied
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | no_link, 0o666)
    except OSError as error:
        if is_disk_full(error):
            raise
        raise RecipeError(
            f"{folder} cannot be written to ({error.strerror}): change that, or choose another folder."
        ) from error
    try:
        _lock(descriptor, folder)
        now = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        with contextlib.suppress(OSError):  # a full disk; the text is only for people
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {platform.node()} since {now}\n".encode())
        try:
            yield
        finally:
            (folder / LOCK_FILE).unlink(missing_ok=True)  # while it is held
            if is_new:
                with contextlib.suppress(OSError):  # something lies in it
                    folder.rmdir()
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    """Takes the lock without waiting."""
    if fcntl is None:
        return
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = os.fstat(descriptor).st_nlink > 0  # whoever releases the lock deletes the file
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            warning = f"{folder} lies on a file system without locks ({error.strerror}): let no other run use it."
            print(warning, file=sys.stderr, flush=True)
            return
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        held = False
    if not held:
        owner = os.pread(descriptor, 1000, 0).decode(errors="replace").strip() or "another process"
        raise RecipeError(
            f"{folder} is in use by {owner}: wait for it or end it, then start the same command again; or choose "
            "another --output_dir."
        )
