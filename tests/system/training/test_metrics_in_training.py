# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Metrics of a recipe: in validation, picture, progress line, results and card."""

import random
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard
from system.hub.cards import faults
from system.training.tiny_runs import TINY, parse
from transformers import AutoTokenizer, TrainerControl, TrainerState, pipeline

from csan_hf.data.corpora import load_translation_dataset
from csan_hf.evaluation import metrics
from csan_hf.evaluation.metrics import CorpusMetric, register_metric
from csan_hf.hub.model_card import names_of_its_data
from csan_hf.hub.public_files import read_json
from csan_hf.training import TranslationTrainingArguments, load_recipe
from csan_hf.training.callbacks import TrainingPicture, TranslationProgress, draw_training
from csan_hf.training.run import summary_table, train_from_recipe
from csan_hf_runtime.command_line import main
from csan_hf_runtime.text_files import digest_of_lines


class WordsMissing(CorpusMetric):
    """A metric that the package knows nothing of: lower is better, and it wants the source."""

    name = "words_missing"
    label = "words missing"
    summary = "Words that the references have more of than the hypotheses, a sentence."
    decimals = 3
    greater_is_better = False
    needs_sources = True
    scored = 0

    def statistics(self, predictions, references, sources=None):
        WordsMissing.scored += 1
        assert len(sources) == len(references)
        pairs = zip(predictions, references, strict=True)
        missing = [len(theirs.split()) - len(ours.split()) for ours, theirs in pairs]
        return np.array([(max(words, 0), 1.0) for words in missing])

    def score(self, sums):
        return float(sums[0] / sums[1])


@pytest.fixture(scope="module")
def metric():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "_METRICS", dict(metrics._METRICS))
        yield register_metric(WordsMissing)


def tiny_recipe(folder, words):
    return parse(
        f"{TINY} --output_dir {folder}/run --data.train_size 60 --validation_size 6 --test_size 5 "
        f"--max_steps 4 --eval_steps 2 {words}"
    )


@pytest.fixture(scope="module")
def run(metric, tmp_path_factory):
    folder = tmp_path_factory.mktemp("metrics")
    recipe = tiny_recipe(
        folder,
        "--metrics wer,words_missing --metric_for_best_model words_missing --license mit "
        "--dataset_name Elsewhere --validation_sha256 [0123456789abcdef]",
    )
    return folder / "run", train_from_recipe(recipe)


def test_validation_and_results_have_the_metrics_of_the_recipe(run):
    output, results = run
    log = read_json(output / "checkpoint-4" / "trainer_state.json")["log_history"]
    evaluations = [entry for entry in log if "eval_loss" in entry]
    assert [entry["step"] for entry in evaluations] == [2, 4]
    assert all({"eval_wer", "eval_words_missing"} <= entry.keys() for entry in evaluations)
    assert not any("eval_bleu" in entry for entry in evaluations)
    # The evaluations, the average of their weights, two splits
    assert WordsMissing.scored == 2 + 1 + 2
    stored = read_json(output / "results.json")
    splits, _ = load_translation_dataset(load_recipe(output / "recipe.yaml").data_arguments())
    assert stored["scores"] == results["scores"]
    for split in ("validation", "test"):
        assert stored["scores"][split]["words_missing"] >= 0
        assert "bleu" not in stored["scores"][split]
        assert stored["data"]["references"][split] == digest_of_lines(splits[split]["target"])
    assert stored["data"]["training_set"]["pairs"] == len(splits["train"])


def test_the_card_has_the_metrics_of_the_recipe(run):
    output, results = run
    card = ModelCard.load(output / "README.md")
    assert "| split | sentences | WER | words missing | beam |" in card.text
    assert f"| {results['scores']['test']['words_missing']:.3f} |" in card.text
    assert card.data.metrics == ["wer"]  # the Hub does not know the other
    assert {result.metric_type for result in card.data.eval_results} == {"wer"}
    assert faults(card, results) == []
    assert card.data.license == "unknown"  # the recipe's is that of other data
    assert {result.dataset_name for result in card.data.eval_results} == {"numbers"}


def test_names_of_data_stay_where_they_are_those_of_the_recipe():
    recipe = {"license": "mit", "validation_sha256": ["12", "ab"]}
    assert names_of_its_data(recipe, {"data": {"references": {"validation": "ab34"}}}) == recipe
    assert names_of_its_data(recipe, {}) == recipe  # converted, not trained


def test_the_picture_has_the_metrics_of_the_recipe(metric, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda figure, file, **options: figures.append(figure)
    )
    entry = {"step": 2, "eval_loss": 1.0, "eval_wer": 60.0, "eval_words_missing": 1.0}
    draw_training([entry, {**entry, "step": 4}], tmp_path / "training.png", "beam 2")
    scores = figures[0].axes[1]
    assert scores.get_ylabel() == "score, beam 2"
    assert [text.get_text() for text in scores.get_legend().get_texts()] == ["WER", "words missing"]
    draw_training([{"step": 2, "eval_loss": 1.0}], tmp_path / "training.png", "greedy")
    # No empty plot where nothing is translated
    assert [axes.get_title() for axes in figures[1].axes] == ["Loss"]


def test_progress_line_and_table(run, capfd):
    logs = {"eval_loss": 1.0, "eval_wer": 50.0, "eval_words_missing": 0.5}
    args = TranslationTrainingArguments(report_to="none")
    state = TrainerState(global_step=2, epoch=0.5)
    TranslationProgress("greedy").on_log(args, state, TrainerControl(), logs=logs)
    assert (
        "validation loss 1.000  WER 50.00  words missing 0.500  (greedy)" in capfd.readouterr().err
    )
    table = summary_table(run[1], run[0])
    assert "WER  words missing" in table
    assert "WER: nrefs:1|case:mixed|tok:none|rapidfuzz:" in table


