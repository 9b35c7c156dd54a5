# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Values that cannot work are refused, in training and by --dry_run, before anything is read or written."""

import importlib.util

import pytest
from training.tiny_runs import RECIPE

from csan_hf import CsanConfig, CsanForConditionalGeneration
from csan_hf.data import train_tokenizer
from csan_hf.training import load_recipe
from csan_hf.training.dry_run import dry_run
from csan_hf.training.plan import resolve
from csan_hf.training.recipe import RecipeError
from csan_hf.training.run import train_from_recipe

LEARNED = {"model": "pervasive_attention", "position_embeddings": "learned"}


@pytest.fixture(autouse=True)
def no_data(monkeypatch):
    """Whoever reads data came too far."""
    for module in ("run", "dry_run"):
        monkeypatch.setattr(f"csan_hf.training.{module}.load_translation_dataset", None)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"deepspeed": "/no/such/file.json"}, "section training is refused: .*deepspeed"),
        ({"num_beams": "0"}, "section generation is refused: generation.num_beams must be at least 1, got 0"),
        ({"generation.max_length": "1"}, "generation is refused: generation.max_length must be at least 2, .*, got 1"),
        ({"predict_with_generate": "false"}, "must be one of loss, as .*predict_with_generate is false, got"),
        ({"bleu_tokenize": "31a"}, "bleu_tokenize must be one of none, zh, 13a,.*got '31a'"),
        ({"learning_rate": "nan"}, "training.learning_rate must be at least 0 and finite, got nan"),
        ({"training.seed": "-1"}, r"training.seed must be in \[0, 2\^32\), got -1"),
        ({"max_steps": "0"}, "training.max_steps must be at least 1, or -1 for num_train_epochs, got 0"),
        ({"max_steps": "-1", "num_train_epochs": "0"}, "training.num_train_epochs must be above 0 and finite, got 0"),
        ({"per_device_eval_batch_size": "0"}, "training.per_device_eval_batch_size must be at least 1, got 0"),
        ({"encoder_attention_heads": "5"}, "section config is refused"),
        (
            {"report_to": "[tensorboard, foo]"},
            "training is refused: report_to: foo is not supported, only .*tensorboard",
        ),
        ({"report_to": "wandb"}, "section training is refused: report_to: .*pip install wandb"),
        ({"init_from": "/no/such"}, "init_from: There is no folder /no/such to read the model from"),
        ({"tokenizer.pretrained": "/no/such"}, "tokenizer: the tokenizer of /no/such cannot be loaded"),
        ({"language_pairs": "[de_en]"}, "section data is refused: language_pairs: 'de_en' must be SOURCE-TARGET"),
        ({"language_pairs": "de-en,de-en"}, "language_pairs: 'de-en' must be SOURCE-TARGET, .*, each pair once"),
        ({"streaming": "true"}, "section data is refused: streaming reads a dataset on the Hub"),
        ({"lr_scheduler_kwargs": "{cycles: 2}"}, r"lr_scheduler_kwargs {'cycles': 2}: .*unexpected keyword"),
        ({"optim": "adamw_8bit"}, "section training is refused: .*You need to install `bitsandbytes`"),
        ({"name": "a\ud800"}, "The recipe holds half of a character, which no file can hold"),
        ({"metrics": "[blue]"}, "There is no metric 'blue'; choose from bleu, chrf"),
        ({"metrics": "[aer]"}, "training.metrics must be names of metrics of translations"),
        ({"metrics": "[wer]"}, "training.metric_for_best_model must be one of wer, loss, got 'bleu'"),
        ({"eval_steps": "0"}, "training.eval_steps must be above 0 and finite, got 0"),
        ({"tokenizer.vocab_size": "258"}, "section tokenizer is refused: vocab_size is 258; it must be at least 259"),
        ({"target_vocab_size": "400"}, "target_vocab_size is 400, but the vocabulary is joint"),
        ({**LEARNED, "max_position_embeddings": "200"}, "is 200, but data.max_source_length lets 256 tokens in"),
        ({**LEARNED, "generation.max_length": "2000"}, "is 1024, but generation.max_length lets 2000 tokens in"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_value_that_cannot_work_is_refused(tmp_path, overrides, words):
    check_refusal(load_recipe("numbers", [*overrides.items(), ("output_dir", str(tmp_path / "run"))]), words, tmp_path)


def check_refusal(recipe, words, folder):
    for run in (dry_run, train_from_recipe):
        with pytest.raises(RecipeError, match=words):
            run(recipe)
    assert list(folder.iterdir()) == []


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = train_tokenizer(["eins zwei drei"] * 9, 300)
    tokenizer.save_pretrained(folder)
    CsanForConditionalGeneration(CsanConfig(vocab_size=len(tokenizer), **RECIPE["config"])).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"local_window": "4"}, "section config is refused: .*local_window"),
        ({"localness_layers": "[7]"}, "section config is refused: .*localness_layers"),
        ({"d_model": "32"}, r"section config is refused: it changes the shapes of .* from \(\d+, 16\) to \(\d+, 32\)"),
        ({"model": "pervasive_attention"}, "init_from: .* is a csan model, which pervasive_attention cannot use"),
    ],
)
def test_what_a_checkpoint_cannot_be_made_is_refused(checkpoint, tmp_path, overrides, words):
    pairs = {"init_from": str(checkpoint), "output_dir": str(tmp_path / "run"), "data.dataset": "numbers", **overrides}
    check_refusal(load_recipe(None, list(pairs.items())), words, tmp_path)


def test_a_bleu_tokenizer_whose_package_is_missing_is_named(monkeypatch):
    assert resolve(load_recipe("numbers", [("bleu_tokenize", "char")])).recipe.bleu_tokenize == "char"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"bleu_tokenize is 'ja-mecab', which .* pip install sacrebleu\[ja\]"):
        resolve(load_recipe("numbers", [("bleu_tokenize", "ja-mecab")]))
