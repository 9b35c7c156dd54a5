# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Running of cells: interruptions, failures, and the report at the end."""

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import yaml

from csan_hf.suites import compare, compare_suite, schedule
from csan_hf.suites.compare import describe_cost, progress_reporter
from csan_hf.suites.report import write_report
from csan_hf.suites.results import read_tables
from csan_hf.suites.schedule import Progress, run_cells, run_environment
from csan_hf.suites.speed import Speed
from csan_hf.suites.suite import load_suite
from csan_hf.training.recipe import RecipeError
from csan_hf.training.record import FINISHED, recipe_text

SPEED = Speed(
    parameters=1_000, seconds=0.5, tokens=10.0, relative=1.0, evaluation=30.0, scoring=120.0
)
STUB = (sys.executable, str(Path(__file__).parent / "stub_trainer.py"))


def make_suite(folder, systems=("plain", "1D"), steps=12):
    (folder / "dev.tsv").write_text("".join(f"w{n}\t{n % 5} x\n" for n in range(40)))
    data = {
        "data_dir": str(folder),
        "train": "dev.tsv",
        "validation": "dev.tsv",
        "source_lang": "words",
        "target_lang": "ipa",
        "source_column": "0",
        "target_column": "1",
    }
    (folder / "base.yaml").write_text(
        yaml.safe_dump({"data": data, "training": {"max_steps": steps}})
    )
    suite = {
        "metric": "g2p_wer",
        "seeds": [1, 2, 3],
        "systems": {name: {"name": name} for name in systems},
        "data": {"one": {}, "two": {}},
        "tables": {"dev": ["validation"]},
        "sizes": {"small": {"base": "base.yaml"}},
    }
    (folder / "suite.yaml").write_text(yaml.safe_dump(suite, sort_keys=False))
    return load_suite(folder / "suite.yaml")


def run_all(suite, folder, **options):
    return run_cells(suite.cells, folder, jobs=2, command=STUB, interval=0.02, **options)


def prepare(cell, folder):
    """Writes a cell's recipe into its folder, which it returns."""
    run = cell.folder(folder)
    run.mkdir(parents=True, exist_ok=True)
    (run / "cell.yaml").write_text(recipe_text({**cell.recipe, "output_dir": str(run)}))
    return run


def report(suite, folder):
    write_report(suite, read_tables(suite, folder, samples=50), folder, {}, {})
    return {
        name: (folder / name).read_bytes()
        for name in ("report.md", "report.json", "scores.csv", "dev.svg")
    }


