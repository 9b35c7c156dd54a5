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
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from csan_hf.credentials import holds_credential
from csan_hf.text_files import write_json, write_text
from csan_hf.training.checkpoints import list_checkpoints
from csan_hf.training.record import FINISHED, RECIPE, recipe_text

from .records import SuiteRecords
from .suite import Cell

LOG = "log.txt"
COMMAND = (sys.executable, "-m", "csan_hf", "train")
"""Command that trains a cell; the path of the cell's recipe is appended."""
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


class _Run:
    """A cell's process."""

    def __init__(
        self, cell: Cell, output: Path, slot: int, threads: int, command: Sequence[str]
    ) -> None:
        self.cell, self.slot, self.folder = cell, slot, cell.folder(output)
        recipe = {**cell.recipe, "output_dir": str(self.folder)}
        write_text(self.folder / RECIPE, recipe_text(recipe))
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
    records = SuiteRecords(cells, output)
    for cell in cells:
        records.check(cell)
    waiting = [cell for cell in cells if not records.is_finished(cell)]
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
