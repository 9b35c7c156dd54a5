# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Models that translate texts line by line, from recipes to translations."""

import re

import pytest
import yaml
from system.training.tiny_runs import TINY, parse
from tokenizers import AddedToken
from transformers import AutoTokenizer

from csan_hf.data import train_tokenizer
from csan_hf.evaluation.loading import loaded_translator
from csan_hf.evaluation.scores import score_table, score_translations
from csan_hf.hub.public_files import read_json
from csan_hf.training import train_from_recipe
from csan_hf.training.plan import resolve
from csan_hf.training.recipe import RecipeError, parse_recipe
from csan_hf_runtime.command_line import main
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


def test_a_model_without_positions_translates_texts_as_long_as_those_of_training(tmp_path):
    recipe = yaml.safe_load(TINY.read_text())
    del recipe["generation"]
    recipe["config"]["preset"] = "lines"
    recipe["data"]["max_target_length"] = 3000
    plan = resolve(parse_recipe({**recipe, "output_dir": str(tmp_path)}, "tiny"))
    model = plan.build_model(plan.prepare_corpus())
    assert model.config.max_position_embeddings < 3000
    assert model.generation_config.max_length == 3001


def test_a_text_of_sentences_has_no_lines(tmp_path):
    plan = resolve(parse(f"{TINY} --data.join 3 --output_dir {tmp_path}"))
    corpus = plan.prepare_corpus()
    assert not any("\n" in text for text in corpus.splits["train"]["source"])
    assert "\n" not in corpus.tokenizers.source.get_vocab()


@pytest.fixture
def documents(tmp_path):
    """Words of a command line that name documents."""
    for language, words in (("en", "one two three four"), ("de", "eins zwei drei vier")):
        document = words.replace(" ", "\n")
        (tmp_path / f"docs.{language}").write_text(f"{document}\n\n" * 5 + document)
    return (
        f"--data.dataset null --data_dir {tmp_path} --data.train docs.{{lang}} --data.documents true "
        "--data.validation docs.{lang} --data.test docs.{lang}"
    )


def test_documents_train_a_model_of_lines(documents, tmp_path):
    limits = "--data.max_source_length 6 --data.max_target_length 6"
    run = tmp_path / "run"
    results = train_from_recipe(parse(f"{LINES} {documents} {limits} --output_dir {run}"))
    assert_scores_of_documents(results["scores"])
    for split in ("test", "test_alone"):
        hypotheses = (run / "hypotheses" / f"{split}.txt").read_text()
        assert hypotheses.count("\n") == 24, "the lines of all documents"
    assert_lines_are_kept(run)
    assert main(f"evaluate --model {run} --split test test_alone --quiet".split()) == 0
    assert_scores_of_documents(read_json(run / "evaluation" / "scores.json")["scores"])
    assert (run / "evaluation" / "test.hypotheses.txt").read_text().count("\n") == 24


def assert_scores_of_documents(scores):
    assert scores["test"]["sentences"] == 6
    assert scores["test_alone"]["sentences"] == 24
    assert scores["test"]["lines"]["sentences"] == 24
    assert "lines" not in scores["test_alone"]
    table = "\n".join(score_table(scores))
    assert re.search(r"^test +6 .*\ntest, its lines +24 .*\ntest_alone +24 ", table, re.MULTILINE)


def test_translations_of_documents_are_scored_whole_and_by_line(tmp_path):
    documents = ["one\ntwo words", "three\nfour\nfive of them"]
    (tmp_path / "source").write_text("\n\n".join(documents))
    (tmp_path / "reference").write_text("\n\n".join(documents).upper())
    (tmp_path / "lines").write_text("ONE\nTWO WORDS\nTHREE\n\nFIVE OF THEM\n")
    (tmp_path / "blank").write_text("ONE\nTWO WORDS\n\nTHREE\n\nFIVE OF THEM\n")
    words = f"evaluate --source {tmp_path}/source --reference {tmp_path}/reference --documents"
    scores = []
    for name in ("lines", "blank"):
        output = f"--output_dir {tmp_path}/{name}_scores --metrics chrf"
        assert main(f"{words} --hypotheses {tmp_path}/{name} {output}".split()) == 0
        scores.append(read_json(tmp_path / f"{name}_scores" / "scores.json")["scores"])
    assert scores[0] == scores[1]
    [entry] = scores[0].values()
    texts = ["ONE\nTWO WORDS", "THREE\n\nFIVE OF THEM"]
    references = [text.upper() for text in documents]
    assert entry["chrf"] == score_translations(texts, references, metrics=["chrf"])["chrf"]
    texts, references = ("\n".join(side).split("\n") for side in (texts, references))
    lines = score_translations(texts, references, metrics=["chrf"])
    assert entry["lines"] == {**lines, "sentences": 5}


def test_other_networks_read_documents_too(documents, tmp_path):
    plan = resolve(parse(f"{TINY} {documents} --output_dir {tmp_path}/run"))
    corpus = plan.prepare_corpus()
    assert corpus.tokenizers.line_token_id == 3
    assert plan.build_model(corpus).config.line_token_id is None


@pytest.mark.parametrize("key", ["tokenizer.pretrained", "init_from"])
def test_an_existing_vocabulary_names_its_mark(documents, key, tmp_path):
    tokenizer = train_tokenizer(["one two three four", "eins zwei drei vier"] * 9, 299)
    tokenizer.add_tokens([AddedToken("<line>", normalized=False, special=False)])
    tokenizer.save_pretrained(tmp_path / "base")
    words = f"{LINES} {documents} --output_dir {tmp_path}/run"
    if key == "init_from":
        base = resolve(parse(f"{TINY} --tokenizer {tmp_path}/base --output_dir {tmp_path}/other"))
        base.build_model(base.prepare_corpus()).save_pretrained(tmp_path / "base")
        with pytest.raises(RecipeError, match="attends line by line: name the token that ends a"):
            resolve(parse(f"{LINES} --init_from {tmp_path}/base --output_dir {tmp_path}/run"))
    words = f"{words} --{key} {tmp_path}/base"
    with pytest.raises(
        RecipeError, match=r"'\\n' must be one token.*: set tokenizer.line_token to"
    ):
        resolve(parse(words))
    for token in ("<pad>", "e", "<lines>"):
        with pytest.raises(RecipeError, match="must be "):
            resolve(parse(f"{words} --tokenizer.line_token {token}"))
    train_from_recipe(parse(f"{words} --tokenizer.line_token <line>"))
    number = AutoTokenizer.from_pretrained(tmp_path / "run").convert_tokens_to_ids("<line>")
    assert read_json(tmp_path / "run" / "config.json")["line_token_id"] == number
    assert_lines_are_kept(tmp_path / "run")
    assert "<line>" not in (tmp_path / "run" / "hypotheses" / "test.txt").read_text()
    more = f"--data.train_size 30 --init_from {tmp_path}/run --output_dir {tmp_path}/more"
    for data, most in ((documents, 3), ("--dataset numbers --data.join 2", 1)):
        plan = resolve(parse(f"{data} {more}"))
        sources = plan.prepare_corpus().splits["train"]["source"]
        assert max(text.count("\n") for text in sources) == most
        assert plan.config.line_token_id == number
    with pytest.raises(RecipeError, match="'</s>' must be one token"):
        resolve(parse(f"{data} {more} --tokenizer.line_token </s>"))


def test_the_number_of_the_mark_is_not_set_by_hand():
    with pytest.raises(RecipeError, match=r"line_token_id cannot be set: it follows from tokeniz"):
        parse(f"{LINES} --config.line_token_id 5")
