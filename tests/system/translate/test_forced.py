# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Forced decoding equals the loss of each pair by itself, in every family and by the command."""

import json
import math

import pytest
from pipelines.multilingual import nllb
from system.translate.conftest import run
from tiny import convolutional, csan, grid, recurrent, tokenizer

from csan_hf.data import TokenizerPair
from csan_hf.evaluation import align
from csan_hf.evaluation.forced import perplexity, score_forced

SOURCES = ["a b c", "", "c", "a a b c a b", "b"]
TARGETS = ["b", "c c a b", "", "a", "b a c b a a c"]


@pytest.mark.parametrize("make", [csan, grid, recurrent, convolutional])
def test_scores_are_those_of_the_loss(make):
    letter_tokenizer = tokenizer("abc")
    pair = TokenizerPair(letter_tokenizer, letter_tokenizer)
    model = make(vocab_size=6, decoder_vocab_size=6)
    expected = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        labels = letter_tokenizer(target, return_tensors="pt").input_ids
        inputs = letter_tokenizer(source, return_tensors="pt", return_token_type_ids=False)
        expected.append(-model(**inputs, labels=labels).loss.item() * labels.numel())
    model.train()
    for tokens in (1, 9, 4096):
        scores = score_forced(model, pair, SOURCES, TARGETS, max_batch_tokens=tokens)
        assert [score["tokens"] for score in scores] == [2, 5, 1, 2, 8]
        values = [score["log_probability"] for score in scores]
        assert values == pytest.approx(expected, rel=1e-4)
        assert perplexity(scores) == pytest.approx(math.exp(-sum(expected) / 18), rel=1e-4)
    assert model.training


def test_lines_are_ended_by_the_models_mark():
    letters = tokenizer("abcd")
    pair = TokenizerPair(letters, letters)
    mark = letters.convert_tokens_to_ids("d")
    model = csan(vocab_size=len(letters), line_token_id=mark, cross_locality=[{"line": True}] * 2)
    lines, marked = (score_forced(model, pair, [text], [text]) for text in ("a\nb", "adb"))
    assert lines == marked


@pytest.mark.parametrize("use", [align, score_forced])
def test_the_callers_tokenizers_stay_as_they_are(use, tmp_path):
    model, nllb_tokenizer = nllb(tmp_path)
    nllb_tokenizer.padding_side = "left"
    names = ("src_lang", "tgt_lang", "padding_side", "prefix_tokens", "suffix_tokens")
    before = {name: getattr(nllb_tokenizer, name) for name in names}
    ids = nllb_tokenizer("zwei")["input_ids"]
    pair = TokenizerPair(nllb_tokenizer, nllb_tokenizer)
    use(model, pair, ["zwei"], ["German:"], src_lang="eng_Latn", tgt_lang="fra_Latn")
    assert {name: getattr(nllb_tokenizer, name) for name in names} == before
    assert nllb_tokenizer("zwei")["input_ids"] == ids


def test_the_command_writes_a_score_for_each_line(tmp_path, capsys):
    """With a tiny NLLB checkpoint, whose sources and targets begin with their languages."""
    model, nllb_tokenizer = nllb(tmp_path)
    for part in (model, nllb_tokenizer):
        part.save_pretrained(tmp_path / "model")
    lines = ["zwei drei", "German:"]
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    words = f"evaluate --model {tmp_path}/model --device cpu --quiet --output_dir {tmp_path}"
    words += f" --forced --source_lang eng_Latn --target_lang fra_Latn --source {tmp_path}/text"
    assert run(f"{words} --reference {tmp_path}/text") == 0
    nllb_tokenizer.src_lang = "eng_Latn"
    nllb_tokenizer.tgt_lang = "fra_Latn"
    losses = []
    counts = []
    for text in lines:
        inputs = nllb_tokenizer(text, text_target=text, return_tensors="pt")
        counts.append(inputs["labels"].numel())
        losses.append(model(**inputs).loss.item() * counts[-1])
    written = map(json.loads, (tmp_path / "text.forced.jsonl").read_text().splitlines())
    for entry, loss, count in zip(written, losses, counts, strict=True):
        expected = {"log_probability": pytest.approx(-loss, rel=1e-4), "tokens": count}
        assert entry == expected
    table = json.loads((tmp_path / "forced.json").read_text())["forced"]["text"]
    expected = math.exp(sum(losses) / sum(counts))
    assert table["perplexity"] == pytest.approx(expected, rel=1e-4)
    assert f"{table['perplexity']:,.3f}" in capsys.readouterr().out
