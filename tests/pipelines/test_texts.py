# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Texts of any length: what is split, put together, batched, scored and aligned."""

import copy
import itertools
import json
import re

import multilingual
import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from pipelines.conftest import GERMAN, translator_of
from transformers import GenerationConfig, pipeline
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from csan_hf import EnsembleForConditionalGeneration
from csan_hf.data import TokenizerPair, train_tokenizer
from csan_hf.evaluation import translate
from csan_hf.pipelines import TextTranslationPipeline, TranslationPipeline
from csan_hf_runtime.scores import is_scored
from csan_hf_runtime.sentences import SplitText, sentences_of, split_text

TEXT = "  eins zwei\n\n\tein Hund und ein Haus \r\nKatze\n \n"
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


def split(text, limit=None, language="de"):
    """With words for tokens."""
    return split_text(
        text, count_tokens=lambda piece: len(piece.split()), limit=limit, language=language
    )


@pytest.fixture
def translator(joint):
    model, tokenizer = joint
    return translator_of(model, tokenizer, max_new_tokens=6)


@pytest.mark.parametrize(
    "text", [TEXT, "", " \n ", "a", "\u2028a\x0bb\r\r\nc", "Satz eins.  Satz zwei!\nDrei. Vier."]
)
@pytest.mark.parametrize("limit", [None, 2])
def test_nothing_is_lost(text, limit):
    parts = split(text, limit)
    pieces = zip(parts.gaps, (*parts.segments, ""), strict=True)
    assert "".join(gap + segment for gap, segment in pieces) == text
    assert not any(gap.strip() for gap in parts.gaps)
    assert all(segment == segment.strip() != "" for segment in parts.segments)
    if limit is None:
        assert {line.strip() for line in text.splitlines()} - {""} == {*parts.segments}


def test_sentences_of_a_long_line():
    text = "Das kostet z. B. am 3. Mai mehr. Wirklich?  Ja!\nKurz. Gut."
    parts = split(text, 8)
    assert parts.segments == ("Das kostet z. B. am 3. Mai mehr.", "Wirklich?", "Ja!", "Kurz. Gut.")
    assert parts.join(["A.", "B?", "C!", "D. E."]) == "A. B?  C!\nD. E."
    chinese = split_text("你好。世界！", count_tokens=len, limit=4, language="zho_Hans")
    assert chinese.segments == ("你好。", "世界！")
    assert chinese.join(["Hello.", "World!"]) == "Hello. World!"
    assert chinese.join(["今日は。", "世界！"]) == "今日は。世界！"
    english = split("Hello there. World there!", 2, "eng_Latn")
    assert english.join(["你好。", "世界！"]) == "你好。世界！"


def test_what_is_still_too_long_is_said(library_log):
    text = "eins zwei drei, vier fünf sechs sieben acht"
    parts = split(text, 4)
    assert parts.segments == ("eins zwei drei,", "vier fünf sechs", "sieben acht")
    assert parts.join(parts.segments) == text
    assert "longer than the 4 tokens" in library_log.text
    assert "in 3 parts: 'eins zwei drei, vier" in library_log.text
    one_word = split_text("a" * 11, count_tokens=len, limit=4, language=None)
    assert "".join(one_word.segments) == "a" * 11
    assert max(map(len, one_word.segments)) <= 4
    # What cannot be shortened is left whole, rather than searched for ever
    letters = split_text("ab", count_tokens=lambda piece: 9, limit=4, language=None)
    assert letters.segments == ("a", "b")


def test_lines_are_put_back(translator):
    [text] = texts_of(translator(TEXT))
    lines = texts_of(translator(["eins zwei", "ein Hund und ein Haus", "Katze"]))
    assert text == "  {}\n\n\t{} \r\n{}\n \n".format(*lines)
    assert texts_of(translator([TEXT, "Katze"], batch_size=4)) == [text, lines[2]]
    options = {"num_beams": 2, "num_return_sequences": 2}
    several = texts_of(translator(TEXT, batch_size=3, **options))
    first_lines = [text.splitlines()[0].strip() for text in several]
    assert first_lines == texts_of(translator("eins zwei", **options))
    assert texts_of(translator(" \n")) == [" \n"]


