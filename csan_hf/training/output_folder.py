# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The folder of a run: whether a run may begin or go on in it, and its lock."""

import contextlib
import datetime
import os
import platform
import re
import shutil
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TextIO

from csan_hf.hub.push import PUSHED
from csan_hf_runtime.text_files import write_text

from .checkpoints import (
    UNFINISHED,
    checkpoint_step,
    find_fault,
    list_checkpoints,
    whole_checkpoints,
)
from .errors import RecipeError, notify, refusing
from .recipe import Affects, Recipe, affected_by, load_recipe

MARK = ".csan_hf_run"
"""File that marks a folder as that of a run; `--overwrite` deletes nothing in a folder without it.
"""

# Patterns of what a run writes, beside its checkpoints
_WRITTEN = (
    "recipe.yaml",
    "results.json",
    "training.png",
    "locality.png",
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "training_args.bin",
    "runs",
    "hypotheses",
    "plots",
    "target_tokenizer",
    UNFINISHED,
)


def entries_of_run(output: Path) -> list[Path]:
    """Lists the entries of a folder that have names that a run writes."""
    entries = list_checkpoints(output)
    for pattern in _WRITTEN:
        entries += output.glob(pattern)
    return entries


def check_output_folder(recipe: Recipe, output: Path) -> None:
    """Raises a `RecipeError` if a run would overwrite files that no run wrote, or go on with
    another experiment.
    """
    starts_anew = recipe.overwrite or not recipe.resume
    entries = entries_of_run(output)
    if entries and not (output / MARK).is_file():
        names = ", ".join(path.name for path in entries[:3])
        if len(entries) > 3:
            names += ", ..."
        raise RecipeError(
            f"{output} holds {names}, but no mark of a run ({MARK}), so it may be another "
            "program's: nothing was changed. Choose another --output_dir, or move these files "
            "elsewhere."
        )
    if not starts_anew and list_checkpoints(output):
        _check_same_experiment(recipe, output)
    if not starts_anew:
        return
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink() and any(entry.rglob(MARK)):
            raise RecipeError(
                f"{entry} holds another run, which would be deleted: move it elsewhere."
            )


def begin_run(recipe: Recipe, output: Path) -> None:
    """Deletes what an earlier run wrote, if the recipe says so, and nothing else; marks the
    folder.
    """
    if recipe.overwrite or not recipe.resume:
        for path in entries_of_run(output):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    for path in output.glob(".*"):  # of a file whose writer was killed
        unfinished = re.fullmatch(r"\.(.+)\.[0-9a-f]{12}", path.name)
        if unfinished and any(fnmatch(unfinished[1], pattern) for pattern in _WRITTEN):
            path.unlink()
    for path in output.glob(f"{PUSHED}*"):  # of a process that was killed
        shutil.rmtree(path)
    write_text(
        output / MARK, "A run of csan_hf made this folder; --overwrite deletes what it wrote.\n"
    )
    write_text(output / "recipe.yaml", recipe.to_yaml())


# ---- going on with a run

# The length of a run may change where the learning rate does not depend on it.
_LENGTHS = ("training.max_steps", "training.num_train_epochs")
_ENDLESS_SCHEDULES = ("inverse_sqrt", "constant", "constant_with_warmup")


