# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Lines of a text that are translated together, with graphs and with torch."""

import copy
import itertools
from functools import partial

import pytest
import tiny
import torch
from exports import EXPORTS, WORDS_OF_LINES, model_of_lines, tokenizer_of_lines

from csan_hf.data import TokenizerPair, train_tokenizer
from csan_hf.data.tokenization import add_language_tags
from csan_hf.pipelines.torch_engine import torch_engine
from csan_hf_runtime import translator as module
from csan_hf_runtime.command_line import main
from csan_hf_runtime.options import TranslationOptions
from csan_hf_runtime.translator import TextTranslator

TEXT = "one dog\n\n  two words\nmuch of them\n\tnine\n"
LINES = ["one dog", "two words", "much of them", "nine"]


@pytest.fixture
def of_lines(exported):
    """A model that knows lines, its tokenizers, and the folder of its graphs."""
    model, folder = exported("csan, lines")
    return model, EXPORTS["csan, lines"].tokenizers(), folder


@pytest.fixture(params=["graphs", "torch"])
def translator(request, of_lines):
    model, pair, folder = of_lines
    if request.param == "graphs":
        return TextTranslator.from_directory(folder)
    return TextTranslator(torch_engine(model, pair))


def lines_by_the_library(of_lines, lines, **settings):
    """Translations of some lines as one source, by `generate`."""
    model, pair, _ = of_lines
    tokenizer = pair.source
    mark = tokenizer.convert_tokens_to_ids("\n")
    ids = []
    for line in lines:
        ids += [*tokenizer(line, add_special_tokens=False)["input_ids"], mark]
    ids[-1] = tokenizer.eos_token_id
    limit = 9 if len(lines) == 1 else 900
    tokens = model.generate(torch.tensor([ids]), max_length=limit, **settings)[0].tolist()[1:]
    translations = [[]]
    for token in tokens:
        if token == mark:
            translations.append([])
        else:
            translations[-1].append(token)
    return [tokenizer.decode(line, skip_special_tokens=True).strip() for line in translations]


@pytest.mark.parametrize("num_beams", [1, 3])
def test_lines_of_a_text_are_translated_together(num_beams, translator, of_lines):
    [[translation]] = translator.translate([TEXT], num_beams=num_beams)
    expected = lines_by_the_library(of_lines, LINES, num_beams=num_beams)
    assert [sentence.translation_text.strip() for sentence in translation.sentences] == expected
    assert [sentence.source_text for sentence in translation.sentences] == LINES
    first, second, third, fourth = (sentence.translation_text for sentence in translation.sentences)
    assert translation.text == f"{first}\n\n  {second}\n{third}\n\t{fourth}\n"
    [[alone]] = translator.translate([TEXT], num_beams=num_beams, lines="alone")
    expected_alone = [
        lines_by_the_library(of_lines, [line], num_beams=num_beams)[0] for line in LINES
    ]
    assert [sentence.translation_text.strip() for sentence in alone.sentences] == expected_alone
    assert expected_alone != expected


def test_batches_hypotheses_and_scores_are_of_lines(translator):
    texts = [TEXT, "one", "", "two\nthree words\n\nfour"]
    whole = translator.translate(texts, n_best=2, num_beams=3, return_words=True)
    for text, translations in zip(texts, whole, strict=True):
        [alone] = translator.translate([text], n_best=2, num_beams=3, return_words=True)
        assert [translation.text for translation in alone] == [
            translation.text for translation in translations
        ]
        if not text:
            continue
        assert len(translations) == 2
        filled_lines = len(text.split("\n")) - text.count("\n\n") - text.endswith("\n")
        for translation in translations:
            assert len(translation.sentences) == filled_lines
            assert all(sentence.log_probability < 0 for sentence in translation.sentences)


def test_lines_of_a_file_are_documents_up_to_blank_ones(translator):
    lines = ["one dog", "two words", "", "much of them", "nine", ""]
    translations = translator.translate(lines, documents=True)
    for document in (slice(0, 2), slice(3, 5)):
        [[expected]] = translator.translate(["\n".join(lines[document])])
        texts = [hypotheses[0].text for hypotheses in translations[document]]
        assert texts == expected.text.split("\n")
    assert translations[2][0].text == translations[5][0].text == ""
    with pytest.raises(ValueError, match="prefixes are of texts that are translated alone"):
        translator.translate(lines, documents=True, prefixes=[""] * 6)


