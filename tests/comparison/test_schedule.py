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

from csan_hf.comparison import compare, compare_suite, run_cell, schedule
from csan_hf.comparison.compare import ProgressReporter, describe_cost
from csan_hf.comparison.report import write_report
from csan_hf.comparison.results import read_tables
from csan_hf.comparison.run_cell import FINISHED
from csan_hf.comparison.schedule import Progress, load_cell, prepare_cell, run_cells, run_environment
from csan_hf.comparison.speed import Speed
from csan_hf.comparison.suite import load_suite
from csan_hf.training.recipe import RecipeError

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
    (folder / "base.yaml").write_text(yaml.safe_dump({"data": data, "training": {"max_steps": steps}}))
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


def finish_all(suite, folder):
    """Leaves the files by which a suite knows that nothing is left to do."""
    for cell in suite.cells:
        prepare_cell(cell, folder)
        (cell.folder(folder) / FINISHED).write_text("{}")


def report(suite, folder):
    write_report(suite, read_tables(suite, folder, samples=50), folder, {}, {})
    return {name: (folder / name).read_bytes() for name in ("report.md", "report.json", "scores.csv", "dev.svg")}


def kill_after(seconds, action):
    """Runs an action in a process group of its own, and ends all of that group at once, as kill -9 does."""
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(2)
        action()
        os._exit(0)
    time.sleep(seconds)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills process groups")
def test_a_suite_killed_five_times_ends_like_one_that_was_not(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    run_all(make_suite(whole), whole)
    draw = random.Random(3)
    for _ in range(5):
        kill_after(draw.uniform(0.2, 0.8), lambda: run_all(make_suite(killed), killed))
    suite = make_suite(killed)
    ended = run_all(suite, killed)
    assert (ended.done, ended.failed) == (12, {})
    assert report(suite, killed) == report(make_suite(whole), whole)
    for cell in suite.cells:  # no update was made twice
        steps = (cell.folder(killed) / "trained").read_text().split()
        assert len(steps) == len({*steps})


def test_a_finished_suite_trains_nothing(tmp_path):
    suite = make_suite(tmp_path, steps=1)
    finish_all(suite, tmp_path)
    assert run_cells(suite.cells, tmp_path, command=("false",)).done == 12


def test_a_cell_that_fails_is_reported_and_tried_again(tmp_path):
    suite = make_suite(tmp_path, systems=("plain", "fails"), steps=1)
    ended = run_all(suite, tmp_path)
    assert ended.done == 6
    assert sorted(ended.failed) == sorted(cell.name for cell in suite.cells if cell.system == "fails")
    reason = ended.failed["fails, one, seed 1"]
    assert reason.startswith("exit status 2, ")
    assert reason.endswith("log.txt: there is no such corpus")
    write_report(suite, read_tables(suite, tmp_path, samples=20), tmp_path, {}, ended.failed)
    text = (tmp_path / "report.md").read_text()
    assert "6 of 12 runs are not finished" in text
    assert "- fails, one, seed 1: exit status 2" in text
    assert len(run_all(suite, tmp_path).failed) == 6


def test_ctrl_c_ends_the_runs(tmp_path):
    suite, running = make_suite(tmp_path, steps=100_000), []

    def interrupt(progress):
        if all(share > 0 for share in progress.running.values()):
            running.extend(progress.running)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(suite, tmp_path, report=interrupt)
    assert len(running) == 2
    trained = [cell.folder(tmp_path) / "trained" for cell in suite.cells[:2]]
    before = [path.stat().st_size for path in trained]
    time.sleep(0.1)
    assert [path.stat().st_size for path in trained] == before


def test_what_a_report_of_failures_does_not_show(tmp_path):
    suite = make_suite(tmp_path, systems=("fails secretly",), steps=1)
    reason = run_cells(suite.cells[:1], tmp_path, command=STUB).failed["fails secretly, one, seed 1"]
    assert reason.endswith("log.txt: its last line holds a credential")
    name, log = suite.cells[0].name, suite.cells[0].folder(tmp_path) / "log.txt"
    failed = {name: f"exit status 2, {log}: <b>{tmp_path}/dev.tsv is [not](here)"}
    write_report(suite, [], tmp_path, {}, failed)
    text = (tmp_path / "report.md").read_text()
    log_in_report = "runs/one/fails secretly/seed_1/log.txt"
    assert f"- {name}: exit status 2, {log_in_report}: \\<b\\>dev.tsv is \\[not\\](here)\n" in text
    assert str(tmp_path) not in text + (tmp_path / "report.json").read_text()


@pytest.mark.parametrize("finished", [True, False])
def test_a_cell_of_another_recipe_is_refused(tmp_path, finished):
    suite = make_suite(tmp_path, steps=1)
    finish_all(suite, tmp_path)
    if not finished:
        (suite.cells[0].folder(tmp_path) / FINISHED).unlink()
    other = make_suite(tmp_path, steps=2)
    for act in (lambda: run_all(other, tmp_path), lambda: compare_suite(other, tmp_path, only="report")):
        with pytest.raises(RecipeError, match=r"was trained by another recipe .* plain, one, seed 1"):
            act()


def test_what_a_card_says_of_a_run_does_not_matter(tmp_path):
    suite = make_suite(tmp_path, steps=1)
    finish_all(suite, tmp_path)
    for cell in suite.cells:
        cell.recipe.update(description="another", license="mit")
    assert run_cells(suite.cells, tmp_path, command=("false",)).done == 12


def test_a_folder_that_no_suite_made_is_left_alone(tmp_path):
    suite = make_suite(tmp_path, steps=1)
    (suite.cells[0].folder(tmp_path) / "checkpoint-5").mkdir(parents=True)
    with pytest.raises(RecipeError, match=r"seed_1 holds checkpoint-5, but no cell\.yaml"):
        run_all(suite, tmp_path)


def test_the_copy_of_a_suite_trains_where_it_lies(tmp_path):
    (first := tmp_path / "first").mkdir()
    finish_all(make_suite(first, steps=1), first)
    copy = shutil.copytree(first, tmp_path / "copy")
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    suite = make_suite(copy, steps=1)
    folder = suite.cells[0].folder(copy)
    (folder / FINISHED).unlink()
    assert run_all(suite, copy).failed == {}
    assert (folder / "trained").read_text() == "0\n"
    assert before == {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}


def test_a_cell_deletes_no_checkpoints_of_another_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run_cell, "train_from_recipe", lambda recipe: {"training": {"seconds": 1.0}})
    (tmp_path / "run" / "checkpoint-5").mkdir(parents=True)
    for path in (tmp_path / "recipe.yaml", tmp_path / "cell.yaml", tmp_path / "run" / "recipe.yaml"):
        path.write_text(yaml.safe_dump({"output_dir": str(tmp_path / "run")}))
        assert run_cell.main([str(path)]) == 2
        assert capsys.readouterr().err.endswith("is no cell of a suite: `csan-hf train` trains a recipe.\n")
    assert (tmp_path / "run" / "checkpoint-5").is_dir()
    assert run_cell.main([]) == 2


