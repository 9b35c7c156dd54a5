# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A suite's curves, failures and places, beside texts that fail in known ways."""

import json

import pytest
from lab.suites.small_suites import REFERENCES, finish, make_suite, report_of
from matplotlib.image import imread

from csan_hf.evaluation.pieces import cut_like
from csan_hf.lab.suites.lengths import failures_of, read_lengths
from csan_hf.lab.suites.records import SuiteRecords
from csan_hf.lab.suites.suite_texts import SuiteTexts
from csan_hf.training.errors import RecipeError

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
    """A suite that trains on up to three sentences joined, and scores four."""
    suite = {
        "metric": "chrf",
        "seeds": [1, 2],
        "data": {"one": {"data": {"test": "dev.tsv", "join": 3, "join_test": [4]}}},
        "tables": {"joined": {"1": ["test"], "4": ["test_x4"]}},
        "lengths": "joined",
    }
    return make_suite(folder, ["plain"], **suite | changes)


def test_a_report_shows_curves_failures_and_places(tmp_path):
    suite = suite_of_lengths(tmp_path)
    for run in suite.runs:
        texts = [" ".join(REFERENCES[start : start + 4]) for start in range(0, 40, 4)]
        if run.seed == 1:
            texts[0] = texts[0].split()[0]
        finish(run, tmp_path, test=REFERENCES, test_x4=texts)
    lengths = read_lengths(SuiteTexts(SuiteRecords(suite, tmp_path)))
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": "joind"}, r"lengths must name a table \(joined\), got 'joind'"),
        ({"lengths": ["joined"]}, r"lengths must name a table \(joined\), got \['joined'\]"),
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
