# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Training of a suite's runs: interruptions, failures, and the report at the end."""

import dataclasses
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from lab.suites.small_suites import (
    SPEED,
    finish,
    finished_suite,
    make_suite,
    prepare,
    report_of,
    train_all,
)

from csan_hf.lab.suites import costs, run_suite, schedule, workflow
from csan_hf.lab.suites.costs import describe_cost, progress_reporter
from csan_hf.lab.suites.records import SuiteRecords
from csan_hf.lab.suites.schedule import SuiteProgress, run_environment
from csan_hf.training.errors import RecipeError
from csan_hf.training.record import FINISHED


def report(suite, folder):
    report_of(suite, folder)
    names = ("report.md", "report.json", "scores.csv", "dev.svg")
    return {name: (folder / name).read_bytes() for name in names}


@pytest.mark.skipif(sys.platform != "linux", reason="runs end with their suite on Linux")
def test_a_suite_killed_five_times_ends_like_one_that_was_not(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    train_all(make_suite(whole), whole)
    draw = random.Random(3)
    for number in range(5):
        child = os.fork()
        if child == 0:
            os.setsid()
            os.close(2)
            train_all(make_suite(killed), killed)
            os._exit(0)
        time.sleep(draw.uniform(0.2, 0.8))
        kill = os.kill if number % 2 else os.killpg  # alone, or with all of its group
        kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        time.sleep(0.3)  # runs whose suite is gone save, and end
        states = {path: path.read_text() for path in killed.rglob("state")}
        time.sleep(0.1)
        assert states == {path: path.read_text() for path in killed.rglob("state")}
    suite = make_suite(killed)
    ended = train_all(suite, killed)
    assert (ended.done, ended.failed) == (12, {})
    assert report(suite, killed) == report(make_suite(whole), whole)
    for run in suite.runs:
        folder = run.folder(killed)
        steps = (folder / "trained").read_text().split()
        assert len(steps) == len({*steps}), "no update was made twice"
        assert (folder / FINISHED).is_file()
        assert not (folder / "checkpoint-1").exists()


def test_a_run_that_fails_is_reported_and_tried_again(tmp_path):
    suite = make_suite(tmp_path, systems=("plain", "fails"), steps=1, data={"one": {}})
    ended = train_all(suite, tmp_path)
    assert ended.done == 3
    assert sorted(ended.failed) == sorted(run.name for run in suite.runs if run.system == "fails")
    reason = ended.failed["fails, one, seed 1"]
    assert reason.startswith("exit status 2, ")
    assert reason.endswith(r"log.txt: there is no such\x1b[0m corpus")
    assert ended.failed["fails, one, seed 3"].endswith("log.txt: its last line holds a credential")
    text = report_of(suite, tmp_path, failed=ended.failed)
    assert "3 of 6 runs are not finished" in text
    assert r"log.txt: there is no such\\x1b\[0m corpus" in text
    assert len(train_all(suite, tmp_path).failed) == 3


def test_runs_wait_for_their_teachers(tmp_path, monkeypatch):
    systems = {
        "student": {"name": "student", "teachers": ["plain"]},
        "without": {"name": "without", "seeds": 1, "teachers": ["fails"]},
        "plain": {"name": "plain"},
        "fails": {"name": "fails", "seeds": 1},
    }
    suite = make_suite(tmp_path, steps=3, data={"one": {}}, systems=systems)
    monkeypatch.chdir(tmp_path.parent)
    ended = train_all(suite, Path(tmp_path.name))
    assert ended.done == 6
    assert ended.failed["without, one, seed 1"] == "it was not trained, as a teacher of it failed"
    teachers = [tmp_path / f"runs/one/plain/seed_{seed}" for seed in (1, 2, 3)]
    for student in (run for run in suite.runs if run.system == "student"):
        folder = student.folder(tmp_path)
        _, option, folders = json.loads((folder / "arguments").read_text())
        assert (option, json.loads(folders)) == ("--training.teachers", list(map(str, teachers)))
        began = (folder / "arguments").stat().st_mtime_ns
        assert all((teacher / FINISHED).stat().st_mtime_ns < began for teacher in teachers)
    shutil.rmtree(teachers[0])
    with pytest.raises(RecipeError, match="finished, but not its teacher plain, one, seed 1"):
        train_all(suite, Path(tmp_path.name))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_runs(tmp_path, number):
    # A shell's background job begins with SIGINT ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    handler = signal.getsignal(signal.SIGTERM)
    suite = make_suite(tmp_path, steps=100_000)
    running = []

    def end(progress):
        if all(share > 0 for share in progress.running.values()):
            running.extend(progress.running)
            signal.getsignal(number)(number, None)

    with pytest.raises(KeyboardInterrupt):
        train_all(suite, tmp_path, report=end)
    assert signal.getsignal(signal.SIGTERM) == handler
    assert len(running) == 2
    trained = [run.folder(tmp_path) / "trained" for run in suite.runs[:2]]
    before = [path.stat().st_size for path in trained]
    time.sleep(0.1)
    assert [path.stat().st_size for path in trained] == before


def test_a_finished_suite_trains_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "COMMAND", ("false",))
    suite = finished_suite(tmp_path)
    for run in suite.runs:  # what a card says changes no training
        run.recipe.update(description="another", license="mit")
    assert train_all(suite, tmp_path).done == 12


