# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translation without torch gives what the pipeline gives, with every kind of vocabulary."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from pipelines import multilingual
from transformers import GenerationConfig

from csan_hf.data import TokenizerPair, train_tokenizer
from csan_hf.data.tokenization import add_language_tags
from csan_hf.evaluation import translate, translate_stream
from csan_hf.hub.onnx import export_onnx
from csan_hf_runtime import DECODER, ENCODER, SOURCE
from csan_hf_runtime.characters import read_ranges, write_ranges
from csan_hf_runtime.graphs import Graphs
from csan_hf_runtime.terms import Terms
from csan_hf_runtime.translator import TextTranslator

SENTENCES = ["two", "nine words. And more of them here.", "  the third\n\nof May ", "", "two 7"]
TEXTS = [*SENTENCES, "zwei eins", "a much longer sentence with nineteen hundred words in it. Two."]


def bpe(folder):
    tokenizer = train_tokenizer(TEXTS * 3, 330)
    return TokenizerPair(tokenizer, tokenizer)


def letters_and_symbols(folder):
    letters = train_tokenizer(TEXTS, 60, kind="characters", unicode_form="NFD", case="lower")
    return TokenizerPair(letters, train_tokenizer(["n e", "a b", "tʃ ks ɔ̃ ʒ"], 30, kind="symbols"))


def tags(folder):
    pair = bpe(folder)
    add_language_tags(pair, [">>de<<", ">>fr<<"])
    return pair


def unigram(folder):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 5),
        model_prefix=str(folder / "unigram"),
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return TokenizerPair.from_pretrained(folder / "unigram.model")


VOCABULARIES = {
    "bpe": bpe,
    "letters": letters_and_symbols,
    "tags": tags,
    "unigram": unigram,
}


@pytest.fixture
def make(exported, tmp_path, monkeypatch):
    """A function that gives the exported model tokenizers and settings; it returns the model, its
    tokenizers and the folder.
    """

    def make(name, **settings):
        model, graphs = exported("csan")
        folder = tmp_path / "onnx"
        shutil.copytree(graphs, folder)
        if name in VOCABULARIES:
            tokenizers = VOCABULARIES[name](tmp_path)
        else:
            tokenizer = getattr(multilingual, name)(tmp_path)[1]
            tokenizers = TokenizerPair(tokenizer, tokenizer)
        tokenizers.save_pretrained(folder)
        target = tokenizers.target
        settings = {
            "eos_token_id": target.eos_token_id,
            "pad_token_id": target.pad_token_id,
            "decoder_start_token_id": target.pad_token_id,
            "suppress_tokens": list(range(len(target), 1400)),
            "max_length": 9,
            **settings,
        }
        monkeypatch.setattr(model, "generation_config", GenerationConfig(**settings))
        (folder / "generation_config.json").write_text(json.dumps(settings))
        return model, tokenizers, folder

    return make


def tokens_of_words(translation):
    return [
        (word["word"], [token["token"] for token in word["tokens"]]) for word in translation.words
    ]


def assert_equal(model, tokenizers, folder, texts=TEXTS, *, n_best=1, **options):
    """Compares all translations, their scores and words."""
    options = {"n_best": n_best, "return_words": True, "return_alignments": True} | options
    [expected] = translate_stream(model, tokenizers, texts, **options)
    translator = TextTranslator.from_directory(folder)
    found = translator.translate(texts, **options)
    assert len({several[0].text for several in found}) > 1
    for several, others in zip(found, expected, strict=True):
        assert [row.text for row in several] == [row.text for row in others]
        for row, other in zip(several, others, strict=True):
            assert row.log_probability == pytest.approx(other.log_probability, rel=1e-4, abs=1e-5)
            assert tokens_of_words(row) == tokens_of_words(other)
            assert row.alignment == other.alignment


@pytest.mark.parametrize("name", ["bpe", "letters", "unigram"])
def test_translations_of_the_pipeline(name, make):
    assert_equal(*make(name, num_beams=3), n_best=2)


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 1},
        {"num_beams": 4, "n_best": 4, "length_penalty": 2.0, "max_new_tokens": 5},
        {"prefixes": ["zw", "", "May ei", "x", "a much", "", "two"]},
        {"split_sentences": "always"},
        {"split_sentences": "never"},
        {"truncation": True},
        {"truncation": True, "split_sentences": "always", "max_length": 6},
        {"max_batch_tokens": 20},
    ],
    ids=str,
)
def test_options(options, make):
    usual = {"tokens": 6, "sentences": 1, "language": "en"}
    model, tokenizers, folder = make("bpe", usual_source=usual, num_beams=2)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_max_length": 12}))
    tokenizers.source.model_max_length = 12
    assert_equal(model, tokenizers, folder, **options)