def test_a_stream_of_documents_is_cut_between_them(translator, monkeypatch):
    """Wherever their sender pauses, and however few lines a window has."""
    monkeypatch.setattr("csan_hf_runtime.windows.WINDOW_LINES", 2)
    first = ["one dog", None, "two words", "nine", None, ""]
    lines = [*first, None, "one", "", "much of them", "nine", " ", "three", None, "two", "one"]
    windows = list(translator.stream(lines, documents=True))
    texts = [line for line in lines if line is not None]
    translations = list(itertools.chain.from_iterable(windows))
    assert translations == translator.translate(texts, documents=True)
    assert [len(window) for window in windows] == [4, 0, 2, 3, 3]
    monkeypatch.setattr("csan_hf_runtime.translator.WINDOW_CHARACTERS", 16)
    sizes = [len(window) for window in translator.stream(texts, documents=True)]
    assert sizes == [2, 2, 2, 2, 4]


@pytest.mark.parametrize(
    ("options", "how"), [("", {"documents": True}), ("--lines alone", {"lines": "alone"})]
)
def test_the_cues_of_a_file_are_a_document(options, how, of_lines, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("csan_hf_runtime.windows.WINDOW_LINES", 2)
    cues = []
    for second, line in enumerate(["", *LINES, ""]):
        cues.append(f"00:{second:02}.000 --> 00:{second:02}.900\n{line}\n")
    (tmp_path / "film.vtt").write_text("WEBVTT\n\n" + "\n".join(cues))
    _, _, folder = of_lines
    words = f"translate --model {folder} --input {tmp_path}/film.vtt --quiet {options}"
    assert main(words.split()) == 0
    written = capsys.readouterr().out.splitlines()[3::3]
    translations = TextTranslator.from_directory(folder).translate(LINES, **how)
    assert written == ["", *[translation.text for [translation] in translations], ""]


def test_a_file_of_strings_keeps_its_lines(of_lines, tmp_path, capsys):
    _, _, folder = of_lines
    lines = ["", "\tone dog", "  two words  ", "   ", "much of them", ""]
    (tmp_path / "strings").write_text("\n".join(lines))
    assert main(f"translate --model {folder} --input {tmp_path}/strings --documents".split()) == 0
    written = capsys.readouterr().out.split("\n")
    [[of_two_lines], [of_one_line]] = TextTranslator.from_directory(folder).translate(
        ["one dog\ntwo words", "much of them"]
    )
    first, second = of_two_lines.text.split("\n")
    assert written == ["", f"\t{first}", f"  {second}", "   ", of_one_line.text, ""]


def test_a_long_document_is_cut_between_lines_with_some_of_context(translator, monkeypatch):
    sizes = []
    search = module._search
    monkeypatch.setattr(module, "_MOST_TOKENS_TOGETHER", 10)
    monkeypatch.setattr(
        module,
        "_search",
        lambda engine, batch: sizes.append(batch.mask.sum(1).tolist()) or search(engine, batch),
    )
    lines = [f"{word} words" for word in ("one", "two", "nine", "much") * 2]
    translate = partial(translator.translate, ["\n".join(lines)], max_batch_tokens=1)
    monkeypatch.setattr(module, "_TOKENS_OF_CONTEXT", 1)
    [[of_parts]] = translate()
    assert len(of_parts.text.split("\n")) == len(lines)
    parts = len(sizes)
    assert parts > 2
    assert max(size[0] for size in sizes) < 20, "a line before those of a part"
    sizes.clear()
    monkeypatch.setattr(module, "_TOKENS_OF_CONTEXT", 1000)
    [[whole]] = translate()
    assert len(sizes) == parts
    assert max(size[0] for size in sizes) > 20, "all lines before"
    monkeypatch.setattr(module, "_MOST_TOKENS_TOGETHER", 1000)
    [[expected]] = translate()
    *_, last = whole.text.split("\n")
    assert expected.text.endswith(f"\n{last}")


def test_no_line_is_two(translator, monkeypatch):
    monkeypatch.setattr(translator.engine.target, "decode", lambda ids, **_: "a\nb")
    [[translation]] = translator.translate(["one\ntwo"])
    assert translation.text == "a b\na b"


def test_the_progress_of_documents_adds_up(translator):
    told = []
    texts = [TEXT, "one", "", "two\nthree"]
    translator.begin(texts, options=TranslationOptions(), progress=told.append)()
    assert sum(told) == 4
    assert min(told) >= 0


def test_a_stopped_command_goes_on_behind_a_document(of_lines, tmp_path, capsys):
    _, _, folder = of_lines
    lines = ["one", "", "two", "nine words", "", "much"]
    (tmp_path / "in").write_text("\n".join(lines))
    words = f"translate --model {folder} --input {tmp_path}/in --output {tmp_path}/out --documents"
    assert main(words.split()) == 0
    expected = (tmp_path / "out").read_text()
    (tmp_path / "out.partial").write_text("".join(expected.splitlines(keepends=True)[:3]))
    assert main([*words.split(), "--resume"]) == 0
    assert f"Going on behind line 2 of {tmp_path}/in." in capsys.readouterr().err
    assert (tmp_path / "out").read_text() == expected


def test_limits_that_are_asked_for_are_those_of_lines(translator):
    [[translation]] = translator.translate([TEXT], max_new_tokens=2)
    tokens = [len(sentence.translation_text.split()) for sentence in translation.sentences]
    assert sum(tokens) <= 8
    assert len(tokens) == 4


def test_a_text_may_begin_with_a_blank_line(translator):
    [[translation]] = translator.translate(["\n  one dog\ntwo words"], documents=True)
    first, second = (sentence.translation_text.strip() for sentence in translation.sentences)
    assert translation.text == f"\n  {first}\n{second}"


def test_the_tag_of_a_language_is_that_of_a_text(of_lines):
    model, pair, _ = of_lines
    seen = []
    tagged = copy.deepcopy(pair)
    add_language_tags(tagged, [">>de<<", ">>fr<<"])
    tagged_model = copy.deepcopy(model)
    tagged_model.resize_token_embeddings(len(tagged.source))
    engine = torch_engine(tagged_model, tagged)
    translator = TextTranslator(engine)
    search = module._search

    def watched(engine, batch):
        seen.append(batch.ids.tolist())
        return search(engine, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_search", watched)
        translator.translate([">>de<< one dog\ntwo words"])
        translator.translate(["one dog\ntwo words"], target_lang="de")
    assert seen[0] == seen[1]


def test_a_mark_in_the_text_of_a_line_ends_no_line():
    tokenizer = tokenizer_of_lines("</p>")
    engine = torch_engine(model_of_lines("</p>"), TokenizerPair(tokenizer, tokenizer))
    translator = TextTranslator(engine)
    [[translation]] = translator.translate(["one</p>two\nnine"])
    assert [sentence.source_text for sentence in translation.sentences] == ["one</p>two", "nine"]


def test_links_and_tags_are_of_lines(translator):
    [[translation]] = translator.translate(
        ["<p>one <b>dog</b></p>\n<p>two words</p>"], markup="html", return_alignments=True
    )
    assert translation.text.count("\n") == 1
    assert len(translation.sentences) == 2


def test_a_model_of_sentences_has_no_lines():
    tokenizer = train_tokenizer(WORDS_OF_LINES, 300)
    model = tiny.csan(vocab_size=300)
    translator = TextTranslator(torch_engine(model, TokenizerPair(tokenizer, tokenizer)))
    with pytest.raises(ValueError, match="lines='together' needs a model that attends line by"):
        translator.translate(["one"], lines="together")
    with pytest.raises(ValueError, match=r"^documents needs a model that attends line by line"):
        translator.translate(["one"], documents=True)
    with pytest.raises(ValueError, match="documents are translated together: leave out lines"):
        translator.translate(["one"], documents=True, lines="alone")


def test_lines_have_no_more_tokens_than_graphs_have_positions(of_lines, monkeypatch):
    """A model with positions, which graphs do not extend."""
    translator = TextTranslator.from_directory(of_lines[2])
    monkeypatch.setattr(translator.engine, "positions", 12)
    limits = []
    search = module._search
    monkeypatch.setattr(
        module,
        "_search",
        lambda engine, batch: limits.extend(batch.limits) or search(engine, batch),
    )
    translator.translate([TEXT, "one"])
    assert limits
    assert max(limits) <= 13
