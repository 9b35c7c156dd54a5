# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The pipeline says to every family which languages it is to translate between, as the family's
documentation does.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import multilingual
import pytest
import tiny
from transformers import MarianTokenizer

from csan_hf.data import TokenizerPair
from csan_hf.evaluation import translate
from csan_hf.models.translation import source_language
from csan_hf.pipelines import translation_pipeline

LANGUAGES = {
    "nllb": ("deu_Latn", "eng_Latn"),
    "m2m100": ("de", "en"),
    "mbart": ("de_DE", "en_XX"),
    "mbart50": ("de_DE", "en_XX"),
    "t5": ("en", "de"),
    "marian": (None, "fra"),
}
OTHERS = {"nllb": "fra_Latn", "m2m100": "fr", "mbart": "fr_XX", "mbart50": "fr_XX", "marian": "ita"}
TEXT = "eins zwei drei zwei"


@pytest.fixture(params=LANGUAGES)
def family(request, tmp_path):
    return request.param, *getattr(multilingual, request.param)(tmp_path / "tokenizer")


def as_documented(name, model, tokenizer, source, target):
    """What the library's documentation of the family says, word for word."""
    text = TEXT
    settings = {"max_length": 12}
    if name in ("nllb", "mbart", "mbart50", "m2m100"):
        tokenizer.src_lang = source
        code = tokenizer.convert_tokens_to_ids(target)
        if name == "m2m100":
            code = tokenizer.get_lang_id(target)
        settings["decoder_start_token_id" if name == "mbart" else "forced_bos_token_id"] = code
    elif name == "t5":
        text = f"translate English to German: {TEXT}"
        settings["num_beams"] = 2
    else:
        text = f">>{target}<< {TEXT}"
    ids = model.generate(**tokenizer(text, return_tensors="pt"), **settings)
    return tokenizer.decode(ids[0], skip_special_tokens=True)


def test_languages(family, library_log):
    name, model, tokenizer = family
    source, target = LANGUAGES[name]
    expected = as_documented(name, model, tokenizer, source, target)
    assert expected.strip()
    translator = translation_pipeline(
        model, tokenizer=tokenizer, src_lang=source, tgt_lang=target, device="cpu", max_length=12
    )
    assert translator(TEXT) == [{"translation_text": expected}]
    assert translator([TEXT, "eins"], batch_size=2)[0] == {"translation_text": expected}
    [output] = translator(TEXT, return_tensors=True)
    tokens = output["translation_token_ids"]
    assert tokenizer.decode(tokens, skip_special_tokens=True) == expected
    # Another language in a call is another input of the model, and of that call alone
    if other_language := OTHERS.get(name):
        differs = as_documented(name, model, tokenizer, source, other_language)
        assert differs != expected
        assert translator(TEXT, tgt_lang=other_language) == [{"translation_text": differs}]
        if source is not None:
            from_other = as_documented(name, model, tokenizer, other_language, target)
            assert translator(TEXT, src_lang=other_language) == [{"translation_text": from_other}]
        assert translator(TEXT) == [{"translation_text": expected}]
    assert "no effect" not in library_log.text


def test_prefixes_of_two_vocabularies_are_targets(tmp_path, library_log):
    special = ("</s>", "<unk>", "<pad>")
    source, source_ids = multilingual.sentencepiece_model(tmp_path / "source", special)
    more = (*special, "more", "tokens")
    target, target_ids = multilingual.sentencepiece_model(tmp_path / "target", more)
    tokenizer = MarianTokenizer(source, target, source_ids, target_ids, separate_vocabs=True)
    model = tiny.marian(
        **multilingual.SIZES,
        vocab_size=len(tokenizer),
        decoder_vocab_size=len(tokenizer.decoder),
        share_encoder_decoder_embeddings=False,
        pad_token_id=2,
        decoder_start_token_id=2,
        eos_token_id=0,
    )
    pair = TokenizerPair(tokenizer, tokenizer)
    [text] = translate(model, pair, ["one"], prefixes=["eins zwei"], max_new_tokens=6)
    assert text.startswith("eins zwei")
    [text] = translate(model, pair, ["one"], prefixes=["eins ☃"], max_new_tokens=6)
    assert "line 1: the target vocabulary does not have '☃'." in library_log.text


def test_unknown_pieces_of_a_tokenizer_in_python_are_named(tmp_path, library_log):
    model, tokenizer = multilingual.marian(tmp_path)
    translate = translation_pipeline(model, tokenizer=tokenizer, tgt_lang="fra", device="cpu")
    translate("☃", max_new_tokens=2)
    assert "does not have '☃'" in library_log.text.replace("▁", "")


def test_the_language_of_a_call_is_of_that_call_alone(tmp_path):
    """Not of the next one, and not of another thread's."""
    model, tokenizer = multilingual.nllb(tmp_path)
    translator = translation_pipeline(
        model, tokenizer=tokenizer, tgt_lang="deu_Latn", device="cpu", max_length=12
    )
    default_ids = translator._tokenize(TEXT)["input_ids"]
    french = translator._tokenize(TEXT, src_lang="fra_Latn")["input_ids"]
    assert french != default_ids
    translator(TEXT, src_lang="fra_Latn")
    assert translator._tokenize(TEXT)["input_ids"] == default_ids

    tokenized = threading.Event()

    def tokenize_by_default():
        ids = translator._tokenize(TEXT)["input_ids"]
        tokenized.set()
        return ids

    with ThreadPoolExecutor(1) as threads:
        with source_language(tokenizer, "fra_Latn"):
            other_thread = threads.submit(tokenize_by_default)
            assert not tokenized.wait(0.05), "another thread has tokenized in this one's language"
        assert other_thread.result() == default_ids


def test_what_has_no_effect_is_said(joint, tmp_path, library_log):
    model, tokenizer = joint
    translation_pipeline(model, tokenizer=tokenizer, tgt_lang="en", device="cpu")("ein Hund")
    assert "target_lang='en' has no effect" in library_log.text
    library_log.clear()
    model, tokenizer = multilingual.t5(tmp_path)
    translator = translation_pipeline(model, tokenizer=tokenizer, device="cpu")
    plain = translator("eins", max_length=9)
    assert "this model knows translation_en_to_de" in library_log.text
    assert translator("eins", prefix="", max_length=9) == plain
    whole = translator("two three eins", prefix="", max_length=9)
    assert translator("eins", prefix="two three ", max_length=9) == whole


def test_a_language_may_be_a_token_that_is_forced(tmp_path):
    model, tokenizer = multilingual.nllb(tmp_path)
    translator = translation_pipeline(model, tokenizer=tokenizer, device="cpu", max_length=12)
    german = tokenizer.convert_tokens_to_ids("deu_Latn")
    assert translator(TEXT, forced_bos_token_id=german) == translator(TEXT, tgt_lang="deu_Latn")