@pytest.mark.parametrize("finished", [True, False])
def test_runs_of_another_recipe_are_refused(tmp_path, finished):
    for run in make_suite(tmp_path).runs:
        if finished:
            finish(run, tmp_path)
        else:
            prepare(run, tmp_path)
    shorter_suite = make_suite(tmp_path, steps=2)
    message = r"was trained by another recipe .* plain, one, seed 1"
    with pytest.raises(RecipeError, match=message):
        train_all(shorter_suite, tmp_path)
    with pytest.raises(RecipeError, match=message):
        run_suite(shorter_suite, tmp_path, only="report")


@pytest.mark.parametrize(
    ("visible", "expected"), [(None, ["0", "1", "0"]), ("2, 5", ["2", "5", "2"])]
)
def test_runs_share_the_accelerators_that_the_suite_may_use(monkeypatch, visible, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [run_environment(slot, 1, 2)["CUDA_VISIBLE_DEVICES"] for slot in range(3)] == expected
    assert "CUDA_VISIBLE_DEVICES" not in run_environment(0, 1, 1)


def test_speeds_are_of_the_systems_as_they_are(tmp_path, monkeypatch):
    measured = []

    def measure(recipes):
        measured.append(sorted(recipes))
        return dict.fromkeys(recipes, SPEED)

    monkeypatch.setattr(workflow, "measure_speed", measure)
    run_suite(make_suite(tmp_path), tmp_path, only="cost")
    run_suite(make_suite(tmp_path), tmp_path, only="cost")
    assert len(measured) == 1
    run_suite(make_suite(tmp_path, steps=13), tmp_path, only="cost")
    assert measured == 2 * [["1D", "plain"]]


def test_a_report_needs_a_finished_run(tmp_path):
    with pytest.raises(RecipeError, match="none no run of suite, size small, is finished"):
        run_suite(make_suite(tmp_path), tmp_path / "none", only="report")
    assert not (tmp_path / "none").exists()


def test_missing_data_are_noticed_before_speeds_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(workflow, "measure_speed", None)
    suite = make_suite(tmp_path)
    (tmp_path / "dev.tsv").unlink()
    with pytest.raises(ValueError, match=r"dev\.tsv"):
        run_suite(suite, tmp_path, only="cost")


def test_changed_data_are_noticed_before_more_is_trained(tmp_path, monkeypatch):
    suite = make_suite(tmp_path, steps=1, data={"one": {}})
    monkeypatch.setattr(workflow, "measure_speed", lambda recipes: dict.fromkeys(recipes, SPEED))
    first_seed = dataclasses.replace(suite, runs=suite.runs[:2])
    assert train_all(first_seed, tmp_path).done == 2
    lines = (tmp_path / "dev.tsv").read_text()
    (tmp_path / "dev.tsv").write_text(lines.replace("0 x", "9 x"))
    message = r"one/validation: .* and plain, one, seed 1 in .* have other data"
    with pytest.raises(RecipeError, match=message):
        run_suite(suite, tmp_path)
    assert not suite.runs[2].folder(tmp_path).exists()
    (tmp_path / "dev.tsv").write_text(lines)
    assert run_suite(suite, tmp_path, jobs=2) == {}
    assert (tmp_path / "report.md").is_file()


def test_costs_and_the_hours_to_go(tmp_path, capsys, monkeypatch):
    suite = make_suite(tmp_path, steps=3600)
    records = SuiteRecords(suite, tmp_path)
    speeds = dict.fromkeys(suite.systems, SPEED)
    # 70 s to start, 3,600 updates at 0.5 s, 7 evaluations of 30 s, 120 s of scoring: 2,200 s a run
    monkeypatch.setattr(costs, "START", 70.0)
    text = describe_cost(records, speeds, 2)
    assert text.splitlines()[2].split() == ["plain", "1,000", "0.500", "×", "1.00", "6", "3.7"]
    assert "12 runs to be done: 7.3 hours one after the other" in text
    assert "3.7 hours with 2 side by side" in " ".join(text.split())
    show = progress_reporter(records, speeds, 2)
    name = suite.runs[0].name
    for share, failed in ((0.5, {}), (0.6, {}), (0.9, {suite.runs[1].name: "no"})):
        show(SuiteProgress(len(suite.runs), failed=failed, running={name: share}))
    assert capsys.readouterr().err.splitlines() == [  # 11.5 runs, then 10.1
        f"0 of 12 runs done; about 3.5 hours to go. Running: {name} 50%.",
        f"0 of 12 runs done, 1 failed; about 3.1 hours to go. Running: {name} 90%.",
    ]
