# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Running of cells: some side by side, each in a process of its own, resumed where they were
interrupted.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

from csan_hf.credentials import holds_credential
from csan_hf.text_files import write_json, write_text
from csan_hf.training.checkpoints import list_checkpoints
from csan_hf.training.output_folder import entries_of_run
from csan_hf.training.recipe import Recipe, RecipeError, load_recipe, read_yaml

from .suite import Cell

LOG = "log.txt"
RECIPE = "cell.yaml"
FINISHED = "finished.json"
"""File that marks a cell's folder as finished."""
COMMAND = (sys.executable, "-m", "csan_hf", "train")
"""Command that trains a cell; the path of the cell's recipe is appended."""
# Keys of a recipe that say where a run lies and what its card says, not what is trained
_OF_NO_EFFECT = (
    "output_dir",
    "name",
    "description",
    "license",
    "language",
    "dataset_name",
    "task",
    "hub_dataset",
)
_STEP = re.compile(r"^step (\d+)/(\d+)  ", flags=re.MULTILINE)


@dataclass
class Progress:
    """Where a suite stands: how many cells are done, which failed and why, and what share of those
    that run.
    """

    total: int
    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)


def recipe_text(cell: Cell, output: Path) -> str:
    """Returns the recipe of a cell as a file."""
    recipe = {**cell.recipe, "output_dir": str(cell.folder(output))}
    return yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)


def check_cell(cell: Cell, output: Path) -> None:
    """Raises `RecipeError` if the folder of a cell, finished or not, holds what its recipe has not
    trained.
    """
    folder = cell.folder(output)
    path = folder / RECIPE
    if not path.is_file():
        if found := [entry.name for entry in entries_of_run(folder)]:
            raise RecipeError(
                f"{folder} holds {found[0]}, but no {RECIPE}, so no suite made that: move it "
                "elsewhere."
            )
    elif trained_keys(read_yaml(path)) != trained_keys(yaml.safe_load(recipe_text(cell, output))):
        raise RecipeError(
            f"{folder} was trained by another recipe than the suite now has for {cell.name}: "
            "choose another folder, or delete that one."
        )


def load_cell(cell: Cell, output: Path) -> Recipe:
    """The recipe of a cell as training reads it; nothing is written into the suite's folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, RECIPE)
        path.write_text(recipe_text(cell, output), encoding="utf-8")
        try:
            return load_recipe(path)
        except RecipeError as error:
            raise RecipeError(f"{cell.name}: {str(error).removeprefix(f'{path}: ')}") from error


def trained_keys(recipe: dict[str, Any]) -> dict[str, Any]:
    """Returns the keys of a recipe that determine the training, without folders and the texts of
    its card.
    """
    kept = {
        key: value
        for key, value in recipe.items()
        if key not in _OF_NO_EFFECT and value not in (None, {})
    }
    if isinstance(data := kept.get("data"), dict):
        kept["data"] = {key: value for key, value in data.items() if key != "data_dir"}
    if "members" in kept:  # of an ensemble
        kept["members"] = [trained_keys(member) for member in kept["members"]]
    return kept


def is_finished(cell: Cell, output: Path) -> bool:
    """Says whether a cell needs no more training."""
    return (cell.folder(output) / FINISHED).is_file()


class _Run:
    """A cell's process."""

    def __init__(
        self, cell: Cell, output: Path, slot: int, threads: int, command: Sequence[str]
    ) -> None:
        self.cell, self.slot, self.folder = cell, slot, cell.folder(output)
        write_text(self.folder / RECIPE, recipe_text(cell, output))
        self.log = self.folder / LOG
        with open(self.log, "ab") as log:
            self.start = log.tell()
            self.process = subprocess.Popen(
                [*command, str(self.folder / RECIPE)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **run_environment(slot, threads, torch.cuda.device_count())},
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )

    def text(self) -> str:
        """What it has written since it was started."""
        with open(self.log, "rb") as log:
            log.seek(self.start)
            return log.read().decode("utf-8", errors="replace")

    def share(self) -> float:
        """The share of its updates that is done."""
        steps = _STEP.findall(self.text())
        return int(steps[-1][0]) / max(int(steps[-1][1]), 1) if steps else 0.0

    def finish(self) -> bool:
        """Marks the cell as finished if its process ended well; only training needs its
        checkpoints.
        """
        if self.process.returncode:
            return False
        write_json(self.folder / FINISHED, {"finished": time.strftime("%Y-%m-%d %H:%M")})
        for checkpoint in list_checkpoints(
            self.folder
        ):  # without the mark a run could then not be resumed
            shutil.rmtree(checkpoint)
        return True

    def reason(self) -> str:
        """Why it failed: its status, its log and the last line there."""
        status = self.process.returncode
        lines = self.text().strip().splitlines() or ["it wrote nothing"]
        last = "".join(character if character.isprintable() else " " for character in lines[-1])[
            :300
        ]
        last = "its last line holds a credential" if holds_credential(last) else last
        ended = (
            f"exit status {status}" if status >= 0 else f"ended by {signal.Signals(-status).name}"
        )
        return f"{ended}, {self.log}: {last}"


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    """Lets Linux send SIGTERM to this process when the suite's ends, also by kill -9: it saves, and
    ends.
    """
    _LIBC.prctl(1, signal.SIGTERM)  # type: ignore[union-attr]  # PR_SET_PDEATHSIG