def test_long_lines_are_split_and_nothing_is_cut(translator, library_log):
    """Marian fails beyond its positions; here it does not, and every sentence counts."""
    sentences = ["eins zwei drei.", "ein Hund und ein Haus!", "Katze."] * 9
    text = " ".join(sentences)
    assert (
        len(translator.tokenizer(text, verbose=False)["input_ids"]) > translator.source_limit == 64
    )
    parts = texts_of(translator(sentences[:3]))
    assert texts_of(translator(text, batch_size=8)) == [" ".join(parts * 9)]
    assert "longer" not in library_log.text
    [cut] = translator(text, truncation=True)
    assert cut == TranslationPipeline.__call__(translator, text, truncation=True)[0]
    sentence = "eins zwei drei vier fünf sechs sieben acht neun zehn " * 9
    by_sentence = translator(f"{sentence}. Katze.", truncation=True, split_sentences="always")
    parts = translator([f"{sentence}.", "Katze."], truncation=True)
    assert texts_of(by_sentence) == [" ".join(texts_of(parts))]
    with pytest.raises(IndexError):
        TranslationPipeline.__call__(translator, text)
    translator("Hund " * 70)
    assert "A sentence is longer than the 64 tokens" in library_log.text


def test_a_line_longer_than_the_training_sources_is_split_into_sentences(translator, library_log):
    line = "Am 3. Mai kam Dr. Haus. Katze!  »Eins … zwei?« Drei."
    parts = texts_of(translator(["Am 3. Mai kam Dr. Haus.", "Katze!", "»Eins … zwei?«", "Drei."]))
    whole = texts_of(translator(line))
    split = ["{} {}  {} {}".format(*parts)]
    translator.tokenizer.source_lang = "de"
    assert texts_of(translator(line, split_sentences="always")) == split != whole
    assert "sentence by sentence" not in library_log.text
    tokenizers = TokenizerPair(translator.tokenizer, translator.tokenizer)
    for tokens, sentences, expected in ((10, 9, split), (99, 1, split), (99, 4, whole)):
        usual = {"tokens": tokens, "sentences": sentences}
        translator.model.generation_config.usual_source = usual
        assert texts_of(translator(line)) == expected
        texts = [line, "Katze!", line]
        lines = translate(translator.model, tokenizers, texts, max_new_tokens=6)
        assert [lines[0], lines[2]] == expected * 2
        assert texts_of(translator(line, split_sentences="never")) == whole
    trained_on = "had more text than the model was trained on (in 99 % of the cases at most"
    assert f"Some lines {trained_on} 9 sentences and 10 tokens" in library_log.text
    assert f"Some lines {trained_on} 1 sentence and 99 tokens" in library_log.text
    assert "4 sentences" not in library_log.text
    with pytest.raises(ValueError, match='split_sentences must be "auto" or "always" or "never"'):
        translator(line, split_sentences="sometimes")
    translator.model.generation_config.usual_source = {"tokens": 9}
    with pytest.raises(ValueError, match="usual_source: sentences is missing: it is an integer"):
        translator(line)
    translator.model.generation_config = GenerationConfig(source_characters=5)
    with pytest.raises(ValueError, match="json: source_characters must be a text or null, got 5"):
        translator(line)


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


