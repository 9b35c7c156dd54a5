# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Texts of any length: what is split, put together, batched, scored and aligned."""

import copy
import itertools
import json
import pickle
import re

import multilingual
import numpy as np
import pytest
import tiny
import torch
from pipelines.conftest import GERMAN, translator_of
from transformers import GenerationConfig, pipeline
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from csan_hf.data import TokenizerPair
from csan_hf.evaluation import translate
from csan_hf.pipelines import TextTranslationPipeline, TranslationPipeline
from csan_hf_runtime.scores import is_scored

SENTENCES = [
    "eins zwei drei",
    "ein Hund",
    "vier fünf sechs sieben acht neun",
    "Katze",
    "zehn und eins",
    "drei",
]


def texts_of(results):
    return [result["translation_text"] for result in results]


@pytest.fixture
def translator(joint):
    model, tokenizer = joint
    return translator_of(model, tokenizer, max_new_tokens=6)


def test_long_lines_are_split_and_nothing_is_cut(translator, library_log):
    """Marian fails beyond its positions; here it does not, and every sentence counts."""
    sentences = ["eins zwei drei.", "ein Hund und ein Haus!", "Katze."] * 9
    text = " ".join(sentences)
    length = len(translator.tokenizer(text, verbose=False)["input_ids"])
    assert length > translator.source_limit == 64
    parts = texts_of(translator(sentences[:3]))
    assert texts_of(translator(text, batch_size=8)) == [" ".join(parts * 9)]
    assert "longer" not in library_log.text
    [cut] = translator(text, truncation=True)
    assert cut == TranslationPipeline.__call__(translator, text, truncation=True)[0]
    with pytest.raises(IndexError):
        TranslationPipeline.__call__(translator, text)
    translator("Hund " * 70)
    assert "A sentence is longer than the 64 tokens" in library_log.text


def test_the_pipeline_of_a_checkpoint_splits_where_csan_hf_is_imported(tmp_path, library_log):
    tokenizer = tiny.tokenizer(["Ein", "Hund.", "Katze.", *GERMAN], model_max_length=64)
    model = tiny.csan(seed=2, vocab_size=len(tokenizer))
    model.generation_config = GenerationConfig(
        max_length=6,
        decoder_start_token_id=tiny.PAD,
        eos_token_id=tiny.EOS,
        pad_token_id=tiny.PAD,
        usual_source={"tokens": 9, "sentences": 1},
    )
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "saved")
    texts = ["Ein Hund.", "Katze.", "Ein Hund. Katze."]
    for folder in ("saved", "again"):
        folder = str(tmp_path / folder)
        translator = pipeline("translation", model=folder, device="cpu", trust_remote_code=True)
        first, second, both = texts_of(translator(texts))
        assert both == f"{first} {second}"
        assert first != second
        translator.save_pretrained(tmp_path / "again")
    assert type(translator) is TextTranslationPipeline
    assert "A source has" not in library_log.text
    plain = TranslationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    plain(texts)
    assert "of those in training had (at most 9 and 1)" in library_log.text
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config["custom_pipelines"]["translation"]["impl"] == "translation.TranslationPipeline"
    assert (tmp_path / "again" / "translation.py").is_file()


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Mr. Smith sleeps. ", 1),
        ("At 5 p.m. the shop closes.", 1),
        ("Am 3. Mai schläft Dr. Haus", 1),
        ("The shop (approx. ten people) is closed... for good!", 1),
        ("The number is two. The shop is closed.", 2),
        ("»Komm her!« »Nein! Geh fort.«", 3),
        ("他来了。他说：「好。」我走了。", 3),
        ("هذا كتاب. شكرا", 2),
        ("! " * 20000 + "." * 20000 + "。」" * 20000 + "." + " " * 20000, 1),
    ],
)
def test_a_plain_pipeline_warns_once_of_more_sentences(text, sentences, translator, library_log):
    plain = TranslationPipeline(model=translator.model, tokenizer=translator.tokenizer)
    settings = translator.model.generation_config
    for most, warnings in ((sentences, 0), (sentences - 1, 1)):
        settings.usual_source = {"tokens": 10**6, "sentences": most}
        plain.preprocess(text)
        plain.preprocess(f"{text} ")
        # A record of csan_hf comes twice
        logged = {id(log) for log in library_log.records if "A source has more" in log.msg}
        assert len(logged) == warnings
    for odd in ({"tokens": 0}, {"tokens": "x", "sentences": 0}, [0, 0], 3):
        settings.usual_source = odd
        plain.preprocess(text)


def test_a_pipeline_of_a_checkpoint_is_copied(translator, tmp_path, monkeypatch):
    tiny.csan().save_pretrained(tmp_path)
    kind = get_class_from_dynamic_module("translation.TranslationPipeline", tmp_path)
    with monkeypatch.context() as before_csan_hf_is_imported:
        before_csan_hf_is_imported.setattr(TranslationPipeline, "for_texts", None)
        plain = kind(model=translator.model, tokenizer=translator.tokenizer)
    assert type(copy.copy(plain)) is type(plain) is kind
    assert copy.copy(plain)("Hund") == plain("Hund")


