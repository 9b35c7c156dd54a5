# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Rows for the runs of several systems as one model."""

import re

import pytest
import yaml
from test_schedule import make_suite, prepare
from test_tables import finish
from tiny import csan

from csan_hf.comparison import load_suite, publish_suite
from csan_hf.comparison.ensembles import translate_ensembles
from csan_hf.comparison.report import write_report
from csan_hf.comparison.results import read_tables
from csan_hf.comparison.schedule import trained_keys
from csan_hf.data import TokenizerPair, train_tokenizer
from csan_hf.evaluation import translate
from csan_hf.pipelines import EnsembleForConditionalGeneration
from csan_hf.training.recipe import RecipeError


def suite_with_models(folder, seeds, members=("plain", "1D")):
    make_suite(folder)
    content = yaml.safe_load((folder / "suite.yaml").read_text())
    content["seeds"] = seeds
    content["ensembles"] = {"together": list(members)}
    (folder / "suite.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return load_suite(folder / "suite.yaml")


@pytest.fixture
def tokenizers():
    tokenizer = train_tokenizer([f"w{number} {number % 5} x" for number in range(40)] * 3, 300)
    return TokenizerPair(tokenizer, tokenizer)


def test_runs_as_one_model_are_a_row(tmp_path, tokenizers, capsys):
    suite = suite_with_models(tmp_path, [1, 2])
    assert suite.rows == ("plain", "1D", "together")
    models = []
    for cell in suite.cells:
        run = prepare(cell, tmp_path)
        if cell.data == "one":
            finish(cell, tmp_path, 20)
            models.append(csan(seed=len(models), vocab_size=len(tokenizers.source)))
            models[-1].generation_config.max_length = 7
            models[-1].save_pretrained(run)
            tokenizers.save_pretrained(run)
    translate_ensembles(suite, tmp_path, progress=False)
    of_one, of_two = suite.ensembles
    words = [f"w{number}" for number in range(40)]
    expected = translate(EnsembleForConditionalGeneration.of(models), tokenizers, words)
    hypotheses = of_one.folder(tmp_path) / "hypotheses/validation.txt"
    assert hypotheses.read_text().splitlines() == expected
    assert not of_two.folder(tmp_path).exists(), "its members are not finished"
    write_report(suite, read_tables(suite, tmp_path, samples=50), tmp_path, {}, {})
    assert "| together | 28 |" in (tmp_path / "report.md").read_text(), (
        "the parameters of all members"
    )
    publish_suite(suite, tmp_path, tmp_path / "published")
    published = tmp_path / "published" / hypotheses.relative_to(tmp_path)
    assert published.read_bytes() == hypotheses.read_bytes()

    for cell in suite.cells:  # without models, as published
        if cell.data == "two":
            finish(cell, tmp_path, 20)
    translate_ensembles(suite, tmp_path, progress=False)
    assert "together, two, seed 1: " in (told := capsys.readouterr().err)
    assert told.endswith("has no model, so the ensemble is left out.\n")
    foreign = train_tokenizer(["other words"], 300)
    TokenizerPair(foreign, foreign).save_pretrained(suite.cells[1].folder(tmp_path))
    (of_one.folder(tmp_path) / "finished.json").unlink()
    translate_ensembles(suite, tmp_path, progress=False)
    assert "together, one, seed 1 is left out: " in (told := capsys.readouterr().err)
    assert "have different vocabularies" in told
    member = {"name": "a card's text", "config": {"dropout": 0}}
    assert trained_keys({"members": [member]}) == trained_keys(
        {"members": [{**member, "name": "another"}]}
    )
    with pytest.raises(
        RecipeError, match="was trained by another recipe than the suite now has for together"
    ):
        publish_suite(suite_with_models(tmp_path, [1, 2, 3]), tmp_path, tmp_path / "published")


def test_members_are_all_seeds_of_the_systems_named(tmp_path):
    first, *_ = suite_with_models(tmp_path, [1, 2], ["1D"]).ensembles
    assert [(member.data, member.system, member.seed) for member in first.members] == [
        ("one", "1D", 1),
        ("one", "1D", 2),
    ]


@pytest.mark.parametrize(
    ("members", "said"), [([], "must list systems"), (["2D"], "must list systems (1D, plain)")]
)
def test_members_must_be_systems(tmp_path, members, said):
    with pytest.raises(RecipeError, match=re.escape(said)):
        suite_with_models(tmp_path, [1], members)