def test_a_cell_that_is_killed_while_its_checkpoints_go_is_finished(tmp_path, monkeypatch):
    def killed(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_cell, "train_from_recipe", lambda recipe: {"training": {"seconds": 1.0}})
    monkeypatch.setattr(run_cell, "list_checkpoints", killed)
    suite = make_suite(tmp_path)
    path = prepare_cell(suite.cells[0], tmp_path)
    assert run_cell.main([str(path)]) != 0
    assert (path.parent / FINISHED).is_file()


@pytest.mark.parametrize(("visible", "expected"), [(None, ["0", "1", "0"]), ("2, 5", ["2", "5", "2"])])
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
        return dict.fromkeys(recipes, Speed(10, 0.5, 10.0, 1.0, 0.0, 0.0))

    monkeypatch.setattr(compare, "measure_speed", measure)
    compare_suite(make_suite(tmp_path), tmp_path, only="cost")
    compare_suite(make_suite(tmp_path), tmp_path, only="cost")
    assert len(measured) == 1
    compare_suite(make_suite(tmp_path, steps=13), tmp_path, only="cost")
    assert len(measured) == 2
    for damaged in ('{"plain": {"par', "[]", '{"plain": 3, "1D": {"x": 1}}'):
        (tmp_path / "speeds.json").write_text(damaged)
        compare_suite(make_suite(tmp_path, steps=13), tmp_path, only="cost")
    assert measured == 5 * [["1D", "plain"]]


def test_a_report_is_written_over_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "measure_speed", None)  # nothing goes so far
    (mine := tmp_path / "mine").mkdir()
    (mine / "report.md").write_text("mine")
    suite = make_suite(tmp_path, steps=1)
    with pytest.raises(RecipeError, match=r"mine holds report\.md, and no runs of a suite"):
        compare_suite(suite, mine)
    with pytest.raises(RecipeError, match="none no run of suite, size small, is finished"):
        compare_suite(suite, tmp_path / "none", only="report")
    (other := tmp_path / "other" / "runs").mkdir(parents=True)
    (other.parent / "report.md").write_text("# Another suite, size small\n")
    with pytest.raises(RecipeError, match=r"other/report\.md is not a report of suite, size small: choose another"):
        compare_suite(suite, other.parent)
    assert [path.name for path in mine.iterdir()] == ["report.md"]
    assert not (tmp_path / "none").exists()


