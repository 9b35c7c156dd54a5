# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A whole suite: its cost, its runs, its report."""

import sys
from pathlib import Path

from csan_hf.data.corpora import check_files
from csan_hf.training.errors import RecipeError
from csan_hf.training.output_folder import lock_folder
from csan_hf_runtime.text_files import counted, write_bytes, write_json

from .costs import describe_cost, progress_reporter, read_speeds, speeds_as_json
from .ensembles import translate_ensembles
from .lengths import read_lengths
from .records import HYPOTHESES, RUNS, SuiteRecords
from .schedule import train_runs
from .suite import Suite
from .suite_report import REPORT, check_folder, is_report_of, write_suite_report
from .suite_texts import SuiteTexts
from .tables import read_tables
from .training_speed import SPEEDS, Speed, measure_speed


def run_suite(
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

    The same call continues after any interruption: finished runs stay, those begun resume from
    their last checkpoint.

    Args:
        suite: The suite.
        output: Its folder: runs, `report.html`, `report.md`, `report.json`, `scores.csv`, pictures.
        jobs: Runs side by side.
        threads: Threads of each run.
        only: "all"; "cost" only checks all recipes and prints the costs; "report" only writes a
            report on the finished runs.
        published: Folder with the published tables of the suite, for a report where `output` holds
            no runs.
        progress: Whether to show on standard error how far the suite has come.

    Returns:
        The runs that failed, each with a reason.

    Raises:
        RecipeError: A recipe is refused, the folder holds what another suite or no suite made,
            another process runs a suite there, or a report was asked for and nothing is finished.
        ValueError: The files of a data set are not there, or not tables with its columns.
    """
    check_folder(SuiteRecords(suite, output))
    if only == "report" and published is not None:
        _take_published(suite, published, output)
    records = SuiteRecords(suite, output)
    for run in suite.runs:
        run.recipe_in(output)  # all are checked before anything is done
    if only == "report":
        if not records.finished:
            raise RecipeError(
                f"In {output} no run of {suite.name}, is finished: there is nothing to report."
            )
        with lock_folder(output):
            _report(records, read_speeds(records))
        return {}
    unfinished = {run.data: run for run in suite.runs if not records.is_finished(run)}
    for run in unfinished.values():
        check_files(run.recipe_in(output).data_arguments())
    with lock_folder(output):
        speeds = read_speeds(records)
        if missing := sorted(set(suite.systems) - set(speeds)):
            print(
                f"Measuring the speed of training of {counted(len(suite.systems), 'system')} "
                f"({', '.join(missing)} not known).",
                file=sys.stderr,
            )
            speeds = _measure_speeds(records)
        print(describe_cost(records, speeds, jobs), file=sys.stderr, flush=True)
        if only == "cost":
            return {}
        SuiteTexts(records).check_data()  # before hours are spent on other data
        report = progress_reporter(records, speeds, jobs) if progress else None
        failed = train_runs(records, jobs=jobs, threads=threads, report=report).failed
        translate_ensembles(records, progress=progress)
        _report(records, speeds, failed)
    return failed


def _report(
    records: SuiteRecords, speeds: dict[str, Speed], failed: dict[str, str] | None = None
) -> None:
    texts = SuiteTexts(records)
    write_suite_report(
        records, read_tables(texts), speeds, lengths=read_lengths(texts), failed=failed
    )


def _take_published(suite: Suite, published: Path, output: Path) -> None:
    """Copies the published tables into a suite's folder that holds no runs.

    Nothing is copied from a suite of another name or size.
    """
    if (output / "runs").is_dir() or (output / RUNS).is_file():
        return
    if not (published / RUNS).is_file() or not is_report_of(suite, published / REPORT):
        return
    SuiteRecords(suite, published).check()
    print(f"{output} holds no runs: the report is on those in {published}.", file=sys.stderr)
    for name in (HYPOTHESES, RUNS):
        write_bytes(output / name, (published / name).read_bytes())


def _measure_speeds(records: SuiteRecords) -> dict[str, Speed]:
    """Measures the speeds of all systems on the first data set, the baseline's first."""
    suite = records.suite
    recipes = {}
    for system in dict.fromkeys((suite.baseline, *suite.systems)):
        recipes[system] = suite.first_run_by_system[system].recipe_in(records.output)
    speeds = measure_speed(recipes)
    write_json(records.output / SPEEDS, speeds_as_json(suite, speeds))
    return speeds
