# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Speeds of a suite's systems, its cost at these, and the hours to go."""

import json
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from csan_hf.training.dry_run import duration_text
from csan_hf.training.recipe import Affects
from csan_hf.training.record import fingerprint_of
from csan_hf_runtime.text_files import counted

from .records import SuiteRecords
from .schedule import SuiteProgress
from .suite import Run, Suite
from .training_speed import SPEEDS, Speed

START = 10.0
"""Seconds that a run's process takes to import what it needs."""
_SECONDS_BETWEEN_LINES = 600.0
_WIDTH = 79


def read_speeds(records: SuiteRecords) -> dict[str, Speed]:
    """The speeds measured earlier: here, of systems that have not changed since, or where the suite
    was published, whose runs `SuiteRecords.check` compares with it.
    """
    path = records.output / SPEEDS
    is_here = path.is_file()
    measured = json.loads(path.read_bytes()) if is_here else records.about("speeds")
    speeds = {}
    for system, fingerprint in _fingerprints(records.suite).items():
        values = measured.get(system, {})
        recipe = values.pop("recipe", None)
        if values and (not is_here or recipe == fingerprint):
            speeds[system] = Speed(**values)
    return speeds


def speeds_as_json(suite: Suite, speeds: dict[str, Speed]) -> dict[str, dict[str, Any]]:
    """Speeds as `read_speeds` reads them, with fingerprints of the recipes that they are of."""
    fingerprints = _fingerprints(suite)
    return {
        system: {**asdict(speed), "recipe": fingerprints[system]}
        for system, speed in speeds.items()
    }


def _fingerprints(suite: Suite) -> dict[str, str]:
    """Fingerprints of the recipes on which systems' speeds depend: their own and the baseline's."""
    affecting = Affects.SPEED | Affects.TRAINING | Affects.SCORES
    fingerprints = {
        system: fingerprint_of(run.recipe, affecting)
        for system, run in suite.first_run_by_system.items()
    }
    baseline = fingerprints[suite.baseline]
    return {system: f"{baseline} {fingerprint}" for system, fingerprint in fingerprints.items()}


def describe_cost(records: SuiteRecords, speeds: dict[str, Speed], jobs: int) -> str:
    """Describes the cost of a suite in lines of text: runs, parameters, speed and hours."""
    suite = records.suite
    seconds = _run_seconds(records, speeds)
    size = f"{counted(len(suite.systems), 'system')}, {counted(len(suite.seeds), 'seed')}"
    lines = textwrap.wrap(f"{suite.name}: {counted(len(suite.runs), 'run')} ({size}).", _WIDTH)
    width = max(map(len, suite.systems))
    lines.append(f"  {'system':<{width}}  parameters  s/update   speed  runs  hours")
    for system in suite.systems:
        speed = speeds[system]
        run_seconds = [whole for run, whole in seconds.items() if run.system == system]
        lines.append(
            f"  {system:<{width}} {speed.parameters:>11,}  {speed.seconds:>8.3f}  "
            f"× {speed.relative:.2f}  {len(run_seconds):>4}  {sum(run_seconds) / 3600:>5.1f}"
        )
    missing = [seconds[run] for run in suite.runs if not records.is_finished(run)]
    whole = sum(missing)
    text = (
        f"{counted(len(missing), 'run')} to be done: {duration_text(whole)} one after the other at "
        f"the speeds in {SPEEDS}, with {START:.0f} seconds to start each"
    )
    if jobs > 1:
        text += f"; {duration_text(whole / jobs)} with {jobs} side by side on as many free cores"
    lines += textwrap.wrap(f"{text}. Speeds are multiples of {suite.baseline}'s.", _WIDTH)
    return "\n".join(lines)


def _run_seconds(records: SuiteRecords, speeds: dict[str, Speed]) -> dict[Run, float]:
    return {
        run: START + speeds[run.system].run_seconds(run.recipe_in(records.output))
        for run in records.suite.runs
    }


def progress_reporter(
    records: SuiteRecords, speeds: dict[str, Speed], jobs: int
) -> Callable[[SuiteProgress], None]:
    """Returns a function that prints where a suite stands, with the time to go at the speeds
    measured.

    It prints a line whenever a run ends, and every ten minutes; on a terminal one line that
    changes.
    """
    seconds = _run_seconds(records, speeds)
    is_terminal = sys.stderr.isatty()
    interval = 1.0 if is_terminal else _SECONDS_BETWEEN_LINES
    last_ended = -1
    last_time = 0.0

    def show(progress: SuiteProgress) -> None:
        nonlocal last_ended, last_time
        ended = progress.done + len(progress.failed)
        now = time.monotonic()
        if ended == last_ended and now - last_time < interval:
            return
        last_ended = ended
        last_time = now
        left = 0.0
        for run, whole in seconds.items():
            if run.name not in progress.failed and not records.is_finished(run):
                left += whole * (1 - progress.running.get(run.name, 0.0))
        failed = f", {len(progress.failed)} failed" if progress.failed else ""
        running = "; ".join(f"{name} {share:.0%}" for name, share in progress.running.items())
        changes = is_terminal and ended < progress.total
        print(
            f"{progress.done} of {counted(progress.total, 'run')} done{failed}; about "
            f"{duration_text(left / jobs)} to go. Running: {running or 'none'}.",
            end="\x1b[K\r" if changes else "\n",
            file=sys.stderr,
            flush=True,
        )

    return show