@pytest.mark.skipif(sys.platform != "linux", reason="runs end with their suite on Linux")
def test_a_suite_killed_five_times_ends_like_one_that_was_not(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    run_all(make_suite(whole), whole)
    draw = random.Random(3)
    for number in range(5):
        if (child := os.fork()) == 0:
            os.setsid()
            os.close(2)
            run_all(make_suite(killed), killed)
            os._exit(0)
        time.sleep(draw.uniform(0.2, 0.8))
        (os.kill if number % 2 else os.killpg)(
            child, signal.SIGKILL
        )  # alone, or with all of its group
        os.waitpid(child, 0)
        time.sleep(0.3)  # runs whose suite is gone save, and end
        states = {path: path.read_text() for path in killed.rglob("state")}
        time.sleep(0.1)
        assert states == {path: path.read_text() for path in killed.rglob("state")}
    suite = make_suite(killed)
    ended = run_all(suite, killed)
    assert (ended.done, ended.failed) == (12, {})
    assert report(suite, killed) == report(make_suite(whole), whole)
    for cell in suite.cells:
        folder = cell.folder(killed)
        steps = (folder / "trained").read_text().split()
        assert len(steps) == len({*steps}), "no update was made twice"
        assert (folder / FINISHED).is_file()
        assert not (folder / "checkpoint-1").exists()


def test_a_cell_that_fails_is_reported_and_tried_again(tmp_path):
    suite = make_suite(tmp_path, systems=("plain", "fails"), steps=1)
    ended = run_all(suite, tmp_path)
    assert ended.done == 6
    assert sorted(ended.failed) == sorted(
        cell.name for cell in suite.cells if cell.system == "fails"
    )
    reason = ended.failed["fails, one, seed 1"]
    assert reason.startswith("exit status 2, ")
    assert reason.endswith("log.txt: there is no such [0m corpus")
    assert ended.failed["fails, one, seed 3"].endswith("log.txt: its last line holds a credential")
    write_report(suite, read_tables(suite, tmp_path, samples=20), tmp_path, {}, ended.failed)
    text = (tmp_path / "report.md").read_text()
    assert "6 of 12 runs are not finished" in text
    assert r"log.txt: there is no such \[0m corpus" in text
    assert len(run_all(suite, tmp_path).failed) == 6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_runs(tmp_path, number):
    if number == signal.SIGINT:
        signal.signal(
            number, signal.default_int_handler
        )  # a shell's background job begins with it ignored
    suite, running, handler = (
        make_suite(tmp_path, steps=100_000),
        [],
        signal.getsignal(signal.SIGTERM),
    )

    def end(progress):
        if all(share > 0 for share in progress.running.values()):
            running.extend(progress.running)
            signal.getsignal(number)(number, None)

    with pytest.raises(KeyboardInterrupt):
        run_all(suite, tmp_path, report=end)
    assert signal.getsignal(signal.SIGTERM) == handler
    assert len(running) == 2
    trained = [cell.folder(tmp_path) / "trained" for cell in suite.cells[:2]]
    before = [path.stat().st_size for path in trained]
    time.sleep(0.1)
    assert [path.stat().st_size for path in trained] == before


@pytest.mark.parametrize("finished", [True, False])
def test_a_finished_suite_trains_nothing_and_a_cell_of_another_recipe_is_refused(
    tmp_path, finished
):
    suite = make_suite(tmp_path, steps=1)
    for cell in suite.cells:
        (prepare(cell, tmp_path) / FINISHED).write_text("{}")
        cell.recipe.update(
            description="another", license="mit"
        )  # what a card says changes no training
    assert run_cells(suite.cells, tmp_path, command=("false",)).done == 12
    if not finished:
        (suite.cells[0].folder(tmp_path) / FINISHED).unlink()
    other = make_suite(tmp_path, steps=2)
    for act in (
        lambda: run_all(other, tmp_path),
        lambda: compare_suite(other, tmp_path, only="report"),
    ):
        with pytest.raises(
            RecipeError, match=r"was trained by another recipe .* plain, one, seed 1"
        ):
            act()
    (run := suite.cells[0].folder(tmp_path) / "cell.yaml").unlink()
    (run.parent / "checkpoint-5").mkdir()
    with pytest.raises(RecipeError, match=r"seed_1 holds .*, but no cell\.yaml"):
        run_all(suite, tmp_path)


@pytest.mark.parametrize(
    ("visible", "expected"), [(None, ["0", "1", "0"]), ("2, 5", ["2", "5", "2"])]
)
def test_cells_share_the_accelerators_that_the_suite_may_use(monkeypatch, visible, expected):
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

    monkeypatch.setattr(compare, "measure_speed", measure)
    compare_suite(make_suite(tmp_path), tmp_path, only="cost")
    compare_suite(make_suite(tmp_path), tmp_path, only="cost")
    assert len(measured) == 1
    compare_suite(make_suite(tmp_path, steps=13), tmp_path, only="cost")
    assert measured == 2 * [["1D", "plain"]]


def test_nothing_is_measured_beside_what_others_made_or_without_data(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "measure_speed", None)  # nothing goes so far
    (mine := tmp_path / "mine").mkdir()
    (mine / "report.md").write_text("mine")
    suite = make_suite(tmp_path, steps=1)
    with pytest.raises(
        RecipeError,
        match=r"mine/report\.md is not of a report of suite, size small: choose another",
    ):
        compare_suite(suite, mine)
    with pytest.raises(RecipeError, match="none no run of suite, size small, is finished"):
        compare_suite(suite, tmp_path / "none", only="report")
    assert [path.name for path in mine.iterdir()] == ["report.md"]
    assert not (tmp_path / "none").exists()
    suite = make_suite(tmp_path, steps=1)
    suite.cells[-1].recipe["data"] = {**suite.cells[-1].recipe["data"], "validation": "none.tsv"}
    with pytest.raises(ValueError, match=r"none\.tsv"):
        compare_suite(suite, tmp_path, only="cost")


def test_changed_data_are_noticed_before_more_is_trained(tmp_path, monkeypatch):
    suite = make_suite(tmp_path, steps=1)
    monkeypatch.setattr(compare, "measure_speed", lambda recipes: dict.fromkeys(recipes, SPEED))
    monkeypatch.setattr(
        schedule.run_cells, "__kwdefaults__", {**schedule.run_cells.__kwdefaults__, "command": STUB}
    )
    for cell in suite.cells[4:]:
        (prepare(cell, tmp_path) / FINISHED).write_text("{}")  # for the moment
    assert run_all(suite, tmp_path).done == 12
    for cell in suite.cells[4:]:
        shutil.rmtree(cell.folder(tmp_path))
    lines = (tmp_path / "dev.tsv").read_text()
    (tmp_path / "dev.tsv").write_text(lines.replace("0 x", "9 x"))
    with pytest.raises(
        RecipeError, match=r"one/validation: .* and plain, one, seed 1 in .* have other data"
    ):
        compare_suite(suite, tmp_path)
    assert not suite.cells[4].folder(tmp_path).exists()
    (tmp_path / "dev.tsv").write_text(lines)
    assert compare_suite(suite, tmp_path, jobs=2) == {}
    assert (tmp_path / "report.md").is_file()


def test_costs_and_the_hours_to_go(tmp_path, capsys):
    suite = make_suite(tmp_path, steps=3600)
    recipes = {cell.name: cell.recipe_in(tmp_path) for cell in suite.cells}
    speeds = dict.fromkeys(suite.systems, SPEED)
    # 3,600 updates at 0.5 s, 7 evaluations of 30 s and 120 s of scoring: 2,130 s a run
    text = describe_cost(suite, recipes, speeds, tmp_path, 2)
    assert max(map(len, text.splitlines())) < 80
    assert (
        text.splitlines()[2].split()
        == f"plain {SPEED.parameters:,} 0.500 × {SPEED.relative:.2f} 6 3.5".split()
    )
    assert "12 runs to be done: 7.1 hours one after the other" in text
    assert "3.5 with 2 side by side" in " ".join(text.split())
    show = progress_reporter(suite, recipes, speeds, tmp_path, 2)
    name = suite.cells[0].name
    for share, failed in ((0.5, {}), (0.6, {}), (0.9, {suite.cells[1].name: "no"})):
        show(Progress(len(suite.cells), failed=failed, running={name: share}))
    assert capsys.readouterr().err.splitlines() == [  # 11.5 runs, then 10.1
        f"0 of 12 runs done; about 3.4 hours to go. Running: {name} 50%.",
        f"0 of 12 runs done, 1 failed; about 3.0 hours to go. Running: {name} 90%.",
    ]
