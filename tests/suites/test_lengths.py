# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A suite's curves, failures and places, beside texts that fail in known ways."""

import json

import pytest
import yaml
from matplotlib.image import imread
from suites.small_suites import finish, report_of

from csan_hf.evaluation.pieces import cut_like
from csan_hf.suites.lengths import failures_of, read_lengths
from csan_hf.suites.records import SuiteRecords
from csan_hf.suites.suite import load_suite
from csan_hf.suites.suite_report import check_folder
from csan_hf.suites.texts import Texts
from csan_hf.training.recipe import RecipeError

SENTENCES = ["one red house", "two", "we meet at noon today", "page three is missing"]
WHOLE = " ".join(SENTENCES)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (WHOLE, set()),
        (WHOLE.replace("red", "blue"), set()),
        (" ".join(SENTENCES[:2]), {"ends early"}),
        (WHOLE.replace(SENTENCES[2], ""), {"ends early", "skips"}),
        (WHOLE.replace("two ", ""), {"skips"}),
        (f"{WHOLE} {WHOLE} and", {"runs on"}),
        (" ".join([WHOLE, *["page three is missing"] * 3]), {"runs on", "repeats"}),
    ],
)
def test_failures(text, kinds):
    assert failures_of(cut_like(text, SENTENCES), SENTENCES) == kinds


def suite_of_lengths(folder, **changes):
    (folder / "dev.tsv").write_text("".join(f"w{n}\t{n % 5} of these it is\n" for n in range(40)))
    data = {"data_dir": str(folder), "train": "dev.tsv", "test": "dev.tsv", "validation": "dev.tsv"}
    data |= {
        "source_lang": "a",
        "target_lang": "b",
        "source_column": "0",
        "target_column": "1",
        "join": 3,
    }
    base = {"data": {**data, "join_test": [4]}, "training": {"max_steps": 3}}
    (folder / "base.yaml").write_text(yaml.safe_dump(base))
    columns = {"1": ["test"], "4": ["test_x4"]}
    suite = {
        "metric": "bleu",
        "systems": {"plain": {}},
        "data": {"one": {}},
        "seeds": [1, 2],
        "lengths": "joined",
    }
    suite |= {"tables": {"joined": columns}, "sizes": {"small": {"base": "base.yaml"}}, **changes}
    (folder / "suite.yaml").write_text(yaml.safe_dump(suite, sort_keys=False))
    return load_suite(folder / "suite.yaml")


def test_a_report_shows_curves_failures_and_places(tmp_path):
    suite = suite_of_lengths(tmp_path)
    for run in suite.runs:
        lines = [f"{number % 5} of these it is" for number in range(40)]
        texts = [" ".join(lines[start : start + 4]) for start in range(0, 40, 4)]
        if run.seed == 1:
            texts[0] = texts[0].split()[0]
        finish(run, tmp_path, test=lines, test_x4=texts)
    lengths = read_lengths(Texts(SuiteRecords(suite, tmp_path)))
    assert (lengths.trained, lengths.longest) == (3, 4)
    assert lengths.failures == {
        "plain": {"ends early": 0.05, "runs on": 0.0, "repeats": 0.0, "skips": 0.0}
    }
    scores = lengths.places["plain"]
    assert len(scores) == 4
    assert scores[0] > scores[3]
    text = report_of(suite, tmp_path)
    assert "training joins up to 3](curves.png)" in text
    assert "| plain | 5% | 0% | 0% | 0% |" in text
    assert "\n| system | 1 | 2 | 3 | 4 |\n" in text
    assert json.loads((tmp_path / "report.json").read_text())["lengths"]["longest"] == 4
    assert imread(tmp_path / "curves.png").std() > 0


def test_curves_of_somebody_else_are_not_replaced(tmp_path):
    suite = suite_of_lengths(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "curves.png").write_text("mine")
    with pytest.raises(RecipeError, match=r"curves.png is not of a report of suite"):
        check_folder(SuiteRecords(suite, tmp_path / "runs"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": "joind"}, r"lengths must name a table \(joined\), got 'joind'"),
        (
            {"tables": {"joined": {"4": ["test_x4"]}}},
            "must be numbers of sentences joined: 1 with a split",
        ),
        (
            {"tables": {"joined": {"1": ["test"], "all": ["test_x4"]}}},
            "must be numbers of sentences joined",
        ),
        (
            {"tables": {"joined": {"1": ["test"], "5": ["test_x4"]}}},
            "the others with its SPLIT_xNUMBER",
        ),
        (
            {"tables": {"joined": {"1": ["validation"], "4": ["test_x4"]}}},
            "the others with its SPLIT_xNUMBER",
        ),
        ({"data": {"one": {"data": {"join_test": 4}}}}, "join_test must be list"),
    ],
)
def test_a_suite_without_lengths_is_refused(changes, message, tmp_path):
    with pytest.raises(RecipeError, match=message):
        suite_of_lengths(tmp_path, **changes)
