# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A whole suite: its cost, its runs, its report."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from csan_hf.data.corpora import check_files
from csan_hf.text_files import counted, write_bytes, write_json
from csan_hf.training.output_folder import lock_folder
from csan_hf.training.recipe import Affects, Recipe, RecipeError
from csan_hf.training.record import fingerprint_of

from .ensembles import translate_ensembles
from .records import HYPOTHESES, RUNS, SuiteRecords
from .report import check_folder, write_report
from .results import check_references, read_tables
from .schedule import Progress, run_cells
from .speed import SPEEDS, Speed, measure_speed
from .suite import Suite

_SECONDS_BETWEEN_LINES = 600.0


def compare_suite(
    suite: Suite,
    output: Path,
    *,
    jobs: int = 1,
    threads: int = 1,
    only: str = "all",
    published: Path | None = None,
    progress: bool = True,
) -> dict[str, str]:
    """Trains what is missing of a suite, and writes its report.

    The same call continues after any interruption: finished cells stay, the others resume from
    their last checkpoint.

    Args:
        suite: The suite.
        output: Its folder: `runs`, `report.md`, `report.json`, `scores.csv` and pictures.
        jobs: Cells side by side.
        threads: Threads of each cell.
        only: "all"; "cost" only checks all recipes and prints the costs; "report" only writes a
            report on the finished cells.
        published: Folder with the published tables of the suite, for a report where `output` holds
            no runs.
        progress: Whether to show on standard error how far the suite has come.

    Returns:
        The cells that failed, each with a reason.

    Raises:
        RecipeError: A recipe is refused, the folder holds what another suite or no suite made,
            another process runs a suite there, or a report was asked for and nothing is finished.
        ValueError: The files of a data set are not there, or not tables with its columns.
    """
    recipes = {cell.name: cell.recipe_in(output) for cell in suite.cells}
    if only == "report" and published is not None:
        _take_published(published, output)
    check_folder(suite, output)
    finished = SuiteRecords(suite.cells, output).finished
    if only == "report" and not finished:
        raise RecipeError(
            f"In {output} no run of {suite.name}, is finished: there is nothing to report."
        )
    if only != "report":
        for cell in {cell.data: cell for cell in suite.cells if cell not in finished}.values():
            check_files(recipes[cell.name].data_arguments())
    with lock_folder(output):
        speeds = _speeds_of(suite, output)
        if only == "report":
            write_report(suite, read_tables(suite, output), output, speeds, {})
            return {}
        if missing := set(suite.systems) - set(speeds):
            names = ", ".join(sorted(missing))
            what = counted(len(suite.systems), "system")
            print(
                f"Measuring the speed of training of {what} ({names} not known).", file=sys.stderr
            )
            speeds = _measure_speeds(suite, recipes, output)
        print(describe_cost(suite, recipes, speeds, output, jobs), file=sys.stderr, flush=True)
        if only == "cost":
            return {}
        if finished:
            check_references(suite, output)  # before hours are spent on other data
        report = (
            progress_reporter(suite, recipes, speeds, output, jobs)
            if progress
            else lambda progress: None
        )
        ended = run_cells(suite.cells, output, jobs=jobs, threads=threads, report=report)
        translate_ensembles(suite, output, progress=progress)
        write_report(suite, read_tables(suite, output), output, speeds, ended.failed)
    return ended.failed


def _take_published(published: Path, output: Path) -> None:
    """Copies the published tables into a suite's folder that holds no runs."""
    if (output / "runs").is_dir() or (output / RUNS).is_file() or not (published / RUNS).is_file():
        return
    print(f"{output} holds no runs: the report is on those in {published}.", file=sys.stderr)
    for name in (HYPOTHESES, RUNS):
        write_bytes(output / name, (published / name).read_bytes())


def _measure_speeds(suite: Suite, recipes: dict[str, Recipe], output: Path) -> dict[str, Speed]:
    data = suite.cells[0].data
    first = {cell.system: recipes[cell.name] for cell in reversed(suite.cells) if cell.data == data}
    speeds = measure_speed(
        {name: first[name] for name in dict.fromkeys((suite.baseline, *suite.systems))}
    )
    recipe = _digests(suite)
    write_json(
        output / SPEEDS,
        {name: {**asdict(speed), "recipe": recipe[name]} for name, speed in speeds.items()},
    )
    return speeds


