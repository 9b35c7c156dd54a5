# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""From texts to their translations, by graphs without torch and by a model of torch, with every
kind of vocabulary.
"""

import html
import itertools
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import onnx
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from pipelines import multilingual
from transformers import GenerationConfig

from csan_hf.data import TokenizerPair, train_tokenizer
from csan_hf.data.tokenization import add_language_tags
from csan_hf.pipelines.tokenizer_vocabulary import TokenizerVocabulary
from csan_hf.pipelines.torch_engine import torch_engine
from csan_hf_runtime import DECODER, ENCODER, SOURCE
from csan_hf_runtime.characters import read_ranges, write_ranges
from csan_hf_runtime.graphs import WEIGHTS, Graphs
from csan_hf_runtime.terms import Terms
from csan_hf_runtime.texts import Translation, first_of_each_text, warn_once
from csan_hf_runtime.translator import TextTranslator

SENTENCES = ["two", "nine words. And more of them here.", "  the third\n\nof May ", "", "two 7"]
TEXTS = [*SENTENCES, "zwei eins", "a much longer sentence with nineteen hundred words in it. Two."]
TAG = re.compile(r"<[^>]*>")


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


@pytest.fixture(autouse=True)
def _warnings():
    """A warning that is given once may have been given in another test."""
    warn_once.cache_clear()


@pytest.fixture
def make(exported, tmp_path, monkeypatch):
    """A function that gives the exported model tokenizers and settings; it returns the model, its
    tokenizers and the folder.
    """

    def make(name="bpe", **settings):
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


@pytest.fixture(params=["graphs", "torch"])
def translator_of(request, make):
    """A function that returns a translator with vocabularies and settings, by each engine."""

    def build(name="bpe", **settings):
        model, tokenizers, folder = make(name, **settings)
        if request.param == "graphs":
            return TextTranslator.from_directory(folder)
        return TextTranslator(torch_engine(model, tokenizers))

    return build


def texts_of(results):
    return [several[0].text for several in results]


def tokens_of_words(translation):
    words = []
    for word in translation.words:
        words.append((word["word"], [token["token"] for token in word["tokens"]]))
    return words


USUAL = {"tokens": 6, "sentences": 1, "language": "en"}
MARKED = ["<p>two <b>nine words</b>. And more.</p>", "the <i>third</i>"]
FOREIGN = ["eins zwei", "drei >>de<< zwei", "one"]
# The start of this model's decoder is no token of other libraries' vocabularies
WITHOUT_LINKS = {"return_alignments": False, "num_beams": 2}


@pytest.mark.parametrize(
    ("name", "settings", "texts", "options"),
    [
        ("bpe", {"max_length": None}, ["two", "nine words"], {}),
        ("bpe", {"num_beams": 3}, TEXTS, {"n_best": 2}),
        ("letters", {"num_beams": 3}, TEXTS, {"n_best": 2}),
        ("unigram", {"num_beams": 3}, TEXTS, {"n_best": 2}),
        ("bpe", {"num_beams": 2}, TEXTS, {"num_beams": 1}),
        ("bpe", {}, TEXTS, {"num_beams": 4, "n_best": 4, "length_penalty": 2.0, "max_new_tokens": 5}),
        ("bpe", {"num_beams": 2}, TEXTS, {"prefixes": ["zw", "", "May ei", "x", "a much", "", "two"]}),
        ("bpe", {"usual_source": USUAL}, TEXTS, {"split_sentences": "always"}),
        ("bpe", {"usual_source": USUAL}, TEXTS, {"split_sentences": "never"}),
        ("bpe", {"usual_source": USUAL}, TEXTS, {"truncation": True}),
        ("bpe", {}, TEXTS, {"truncation": True, "split_sentences": "always", "max_length": 6}),
        ("bpe", {}, TEXTS, {"max_batch_tokens": 20}),
        ("bpe", {}, TEXTS, {"terms": Terms({"two": "much", "third": "of them"})}),
        ("bpe", {"max_length": 12}, MARKED, {"markup": "html", "split_sentences": "never"}),
        ("nllb", {}, FOREIGN, {"source_lang": "deu_Latn", "target_lang": "eng_Latn", **WITHOUT_LINKS}),
        ("nllb", {}, FOREIGN, {"target_lang": "fra_Latn", **WITHOUT_LINKS}),
        ("mbart", {}, FOREIGN, {"source_lang": "de_DE", "target_lang": "en_XX", **WITHOUT_LINKS}),
        ("mbart50", {}, FOREIGN, {"source_lang": "de_DE", "target_lang": "fr_XX", **WITHOUT_LINKS}),
        ("tags", {"num_beams": 2}, FOREIGN, {"target_lang": "fr"}),
        ("tags", {"num_beams": 2}, [">>fr<< one. two.", " ", "", ">>de<< zwei"], {}),
    ],
    ids=str,
)  # fmt: skip
def test_translations_of_graphs_are_those_of_torch(name, settings, texts, options, make):
    """All of them, with their scores, words and links."""
    model, tokenizers, folder = make(name, **settings)
    if options.get("truncation"):
        config = folder / "tokenizer_config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "model_max_length": 12}))
        tokenizers.source.model_max_length = 12
    options = {"return_words": True, "return_alignments": True} | options
    expected = TextTranslator(torch_engine(model, tokenizers)).translate(texts, **options)
    translations = TextTranslator.from_directory(folder).translate(texts, **options)
    assert len({*texts_of(translations)}) > 1
    for hypotheses, expected_hypotheses in zip(translations, expected, strict=True):
        for hypothesis, expected_hypothesis in zip(hypotheses, expected_hypotheses, strict=True):
            assert hypothesis.text == expected_hypothesis.text
            assert hypothesis.log_probability == pytest.approx(
                expected_hypothesis.log_probability, rel=1e-4, abs=1e-5
            )
            assert tokens_of_words(hypothesis) == tokens_of_words(expected_hypothesis)
            assert hypothesis.alignment == expected_hypothesis.alignment


def test_order_and_lines_are_kept_and_batches_change_nothing(translator_of):
    translate = translator_of().translate
    alone = [texts_of(translate([text]))[0] for text in TEXTS]
    assert len({*alone}) > 3, "the test wants different translations"
    assert alone[2] == "\n\n".join(texts_of(translate(["the third", "of May"])))
    for tokens in (1, 30, 4096):
        assert texts_of(translate(TEXTS, max_batch_tokens=tokens)) == alone
    assert translate([]) == []


def test_a_length_that_is_asked_for_comes_before_the_models(translator_of):
    translate = translator_of(max_length=None, max_new_tokens=9, suppress_tokens=[1]).translate

    def tokens(**options):
        [[translation]] = translate(["Two words."], return_words=True, **options)
        return tokens_of_words(translation)

    longest = tokens()
    long = tokens(max_new_tokens=4)
    short = tokens(max_length=5)
    assert short == long != longest


def test_a_stream_is_translated_window_by_window(translator_of, monkeypatch):
    monkeypatch.setattr("csan_hf_runtime.windows.WINDOW_LINES", 3)
    translator = translator_of()
    read = []

    def lines():
        for number in itertools.count():
            read.append(number)
            yield TEXTS[number % len(TEXTS)]

    windows = translator.stream(lines())
    texts = texts_of(next(windows) + next(windows))
    assert texts == texts_of(translator.translate(TEXTS[:6]))
    assert len(read) == 6, "no more is read than is being translated"
    monkeypatch.setattr("csan_hf_runtime.translator.WINDOW_CHARACTERS", 9)
    for texts, sizes in (
        (["two", "nine", "two", "two", "the third of May", ""], [3, 2, 1]),
        (["two", None, None, "nine"], [1, 0, 1]),
        ([], []),
    ):
        assert [len(window) for window in translator.stream(texts)] == sizes


def test_translations_begin_with_prefixes(translator_of):
    """Which may end within a word; of a text that is split, its first sentence."""
    translator = translator_of(num_beams=3)
    texts = ["two", "", "nine", "A longer sentence. " * 40]
    free = texts_of(translator.translate(texts))
    begun = texts_of(translator.translate(texts, prefixes=["two wor", "eins", "", "eins"]))
    assert begun[0].startswith("two wor")
    assert begun[1:3] == free[1:3]
    assert begun[3].startswith("eins")
    assert (begun[3].count("eins"), free[3].count("eins")) == (1, 0)
    fewer = "prefixes must be one for each text, got 1 for 2 from line 1 on"
    for count, words in ((1, fewer), (3, "There are more prefixes than sentences")):
        with pytest.raises(ValueError, match=words):
            [*translator.stream(["one", "two"], prefixes=["zwei"] * count)]


def test_a_prefix_leaves_the_word_that_it_ends_in_to_the_model():
    """Any tokens that begin so, or begin one that does."""
    tokenizer = train_tokenizer(["zwei eins", "zwei einen", "zwei drei"] * 9, 300)
    prefix = TokenizerVocabulary(tokenizer, is_target=True).prefix_of("zwei ei")
    *first_word, space, _ = tokenizer("zwei ")["input_ids"]
    assert prefix.tokens == first_word
    names = {*tokenizer.get_vocab()}
    allowed = {*tokenizer.convert_ids_to_tokens(prefix.allowed(first_word))}
    assert allowed == {"Ġ", "Ġe", "Ġei", "Ġein", "Ġeins", "Ġeinen"} & names
    assert {"Ġ", "Ġein", "Ġeins"} <= allowed
    after_space = {*tokenizer.convert_ids_to_tokens(prefix.allowed([*first_word, space]))}
    assert {"e", "ei", "ein"} & names == after_space & {"e", "ei", "ein"}
    assert "d" not in after_space
    assert prefix.allowed(tokenizer("zwei eins")["input_ids"][:-1]) == []


@pytest.mark.parametrize(
    ("usual", "options", "is_split"),
    [
        (None, {}, False),
        (None, {"split_sentences": "always"}, True),
        ({"tokens": 6, "sentences": 9}, {}, True),
        ({"tokens": 6, "sentences": 9}, {"split_sentences": "never"}, False),
        ({"tokens": 99, "sentences": 1}, {}, True),
        ({"tokens": 99, "sentences": 3}, {}, False),
    ],
    ids=str,
)
def test_unusually_long_lines_are_split_into_sentences(
    usual, options, is_split, translator_of, caplog
):
    translate = translator_of(usual_source=usual).translate
    line = "Two words. And more!  Of them."
    whole, *parts = texts_of(
        translate([line, "Two words.", "And more!", "Of them."], split_sentences="never")
    )
    expected = "{} {}  {}".format(*parts) if is_split else whole
    assert texts_of(translate([line, "Two", line], **options))[::2] == [expected] * 2
    assert whole != "{} {}  {}".format(*parts)
    is_said = "Some lines had more text than the model was trained on" in caplog.text
    assert is_said == (is_split and usual is not None)


def test_a_cut_translation_is_said(translator_of, caplog):
    translator = translator_of(suppress_tokens=[1], max_length=7)
    translator.translate(["Two words."], max_length=5)
    assert "is cut there" not in caplog.text, "as asked for"
    translator.translate(["Two words."])
    assert "had not ended at the 7 tokens of the model's generation config and is" in caplog.text


def test_a_translation_beyond_the_positions_of_graphs_is_said(make, caplog):
    _, _, folder = make(suppress_tokens=[1])
    TextTranslator.from_directory(folder).translate(["Two"], max_length=200)
    assert "had not ended at the 128 tokens that the model has positions for" in caplog.text


def test_alignments_count_over_the_whole_text(translator_of):
    [[result]] = translator_of().translate(["two words\nnine"], return_alignments=True)
    expected = []
    sources = targets = 0
    for sentence in result.sentences:
        count = len(sentence.translation_text.split())
        source_words, target_words = zip(*sentence.alignment, strict=True)
        assert {*target_words} == {*range(count)}
        assert {*source_words} <= {*range(len(sentence.source_text.split()))}
        expected += [(sources + source, targets + target) for source, target in sentence.alignment]
        sources += len(sentence.source_text.split())
        targets += count
    assert result.alignment == expected


def test_what_stands_between_tags_is_translated(translator_of):
    translate = translator_of().translate
    marked = "<p>the <b>third</b></p><p>of &amp; May</p>"
    [[result]] = translate([marked], markup="html")
    [[plain]] = translate(["the third\nof & May"])
    assert html.unescape(TAG.sub("", result.text)) == plain.text.replace("\n", "")
    assert sorted(TAG.findall(result.text)) == sorted(TAG.findall(marked))


def test_a_translation_that_leaves_out_a_sentence_is_warned_of(translator_of, caplog):
    translator = translator_of(forced_eos_token_id=1, max_length=2)  # so that it is empty
    texts = ["Two. And more of them! In it.", "nine words"]
    translator.translate(texts)
    translator.translate(["", " "], check_coverage=True)
    assert "leave out" not in caplog.text
    assert texts_of(translator.translate(texts, check_coverage=True)) == ["", ""]
    messages = [record.getMessage() for record in caplog.records]
    named = [message.split("'")[1] for message in messages if "leave out" in message]
    assert named == ["Two.", "And more of them!", "In it."]


def test_letters_that_a_vocabulary_does_not_have_are_named(translator_of, caplog):
    translator = translator_of("letters")
    texts = ["two", "☃two", "", "☃ Ж☃"]
    [[known], [warned], [blank], _] = translator.translate(texts, first_line=7, return_scores=True)
    assert warned.log_probability < 0
    assert blank.text == ""
    assert "line 8: the source vocabulary does not have '☃'." in caplog.text
    assert "line 10: the source vocabulary does not have '☃', 'Ж'." in caplog.text
    assert "line 7:" not in caplog.text
    caplog.clear()
    skipped = translator.translate(["two", *["☃"] * 12], unknown="skip", return_scores=True)
    assert texts_of(skipped) == [known.text, *[""] * 12]
    assert skipped[1][0].log_probability == 0
    assert "line 11:" in caplog.text
    assert "... and so in 2 more lines." in caplog.text
    # White space at the ends of lines is not translated
    assert len(translator.translate(["\ttwo\u2009\nnine\r\n"], unknown="error")) == 1
    begun = texts_of(translator.translate(["two", "two"], prefixes=["n ☃", "a"]))
    assert [text[:1] for text in begun] == ["n", "a"]
    assert "line 1: the target vocabulary does not have '☃'." in caplog.text
    options = {"prefixes": ["a", "☃"], "unknown": "error", "lines_before": 7}
    with pytest.raises(ValueError, match="line 9: the target vocabulary does not have '☃'"):
        next(translator.stream(["two", "two"], **options))


@given(characters=st.sets(st.characters(exclude_characters=" ")))
def test_characters_are_written_as_ranges(characters):
    assert read_ranges(write_ranges(characters)) == characters


def test_what_no_training_source_had_is_named(translator_of):
    translate = translator_of(source_characters=write_ranges("nowt-")).translate
    # A space that the tokenizer was not trained on is read as a plain one
    assert len(translate(["two\u00a0two"], unknown="error")) == 1
    with pytest.raises(ValueError, match="line 2: the source vocabulary does not have '7', '☃'"):
        translate(["two", "two 77 ☃-"], unknown="error")


def test_samples_are_all_there(translator_of):
    translate = translator_of().translate
    [samples] = translate(["two"], n_best=7, sample=True, temperature=1e-4)
    assert texts_of([samples[::-1]]) * 7 == [sample.text for sample in samples]
    [samples] = translate(["two"], n_best=7, sample=True, top_k=0)
    assert len({sample.text for sample in samples}) > 1


def test_hypotheses_of_one_text_are_one():
    hypotheses = [Translation("a", -1.0), Translation("b", -2.0), Translation("a", -3.0)]
    assert first_of_each_text(hypotheses) == hypotheses[:2]


# ---- what is refused


@pytest.mark.parametrize(
    ("name", "settings", "options", "message"),
    [
        ("nllb", {}, {"target_lang": "de"}, r"has no language 'de'. Did you mean 'deu_Latn'\?"),
        ("nllb", {}, {}, "several languages: pass target_lang="),
        ("nllb", {}, {"source_lang": "xx", "target_lang": "deu_Latn"}, "has no language 'xx'"),
        ("tags", {}, {"target_lang": "it"}, "translates into de, fr: give one of them as the target"),
        ("letters", {}, {"unknown": "error"}, "line 2: the source vocabulary does not have '☃'"),
        ("bpe", {}, {"split_sentences": "some"}, 'split_sentences must be "auto" or "always" or'),
        ("bpe", {}, {"markup": "sgml"}, 'markup must be "html" or "xliff" or null, got'),
        ("bpe", {}, {"n_best": 3, "num_beams": 2}, "n_best=3 needs as many beams"),
        ("bpe", {}, {"prefixes": ["", "a\ud800"]}, r"prefixes, number 2: '\\ud800' at character 1, half of"),
        ("bpe", {}, {"prefixes": ["zw"]}, "prefixes must be one for each text, got 1 for 2"),
        ("bpe", {}, {"sample": True, "temperature": 0.0}, r"temperature must be a number from 1e-06 .* got 0\.0"),
        ("bpe", {}, {"check_coverage": True, "truncation": True}, "leave out truncation"),
        ("letters", {}, {"terms": Terms({"two": "☃"})}, "'☃' has letters or signs that the target voc"),
        ("bpe", {"decoder_start_token_id": None}, {}, "lacks `decoder_start_token_id`"),
        ("bpe", {"usual_source": {"tokens": 9}}, {}, "usual_source: sentences is missing: it is an"),
        ("bpe", {"source_characters": 5}, {}, "json: source_characters must be a text or null, got 5"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_refused(name, settings, options, message, translator_of):
    with pytest.raises(ValueError, match=message):
        translator_of(name, **settings).translate(["two", "two ☃"], **options)


def test_texts_and_prefixes_are_lists_or_generators_of_texts(translator_of):
    translate = translator_of().translate
    for texts, message in (
        ("two", "must be a list of texts, got one str: 'two'"),
        (b"two", "must be a list of texts, got one bytes: b'two'"),
        ({"two": "zwei"}, "must be a list of texts, got one dict: {'two': 'zwei'}"),
        (3, "must be a list of texts, got one int: 3"),
        (["two", None], "must be texts, got NoneType as number 2: None"),
    ):
        with pytest.raises(TypeError, match=f"^texts {message}"):
            translate(texts)
        with pytest.raises(TypeError, match=f"^prefixes {message}"):
            translate(["two", "two"], prefixes=texts)
    with pytest.raises(ValueError, match=r"texts, number 1: .*, half of a surrogate pair"):
        translate(["Ein \ud800 Hund."])
    expected = translate(["two", "nine"], prefixes=["zw", ""])
    assert translate(iter(["two", "nine"]), prefixes=iter(["zw", ""])) == expected


def test_damaged_folders_are_named(make, tmp_path):
    _, _, folder = make()
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


@pytest.mark.parametrize("name", [ENCODER, DECODER, SOURCE])
def test_a_graph_of_another_model_is_refused(name, exported, tmp_path):
    folder = shutil.copytree(exported("csan")[1], tmp_path / "onnx")
    graph = onnx.load(folder / name)
    onnx.helper.set_model_props(graph, {WEIGHTS: "those of another model"})
    onnx.save(graph, folder / name)
    with pytest.raises(OSError, match=r"do not belong together .*are all of one model\?"):
        Graphs.from_directory(folder)


@pytest.mark.parametrize(
    ("file", "key", "value", "message"),
    [
        ("config.json", "decoder_vocab_size", 5, r"config.json says 5 tokens .* have 1400"),
        ("config.json", "vocab_size", 5, r"has \d+ tokens, more than the 5 of config.json \(voc"),
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


def test_a_thread_that_cuts_texts_leaves_those_of_others_whole(make):
    vocabulary = TextTranslator.from_directory(make()[2]).engine.source
    text = "two words " * 2000
    whole = vocabulary.encode(text)
    with ThreadPoolExecutor(2) as threads:
        for _ in range(100):
            threads.submit(vocabulary.encode, text, most_tokens=9)
            assert threads.submit(vocabulary.encode, text).result() == whole