def _check_same_experiment(recipe: Recipe, output: Path) -> None:
    """Prints which harmless keys changed since a run began; raises a RecipeError if others did."""
    with refusing(
        "This version of csan_hf cannot resume the run (choose another --output_dir, or "
        "--overwrite)"
    ):
        before = load_recipe(output / "recipe.yaml").values()
    now = recipe.values()
    changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    fixed = [key for key in changed if affected_by(key) & Affects.TRAINING]
    if now["data.unlabelled"]:  # which leaves out texts of test sets
        fixed += [key for key in changed if key.startswith("data.test")]
    newest = next(whole_checkpoints(output), None)
    # The recipe would not say what made these weights
    is_behind = newest is not None and 0 < now["training.max_steps"] < checkpoint_step(newest)
    if _length_is_free(now) and not is_behind:
        fixed = [key for key in fixed if key not in _LENGTHS]
    if "model" in fixed:  # all fields of its config differ with it
        fixed = [key for key in fixed if not key.startswith("config.")]
    if fixed:
        changes = "; ".join(f"{key}: {before.get(key)} there, {now.get(key)} here" for key in fixed)
        raise RecipeError(
            f"{output} holds a run of another experiment ({changes}). Go on with the old value, "
            "or choose another --output_dir, or --overwrite to delete it."
        )
    harmless = [key for key in changed if key != "output_dir"]
    if harmless:
        changes = "; ".join(f"{key} from {before.get(key)} to {now.get(key)}" for key in harmless)
        notify(f"Changed since the run began: {changes}.")


def _length_is_free(values: dict[str, Any]) -> bool:
    """Whether the learning rate does not depend on the number of updates."""
    is_share = 0 < values["training.warmup_steps"] < 1  # of all updates
    return values["training.lr_scheduler_type"] in _ENDLESS_SCHEDULES and not is_share


def choose_checkpoint(output: Path) -> Path | None:
    """Finds the newest checkpoint that a run can go on from, and prints which it is and which were
    skipped.

    Clears away what a killed process left half-written or half-deleted.

    Raises:
        RecipeError: If there are checkpoints but none can be used, or if there are none but the
            run had finished.
    """
    shutil.rmtree(output / UNFINISHED, ignore_errors=True)
    faults: list[str] = []
    for path in reversed(list_checkpoints(output)):
        fault = find_fault(path)
        if fault is None:
            skipped = f"skipped {'; '.join(faults)}; " if faults else ""
            notify(f"Resuming from {path} ({skipped}--overwrite starts anew).")
            return path
        faults.append(f"{path.name} ({fault})")
    if faults or (output / "results.json").is_file():
        reasons = f": {'; '.join(faults)}" if faults else ""
        raise RecipeError(
            f"{output} holds a run without a checkpoint to resume from{reasons}. Put a whole copy "
            "of one back, or start anew with --overwrite or another --output_dir."
        )
    return None


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

    The folder is held by a POSIX record lock on a file in it. The kernel releases the lock when the
    process ends, also by kill -9. Forked children, such as data workers that outlive the main
    process for some seconds, do not hold it (with flock, which filelock uses, they would). Where
    the file system has no locks, a line says so.

    Raises:
        RecipeError: If another process holds the folder, or if it cannot be written to.
    """
    is_new = not folder.exists()
    no_link = getattr(os, "O_NOFOLLOW", 0)  # the file that a link leads to would be emptied
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | no_link, 0o666)
    except OSError as error:
        reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        raise RecipeError(
            f"{folder} cannot be written to ({reason}): change that, or choose another folder."
        ) from error
    with os.fdopen(descriptor, "r+", encoding="utf-8") as file:
        _lock(file, folder)
        now = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        with contextlib.suppress(OSError):  # a full disk; the text is only for people
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()} since {now}\n")
            file.flush()
        try:
            yield
        finally:
            (folder / LOCK_FILE).unlink(missing_ok=True)  # while it is held
            if is_new and not any(folder.iterdir()):
                folder.rmdir()


def _lock(file: TextIO, folder: Path) -> None:
    """Takes the lock without waiting."""
    if fcntl is None:
        return
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_nlink > 0:  # whoever releases the lock deletes the file
            return
    except (BlockingIOError, PermissionError):
        pass
    except OSError as error:
        notify(
            f"{folder} lies on a file system without locks ({error.strerror}): let no other run "
            "use it."
        )
        return
    file.seek(0)
    owner = file.read().strip() or "another process"
    raise RecipeError(
        f"{folder} is in use by {owner}: wait for it or end it, then start the same command again; "
        "or choose another --output_dir."
    )