def test_a_model_without_absolute_positions_takes_whole_lines(joint):
    """Its own config has a length of sinusoids all the same, which means nothing then."""
    tokenizer = copy.deepcopy(joint[1])
    tokenizer.model_max_length = 10**30
    for sinusoids, limit in ((None, None), ("marian", 64)):
        sizes = {"max_position_embeddings": 64, "vocab_size": len(tokenizer)}
        model = tiny.csan(sinusoids=sinusoids, **sizes)
        translator = translator_of(model, tokenizer)
        assert translator.source_limit == limit
        text = " ".join(["ein Hund und ein Haus!"] * 30)
        [result] = translator(text, return_scores=True, max_new_tokens=2)
        assert (len(result["sentences"]) == 1) == (limit is None)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"num_beams": 2, "num_return_sequences": 3},
            "num_return_sequences=3 needs as many beams, got num_beams=2; or do_sample=True.",
        ),
        (
            {"num_return_sequences": 2},
            "num_return_sequences=2 needs as many beams, got num_beams=1",
        ),
        ({"length_penalty": 99.0}, "length_penalty must be"),
        ({"min_length": 9, "max_length": 5}, "min_length must be at most"),
        ({"generation_config": GenerationConfig(top_k=-1)}, "top_k must be"),
    ],
)
def test_an_impossible_argument_is_named_alone(options, told, translator):
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        translator("ein Hund", **options)
    assert len(translator("Hund", num_return_sequences=2, do_sample=True, max_length=4)) == 2


@pytest.mark.parametrize("where", ["pipeline", "model"])
def test_an_empty_text_has_as_many_translations_as_the_others(joint, where):
    model, tokenizer = joint
    options = {"num_beams": 2, "num_return_sequences": 2}
    if where == "model":
        model.generation_config.update(**options)
        options = {}
    translator = translator_of(model, tokenizer, max_new_tokens=3, **options)
    assert [len(results) for results in translator(["", "ein Hund"])] == [2, 2]


@pytest.mark.parametrize(("batch_size", "most"), [(1, 1), (2, 32)])
def test_streams_are_read_as_they_are_needed(translator, batch_size, most):
    numbers = itertools.count()
    endless = (SENTENCES[number % len(SENTENCES)] for number in numbers)
    results = translator(endless, batch_size=batch_size)
    assert next(numbers) == 0, "nothing is read yet"
    first = [result for [result] in itertools.islice(results, 3)]
    assert first == translator(SENTENCES[1:4])
    assert next(numbers) <= 1 + max(most, 3)


@pytest.mark.parametrize("target", [None, "deu_Latn"])
def test_scores_are_the_models_probabilities(target, joint, tmp_path):
    """Of a multilingual model those without the language, which was forced."""
    model, tokenizer = joint if target is None else multilingual.nllb(tmp_path)
    translator = translator_of(model, tokenizer, tgt_lang=target, max_new_tokens=6)
    [result] = translator("ein Hund\nKatze", return_scores=True, return_alignments=not target)
    assert {*result} - {"alignment"} == {"translation_text", "sentences"}
    assert ("alignment" in result) == (target is None)
    uncounted = {*tokenizer.all_special_ids} - {tokenizer.eos_token_id, tokenizer.unk_token_id}
    for text, sentence in zip(["ein Hund", "Katze"], result["sentences"], strict=True):
        assert sentence["source_text"] == text
        [output] = translator(text, return_tensors=True)
        tokens = output["translation_token_ids"]
        steps = log_probabilities(model, tokenizer, text, tokens)
        is_counted = [token not in uncounted for token in tokens[1:].tolist()]
        assert sentence["score"] == pytest.approx(float(steps[is_counted].mean()), rel=1e-4)


@torch.no_grad()
def log_probabilities(model, tokenizer, text, tokens):
    """Of all tokens but the first."""
    inputs = tokenizer(text, return_tensors="pt")
    logits = model(**inputs, decoder_input_ids=tokens[None, :-1]).logits[0]
    return logits.log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]


def test_padding_counts_where_it_was_generated():
    pad = 0
    end = 1
    word = 5
    tokens = np.array([pad, word, pad, end, pad, pad])
    counted = is_scored(tokens, ends=end, special={pad, end}, padding=pad)
    assert counted.tolist() == [True] * 4 + [False] * 2


def test_padding_on_the_left_is_put_right(joint):
    model, tokenizer = joint
    tokenizer.padding_side = "left"
    translator = translator_of(model, tokenizer, max_new_tokens=6)
    assert translator(SENTENCES, batch_size=6) == translator(SENTENCES)


def test_what_a_tokenizer_says_is_asked_in_every_call(tmp_path):
    model, tokenizer = multilingual.m2m100(tmp_path)
    tokenizer.src_lang = "de"
    translator = translator_of(model, tokenizer, max_new_tokens=6)
    translations = []
    for language in ("en", "fr", "en"):
        tokenizer.tgt_lang = language
        translations += texts_of(translator("eins zwei"))
    assert translations[0] == translations[2] != translations[1]
    copied = pickle.loads(pickle.dumps(translator))
    assert texts_of(copied("eins zwei", num_workers=0)) == translations[2:]


@pytest.mark.parametrize("option", ["return_scores", "return_alignments", "check_coverage"])
def test_tokens_of_whole_texts_have_nothing_of_segments(option, translator):
    with pytest.raises(ValueError, match=f"return_tensors gives tokens .* leave out {option}"):
        translator("eins", return_tensors=True, **{option: True})


def test_a_list_is_cleaned_up_as_a_pipeline_cleans_it(translator):
    """Of spaces before punctuation."""
    pair = TokenizerPair(translator.tokenizer, translator.tokenizer)
    options = {"max_new_tokens": 6, "clean_up_tokenization_spaces": True}
    expected = texts_of(translator(SENTENCES, **options))
    assert translate(translator.model, pair, SENTENCES, **options) == expected
