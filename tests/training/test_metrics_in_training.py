# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Metrics of a recipe: in validation, picture, progress line, results and card."""

import json

import numpy as np
import pytest
from huggingface_hub import ModelCard
from training.tiny_runs import write_recipe
from transformers import TrainerState

import csan_hf_cli
from csan_hf.data.corpora import load_translation_dataset
from csan_hf.evaluation.metrics import CorpusMetric, register_metric, unregister_metric
from csan_hf.hub import card_problems
from csan_hf.text_files import digest_of_lines, read_lines
from csan_hf.training import load_recipe
from csan_hf.training.callbacks import TranslationProgress, draw_training
from csan_hf.training.run import summary_table, train_from_recipe


class WordsMissing(CorpusMetric):
    """A metric that the package knows nothing of: lower is better, and it wants the source."""

    name = "words_missing"
    label = "words missing"
    summary = "Words that the references have more of than the hypotheses, a sentence."
    decimals = 3
    greater_is_better = False
    upper_bound = None
    needs_sources = True
    scored = 0

    def statistics(self, predictions, references, sources=None):
        WordsMissing.scored += 1
        assert len(sources) == len(references)
        pairs = zip(predictions, references, strict=True)
        return np.array([(max(len(theirs.split()) - len(ours.split()), 0), 1.0) for ours, theirs in pairs])

    def score(self, sums):
        return float(sums[0] / sums[1])


@pytest.fixture(scope="module")
def metric():
    yield register_metric(WordsMissing)
    unregister_metric("words_missing")


def tiny_recipe(folder, **training):
    sizes = {"train_size": 60, "validation_size": 6, "test_size": 5}
    training = {"max_steps": 4, "eval_steps": 2, "metrics": ["bleu", "chrf"], **training}
    path = write_recipe(folder / "tiny.yaml", output_dir=str(folder / "run"), data=sizes, training=training)
    return load_recipe(path)


@pytest.fixture(scope="module")
def run(metric, tmp_path_factory):
    folder = tmp_path_factory.mktemp("metrics")
    recipe = tiny_recipe(folder, metrics=["wer", "words_missing"], metric_for_best_model="words_missing")
    return folder / "run", train_from_recipe(recipe)


def test_validation(run):
    log = json.loads((run[0] / "checkpoint-4" / "trainer_state.json").read_text())["log_history"]
    evaluations = [entry for entry in log if "eval_loss" in entry]
    assert [entry["step"] for entry in evaluations] == [2, 4]
    assert all({"eval_wer", "eval_words_missing"} <= entry.keys() for entry in evaluations)
    assert not any("eval_bleu" in entry for entry in evaluations)
    assert WordsMissing.scored == 2 + 1 + 2  # the evaluations, the average of their weights, two splits


def test_results_and_card(run):
    output, results = run
    stored = json.loads((output / "results.json").read_text())
    splits, _ = load_translation_dataset(load_recipe(output / "recipe.yaml").data_arguments())
    for split in ("validation", "test"):
        assert stored["scores"][split]["words_missing"] == results["scores"][split]["words_missing"] >= 0
        assert "bleu" not in stored["scores"][split]
        hypotheses = read_lines(output / "hypotheses" / f"{split}.txt")
        assert stored["data"]["references"][split] != digest_of_lines(hypotheses)
        assert stored["data"]["references"][split] == digest_of_lines(splits[split]["target"])
    assert stored["data"]["training_set"]["pairs"] == len(splits["train"])
    card = ModelCard.load(output / "README.md")
    assert "| split | sentences | WER | words missing | beam |" in card.text
    assert f"| {results['scores']['test']['words_missing']:.3f} |" in card.text
    assert card.data.metrics == ["wer"]  # the Hub does not know the other
    assert {result.metric_type for result in card.data.eval_results} == {"wer"}
    assert card_problems(card, stored) == []


def test_picture_marks_the_best(metric, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, file, **options: drawn.update(it=figure))
    log = [{"step": step, "eval_loss": 1.0, "eval_wer": 60.0 - step, "eval_words_missing": 1.0} for step in (2, 4)]
    draw_training(log, tmp_path / "training.png")
    scores = drawn["it"].axes[1]
    assert [text.get_text() for text in scores.get_legend().get_texts()] == ["WER", "words missing"]
    assert [text.get_text() for text in scores.texts] == ["56.00"]  # the lowest is the best
    draw_training([], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_progress_line_and_table(run, capfd):
    logs = {"eval_loss": 1.0, "eval_wer": 50.0, "eval_words_missing": 0.5}
    TranslationProgress().on_log(None, TrainerState(global_step=2, epoch=0.5), None, logs=logs)
    assert "validation loss 1.000  WER 50.00  words missing 0.500" in capfd.readouterr().err
    table = summary_table(run[1], run[0])
    assert "WER  words missing" in table
    assert "WER: nrefs:1|case:mixed|tok:none|rapidfuzz:" in table


def test_script_scores_with_the_metrics_of_the_recipe(run, capsys):
    options = ["--split", "test", "--device", "cpu", "--quiet"]
    assert csan_hf_cli.main(["evaluate", "--model", str(run[0]), *options]) == 0
    assert capsys.readouterr().out.startswith("split  sentences     WER  words missing  sentences/s\ntest ")
    scores = json.loads((run[0] / "evaluation" / "scores.json").read_text())["scores"]["test"]
    assert scores["words_missing"] == run[1]["scores"]["test"]["words_missing"]


@pytest.mark.parametrize(("name", "greater"), [("wer", False), ("chrf", True), ("loss", False)])
def test_the_best_checkpoint_has_the_fewest_errors(tmp_path, name, greater):
    recipe = tiny_recipe(tmp_path, metrics=["wer", "chrf"], metric_for_best_model=name)
    assert recipe.training_arguments().greater_is_better is greater


def test_a_run_whose_evaluations_do_not_translate_is_scored_all_the_same(tmp_path):
    values = {"predict_with_generate": False, "metric_for_best_model": "loss", "average_best": False}
    results = train_from_recipe(tiny_recipe(tmp_path, **values))
    assert 0 <= results["scores"]["test"]["bleu"] <= 100
    assert len((tmp_path / "run" / "hypotheses" / "test.txt").read_text().splitlines()) == 5
