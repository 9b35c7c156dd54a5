# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""RNNsearch and ConvS2S from a recipe to a checkpoint that translates; CSAN has test_train_script.py."""

import json

import numpy as np
import pytest
from training.tiny_runs import RECIPE, write_recipe

from csan_hf.data import load_translation_dataset
from csan_hf.evaluation import translate
from csan_hf.evaluation.loading import load_translation_model
from csan_hf.families import FAMILIES
from csan_hf.training import load_recipe, train_from_recipe

SIZES = {
    "rnnsearch": {"source_embed_dim": 32, "target_embed_dim": 32, "hidden_size": 32},
    "conv_s2s": {"embed_dim": 16, "hidden_size": 16, "encoder_layers": 2, "decoder_layers": 1},
}


@pytest.mark.parametrize("family", SIZES)
def test_trains_evaluates_and_translates(family, tmp_path):
    output = tmp_path / "run"
    recipe = {**RECIPE, "config": SIZES[family]}
    shorter = {"max_steps": 40, "eval_steps": 20, "logging_steps": 1, "learning_rate": 5e-2, "metrics": ["chrf"]}
    shorter |= {"metric_for_best_model": "chrf", "max_tokens": 600}
    path = write_recipe(tmp_path / "recipe.yaml", recipe, model=family, output_dir=str(output), training=shorter)
    results = train_from_recipe(load_recipe(path))
    assert results["model"] == FAMILIES[family].classes["AutoModelForSeq2SeqLM"]
    assert results["scores"]["test"]["chrf"] > 0
    log = json.loads((output / "checkpoint-40" / "trainer_state.json").read_text())["log_history"]
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert np.mean(losses[-3:]) < 0.75 * np.mean(losses[:3])
    model, tokenizers = load_translation_model(str(output), device="cpu")
    splits, _ = load_translation_dataset(load_recipe(path).data_arguments())
    hypotheses = (output / "hypotheses" / "test.txt").read_text().split("\n")[:-1]
    assert len(set(hypotheses)) > 1, "the test wants different translations"
    assert translate(model, tokenizers, list(splits["test"]["source"])) == hypotheses
    assert FAMILIES[family].kind in (output / "README.md").read_text()