def read_speeds(suite: Suite, output: Path) -> dict[str, dict[str, Any]]:
    """The speeds measured earlier, each with the fingerprints of the recipes that it is of."""
    measured = SuiteRecords(suite.cells, output).speeds
    if (output / SPEEDS).is_file():
        measured = json.loads((output / SPEEDS).read_text(encoding="utf-8"))
    recipes = _digests(suite)
    return {name: speed for name, speed in measured.items() if speed["recipe"] == recipes.get(name)}


def _speeds_of(suite: Suite, output: Path) -> dict[str, Speed]:
    """The speeds measured earlier of systems that have not changed."""
    speeds = {}
    for name, values in read_speeds(suite, output).items():
        measured = {key: value for key, value in values.items() if key != "recipe"}
        speeds[name] = Speed(**measured)
    return speeds


def _digests(suite: Suite) -> dict[str, str]:
    """A digest of each system's recipe and of the baseline's, to which its speed is relative."""
    affecting = Affects.SPEED | Affects.TRAINING | Affects.SCORES
    fingerprints = {
        cell.system: fingerprint_of(cell.recipe, affecting) for cell in reversed(suite.cells)
    }
    baseline = fingerprints[suite.baseline]
    return {name: f"{baseline} {fingerprint}" for name, fingerprint in fingerprints.items()}


def describe_cost(
    suite: Suite, recipes: dict[str, Recipe], speeds: dict[str, Speed], output: Path, jobs: int
) -> str:
    """Describes the cost of a suite in lines of text: runs, parameters, speed and hours."""
    seconds = {cell: speeds[cell.system].run_seconds(recipes[cell.name]) for cell in suite.cells}
    size = f"{counted(len(suite.systems), 'system')}, {counted(len(suite.seeds), 'seed')}"
    lines = textwrap.wrap(f"{suite.name}: {counted(len(suite.cells), 'run')} ({size}).", 79)
    width = min(34, max(map(len, suite.systems)))
    lines.append(f"  {'system':<{width}}  parameters  s/update   speed  runs  hours")
    for name in suite.systems:
        speed, own = speeds[name], [seconds[cell] for cell in suite.cells if cell.system == name]
        shown = name if len(name) <= width else f"{name[: width - 1]}…"
        numbers = f"{speed.parameters:>11,}  {speed.seconds:>8.3f}  × {speed.relative:.2f}"
        lines.append(f"  {shown:<{width}} {numbers}  {len(own):>4}  {sum(own) / 3600:>5.1f}")
    records = SuiteRecords(suite.cells, output)
    missing = [seconds[cell] for cell in suite.cells if not records.is_finished(cell)]
    hours = sum(missing) / 3600
    text = f"{counted(len(missing), 'run')} to be done: {hours:.1f} hours one after the other at the speeds in {SPEEDS}"
    text += (
        f", {hours / jobs:.1f} with {jobs} side by side on as many free cores." if jobs > 1 else "."
    )
    lines += textwrap.wrap(f"{text} Speeds are multiples of {suite.baseline}'s.", 79)
    return "\n".join(lines)


def progress_reporter(
    suite: Suite, recipes: dict[str, Recipe], speeds: dict[str, Speed], output: Path, jobs: int
) -> Callable[[Progress], None]:
    """Returns a function that says where a suite stands, with the hours to go at the speeds
    measured.

    That is a line whenever a cell ends, and every ten minutes; on a terminal one line that changes.
    """
    seconds = {cell: speeds[cell.system].run_seconds(recipes[cell.name]) for cell in suite.cells}
    is_terminal = sys.stderr.isatty()
    last = (-1, 0.0)  # cells that had ended, and when that was told

    records = SuiteRecords(suite.cells, output)

    def show(progress: Progress) -> None:
        nonlocal last
        ended, now = progress.done + len(progress.failed), time.monotonic()
        if ended == last[0] and now - last[1] < (1 if is_terminal else _SECONDS_BETWEEN_LINES):
            return
        left = sum(
            own * (1 - progress.running.get(cell.name, 0.0))
            for cell, own in seconds.items()
            if cell.name not in progress.failed and not records.is_finished(cell)
        )
        failed = f", {len(progress.failed)} failed" if progress.failed else ""
        running = ", ".join(f"{name} {share:.0%}" for name, share in progress.running.items())
        text = f"{progress.done} of {counted(progress.total, 'run')} done{failed}; "
        text += f"about {left / jobs / 3600:.1f} hours to go. Running: {running or 'none'}."
        is_last = ended == progress.total
        print(
            text,
            end="\x1b[K\r" if is_terminal and not is_last else "\n",
            file=sys.stderr,
            flush=True,
        )
        last = (ended, now)

    return show