def test_script_scores_with_the_metrics_of_the_recipe(run, capsys):
    options = ["--split", "test", "--device", "cpu", "--quiet"]
    assert main(["evaluate", "--model", str(run[0]), *options]) == 0
    assert capsys.readouterr().out.startswith(
        "split  sentences     WER  words missing  search  sentences/s\n-----"
    )
    scores = read_json(run[0] / "evaluation" / "scores.json")["scores"]["test"]
    assert scores["words_missing"] == run[1]["scores"]["test"]["words_missing"]


def test_script_scores_other_files_with_the_metrics_of_the_recipe(run, tmp_path, capsys):
    (tmp_path / "source").write_text("two\n")
    (tmp_path / "reference").write_text("zwei\n")
    files = f"--source {tmp_path}/source --reference {tmp_path}/reference"
    words = f"evaluate --model {run[0]} {files} --output_dir {tmp_path} --device cpu --quiet"
    assert main(words.split()) == 0
    assert "WER  words missing" in capsys.readouterr().out


def test_a_run_whose_evaluations_do_not_translate_is_scored_all_the_same(tmp_path):
    words = "--metrics bleu,chrf --predict_with_generate false --metric_for_best_model loss"
    results = train_from_recipe(tiny_recipe(tmp_path, f"{words} --average_best false"))
    assert 0 <= results["scores"]["test"]["bleu"] <= 100
    assert len((tmp_path / "run" / "hypotheses" / "test.txt").read_text().splitlines()) == 5


# ---- the recipe of grapheme-to-phoneme conversion, on a corpus that a child could learn


RECIPE = Path(__file__).parents[3] / "csan_hf/recipes/g2p_csan_2d.yaml"
PHONES = {"a": "ɑ", "b": "b", "e": "eː", "n": "n̪"}


@pytest.fixture(scope="module")
def words_and_phones(tmp_path_factory):
    folder = tmp_path_factory.mktemp("g2p")
    draw = random.Random(1)
    words = ["".join(draw.choices(list(PHONES), k=draw.randint(2, 4))) for _ in range(90)]
    lines = []
    for word in words:
        phones = " ".join(PHONES[letter] for letter in word)
        lines.append(f"{word}\t{phones}\n")
    for split, part in (("train", lines[:70]), ("dev", lines[70:80]), ("test", lines[80:])):
        (folder / f"abc_{split}.tsv").write_text("".join(part), encoding="utf-8")
    recipe = parse(
        f"{RECIPE} --data_dir {folder} --source_lang abc --output_dir {folder}/run --language nl "
        "--d_model 16 --encoder_layers 1 --decoder_layers 1 --encoder_ffn_dim 32 "
        "--decoder_ffn_dim 32 --num_beams 1 --generation.max_length 12 --max_steps 8 "
        "--eval_steps 2 --logging_steps 4 --metric_for_best_model per "
        "--early_stopping_patience 1 --learning_rate 1e-9 --bf16 false --average_best false"
    )
    return train_from_recipe(recipe), folder / "run"


def test_words_and_phones_are_tokenized_and_scored_and_stop_a_run(words_and_phones):
    results, folder = words_and_phones
    assert results["scores"].keys() == {"validation", "test"}
    for name, scores in results["scores"].items():
        assert {"g2p_wer", "per", "per_signature"} <= scores.keys()
        assert "bleu" not in scores
        assert len((folder / "hypotheses" / f"{name}.txt").read_text().splitlines()) == 10
    # At a rate of 1e-9 the second evaluation is no better
    assert results["training"]["updates"] == 4
    assert results["chosen"]["metric"] == "per"
    assert AutoTokenizer.from_pretrained(folder).tokenize("ban") == ["b", "a", "n"]
    target = AutoTokenizer.from_pretrained(folder, subfolder="target_tokenizer")
    assert target.tokenize("b eː") == ["b", "eː"]


def test_card_and_pipeline_are_text_to_text(words_and_phones):
    results, folder = words_and_phones
    card = ModelCard.load(folder / "README.md")
    assert card.data.pipeline_tag == "text2text-generation"
    assert faults(card, read_json(folder / "results.json")) == []
    assert f'print(generator("{results["example"]}")' in card.text
    assert "| G2P WER | PER |" in card.text
    assert not any(words in card.text for words in ("Translates", "translated worse"))
    generator = pipeline("translation", model=str(folder), trust_remote_code=True)
    assert isinstance(generator("ban")[0]["translation_text"], str)


def test_a_short_run_draws_its_picture_at_the_end(monkeypatch, tmp_path):
    drawn = []
    clock = [0.0]

    def draw(history, path, search):
        drawn.append(clock[0])
        clock[0] += 1.0

    monkeypatch.setattr("csan_hf.training.callbacks.draw_training", draw)
    monkeypatch.setattr("csan_hf.training.callbacks.time.monotonic", lambda: clock[0])
    args = TranslationTrainingArguments(output_dir=str(tmp_path), report_to="none")
    picture = TrainingPicture("greedy")
    state = TrainerState(is_world_process_zero=True)
    for clock[0] in (5.0, 50.0, 90.0, 150.0, 200.0):
        picture.on_evaluate(args, state, TrainerControl())
    picture.on_train_end(args, state, TrainerControl())
    # A second's drawing is a hundredth of the time since the last one
    assert drawn == [5.0, 150.0, 200.0]