@pytest.mark.parametrize("space", ["\u00a0", "\u2009", "\u3000", "\u2028", "\t"])
def test_spaces_of_every_kind_are_between_sentences(space):
    line = f"Plan A{space}. Two.{space}Three."
    assert "".join(sentences_of(line, "en")) == line


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("de", "„Ein Hund läuft im Schnee. |Eine Frau sitzt.“ |Dann fährt ein Mann Rad."),
        ("de", "Er sagte: »Sie rief: ›Ein Hund läuft. |Ein Kind sitzt.‹ |Dann ging er.« |Gut."),
        ("en", "He said 'A dog runs. |It's big.' |The dogs' house. |A cat."),
        ("en", '"Stop!" he said. |"I go." |Then he said: "It rains. |It snows." and left.'),
        ("en", "(A dog runs. |It is big.) |The dog (It is brown. It is big.) sits. |(It is good.) |No."),
        ("en", "'Tis good. |It's the file a.b.c, see \"x.Y. z\" there."),
        ("zh", "他说：“你好。|世界！”|好。"),
        ("en", "1. One thing. |2. Another thing. |In 1990. |In 5. |There."),
        ("de", "Im 15. Jahrhundert war Krieg. |Er ist 15. |Sie ist 12. |Peter ist 15. |Das 2. Mal. |Es ist Linux 2. |Ja."),
        ("de", "Abb. 3. |("),
        ("de", "»Heute ist der 15. «"),
        ("de", "Die Sitzung endet am 15. |Bitte kommen Sie. |Im frühen 20. Jahrhundert."),
        ("de", "Sie las „Band 2. Das Ende“ und ging. |„Es regnet. |Es schneit“, sagte sie."),
        ("en", 'The band "Panic! At the Disco" played. |"It rains. |It snows," he said. |Yes.'),
        ("en", '100. "'),
        ("en", '" A dog runs . "'),
        ("fr", "« Il pleut. » |Il sort. |« Bonjour. »"),
        ("cs", "V 15. století byla válka. |Je mi 15. |Jdu."),
        ("en", "(" * 2000 + "A dog runs. |It is big." + ")" * 2000),
    ],
)  # fmt: skip
def test_sentences_within_quotes_and_brackets_and_numbers(language, sentences):
    assert sentences_of(sentences.replace("|", ""), language) == sentences.split("|")


@given(st.text(alphabet="aA1.! '\"„“»«()「」。", max_size=30))
def test_sentences_joined_are_the_line(line):
    sentences = sentences_of(line, "de")
    assert "".join(sentences) == line
    assert all(sentences)


def test_a_line_is_read_in_parts():
    sentence = "Zwei Hunde laufen. "
    assert sentences_of(sentence * 1000, "de") == [sentence] * 1000
    words = "Wort " * 3000
    parts = sentences_of(words + "Ende. Zwei.", "de")
    assert "".join(parts) == words + "Ende. Zwei."
    assert all(part.startswith(("Wort", "Ende", "Zwei")) for part in parts)


@pytest.mark.parametrize("code", ["de", "deu", "ger", "deu_Latn", "DE-AT"])
def test_a_language_has_its_rules_whatever_its_code(code):
    assert sentences_of("Am 3. Mai. Zwei.", code) == ["Am 3. Mai. ", "Zwei."]


@pytest.mark.parametrize("code", ["und", "ady", "hbs_latn", "words", ""])
def test_languages_without_rules_have_sentences(code):
    assert sentences_of("Eins. Zwei.", code) == ["Eins. ", "Zwei."]


def test_letters_that_the_vocabulary_does_not_have_are_named(tiny_csan_of_letters, library_log):
    translator = tiny_csan_of_letters
    [cat] = translator(["cat"])
    results = texts_of(translator(["cat", "CAT", "", "cat 2 2"]))
    assert results[0] == cat["translation_text"]
    assert results[1]  # so that it can be skipped
    assert results[2] == ""
    assert "line 2: the source vocabulary does not have 'C', 'A', 'T'." in library_log.text
    assert "line 4: the source vocabulary does not have ' ', '2'." in library_log.text
    assert "line 1" not in library_log.text
    library_log.clear()
    skipped = translator(["cat", *["кафе"] * 12], unknown="skip")
    assert skipped == [cat, *[{"translation_text": ""}] * 12]
    assert "line 11:" in library_log.text
    assert "... and so in 2 more lines." in library_log.text
    with pytest.raises(ValueError, match=r"line 2: the source voc.* does not have 'к', 'а', 'ф'"):
        translator(["a", "кафe"], unknown="error")
    # White space at the ends of lines is not translated
    assert translator(" cat \nea\n", unknown="error")[0]["translation_text"].count("\n") == 2
    with pytest.raises(ValueError, match="line 3: "):
        list(translator(iter(["cat", "ea", "x"]), unknown="error"))
    with pytest.raises(ValueError, match='unknown must be "warn" or "skip" or "error", got'):
        translator("a", unknown="no")