def test_tags_terms_and_coverage(make, caplog):
    model, tokenizers, folder = make("bpe", max_length=12)
    texts = ["<p>two <b>nine words</b>. And more.</p>", "the <i>third</i>"]
    options = {"markup": "html", "split_sentences": "never", "check_coverage": True}
    assert_equal(model, tokenizers, folder, texts, **options)
    told = [record.getMessage() for record in caplog.records if "leave out" in record.getMessage()]
    assert told[: len(told) // 2] == told[len(told) // 2 :]
    terms = Terms({"two": "much", "third": "of them"})
    translator = TextTranslator.from_directory(folder)
    found = translator.translate(["two nine", "nine", "the third"], terms=terms)
    texts = [several[0].text for several in found]
    assert ["much" in text for text in texts] == [True, False, False]
    assert ["of them" in text for text in texts] == [False, False, True]
    expected = translate(model, tokenizers, ["two nine", "nine", "the third"], terms=terms)
    assert texts == expected


def test_without_a_length_a_translation_may_have_twice_the_source_and_50(make):
    model, tokenizers, folder = make("bpe", max_length=None)
    assert_equal(model, tokenizers, folder, ["two", "nine words"])


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("nllb", "deu_Latn", "eng_Latn"),
        ("nllb", None, "fra_Latn"),
        ("mbart", "de_DE", "en_XX"),
        ("mbart50", "de_DE", "fr_XX"),
        ("tags", None, "fr"),
    ],
)
def test_languages(name, source, target, make):
    texts = ["eins zwei", "drei >>de<< zwei", "one"]
    model, tokenizers, folder = make(name, num_beams=2)
    options = {"source_lang": source, "target_lang": target}
    if name != "tags":  # the start of this model's decoder is no token of theirs
        options["return_alignments"] = False
    assert_equal(model, tokenizers, folder, texts, **options)
    if name == "tags":
        assert_equal(model, tokenizers, folder, [">>fr<< one. two.", ">>de<< zwei"])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nllb", {"target_lang": "de"}, r"has no language 'de'. Did you mean 'deu_Latn'\?"),
        ("nllb", {}, "several languages: pass target_lang="),
        ("nllb", {"source_lang": "xx", "target_lang": "deu_Latn"}, "has no language 'xx'"),
        ("tags", {"target_lang": "it"}, "translates into de, fr: give one of them as the target"),
        ("letters", {"unknown": "error"}, "line 2: the source vocabulary does not have '☃'"),
        ("letters", {"n_best": 3, "num_beams": 2}, "n_best=3 needs as many beams"),
        ("letters", {"n_best": 0}, "n_best must be an integer from 1 to .* got 0"),
        (
            "letters",
            {"prefixes": ["", "a\ud800"]},
            r"prefixes, number 2: '\\ud800' at character 1, half of a surrogate pair",
        ),
        (
            "bpe",
            {"sample": True, "temperature": 0.0},
            r"temperature must be a number from 1e-06 .* got 0\.0",
        ),
        ("bpe", {"sample": True, "top_p": 1.5}, r"top_p must be a number from 0 to 1, got 1\.5"),
    ],
)
def test_what_is_refused(name, options, message, make):
    _, _, folder = make(name)
    with pytest.raises(ValueError, match=message):
        TextTranslator.from_directory(folder).translate(["two", "two ☃"], **options)


def test_unknown_letters_are_told_and_skipped(make, caplog):
    translator = TextTranslator.from_directory(make("letters")[2])
    texts = ["two", "☃two"]
    [_, [warned]] = translator.translate(texts, first_line=7, return_scores=True)
    assert warned.log_probability < 0
    assert "line 8: the source vocabulary does not have '☃'." in caplog.text
    [_, [skipped]] = translator.translate(texts, unknown="skip", return_scores=True)
    assert (skipped.text, skipped.log_probability) == ("", 0)


@given(characters=st.sets(st.characters(exclude_characters=" ")))
def test_characters_are_written_as_ranges(characters):
    assert read_ranges(write_ranges(characters)) == characters


@pytest.mark.parametrize("is_torch", [True, False])
def test_what_no_training_source_had_is_named(is_torch, make):
    characters = write_ranges("nowt-")
    model, tokenizers, folder = make("bpe", source_characters=characters)
    run = TextTranslator.from_directory(folder).translate
    if is_torch:
        run = partial(translate, model, tokenizers)
    # A space that the tokenizer was not trained on is read as a plain one
    assert len(run(["two\u00a0two"], unknown="error")) == 1
    with pytest.raises(ValueError, match="line 2: the source vocabulary does not have '7', '☃'"):
        run(["two", "two 77 ☃-"], unknown="error")


def test_samples_are_all_there(make):
    translator = TextTranslator.from_directory(make("bpe")[2])
    [samples] = translator.translate(["two"], n_best=7, sample=True, temperature=1e-4)
    assert samples == [samples[0]] * 7
    [samples] = translator.translate(["two"], n_best=7, sample=True, top_k=0)
    assert len({sample.text for sample in samples}) > 1


