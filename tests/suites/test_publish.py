# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What is published of a suite, and that it goes on from there."""

import dataclasses
import json
import shutil

import pytest
import yaml
from datasets import load_dataset
from suites.small_suites import REFERENCES, finish, make_suite, prepare, report_of, train_all

from csan_hf.hub.public_files import PrivateContentError
from csan_hf.suites import publish, publish_suite, run_suite
from csan_hf.suites.records import SuiteRecords
from csan_hf.text_files import write_lines
from csan_hf.training.recipe import RecipeError

PUBLISHED = {"report.md", "scores.csv", "dev.png", "runs.parquet", "hypotheses.parquet"}


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def suite_folder(tmp_path):
    """A suite whose first seed is finished, with its report."""
    (folder := tmp_path / "suite").mkdir()
    suite = make_suite(folder, steps=1)
    suite = dataclasses.replace(suite, runs=suite.runs[:4])
    for run in suite.runs:
        finish(run, folder, 3)
        (prepare(run, folder) / "model.safetensors").write_text("weights")
    for name in (
        "report.md",
        "scores.csv",
        "dev.png",
        "report.json",
        "dev.svg",
        "speeds.json",
        "notes.txt",
    ):
        (folder / name).write_text(
            "{}" if name == "speeds.json" else f"# {suite.name}\n{name} of {folder}"
        )
    write_lines(folder / "references/one/validation.txt", REFERENCES)
    return suite, folder


def records_in(suite, folder):
    return SuiteRecords(suite, folder)


def test_the_report_and_what_it_rests_on_are_published_and_nothing_else(suite_folder, tmp_path):
    suite, folder = suite_folder
    published = publish_suite(suite, folder, tmp_path / "public")
    assert files(tmp_path / "public") == PUBLISHED
    assert {path.name for path in published} == PUBLISHED
    for path in published:
        if path.suffix != ".png":
            assert str(tmp_path).encode() not in path.read_bytes()
    here, there = (records_in(suite, place) for place in (folder, tmp_path / "public"))
    assert there.finished == list(suite.runs)
    for run in suite.runs:
        assert there.record(run).hypotheses == here.record(run).hypotheses
        assert there.record(run).fingerprint() == here.record(run).fingerprint()
        assert there.record(run).results == here.record(run).results


def test_the_tables_are_read_by_datasets(suite_folder, tmp_path):
    suite, folder = suite_folder
    publish_suite(suite, folder, tmp_path / "public")
    cache = str(tmp_path / "cache")
    table = load_dataset(
        "parquet", data_files=str(tmp_path / "public/hypotheses.parquet"), cache_dir=cache
    )
    first = table["train"][0]
    assert (first["data"], first["split"], first["segment"]) == ("one", "validation", 0)
    assert len(table["train"]) == 4 * 40


def test_a_suite_goes_on_from_what_was_published(suite_folder, tmp_path):
    first, folder = suite_folder
    publish_suite(first, folder, tmp_path / "public")
    elsewhere = shutil.copytree(tmp_path / "public", tmp_path / "elsewhere")
    reports = []
    for place in (folder, elsewhere):
        suite = make_suite(place, steps=1)
        assert train_all(suite, place).failed == {}
        trained = [run for run in suite.runs if (run.folder(place) / "trained").is_file()]
        assert [run.seed for run in trained] == 4 * [2] + 4 * [3]
        reports.append(report_of(suite, place))
    assert reports[0] == reports[1]
    publish_suite(suite, elsewhere, tmp_path / "public")
    assert len(records_in(suite, tmp_path / "public").finished) == 12


def test_targets_that_are_refused(suite_folder, tmp_path):
    suite, folder = suite_folder
    for name in ("report.md", "scores.csv", "dev.png"):
        (mine := tmp_path / f"of others {name}" / "runs").mkdir(parents=True)
        (mine.parent / name).write_text("# mine")
        with pytest.raises(
            RecipeError, match=rf"{name} is not of a report of suite, size small: choose another"
        ):
            publish_suite(suite, folder, mine.parent)
        assert files(mine.parent) == {name}
    publish_suite(suite, folder, tmp_path / "public")
    (other := tmp_path / "other").mkdir()
    with pytest.raises(
        RecipeError, match="public/runs/one/plain/seed_1 was trained by another recipe"
    ):
        publish_suite(make_suite(other, steps=2), other, tmp_path / "public")
    for own in (folder / ".." / "suite", folder / "runs" / "one"):
        with pytest.raises(
            RecipeError, match="is the folder in which the suite trains, or lies in it"
        ):
            publish_suite(suite, folder, own)
    (mark := suite.runs[0].folder(folder) / "finished.json").unlink()
    with pytest.raises(RecipeError, match=r"plain, one, seed 1, which is not finished in .*: copy"):
        publish_suite(suite, folder, tmp_path / "public")
    mark.write_text("{}")
    (folder / "report.md").unlink()
    with pytest.raises(FileNotFoundError, match=r"suite/report\.md"):
        publish_suite(suite, folder, tmp_path / "public")