@pytest.fixture
def tiny_csan_of_letters():
    tokenizer = train_tokenizer(["cat", "ea"], 30, kind="characters")
    return translator_of(
        tiny.csan(seed=9, vocab_size=len(tokenizer)),
        tokenizer,
        max_new_tokens=6,
    )


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


def test_what_is_no_text_is_refused_at_once(translator):
    for text in ({"text": "ein Hund"}, b"ein Hund"):
        with pytest.raises(TypeError, match=f"must be a string, got {type(text).__name__}"):
            translator(text)
    with pytest.raises(ValueError, match=r"holds '\\ud83d' at character 4, half of a surrogate"):
        translator(["Katze", "ein \ud83d"])


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


class Rows:
    """A data set of torch, which has no end but its length."""

    def __len__(self):
        return len(SENTENCES)

    def __getitem__(self, number):
        return SENTENCES[number % len(SENTENCES)]


def test_data_sets_end_with_their_length(translator):
    assert [result for [result] in translator(Rows())] == translator(SENTENCES)


def german_to_english(family, **overrides):
    tokenizer = tiny.tokenizer([*GERMAN, "one", "two"], model_max_length=64)
    sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": len(tokenizer)}
    overrides = {**sizes, "pad_token_id": 0, "eos_token_id": 1, **overrides}
    return family(seed=3, **overrides).eval(), tokenizer


FAMILIES = {
    "csan": lambda folder: german_to_english(tiny.csan, decoder_start_token_id=0, init_gain=6.0),
    "pervasive attention": lambda folder: german_to_english(tiny.grid, decoder_start_token_id=0),
    "m2m100": multilingual.m2m100,
    "nllb": multilingual.nllb,
    "mbart": multilingual.mbart,
    "t5": multilingual.t5,
}
TARGETS = {"m2m100": "en", "nllb": "eng_Latn", "mbart": "en_XX"}


@pytest.mark.parametrize("name", ["marian", *FAMILIES])
def test_batches_change_nothing(name, tmp_path, joint):
    """Texts are equal; scores to 5 digits, as generation rounds what float64 models compute to
    float32.
    """
    model, tokenizer = joint if name == "marian" else FAMILIES[name](tmp_path / "tokenizer")
    translator = translator_of(
        copy.deepcopy(model).double(),
        tokenizer,
        target_tokenizer=tokenizer,
        tgt_lang=TARGETS.get(name),
        return_scores=True,
        num_beams=2,
        max_new_tokens=6,
    )
    sources = ["eins zwei drei", "zwei", "drei drei zwei eins one two eins zwei", "two"]
    alone = [translator(source)[0]["sentences"][0] for source in sources]
    assert len({sentence["score"] for sentence in alone}) > 1, "the test wants differences"
    for order in (sources, sources[::-1], sources[1:3]):
        results = translator(order, batch_size=4)
        for source, [sentence] in zip(order, [r["sentences"] for r in results], strict=True):
            expected = alone[sources.index(source)]
            assert sentence["translation_text"] == expected["translation_text"]
            assert sentence["score"] == pytest.approx(expected["score"], rel=1e-5)


@pytest.mark.parametrize("target", [None, "deu_Latn"])
def test_scores_are_the_models_probabilities(target, joint, tmp_path):
    """Of a multilingual model those without the language, which was forced."""
    model, tokenizer = joint if target is None else multilingual.nllb(tmp_path)
    translator = translator_of(model, tokenizer, tgt_lang=target, max_new_tokens=6)
    [result] = translator("ein Hund\nKatze", return_scores=True)
    assert list(result) == ["translation_text", "sentences"]
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
    pad, end, word = 0, 1, 5
    tokens = np.array([pad, word, pad, end, pad, pad])
    counted = is_scored(tokens, ends=end, special={pad, end}, padding=pad)
    assert counted.tolist() == [True] * 4 + [False] * 2