def test_a_cut_translation_and_split_lines_are_said(make, caplog):
    usual = {"tokens": 3, "sentences": 1}
    _, _, folder = make("bpe", usual_source=usual, suppress_tokens=[1], max_length=7)
    TextTranslator.from_directory(folder).translate(["Two words. And more."])
    assert "had not ended at the 7 tokens of the model's generation config" in caplog.text
    assert "Some lines had more text than the model was trained on" in caplog.text
    TextTranslator.from_directory(folder).translate(["Two"], max_length=200)
    assert "had not ended at the 128 tokens that the model has positions for" in caplog.text


def test_damaged_folders_are_named(make, tmp_path):
    _, _, folder = make("bpe")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(OSError, match=r"tokenizer in .*onnx is damaged or missing"):
        TextTranslator.from_directory(folder)
    with pytest.raises(OSError, match=r"lacks encoder_model.onnx and decoder_model_merged.onnx"):
        TextTranslator.from_directory(tmp_path)
    (folder / SOURCE).unlink()
    with pytest.raises(OSError, match=r"graphs in .*onnx do not belong together"):
        TextTranslator.from_directory(folder)
    shutil.copy(folder / ENCODER, folder / DECODER)
    with pytest.raises(OSError, match=r"or are of another program"):
        TextTranslator.from_directory(folder)


@pytest.fixture(scope="module")
def graphs_of_other_weights(exported, tmp_path_factory):
    model = deepcopy(exported("csan")[0])
    model.lm_head.weight.data.neg_()
    return export_onnx(model, tmp_path_factory.mktemp("graphs"))


@pytest.mark.parametrize("name", [ENCODER, DECODER, SOURCE])
def test_a_graph_of_another_model_is_refused(name, exported, graphs_of_other_weights, tmp_path):
    folder = shutil.copytree(exported("csan")[1], tmp_path / "onnx")
    shutil.copy(graphs_of_other_weights / name, folder)
    with pytest.raises(OSError, match=r"do not belong together .*are all of one model\?"):
        Graphs.from_directory(folder)


@pytest.mark.parametrize(
    ("file", "key", "value", "message"),
    [
        ("config.json", "decoder_vocab_size", 5, r"config.json says 5 tokens .* have 1400"),
        (
            "config.json",
            "vocab_size",
            5,
            r"has \d+ tokens, more than the 5 of config.json \(vocab_size",
        ),
        ("generation_config.json", "eos_token_id", 1400, "eos_token_id must be from 0 to 1399"),
        ("generation_config.json", "bad_words_ids", [[3, 9999]], "bad_words_ids must .* got 9999"),
        ("tokenizer_config.json", "unk_token", "<none>", "unk_token must be a token of tokenizer"),
    ],
)
def test_tokens_beyond_the_vocabulary_are_refused(file, key, value, message, make, monkeypatch):
    monkeypatch.setattr("csan_hf_runtime.graphs.FILES", "an earlier version's")
    _, _, folder = make("letters")
    settings = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**settings, key: value}))
    with pytest.raises((ValueError, OSError), match=message):
        TextTranslator.from_directory(folder)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("two", "must be a list of texts, got one str: 'two'"),
        (b"two", "must be a list of texts, got one bytes: b'two'"),
        ({"two": "zwei"}, "must be a list of texts, got one dict: {'two': 'zwei'}"),
        (None, "must be a list of texts, got one NoneType: None"),
        (["two", None], "must be texts, got NoneType as number 2: None"),
    ],
)
def test_what_is_no_list_of_texts_is_said(texts, message, make):
    translator = TextTranslator.from_directory(make("bpe")[2])
    with pytest.raises(TypeError, match=f"^texts {message}"):
        translator.translate(texts)
    with pytest.raises(ValueError, match=r"texts, number 1: .*, half of a surrogate pair"):
        translator.translate(["Ein \ud800 Hund."])
    if texts is not None:
        with pytest.raises(TypeError, match=f"^prefixes {message}"):
            translator.translate(["two", "two"], prefixes=texts)


def test_texts_and_prefixes_may_come_from_generators(make):
    translator = TextTranslator.from_directory(make("bpe")[2])
    texts = ["two", "nine words"]
    expected = translator.translate(texts, prefixes=["zw", ""])
    assert translator.translate(iter(texts), prefixes=iter(["zw", ""])) == expected
    with pytest.raises(ValueError, match="prefixes must be one for each text, got 1 for 2"):
        translator.translate(texts, prefixes=["zw"])


def test_settings_that_name_no_first_token_are_refused(make):
    _, _, folder = make("bpe", decoder_start_token_id=None)
    with pytest.raises(ValueError, match="lacks `decoder_start_token_id`"):
        TextTranslator.from_directory(folder).translate(["two"])


def test_a_thread_that_cuts_texts_leaves_those_of_others_whole(make):
    vocabulary = TextTranslator.from_directory(make("bpe")[2]).engine.source
    text = "two words " * 2000
    whole = vocabulary.encode(text)
    with ThreadPoolExecutor(2) as threads:
        for _ in range(100):
            threads.submit(vocabulary.encode, text, most_tokens=9)
            assert threads.submit(vocabulary.encode, text).result() == whole
