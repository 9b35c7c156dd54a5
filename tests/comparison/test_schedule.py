# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Running of cells: interruptions, failures, and the report at the end."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
import yaml

from csan_hf.comparison.compare import describe_cost
from csan_hf.comparison.report import write_report
from csan_hf.comparison.results import read_tables
from csan_hf.comparison.run_cell import FINISHED
from csan_hf.comparison.schedule import load_cell, run_cells
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
    run_all(suite, tmp_path)
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


def test_a_cell_of_another_recipe_is_refused(tmp_path):
    suite = make_suite(tmp_path, steps=1)
    run_all(suite, tmp_path)
    (suite.cells[0].folder(tmp_path) / FINISHED).unlink()
    with pytest.raises(RecipeError, match=r"was trained by another recipe .* plain, one, seed 1"):
        run_all(make_suite(tmp_path, steps=2), tmp_path)


def test_costs(tmp_path):
    suite = make_suite(tmp_path, steps=3600)
    recipes = {cell.name: load_cell(cell, tmp_path) for cell in suite.cells}
    speed = Speed(parameters=1_000, seconds=0.5, tokens=10.0, relative=1.0, evaluation=30.0, scoring=120.0)
    # 3,600 updates at 0.5 s, 7 evaluations of 30 s and 120 s of scoring: 2,130 s a run
    text = describe_cost(suite, recipes, {"plain": speed, "1D": speed}, tmp_path, 2)
    assert "12 runs are to be done: 7.1 hours one after the other" in text
    assert "3.5 with 2 side by side" in text
