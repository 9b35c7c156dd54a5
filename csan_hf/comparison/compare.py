# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A whole suite: its cost, its runs, its report."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from tqdm.auto import tqdm

from csan_hf.data.corpora import check_files
from csan_hf.text_files import write_json
from csan_hf.training.output_folder import lock_folder
from csan_hf.training.recipe import Recipe, RecipeError

from .report import REPORT, files_of_report, heading, write_report
from .results import check_references, read_tables
from .schedule import Progress, check_cell, is_finished, load_cell, run_cells, trained_keys
from .speed import SPEEDS, Speed, measure_speed
from .suite import Suite

_SECONDS_BETWEEN_LINES = 600.0


def compare_suite(
    suite: Suite, output: Path, *, jobs: int = 1, threads: int = 1, only: str = "all", progress: bool = True
) -> dict[str, str]:
    """Trains what is missing of a suite, and writes its report.

    The same call continues after any interruption: finished cells stay, the others resume from their last checkpoint.

    Args:
        suite: The suite.
        output: Its folder: `runs`, `report.md`, `report.json`, `scores.csv` and pictures.
        jobs: Cells side by side.
        threads: Threads of each cell.
        only: "all"; "cost" only checks all recipes and prints the costs; "report" only writes a report on the finished
            cells.
        progress: Whether to show on standard error how far the suite has come.

    Returns:
        The cells that failed, each with a reason.

    Raises:
        RecipeError: A recipe is refused, the folder holds what another suite or no suite made, another process runs
            a suite there, or a report was asked for and nothing is finished.
    """
    recipes = {cell.name: load_cell(cell, output) for cell in suite.cells}
    _check_folder(suite, output)
    if only != "report":
        _check_data(suite, recipes, output)
    if only == "report" and not any(is_finished(cell, output) for cell in suite.cells):
        raise RecipeError(f"In {output} no run of {suite.name}, is finished: there is nothing to report.")
    with lock_folder(output):
        speeds = _read_speeds(suite, output)
        if only == "report":
            write_report(suite, read_tables(suite, output), output, speeds, {})
            return {}
        if missing := set(suite.systems) - set(speeds):
            print(
                f"Measuring how fast {len(suite.systems)} systems train ({', '.join(sorted(missing))} not known).",
                file=sys.stderr,
            )
            data = suite.cells[0].data
            first = {cell.system: recipes[cell.name] for cell in reversed(suite.cells) if cell.data == data}
            speeds = measure_speed({name: first[name] for name in dict.fromkeys((suite.baseline, *suite.systems))})
            recipe = _digests(suite)
            write_json(
                output / SPEEDS, {name: {**asdict(speed), "recipe": recipe[name]} for name, speed in speeds.items()}
            )
        print(describe_cost(suite, recipes, speeds, output, jobs), file=sys.stderr, flush=True)
        if only == "cost":
            return {}
        if any(is_finished(cell, output) for cell in suite.cells):
            check_references(suite, output)  # before hours are spent on other data
        reporter = ProgressReporter(suite, recipes, speeds, output, progress)
        ended = run_cells(suite.cells, output, jobs=jobs, threads=threads, report=reporter)
        reporter.close()
        write_report(suite, read_tables(suite, output), output, speeds, ended.failed)
    return ended.failed


def _check_folder(suite: Suite, output: Path) -> None:
    """Checks that a report overwrites only an earlier report, and that no run was trained by another recipe."""
    for cell in suite.cells:
        check_cell(cell, output)
    foreign = [name for name in files_of_report(suite) if (output / name).exists()]
    if foreign and not (output / SPEEDS).is_file() and not (output / "runs").is_dir():
        raise RecipeError(f"{output} holds {foreign[0]}, and no runs of a suite: choose another --output.")
    report = output / REPORT
    if report.exists() and report.read_bytes().splitlines()[:1] != [heading(suite).encode()]:
        raise RecipeError(f"{report} is not a report of {suite.name}: choose another --output, or delete it.")


def _check_data(suite: Suite, recipes: dict[str, Recipe], output: Path) -> None:
    """Checks the files of data sets that are still to be trained on."""
    waiting = {cell.data: cell.name for cell in reversed(suite.cells) if not is_finished(cell, output)}
    for data, cell in waiting.items():
        try:
            check_files(recipes[cell].data_arguments())
        except (ValueError, OSError) as error:
            raise RecipeError(f"data set {data}: {error}") from error


