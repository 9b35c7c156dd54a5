# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Rows for the seeds of a system as one model."""

import pytest
import yaml
from test_schedule import make_suite, prepare
from test_tables import finish
from tiny import csan

from csan_hf.comparison import load_suite, publish_suite
from csan_hf.comparison.ensembles import translate_ensembles
from csan_hf.comparison.report import write_report
from csan_hf.comparison.results import read_tables
from csan_hf.data import TokenizerPair, train_tokenizer
from csan_hf.evaluation import translate
from csan_hf.models import EnsembleForConditionalGeneration
from csan_hf.training.recipe import RecipeError


def suite_with_models(folder, seeds):
    make_suite(folder)
    content = yaml.safe_load((folder / "suite.yaml").read_text())
    content["seeds"] = seeds
    content["systems"]["1D"]["ensemble"] = True
    (folder / "suite.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return load_suite(folder / "suite.yaml")


@pytest.fixture
def tokenizers():
    tokenizer = train_tokenizer([f"w{number} {number % 5} x" for number in range(40)] * 3, 300)
    return TokenizerPair(tokenizer, tokenizer)


def test_the_seeds_of_a_system_are_a_row(tmp_path, tokenizers, capsys):
    suite = suite_with_models(tmp_path, [1, 2])
    assert suite.rows == ("plain", "1D", "1D, ensemble")
    models = {seed: csan(seed=seed, vocab_size=len(tokenizers.source)) for seed in suite.seeds}
    for cell in suite.cells:
        run = prepare(cell, tmp_path)
        if cell.data == "one":
            finish(cell, tmp_path, 20)
            models[cell.seed].generation_config.max_length = 7
            if cell.system == "1D":
                models[cell.seed].save_pretrained(run)
                tokenizers.save_pretrained(run)
    translate_ensembles(suite, tmp_path, progress=False)
    of_one, of_two = suite.ensembles
    words = [f"w{number}" for number in range(40)]
    expected = translate(EnsembleForConditionalGeneration.of(list(models.values())), tokenizers, words)
    hypotheses = of_one.folder(tmp_path) / "hypotheses/validation.txt"
    assert hypotheses.read_text().splitlines() == expected
    assert not of_two.folder(tmp_path).exists(), "its members are not finished"
    write_report(suite, read_tables(suite, tmp_path, samples=50), tmp_path, {}, {})
    assert "| 1D, ensemble | 14 |" in (tmp_path / "report.md").read_text(), "the parameters of all members"
    publish_suite(suite, tmp_path, tmp_path / "published")
    published = tmp_path / "published" / hypotheses.relative_to(tmp_path)
    assert published.read_bytes() == hypotheses.read_bytes()

    for cell in suite.cells:  # without models, as published
        if cell.data == "two":
            finish(cell, tmp_path, 20)
    translate_ensembles(suite, tmp_path, progress=False)
    assert "1D, ensemble, two, seed 1: " in (told := capsys.readouterr().err)
    assert told.endswith("has no model, so the ensemble is left out.\n")
    with pytest.raises(RecipeError, match="was trained by another recipe than the suite now has for 1D, ensemble"):
        publish_suite(suite_with_models(tmp_path, [1, 2, 3]), tmp_path, tmp_path / "published")
