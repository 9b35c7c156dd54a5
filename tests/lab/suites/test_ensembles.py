# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Rows for the runs of several systems as one model."""

import re

import pytest
from lab.suites.small_suites import finish, make_suite, report_of
from tiny import csan

from csan_hf.evaluation import translate
from csan_hf.lab.suites import publish_suite
from csan_hf.lab.suites.ensembles import translate_ensembles
from csan_hf.lab.suites.records import SuiteRecords
from csan_hf.pipelines import EnsembleForConditionalGeneration
from csan_hf.training.errors import RecipeError
from csan_hf.training.record import fingerprint_of


def suite_with_models(folder, seeds, members=("plain", "1D")):
    return make_suite(folder, seeds=seeds, ensembles={"together": list(members)})


@pytest.fixture
def models(tokenizers):
    models = [csan(seed=seed, vocab_size=len(tokenizers.source)) for seed in range(4)]
    for model in models:
        model.generation_config.max_length = 7
    return models


@pytest.fixture
def suite(tmp_path, tokenizers, models):
    """A suite whose runs on the first data set are finished, with their models."""
    suite = suite_with_models(tmp_path, [1, 2])
    runs = [run for run in suite.runs if run.data == "one"]
    for run, model in zip(runs, models, strict=True):
        finish(run, tmp_path, 20)
        model.save_pretrained(run.folder(tmp_path))
        tokenizers.save_pretrained(run.folder(tmp_path))
    return suite


def translate_in(suite, folder):
    translate_ensembles(SuiteRecords(suite, folder), progress=False)


def test_runs_as_one_model_are_a_row(suite, models, tokenizers, tmp_path):
    translate_in(suite, tmp_path)
    of_one, of_two = suite.ensembles
    words = [f"w{number}" for number in range(40)]
    expected = translate(EnsembleForConditionalGeneration.of(models), tokenizers, words)
    hypotheses = of_one.folder(tmp_path) / "hypotheses/validation.txt"
    assert hypotheses.read_text().splitlines() == expected
    assert not of_two.folder(tmp_path).exists(), "its members are not finished"
    assert suite.rows == ("plain", "1D", "together")
    assert "| together | 28 |" in report_of(suite, tmp_path), "the parameters of all members"
    publish_suite(suite, tmp_path, tmp_path / "published")
    published = SuiteRecords(suite, tmp_path / "published")
    assert published.record(of_one).hypotheses["validation"] == expected
    with_another_seed = suite_with_models(tmp_path, [1, 2, 3])
    with pytest.raises(
        RecipeError, match="was trained by another recipe than the suite now has for together"
    ):
        publish_suite(with_another_seed, tmp_path, tmp_path / "published")


def test_an_ensemble_of_runs_without_models_is_left_out(suite, tmp_path, capsys):
    for run in suite.runs:
        if run.data == "two":
            finish(run, tmp_path, 20)
    translate_in(suite, tmp_path)
    message = capsys.readouterr().err
    assert message.startswith("together, two, seed 1 is left out: ")
    assert "runs/two/plain/seed_1" in message


def test_the_cards_of_members_make_no_other_ensemble():
    member = {"name": "a card's text", "config": {"dropout": 0}}
    ensembles = [{"data": {}, "members": [member | {"name": name}]} for name in ("a", "b")]
    assert fingerprint_of(ensembles[0]) == fingerprint_of(ensembles[1])


def test_members_are_all_seeds_of_the_systems_named(tmp_path):
    first, *_ = suite_with_models(tmp_path, [1, 2], ["1D"]).ensembles
    assert [(member.data, member.system, member.seed) for member in first.members] == [
        ("one", "1D", 1),
        ("one", "1D", 2),
    ]


@pytest.mark.parametrize(
    ("members", "said"),
    [([], "must list systems"), (["2D"], "must list systems (1D, plain)"), ([["1D"]], "must list")],
)
def test_members_must_be_systems(tmp_path, members, said):
    with pytest.raises(RecipeError, match=re.escape(said)):
        suite_with_models(tmp_path, [1], members)
