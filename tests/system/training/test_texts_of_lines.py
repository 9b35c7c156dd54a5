# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Models that translate texts line by line, from recipes to translations."""

import pytest
from system.training.tiny_runs import TINY, parse

from csan_hf.evaluation.loading import loaded_translator
from csan_hf.hub.public_files import read_json
from csan_hf.training import train_from_recipe
from csan_hf.training.plan import resolve
from csan_hf.training.recipe import RecipeError
from csan_hf_runtime.options import TranslationOptions

LINES = f"{TINY} --config.preset lines --generation.max_length 80 --max_steps 4"
TEXT = "one\n\n  two\nthree\nfour"


def translate(folder, text):
    with loaded_translator([str(folder)]) as translator:
        [[translation]] = translator.begin([text], options=TranslationOptions())()
    return translation


def assert_lines_are_kept(folder, text=TEXT):
    translation = translate(folder, text)
    assert translation.text.count("\n") == text.count("\n")
    assert len(translation.sentences) == len(text.split())


def test_sentences_joined_as_lines_train_a_model_of_lines(tmp_path):
    recipe = parse(f"{LINES} --data.join 3 --output_dir {tmp_path}")
    sources = resolve(recipe).prepare_corpus().splits["train"]["source"]
    assert {text.count("\n") for text in sources} == {0, 1, 2}
    results = train_from_recipe(recipe)
    assert results["scores"]["test"]["sentences"] == 8
    assert read_json(tmp_path / "config.json")["line_token_id"] == 3
    assert read_json(tmp_path / "config.json")["vocab_size"] == 300
    assert_lines_are_kept(tmp_path)


def test_a_text_of_sentences_has_no_lines(tmp_path):
    plan = resolve(parse(f"{TINY} --data.join 3 --output_dir {tmp_path}"))
    corpus = plan.prepare_corpus()
    assert not any("\n" in text for text in corpus.splits["train"]["source"])
    assert "\n" not in corpus.tokenizers.source.get_vocab()


def test_the_number_of_the_mark_is_not_set_by_hand():
    with pytest.raises(RecipeError, match=r"line_token_id cannot be set: it follows from tokeniz"):
        parse(f"{LINES} --config.line_token_id 5")
