# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The recipe of grapheme-to-phoneme conversion, on a corpus that a child could learn."""

import json
import random
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from transformers import AutoTokenizer, TrainerControl, TrainerState, pipeline

from csan_hf.hub import card_problems
from csan_hf.training import TranslationTrainingArguments, load_recipe
from csan_hf.training.callbacks import TrainingPicture
from csan_hf.training.run import train_from_recipe

RECIPE = Path(__file__).parents[2] / "scripts/recipes/g2p_csan_2d.yaml"
PHONES = {"a": "ɑ", "b": "b", "e": "eː", "n": "n̪"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("g2p")
    draw = random.Random(1)
    words = ["".join(draw.choices(list(PHONES), k=draw.randint(2, 4))) for _ in range(90)]
    lines = [f"{word}\t{' '.join(PHONES[letter] for letter in word)}\n" for word in words]
    for split, part in (("train", lines[:70]), ("dev", lines[70:80]), ("test", lines[80:])):
        (folder / f"abc_{split}.tsv").write_text("".join(part), encoding="utf-8")
    settings = {
        **{"data.data_dir": folder, "data.source_lang": "abc", "output_dir": folder / "run", "language": "nl"},
        **{"config.d_model": 16, "config.encoder_layers": 1, "config.decoder_layers": 1, "num_beams": 1},
        **{"config.encoder_ffn_dim": 32, "config.decoder_ffn_dim": 32, "generation.max_length": 12},
        **{"max_steps": 8, "eval_steps": 2, "logging_steps": 4, "metric_for_best_model": "per"},
        **{"early_stopping_patience": 1, "learning_rate": 1e-9, "training.bf16": "false", "average_best": "false"},
    }
    recipe = load_recipe(RECIPE, [(key, str(value)) for key, value in settings.items()])
    return train_from_recipe(recipe), folder / "run"


def test_words_and_phones_are_tokenized_and_scored_and_stop_a_run(run):
    results, folder = run
    assert results["scores"].keys() == {"validation", "test"}
    for name, scores in results["scores"].items():
        assert {"g2p_wer", "per", "per_signature"} <= scores.keys()
        assert "bleu" not in scores
        assert len((folder / "hypotheses" / f"{name}.txt").read_text().splitlines()) == 10
    assert results["training"]["updates"] == 4  # at a rate of 1e-9 the second evaluation is no better
    assert results["chosen"]["metric"] == "per"
    assert AutoTokenizer.from_pretrained(folder).tokenize("ban") == ["b", "a", "n"]
    assert AutoTokenizer.from_pretrained(folder, subfolder="target_tokenizer").tokenize("b eː") == ["b", "eː"]


def test_card_and_pipeline_are_text_to_text(run):
    results, folder = run
    card = ModelCard.load(folder / "README.md")
    assert card.data.pipeline_tag == "text2text-generation"
    assert card_problems(card, json.loads((folder / "results.json").read_text())) == []
    assert f'print(generator("{results["example"]}")' in card.text
    assert "| G2P WER | PER |" in card.text
    assert not any(words in card.text for words in ("Translates", "translated worse"))
    generator = pipeline("translation", model=str(folder), trust_remote_code=True)
    assert isinstance(generator("ban")[0]["translation_text"], str)


def test_a_short_run_draws_its_picture_at_the_end(monkeypatch, tmp_path):
    drawn, clock = [], [0.0]

    def draw(history, path):
        drawn.append(clock[0])
        clock[0] += 1.0

    monkeypatch.setattr("csan_hf.training.callbacks.draw_training", draw)
    monkeypatch.setattr("csan_hf.training.callbacks.time.monotonic", lambda: clock[0])
    args = TranslationTrainingArguments(output_dir=str(tmp_path), report_to="none")
    picture, state = TrainingPicture(), TrainerState(is_world_process_zero=True)
    for clock[0] in (5.0, 50.0, 90.0, 150.0, 200.0):
        picture.on_evaluate(args, state, TrainerControl())
    picture.on_train_end(args, state, TrainerControl())
    assert drawn == [5.0, 150.0, 200.0]  # a second's drawing is a hundredth of the time since the last one
