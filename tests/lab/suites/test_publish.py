# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Publication of a suite, and that it goes on from there."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import yaml
from datasets import load_dataset
from lab.suites.small_suites import REFERENCES, finish, make_suite, prepare, report_of, train_all

from csan_hf.lab.suites import load_suite, publish, publish_suite, run_suite, workflow
from csan_hf.lab.suites.records import SuiteRecords
from csan_hf.training.errors import RecipeError
from csan_hf_runtime.text_files import write_lines

COMMITTED = Path(__file__).parents[3] / "model_cards/suites"
PUBLISHED = {"report.md", "scores.csv", "dev.png", "runs.parquet", "hypotheses.parquet"}


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def output(tmp_path):
    folder = tmp_path / "suite"
    folder.mkdir()
    return folder


@pytest.fixture
def suite(output):
    """A suite whose first seed is finished, with its report."""
    suite = make_suite(output, steps=1)
    suite = dataclasses.replace(suite, runs=suite.runs[:4])
    for run in suite.runs:
        finish(run, output, 3)
        (prepare(run, output) / "model.safetensors").write_text("weights")
    for name in ("report.md", "scores.csv", "dev.png", "report.json", "dev.svg", "notes.txt"):
        (output / name).write_text(f"# {suite.name}\n{name}")
    (output / "speeds.json").write_text("{}")
    write_lines(output / "references/one/validation.txt", REFERENCES)
    return suite


@pytest.fixture
def public(suite, output, tmp_path):
    """The folder in which the suite is published."""
    publish_suite(suite, output, tmp_path / "public")
    return tmp_path / "public"


def test_the_report_and_its_records_are_published_and_nothing_else(suite, output, tmp_path):
    published = publish_suite(suite, output, tmp_path / "public")
    assert files(tmp_path / "public") == {path.name for path in published} == PUBLISHED


def test_records_are_the_same_where_they_are_published(suite, output, public):
    records = SuiteRecords(suite, output)
    published = SuiteRecords(suite, public)
    assert published.finished == list(suite.runs)
    for run in suite.runs:
        assert published.record(run).hypotheses == records.record(run).hypotheses
        assert published.record(run).results == records.record(run).results
        assert published.record(run).fingerprint() == records.record(run).fingerprint()


@pytest.mark.parametrize("name", ["documents", "lengths", "multi30k"])
def test_facts_of_systems_are_printed_again_from_what_is_committed(name, tmp_path, monkeypatch):
    """Parameters, speeds, minutes and operations; scores would need the data."""
    monkeypatch.setattr(workflow, "read_tables", lambda texts: [])
    monkeypatch.setattr(workflow, "read_lengths", lambda texts: None)
    run_suite(load_suite(name), tmp_path, only="report", published=COMMITTED / name)
    facts = (tmp_path / "report.md").read_text().split("\n\n")[2]
    assert facts.startswith("| system | parameters")
    assert facts in (COMMITTED / name / "report.md").read_text().split("\n\n")


def test_the_tables_are_read_by_datasets(public, tmp_path):
    path = str(public / "hypotheses.parquet")
    table = load_dataset("parquet", data_files=path, cache_dir=str(tmp_path / "cache"))["train"]
    assert len(table) == 4 * 40
    first = {"data": "one", "split": "validation", "segment": 0}
    assert table[0].items() >= first.items()


def test_a_suite_goes_on_from_what_was_published(output, public, tmp_path):
    elsewhere = shutil.copytree(public, tmp_path / "elsewhere")
    reports = []
    for folder in (output, elsewhere):
        suite = make_suite(folder, steps=1)
        assert train_all(suite, folder).failed == {}
        trained = [run for run in suite.runs if (run.folder(folder) / "trained").is_file()]
        assert [run.seed for run in trained] == 4 * [2] + 4 * [3]
        reports.append(report_of(suite, folder))
    assert reports[0] == reports[1]
    publish_suite(suite, elsewhere, public)
    assert len(SuiteRecords(suite, public).finished) == 12


@pytest.mark.parametrize("name", ["report.md", "scores.csv", "dev.png"])
def test_files_of_something_else_are_not_replaced(suite, output, tmp_path, name):
    target = tmp_path / "another report"
    (target / "runs").mkdir(parents=True)
    (target / name).write_text("# mine")
    message = rf"{name} is not of a report of suite, size small: choose another"
    with pytest.raises(RecipeError, match=message):
        publish_suite(suite, output, target)
    assert files(target) == {name}