@pytest.mark.parametrize("name", ["csan", "pervasive attention"])
def test_alignments(name, tmp_path):
    model, tokenizer = FAMILIES[name](tmp_path)
    translator = translator_of(model, tokenizer, target_tokenizer=tokenizer, max_new_tokens=5)
    text = "eins zwei drei\nein Hund"
    [result] = translator(text, return_alignments=True)
    assert texts_of([result]) == texts_of(translator(text))
    for sentence in result["sentences"]:
        sources = sentence["source_text"].split()
        targets = sentence["translation_text"].split()
        assert targets, "the test needs words"
        assert {target for _, target in sentence["alignment"]} == set(range(len(targets)))
        assert {source for source, _ in sentence["alignment"]} <= set(range(len(sources)))
    first, second = (sentence["alignment"] for sentence in result["sentences"])
    words = len(result["sentences"][0]["translation_text"].split())
    assert result["alignment"] == first + [(3 + s, words + t) for s, t in second]


@pytest.mark.parametrize(
    ("split", "translations", "links"),
    [
        (SplitText(("a b", "c"), ("", " ", "")), ["x", "y z"], [(0, 0), (1, 0), (2, 2)]),
        (SplitText(("a b", "c"), ("", "", "")), ["走", "y z"], [(0, 0), (1, 0), (1, 1)]),
        (SplitText(("T a", "T c"), ("", " ", ""), tag="T"), ["x", "y z"], [(0, 0), (1, 0), (1, 2)]),
    ],
    ids=["words", "cut within a word", "tag"],
)
def test_links_count_over_the_whole_text(split, translations, links):
    of_segments = [[(0, 0), (1, 0)], [(0, 1)]]
    word = re.compile(r"\S+")
    joined = split.join_links(translations, of_segments, source_word=word, target_word=word)
    assert joined == links


def test_padding_on_the_left_is_put_right(joint):
    model, tokenizer = joint
    tokenizer.padding_side = "left"
    translator = translator_of(model, tokenizer, max_new_tokens=6)
    assert translator(SENTENCES, batch_size=6) == translator(SENTENCES)


def test_saved_as_what_needs_transformers_alone(translator, tmp_path):
    translator.save_pretrained(tmp_path)
    assert "class TranslationPipeline" in (tmp_path / "translation.py").read_text()
    assert not {"texts.py", "sentences.py"} & {path.name for path in tmp_path.iterdir()}


def test_a_translation_that_leaves_out_a_sentence_is_warned_of(translator, library_log):
    translator.model.generation_config.forced_eos_token_id = 1  # so that every translation is empty
    texts = ["ein Hund. Ein Haus und eins! Eine Katze.", "eins zwei"]
    translator(texts, max_new_tokens=1)
    assert texts_of(translator(["", " "], check_coverage=True)) == ["", " "]
    assert "leave out" not in library_log.text
    assert texts_of(translator(texts, max_new_tokens=1, check_coverage=True)) == ["", ""]
    messages = [record.getMessage() for record in library_log.records]
    named = [message.split("'")[1] for message in messages if "leave out" in message]
    assert list(dict.fromkeys(named)) == ["ein Hund.", "Ein Haus und eins!", "Eine Katze."]


def test_coverage_is_checked_where_it_can_be_read(joint):
    model, tokenizer = joint
    ensemble = EnsembleForConditionalGeneration.of([model] * 2)
    with pytest.raises(ValueError, match="which EnsembleForConditionalGeneration does not give"):
        translator_of(ensemble, tokenizer, check_coverage=True)("eins")
    with pytest.raises(ValueError, match="leave out truncation"):
        translator_of(model, tokenizer)("eins", check_coverage=True, truncation=True)