@pytest.mark.parametrize("written", range(len(PUBLISHED)))
def test_a_publication_that_was_killed_is_repeated_and_mixes_nothing(
    suite_folder, tmp_path, monkeypatch, written
):
    suite, folder = suite_folder
    publish_suite(suite, folder, tmp_path / "public")
    for run in suite.runs:
        (run.folder(folder) / "hypotheses/validation.txt").write_text("other\n" * 40)
    calls = iter(range(written))

    def write(path, content):
        if next(calls, None) is None:
            raise OSError("no space left on device")
        path.write_bytes(content)

    with monkeypatch.context() as context:
        context.setattr(publish, "write_bytes", write)
        with pytest.raises(OSError, match="no space"):
            publish_suite(suite, folder, tmp_path / "public")
    assert records_in(suite, tmp_path / "public").finished == []
    assert len(publish_suite(suite, folder, tmp_path / "public")) == len(PUBLISHED)
    public = records_in(suite, tmp_path / "public")
    assert all(public.record(run).hypotheses["validation"] == 40 * ["other"] for run in suite.runs)


def test_other_data_are_noticed(suite_folder, tmp_path):
    suite, folder = suite_folder
    publish_suite(suite, folder, tmp_path / "public")
    run_suite(suite, tmp_path / "public", only="report")
    shutil.rmtree(tmp_path / "public" / "references")
    (folder / "dev.tsv").write_text("".join(f"w{number}\t{number % 4} x\n" for number in range(40)))
    with pytest.raises(
        RecipeError, match=r"one/validation: .* and the published runs in .* have other data"
    ):
        run_suite(suite, tmp_path / "public", only="report")


def test_secrets_and_paths_stay(suite_folder, tmp_path):
    suite, folder = suite_folder
    run = suite.runs[0].folder(folder)
    results = {
        "parameters": 10,
        "training": {"seconds": 1.0, "updates": 1},
        "where": f"{run}/model.safetensors",
    }
    (run / "results.json").write_text(json.dumps(results))
    publish_suite(suite, folder, tmp_path / "public")
    public = records_in(suite, tmp_path / "public").record(suite.runs[0]).results
    assert public == {**results, "where": "model.safetensors"}
    (run / "hypotheses" / "validation.txt").write_text(f"hf_{34 * 'a'}\n")
    with pytest.raises(PrivateContentError, match=r"validation\.txt holds a credential"):
        publish_suite(suite, folder, tmp_path / "secret")
    (tmp_path / "key").write_text("of another")
    (run / "hypotheses" / "validation.txt").unlink()
    (run / "hypotheses" / "validation.txt").symlink_to(tmp_path / "key")
    with pytest.raises(ValueError, match=r"validation\.txt is a link that leads out of"):
        publish_suite(suite, folder, tmp_path / "secret")
    (run / "hypotheses" / "validation.txt").unlink()
    (run / "hypotheses" / "validation.txt").write_text("x\n" * 40)
    (tmp_path / "public" / "scores.csv").unlink()
    (tmp_path / "public" / "scores.csv").symlink_to(tmp_path / "key")
    with pytest.raises(ValueError, match=r"scores\.csv is a link that leads out of"):
        publish_suite(suite, folder, tmp_path / "public")
    with pytest.raises(ValueError, match=r"scores\.csv is a link that leads out of"):
        run_suite(suite, tmp_path / "public", only="report")
    assert (tmp_path / "key").read_text() == "of another"
    recipe = suite.runs[1].folder(folder) / "run.yaml"
    suite.runs[1].recipe["data"]["train"] = str(tmp_path / "train.tsv")
    content = yaml.safe_load(recipe.read_text())
    recipe.write_text(yaml.safe_dump({**content, "data": suite.runs[1].recipe["data"]}))
    message = r"run\.yaml: data names a path that means nothing on another machine, so 1D, one, "
    with pytest.raises(RecipeError, match=message):
        publish_suite(suite, folder, tmp_path / "secret")
    assert not (tmp_path / "secret").exists()
