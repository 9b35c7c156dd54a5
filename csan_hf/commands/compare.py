# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Trains and compares the systems of a suite.

A suite names systems × data sets × seeds over one recipe; `csan-hf recipes` lists those that come with csan_hf. Its
cost is printed first. The same command continues after any interruption; a finished run is never repeated, a failed
one is tried again. The report (report.md, report.json, scores.csv and pictures) is written into the folder of the
suite. --publish copies it, with what it rests on, to another folder, without models: copied back as --output on
another machine, the suite goes on from there.

    csan-hf compare naacl_table1 --data_dir data/multi30k --output runs/table1 --jobs 2
    csan-hf compare g2p --data_dir PATH --output runs/g2p --only cost
"""

import argparse
import sys
from pathlib import Path

from csan_hf.command_line import script
from csan_hf.comparison import compare_suite, load_suite, publish_suite
from csan_hf.comparison.publish import check_target


def _folder(name: str) -> Path:
    if not name:
        raise argparse.ArgumentTypeError("the name of a folder is empty")
    return Path(name)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="csan-hf compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", metavar="SUITE", help="YAML file, or the name of a suite")
    parser.add_argument("--output", type=_folder, required=True, metavar="FOLDER", help="folder of the suite")
    parser.add_argument("--size", help="one of the suite's sizes (default: the first)")
    parser.add_argument("--data_dir", metavar="FOLDER", help="folder of the data, instead of the recipe's")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each run (%(default)s)")
    parser.add_argument(
        "--only",
        choices=["all", "cost", "report"],
        default="all",
        help="cost: check all recipes and print the suite's cost; report: report on finished runs (%(default)s)",
    )
    parser.add_argument(
        "--publish",
        type=_folder,
        metavar="FOLDER",
        help="folder for the report and the finished runs' hypotheses, to share or to commit",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    options = parser.parse_args(arguments)
    for name in ("jobs", "threads"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(options, name)}.")
    if options.publish and options.only == "cost":
        raise ValueError("--publish needs a report, and --only cost writes none.")
    return options


@script()
def main(arguments: list[str]) -> int:
    """Runs `csan-hf compare`."""
    options = parse_arguments(arguments)
    suite = load_suite(options.suite, size=options.size, data_dir=options.data_dir)
    if options.publish:
        check_target(suite, options.output, options.publish)  # before anything is trained
    failed = compare_suite(
        suite,
        options.output,
        jobs=options.jobs,
        threads=options.threads,
        only=options.only,
        progress=not options.quiet,
    )
    for name, reason in failed.items():
        print(f"Failed: {name}: {reason}", file=sys.stderr)
    if options.only != "cost":
        print(f"The report is {options.output / 'report.md'}.")
    if options.publish:
        files = publish_suite(suite, options.output, options.publish)
        print(f"Published {len(files)} files in {options.publish}.")
    return 1 if failed else 0
