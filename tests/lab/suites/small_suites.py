# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Small suites, their runs finished by a stub or by hand, and their reports."""

import yaml

from csan_hf.lab.suites import load_suite
from csan_hf.lab.suites.lengths import read_lengths
from csan_hf.lab.suites.records import SuiteRecords
from csan_hf.lab.suites.schedule import train_runs
from csan_hf.lab.suites.suite_report import write_suite_report
from csan_hf.lab.suites.suite_texts import SuiteTexts
from csan_hf.lab.suites.tables import read_tables
from csan_hf.lab.suites.training_speed import Speed
from csan_hf.training.record import RECIPE, RunRecord, recipe_text

SPEED = Speed(
    parameters=1_000, seconds=0.5, tokens=10.0, relative=1.0, evaluation=30.0, scoring=120.0
)
REFERENCES = [f"{number % 5} x" for number in range(40)]


def make_suite(folder, systems=("plain", "1D"), steps=12, **changes):
    """Writes and loads a suite of three seeds on two data sets of 40 words."""
    rows = [f"w{number}\t{reference}\n" for number, reference in enumerate(REFERENCES)]
    (folder / "dev.tsv").write_text("".join(rows))
    data = {
        "data_dir": str(folder),
        "train": "dev.tsv",
        "validation": "dev.tsv",
        "source_lang": "words",
        "target_lang": "ipa",
        "source_column": "0",
        "target_column": "1",
    }
    base = {"data": data, "training": {"max_steps": steps}}
    (folder / "base.yaml").write_text(yaml.safe_dump(base))
    if not isinstance(systems, dict):
        systems = {name: {"name": name} for name in systems}
    suite = {
        "metric": "g2p_wer",
        "seeds": [1, 2, 3],
        "systems": systems,
        "data": {"one": {}, "two": {}},
        "tables": {"dev": ["validation"]},
        "sizes": {"small": {"base": "base.yaml"}},
    }
    (folder / "suite.yaml").write_text(yaml.safe_dump({**suite, **changes}, sort_keys=False))
    return load_suite(folder / "suite.yaml")


def train_all(suite, folder, **options):
    """Runs all runs that are not finished."""
    return train_runs(SuiteRecords(suite, folder), jobs=2, **options)


def prepare(run, folder):
    """Writes a run's recipe into its folder, which it returns."""
    run_folder = run.folder(folder)
    run_folder.mkdir(parents=True, exist_ok=True)
    recipe = {**run.recipe, "output_dir": str(run_folder)}
    (run_folder / RECIPE).write_text(recipe_text(recipe))
    return run_folder


def finish(run, folder, wrong=0, data=None, **hypotheses):
    """Writes the record of a run whose first so many words are wrong."""
    results = {
        "data": data,
        "parameters": 7,
        "training": {"seconds": 60.0, "updates": 5},
        "environment": {"device": run.data},
    }
    lines = ["? x"] * wrong + REFERENCES[wrong:]
    RunRecord(run.recipe, results, {"validation": lines, **hypotheses}, "").write(
        run.folder(folder)
    )


def finished_suite(folder, wrong=lambda run: 3, **options):
    """A suite whose runs are finished, with so many wrong words each; None: not finished."""
    suite = make_suite(folder, **options)
    for run in suite.runs:
        count = wrong(run)
        if count is not None:
            finish(run, folder, count)
    return suite


def tables_of(suite, folder):
    return read_tables(SuiteTexts(SuiteRecords(suite, folder)))


def report_of(suite, folder, speeds=None, failed=None):
    """Writes the report of what is finished, and returns its text."""
    records = SuiteRecords(suite, folder)
    texts = SuiteTexts(records)
    write_suite_report(
        records, read_tables(texts), speeds or {}, lengths=read_lengths(texts), failed=failed
    )
    return (folder / "report.md").read_text()