@pytest.mark.parametrize("target", ["../suite", "runs/one"])
def test_a_suite_is_not_published_where_it_trains(suite, output, target):
    with pytest.raises(RecipeError, match="is the folder in which the suite trains, or lies in it"):
        publish_suite(suite, output, output / target)


def test_runs_published_before_are_not_lost(suite, output, public):
    (suite.runs[0].folder(output) / "finished.json").unlink()
    with pytest.raises(RecipeError, match=r"plain, one, seed 1, which is not finished in .*: copy"):
        publish_suite(suite, output, public)


def test_without_a_report_nothing_is_published(suite, output, tmp_path):
    for name in ("report.md", "report.json", "scores.csv", "dev.png"):
        (output / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"suite/report\.md"):
        publish_suite(suite, output, tmp_path / "public")


@pytest.mark.parametrize("written", range(len(PUBLISHED)))
def test_a_publication_that_was_killed_is_repeated_and_mixes_nothing(
    suite, output, public, monkeypatch, written
):
    other_translations = 40 * ["other"]
    for run in suite.runs:
        write_lines(run.folder(output) / "hypotheses/validation.txt", other_translations)
    calls = iter(range(written))

    def write(path, content):
        if next(calls, None) is None:
            raise OSError("no space left on device")
        path.write_bytes(content)

    with monkeypatch.context() as context:
        context.setattr(publish, "write_bytes", write)
        with pytest.raises(OSError, match="no space"):
            publish_suite(suite, output, public)
    assert SuiteRecords(suite, public).finished == []
    assert len(publish_suite(suite, output, public)) == len(PUBLISHED)
    records = SuiteRecords(suite, public)
    assert all(
        records.record(run).hypotheses["validation"] == other_translations for run in suite.runs
    )


def test_other_data_are_noticed(suite, output, public):
    run_suite(suite, public, only="report")
    shutil.rmtree(public / "references")
    rows = (output / "dev.tsv").read_text()
    (output / "dev.tsv").write_text(rows.replace("4 x", "0 x"))
    message = r"one/validation: .* and the published runs in .* have other data"
    with pytest.raises(RecipeError, match=message):
        run_suite(suite, public, only="report")


@pytest.mark.parametrize(
    ("file", "spoil", "message"),
    [
        (
            "results.json",
            lambda path: path.write_text(path.read_text().replace("{", f'{{"a": "{path}", ', 1)),
            r"results\.json, line 1 .*: a path of this machine",
        ),
        (
            "hypotheses/validation.txt",
            lambda path: path.write_text(f"hf_{34 * 'a'}\n"),
            r"validation\.txt holds a credential",
        ),
        (
            "hypotheses/validation.txt",
            lambda path: path.unlink() or path.symlink_to("/elsewhere"),
            r"validation\.txt is a link that leads out of",
        ),
    ],
)
def test_what_is_private_is_not_published(file, spoil, message, suite, output, tmp_path):
    spoil(suite.runs[0].folder(output) / file)
    with pytest.raises(ValueError, match=message):
        publish_suite(suite, output, tmp_path / "public")


def test_a_path_in_a_recipe_that_another_machine_lacks_is_refused(suite, output, tmp_path):
    run = suite.runs[1]
    run.recipe["data"]["train"] = str(tmp_path / "train.tsv")
    recipe = run.folder(output) / "run.yaml"
    content = yaml.safe_load(recipe.read_text())
    recipe.write_text(yaml.safe_dump({**content, "data": run.recipe["data"]}))
    message = r"run\.yaml: data names a path that means nothing on another machine, so 1D, one, "
    with pytest.raises(RecipeError, match=message):
        publish_suite(suite, output, tmp_path / "public")
    assert not (tmp_path / "public").exists()


def test_links_that_lead_out_of_the_folder_are_not_written(suite, output, public, tmp_path):
    (tmp_path / "key").write_text("secret")
    (public / "scores.csv").unlink()
    (public / "scores.csv").symlink_to(tmp_path / "key")
    with pytest.raises(ValueError, match=r"scores\.csv is a link that leads out of"):
        publish_suite(suite, output, public)
    with pytest.raises(ValueError, match=r"scores\.csv is a link that leads out of"):
        run_suite(suite, public, only="report")
    assert (tmp_path / "key").read_text() == "secret"


def test_a_report_on_what_is_published_where_there_are_no_runs(suite, public, tmp_path):
    empty = tmp_path / "empty"
    run_suite(suite, empty, only="report", published=public)
    assert SuiteRecords(suite, empty).finished == list(suite.runs)