def run_environment(slot: int, threads: int, accelerators: int) -> dict[str, str]:
    """Returns a run's environment variables; runs take turns on the accelerators, by their number
    side by side.
    """
    environment = {
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads)),
        # A pool of threads that spins while it waits takes the time of the run beside it
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if accelerators > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = visible.split(",") if visible else [str(number) for number in range(accelerators)]
        environment["CUDA_VISIBLE_DEVICES"] = devices[slot % accelerators].strip()
    return environment


def run_cells(
    cells: Sequence[Cell],
    output: Path,
    *,
    jobs: int = 1,
    threads: int = 1,
    report: Callable[[Progress], None] = lambda progress: None,
    command: Sequence[str] = COMMAND,
    interval: float = 1.0,
) -> Progress:
    """Trains the cells that are not finished.

    If a cell fails, its reason is noted and the others continue. Ctrl-C and SIGTERM end the runs,
    which save first.

    Args:
        cells: The cells, in the order in which they start.
        output: Folder of the suite.
        jobs: Cells side by side.
        threads: Threads of each cell.
        report: Called when a cell begins or ends, and every `interval`.
        command: Command that trains a cell; the path of its recipe is appended.
        interval: Seconds between two checks of the runs.

    Raises:
        RecipeError: A folder holds what its cell's recipe has not trained.
        KeyboardInterrupt: After a signal, when the runs have ended.
    """
    for cell in cells:
        check_cell(cell, output)
    waiting = [cell for cell in cells if not is_finished(cell, output)]
    progress = Progress(len(cells), done=len(cells) - len(waiting))
    runs: list[_Run] = []
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while waiting or runs:
            while waiting and len(runs) < jobs:
                free = min(set(range(jobs)) - {run.slot for run in runs})
                runs.append(_Run(waiting.pop(0), output, free, threads, command))
            progress.running = {run.cell.name: run.share() for run in runs}
            report(progress)
            time.sleep(interval)
            for run in [run for run in runs if run.process.poll() is not None]:
                runs.remove(run)
                if run.finish():
                    progress.done += 1
                else:
                    progress.failed[run.cell.name] = run.reason()
        progress.running = {}
        report(progress)
    finally:
        for run in runs:  # they save, and end
            if run.process.poll() is None:
                run.process.terminate()
        for run in runs:
            run.process.wait()
        signal.signal(signal.SIGTERM, previous)
    return progress