def _read_speeds(suite: Suite, output: Path) -> dict[str, Speed]:
    """The speeds measured earlier of systems that have not changed; unreadable ones are measured again."""
    recipes, found = _digests(suite), {}
    try:
        content = json.loads((output / SPEEDS).read_text(encoding="utf-8"))
        for name, digest in recipes.items():
            values = dict(content.get(name, {}))
            if values.pop("recipe", None) == digest:
                found[name] = Speed(**values)
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return {}
    return found


def _digests(suite: Suite) -> dict[str, str]:
    """A digest of each system's recipe and of the baseline's, to which its speed is relative."""
    first = {cell.system: trained_keys(cell.recipe) for cell in reversed(suite.cells)}
    both = {name: json.dumps([first[suite.baseline], own], sort_keys=True, default=str) for name, own in first.items()}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in both.items()}


def describe_cost(suite: Suite, recipes: dict[str, Recipe], speeds: dict[str, Speed], output: Path, jobs: int) -> str:
    """Describes the cost of a suite in lines of text: runs, parameters, speed and hours."""
    lines = [f"{suite.name}: {len(suite.cells)} runs ({len(suite.systems)} systems, {len(suite.seeds)} seeds)."]
    for name in suite.systems:
        speed, own = speeds[name], [cell for cell in suite.cells if cell.system == name]
        hours = sum(speed.run_seconds(recipes[cell.name]) for cell in own) / 3600
        lines.append(
            f"  {name}: {speed.parameters:,} parameters, {speed.seconds:.3f} s an update, × {speed.relative:.2f} the "
            f"speed of {suite.baseline}; {len(own)} runs, {hours:.1f} hours"
        )
    missing = [cell for cell in suite.cells if not is_finished(cell, output)]
    hours = sum(speeds[cell.system].run_seconds(recipes[cell.name]) for cell in missing) / 3600
    lines.append(
        f"  {len(missing)} runs are to be done: {hours:.1f} hours one after the other at the speeds in {SPEEDS}"
        + (f", {hours / jobs:.1f} with {jobs} side by side on as many free cores." if jobs > 1 else ".")
    )
    return "\n".join(lines)


class ProgressReporter:
    """Shows where a suite stands: a bar on a terminal; elsewhere a line for each end of a cell, and now and then."""

    def __init__(
        self, suite: Suite, recipes: dict[str, Recipe], speeds: dict[str, Speed], output: Path, shown: bool
    ) -> None:
        self.suite, self.output, self.shown = suite, output, shown
        self.seconds = {cell.name: speeds[cell.system].run_seconds(recipes[cell.name]) for cell in suite.cells}
        self.total = sum(self.seconds.values())
        self.bar = tqdm(total=100.0, unit="%", dynamic_ncols=True) if shown and sys.stderr.isatty() else None
        self.start: tuple[float, float] | None = None
        self.resumed: dict[str, float] = {}
        self.ended = -1
        self.told = 0.0

    def __call__(self, progress: Progress) -> None:
        """Shows the progress."""
        if not self.shown:
            return
        done = sum(self.seconds[cell.name] for cell in self.suite.cells if is_finished(cell, self.output))
        now = time.monotonic()
        self.start = self.start or (now, done)
        for name, share in progress.running.items():
            done += self.seconds[name] * share
            if share:  # what a run tells first, it did mostly before it was resumed
                self.resumed.setdefault(name, self.seconds[name] * share)
        text = f"{progress.done} of {progress.total} runs done"
        text += f", {len(progress.failed)} failed" if progress.failed else ""
        if self.bar is not None:
            self.bar.set_description(text, refresh=False)
            self.bar.update(100.0 * done / self.total - self.bar.n)
            return
        ended = progress.done + len(progress.failed)
        if ended > self.ended or now - self.told > _SECONDS_BETWEEN_LINES:
            gained, spent = done - self.start[1] - sum(self.resumed.values()), now - self.start[0]
            left = f"; about {(self.total - done) * spent / gained / 3600:.1f} hours to go" if gained > 0 else ""
            running = ", ".join(f"{name} {share:.0%}" for name, share in progress.running.items())
            print(f"{text}{left}. Running: {running or 'none'}.", file=sys.stderr, flush=True)
            self.ended, self.told = ended, now

    def close(self) -> None:
        """Ends the bar."""
        if self.bar is not None:
            self.bar.close()
