# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Training of a suite's runs: some side by side, each in its own process, resumed where they were
interrupted.
"""

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from csan_hf.credentials import holds_credential
from csan_hf.training.checkpoints import list_checkpoints
from csan_hf.training.record import FINISHED, RECIPE, recipe_text
from csan_hf_runtime.text_files import printable, write_json, write_text

from .records import SuiteRecords
from .suite import Run

LOG = "log.txt"
COMMAND = (sys.executable, "-m", "csan_hf", "train")
"""Command that trains a run; the paths of its recipe and its teachers are appended."""
INTERVAL = 1.0
"""Seconds between two checks of the runs."""
# As TranslationProgress of training prints it
_STEP = re.compile(r"^step (\d+)/(\d+)  ", flags=re.MULTILINE)
_LIBC: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


@dataclass
class SuiteProgress:
    """Where a suite stands.

    Attributes:
        total: Number of runs.
        done: How many are finished.
        failed: Name of a run -> the reason why it failed.
        running: Name of a run -> the share of its updates that is done.
    """

    total: int
    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)


class _Process:
    """The process that trains a run."""

    def __init__(self, run: Run, output: Path, slot: int, threads: int) -> None:
        self.run = run
        self.slot = slot
        self.folder = run.folder(output)
        self.log = self.folder / LOG
        recipe = self.folder / RECIPE
        write_text(recipe, recipe_text({**run.recipe, "output_dir": str(self.folder)}))
        command = [*COMMAND, str(recipe)]
        if run.teachers:
            # Absolute, as the run may go on after another start from another folder
            folders = [str(teacher.folder(output.absolute())) for teacher in run.teachers]
            command += ["--training.teachers", json.dumps(folders)]
        with open(self.log, "ab") as log:
            self.start = log.tell()
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **run_environment(slot, threads, torch.cuda.device_count())},
                preexec_fn=_end_with_parent if _LIBC else None,
            )

    def text(self) -> str:
        """The log since the process was started."""
        with open(self.log, "rb") as log:
            log.seek(self.start)
            return log.read().decode("utf-8", errors="replace")

    def share(self) -> float:
        """The share of the run's updates that is done."""
        steps = _STEP.findall(self.text())
        if not steps:
            return 0.0
        step, last_step = steps[-1]
        return int(step) / int(last_step)

    def mark_finished(self) -> None:
        """Marks the run as finished, then deletes its checkpoints, which only training needs."""
        write_json(self.folder / FINISHED, {"finished": time.strftime("%Y-%m-%d %H:%M")})
        for checkpoint in list_checkpoints(self.folder):
            shutil.rmtree(checkpoint)

    def failure(self) -> str:
        """Why the run failed: its status, its log and the last line there."""
        status = self.process.returncode
        ended = f"exit status {status}"
        if status < 0:
            ended = f"ended by {signal.Signals(-status).name}"
        lines = self.text().strip().splitlines() or ["it wrote nothing"]
        last = printable(lines[-1])[:300]
        if holds_credential(lines[-1]):
            last = "its last line holds a credential"
        return f"{ended}, {self.log}: {last}"


def _end_with_parent() -> None:
    """Lets Linux send SIGTERM to this process when the suite's ends, also by kill -9: it saves, and
    ends.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def run_environment(slot: int, threads: int, accelerators: int) -> dict[str, str]:
    """Returns a run's environment variables; runs side by side take turns on the accelerators, by
    their slots.
    """
    environment = {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        # A pool of threads that spins while it waits takes the time of the run beside it
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if accelerators > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = visible.split(",") if visible else list(map(str, range(accelerators)))
        environment["CUDA_VISIBLE_DEVICES"] = devices[slot % accelerators].strip()
    return environment


def train_runs(
    records: SuiteRecords,
    *,
    jobs: int = 1,
    threads: int = 1,
    report: Callable[[SuiteProgress], None] | None = None,
) -> SuiteProgress:
    """Trains the runs that are not finished, in their order, each after its teachers.

    If a run fails, its reason is noted and the others continue, but not those that it teaches.
    Ctrl-C and SIGTERM end the runs, which save first.

    Args:
        records: The suite and its folder.
        jobs: Runs side by side.
        threads: Threads of each run.
        report: Called every `INTERVAL`, and at the end.

    Raises:
        RecipeError: A folder holds what its run's recipe has not trained.
        KeyboardInterrupt: After a signal, when the runs have ended.
    """
    records.check()
    runs = records.suite.runs
    waiting = [run for run in runs if not records.is_finished(run)]
    progress = SuiteProgress(len(runs), done=len(runs) - len(waiting))
    processes: list[_Process] = []

    def show() -> None:
        progress.running = {process.run.name: process.share() for process in processes}
        if report is not None:
            report(progress)

    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while waiting or processes:
            ready = [run for run in waiting if all(map(records.is_finished, run.teachers))]
            for run in ready[: jobs - len(processes)]:
                waiting.remove(run)
                slot = min(set(range(jobs)) - {process.slot for process in processes})
                processes.append(_Process(run, records.output, slot, threads))
            if not processes:
                for run in waiting:
                    progress.failed[run.name] = "it was not trained, as a teacher of it failed"
                waiting.clear()
            show()
            time.sleep(INTERVAL)
            for process in list(processes):
                status = process.process.poll()
                if status is None:
                    continue
                processes.remove(process)
                if status == 0:
                    process.mark_finished()
                    progress.done += 1
                else:
                    progress.failed[process.run.name] = process.failure()
        show()
    finally:
        for process in processes:  # they save, and end
            process.process.terminate()
        for process in processes:
            process.process.wait()
        signal.signal(signal.SIGTERM, previous)
    return progress