def test_missing_data_are_noticed_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "measure_speed", None)
    suite = make_suite(tmp_path, steps=1)
    for cell in suite.cells:
        if cell.data == "two":
            cell.recipe["data"] = {**cell.recipe["data"], "validation": "none.tsv"}
    with pytest.raises(RecipeError, match=r"data set two: .*none\.tsv"):
        compare_suite(suite, tmp_path, only="cost")


def test_changed_data_are_noticed_before_more_is_trained(tmp_path, monkeypatch):
    suite = make_suite(tmp_path, steps=1)
    speed = Speed(10, 0.5, 10.0, 1.0, 0.0, 0.0)
    monkeypatch.setattr(compare, "measure_speed", lambda recipes: dict.fromkeys(recipes, speed))
    monkeypatch.setattr(schedule.run_cells, "__kwdefaults__", {**schedule.run_cells.__kwdefaults__, "command": STUB})
    for cell in suite.cells[4:]:
        prepare_cell(cell, tmp_path)
        (cell.folder(tmp_path) / FINISHED).write_text("{}")  # for the moment
    assert run_all(suite, tmp_path).done == 12
    for cell in suite.cells[4:]:
        shutil.rmtree(cell.folder(tmp_path))
    lines = (tmp_path / "dev.tsv").read_text()
    (tmp_path / "dev.tsv").write_text(lines.replace("0 x", "9 x"))
    with pytest.raises(RecipeError, match=r"references of validation in .* are not those that plain, one, seed 1 in"):
        compare_suite(suite, tmp_path)
    assert not suite.cells[4].folder(tmp_path).exists()
    (tmp_path / "dev.tsv").write_text(lines)
    assert compare_suite(suite, tmp_path, jobs=2) == {}
    assert (tmp_path / "report.md").is_file()


def test_results_without_the_mark_and_checkpoints_are_no_run_to_go_on_with(tmp_path, capsys):
    path = prepare_cell(make_suite(tmp_path).cells[0], tmp_path)
    (path.parent / "results.json").write_text("{}")
    assert run_cell.main([str(path)]) == 2
    assert "without finished.json and without checkpoints: delete that folder, and" in capsys.readouterr().err


def test_the_end_of_the_terminal_ends_the_runs(tmp_path):
    suite, calls = make_suite(tmp_path, steps=100_000), iter(range(2))
    for ignored, expected in ((False, KeyboardInterrupt), (True, StopIteration)):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)

        def hang_up(progress):
            if any(share > 0 for share in progress.running.values()):
                os.kill(os.getpid(), signal.SIGHUP)
                next(calls)

        try:
            with pytest.raises(expected):
                run_all(suite, tmp_path, report=hang_up)
            assert signal.getsignal(signal.SIGHUP) == (signal.SIG_IGN if ignored else signal.SIG_DFL)
        finally:
            signal.signal(signal.SIGHUP, before)


def test_costs(tmp_path):
    suite = make_suite(tmp_path, steps=3600)
    recipes = {cell.name: load_cell(cell, tmp_path) for cell in suite.cells}
    speed = Speed(parameters=1_000, seconds=0.5, tokens=10.0, relative=1.0, evaluation=30.0, scoring=120.0)
    # 3,600 updates at 0.5 s, 7 evaluations of 30 s and 120 s of scoring: 2,130 s a run
    text = describe_cost(suite, recipes, {"plain": speed, "1D": speed}, tmp_path, 2)
    assert "12 runs are to be done: 7.1 hours one after the other" in text
    assert "3.5 with 2 side by side" in text


def test_what_a_run_did_before_it_was_resumed_does_not_shorten_the_time_to_go(tmp_path, monkeypatch, capsys):
    suite = make_suite(tmp_path, steps=3600)
    recipes = {cell.name: load_cell(cell, tmp_path) for cell in suite.cells}
    speed = Speed(parameters=1_000, seconds=0.5, tokens=10.0, relative=1.0, evaluation=30.0, scoring=120.0)
    reporter = ProgressReporter(suite, recipes, {"plain": speed, "1D": speed}, tmp_path, shown=True)
    name = suite.cells[0].name
    for seconds, share in ((0, 0.0), (10, 0.4), (10 + 1065, 0.9)):  # half a run of 2,130 s
        monkeypatch.setattr(compare.time, "monotonic", lambda seconds=seconds: seconds + 1e6)
        reporter(Progress(len(suite.cells), running={name: share}))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"0 of 12 runs done; about 6.6 hours to go. Running: {name} 90%."  # 11.1 runs
