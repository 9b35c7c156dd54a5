# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""RNNsearch, ConvS2S and models of transformers' own from a recipe to a checkpoint that translates.

CSAN has test_train_script.py.
"""

import numpy as np
import pytest
from system.training.tiny_runs import TINY, parse

from csan_hf.data import load_translation_dataset
from csan_hf.evaluation import translate
from csan_hf.evaluation.loading import load_translation_model
from csan_hf.families import FAMILIES, family_of
from csan_hf.hub.public_files import read_json
from csan_hf.hub.push import check_checkpoint
from csan_hf.training import RecipeError, train_from_recipe
from csan_hf.training.dry_run import dry_run
from csan_hf.training.plan import resolve

SIZES = {
    "rnnsearch": "--source_embed_dim 32 --target_embed_dim 32 --hidden_size 32",
    "conv_s2s": "--embed_dim 16 --hidden_size 16 --encoder_layers 2",
    "t5": "--d_model 32 --d_kv 16 --d_ff 64 --config.num_layers 1 --num_heads 2",
    "led": "--d_model 32 --attention_window 8 --max_encoder_position_embeddings 64",
}


@pytest.mark.parametrize("family", SIZES)
def test_trains_evaluates_and_translates(family, tmp_path):
    output = tmp_path / "run"
    is_own = family in FAMILIES
    recipe = parse(
        f"{TINY} --model {family} {SIZES[family]} --output_dir {output} --max_steps 40 "
        f"--eval_steps 20 --logging_steps 1 --learning_rate {5e-2 if is_own else 1e-2} "
        "--metrics [chrf] --metric_for_best_model chrf --max_tokens 600"
    )
    results = train_from_recipe(recipe)
    assert results["model"] == family_of(family).classes["AutoModelForSeq2SeqLM"]
    assert results["scores"]["test"]["chrf"] > 0 or not is_own
    log = read_json(output / "checkpoint-40" / "trainer_state.json")["log_history"]
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert np.mean(losses[-3:]) < 0.75 * np.mean(losses[:3])
    model, tokenizers = load_translation_model(str(output), device="cpu")
    splits, _ = load_translation_dataset(recipe.data_arguments())
    hypotheses = (output / "hypotheses" / "test.txt").read_text().split("\n")[:-1]
    assert len(set(hypotheses)) > 1 or family == "led", "the test wants different translations"
    assert translate(model, tokenizers, list(splits["test"]["source"])) == hypotheses
    card = (output / "README.md").read_text()
    assert family_of(family).kind in card
    assert (output / "translation.py").exists() == is_own
    if family == "led":
        check_checkpoint(output)  # so that it can be pushed
        assert len(
            translate(model, tokenizers, ["zwei " * 90], truncation=True, max_length=5)
        )  # positions: 64
    assert ("import translation_pipeline" in card) != is_own


def test_models_of_transformers_have_one_vocabulary_and_text(tmp_path):
    led = f"{TINY} --model led {SIZES['led']} --output_dir {tmp_path}/led"
    costs = "LEDForConditionalGeneration: its costs depend on the tokens"
    assert costs in dry_run(parse(led))
    message = r"led has one vocabulary for both languages: set tokenizer\.joint to true"
    with pytest.raises(RecipeError, match=message):
        dry_run(parse(f"{led} --tokenizer.joint false"))
    config = resolve(parse(f"{TINY} --model marian --output_dir {tmp_path}")).config
    assert (config.pad_token_id, config.eos_token_id, config.forced_eos_token_id) == (0, 1, 1)
    for model in ("whisper", "encoder-decoder", "bert", "mbart", "m2m_100"):
        message = r"model must be one of .*, or of transformers' bart, led"
        with pytest.raises(RecipeError, match=message):
            parse(f"--model {model}")
