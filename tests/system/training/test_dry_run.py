# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""--dry_run checks a recipe and prints its sizes, and does nothing else."""

import re
from pathlib import Path

import pytest
from system.training.tiny_runs import parse, save_tiny_marian
from tiny import transformer_sizes

from csan_hf import (
    CsanConfig,
    CsanForConditionalGeneration,
    RnnSearchConfig,
    RnnSearchForConditionalGeneration,
)
from csan_hf.families import FAMILIES
from csan_hf.lab.suites.training_speed import target_token_flops
from csan_hf.training import dry_run as module
from csan_hf.training.dry_run import dry_run
from csan_hf.training.errors import RecipeError
from csan_hf.training.recipe import load_recipe

RECIPES = sorted((Path(__file__).parents[3] / "scripts" / "recipes").glob("*.yaml"))


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """No download, and no seconds spent on measuring the machine."""
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(module, "matrix_product_rate", lambda args: 1e12)


def report(words: str) -> str:
    return dry_run(parse(f"{RECIPES[0].parent}/{words}"))


ESTIMATES = {}


def estimate_once(model, args, family, estimate=module.estimate):
    """Costs of the first model of a kind: an estimate takes long."""
    kind = (type(model), getattr(model.config, "block", None))
    if kind not in ESTIMATES:
        ESTIMATES[kind] = estimate(model, args, family)
    return ESTIMATES[kind]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_can_be_run_dry(path, tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "estimate", estimate_once)
    recipe = load_recipe(path)
    if recipe.init_from:
        recipe.init_from = str(save_tiny_marian(tmp_path_factory.mktemp("marian")))
    text = dry_run(recipe)
    for words in ("Data", "parameters", "memory of a device", "TFLOP", "an update"):
        assert words in text
    assert list(tmp_path.iterdir()) == []


def test_parameters_are_the_papers(monkeypatch):
    costs = module.Estimate(pairs=1, states=1, activations=1, flops=1)
    monkeypatch.setattr(module, "estimate", lambda model, args, family: costs)
    plain = "wmt14_en_de_base.yaml --local_window null --head_area 1"
    for words in ("wmt14_en_de_base.yaml", plain):
        assert " 88.0M parameters" in report(words)
    # The papers' + 0.8M for LOCAL_SOFT
    assert " 88.8M parameters" in report(f"{plain} --localness_window query")


def test_estimate_is_that_of_the_real_model():
    sizes = transformer_sizes(32, layers=2, heads=8, ffn=64)
    model = CsanForConditionalGeneration(CsanConfig(vocab_size=100, dropout=0.0, **sizes))

    def estimate(words="", family="csan"):
        recipe = parse(f"--max_tokens 240 --bf16 false --output_dir x {words}")
        return module.estimate(model, recipe.training_arguments(), FAMILIES[family])

    single, double = estimate(), estimate("--max_tokens 480")
    grid = estimate("--max_cells 1800", "pervasive_attention")
    assert (single.pairs, double.pairs, grid.pairs) == (4, 8, 2)
    assert single.states == 16 * sum(parameter.numel() for parameter in model.parameters())
    tokens = 4 * module.SENTENCE_LENGTH
    # 2 operations for a weight and a token, once forward and twice backward; keys and values of 3
    # heads in the encoder
    matrices = sum(weight.numel() for name, weight in model.named_parameters() if weight.ndim == 2)
    attention = 2 * 2 * tokens * module.SENTENCE_LENGTH * 32 * (3 + 1 + 1)
    assert single.flops == 6 * tokens * matrices + 3 * 2 * attention
    assert 4 * tokens * 32 * 10 < single.activations < 4 * tokens * 32 * 500
    assert 1.9 * single.activations < double.activations < 2 * single.activations, (
        "neither weights nor a tensor twice"
    )
    assert estimate("--gradient_accumulation_steps 3").flops == 3 * single.flops
    again = estimate("--activation_checkpointing")
    assert 3 * again.flops == 4 * single.flops
    assert 3 * again.activations < single.activations


def test_data_that_is_there_is_counted_and_checked(tmp_path):
    for split, lines in (("train", 3), ("val", 2)):
        for language in ("de", "en"):
            (tmp_path / f"{split}.{language}").write_text("ein Satz\n" * lines)
    words = f"multi30k_transformer.yaml --data_dir {tmp_path}"
    text = report(words)
    assert "train: 3 pairs" in text
    assert "validation: 2 pairs" in text
    assert "test_2016: not there (test_2016_flickr.{lang}.gz)" in text
    (tmp_path / "val.en").write_text("one sentence\n")
    with pytest.raises(RecipeError, match=r"val\.de has 2 lines and .*val\.en has 1"):
        report(words)


def test_languages_without_number_words_are_refused_as_by_training():
    with pytest.raises(RecipeError, match="language 'xx' is not known to both num2words and Babel"):
        dry_run(load_recipe("numbers", [("source_lang", "xx")]))


def test_a_dataset_in_a_folder_is_counted(tmp_path):
    pairs = 3 * '{"de": "ein Satz", "en": "one"}\n'
    (tmp_path / "train.jsonl").write_text(pairs)
    words = f"multi30k_transformer.yaml --data.dataset {tmp_path} --data.data_dir null"
    text = report(f"{words} --data.train null --data.validation null --data.test null")
    assert f"{tmp_path}, de to en" in text
    assert "train: 3 pairs" in text


def test_a_model_of_lines_needs_no_vocabulary_yet():
    text = report("numbers.yaml --config.preset lines --data.join 3")
    assert "memory of a device" in text


def test_preparing_is_estimated_from_a_sample(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SAMPLE_SIZE", 20)
    for language in ("de", "en"):
        (tmp_path / f"train.{language}").write_text("ein Satz\n" * 2_000)
    words = f"multi30k_transformer.yaml --data_dir {tmp_path} --cache_dir kept"
    text = report(words)
    assert re.search(
        r"train: 2,000 pairs; cutting them into tokens takes about .*, and \d+ MB in kept", text
    )
    streamed = report(f"{words} --streaming --max_steps 9")
    assert "train: a stream, read as it comes" in streamed


def test_operations_of_an_lstm_count():
    """oneDNN has an operation of its own for it."""
    config = RnnSearchConfig(
        vocab_size=30,
        source_embed_dim=8,
        target_embed_dim=8,
        hidden_size=8,
        tie_word_embeddings=False,
    )
    model = RnnSearchForConditionalGeneration(config)
    lstm = 2 * 25 * 2 * 4 * 4 * (8 + 4) + 2 * 20 * 4 * 8 * (8 + 8)  # two directions of 4, one of 8
    attention = 2 * 20 * 25 * 8 * 2 + 2 * 20 * 16 * 8
    output_and_start = 2 * 20 * 8 * 30 + 2 * 8 * 16  # the output projection, and the first state
    flops = target_token_flops(model, source_length=25, target_length=20)
    assert flops * 20 == lstm + attention + output_and_start


def test_operations_inside_fused_attention_count():
    d = 32
    ffn = 64
    source = 25
    target = 20
    sizes = transformer_sizes(d, layers=1, heads=8, ffn=ffn)
    model = CsanForConditionalGeneration(
        CsanConfig(vocab_size=30, local_window=None, head_area=1, **sizes)
    )
    linear = (
        (4 * d * d + 2 * d * ffn) * (source + target)
        + 2 * d * d * (source + target)
        + 30 * d * target
    )
    attention = 2 * d * (source * source + target * target + source * target)
    flops = target_token_flops(model, source_length=source, target_length=target)
    assert flops * target == 2 * (linear + attention)


def test_layers_that_training_drops_count():
    assert "TFLOP" in report("numbers.yaml --encoder_layerdrop 0.5 --decoder_layerdrop 0.5")
