# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Forced decoding equals the loss of each pair by itself, in every family and by the command."""

import json
import math

import pytest
import torch
from pipelines.multilingual import nllb
from tiny import convolutional, csan, grid, recurrent, tokenizer

from csan_hf.data import TokenizerPair
from csan_hf.evaluation import align
from csan_hf.evaluation.forced import perplexity, score_forced
from csan_hf_cli import main

SOURCES = ["a b c", "", "c", "a a b c a b", "b"]
TARGETS = ["b", "c c a b", "", "a", "b a c b a a c"]


@pytest.mark.parametrize("make", [csan, grid, recurrent, convolutional])
@pytest.mark.parametrize("max_batch_tokens", [1, 9, 4096])
def test_scores_are_those_of_the_loss(make, max_batch_tokens):
    own = tokenizer("abc")
    model = make(vocab_size=6, decoder_vocab_size=6).train()
    found = score_forced(
        model, TokenizerPair(own, own), SOURCES, TARGETS, max_batch_tokens=max_batch_tokens
    )
    assert model.training
    model.eval()
    expected = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        labels = own(target, return_tensors="pt").input_ids
        loss = model(
            **own(source, return_tensors="pt", return_token_type_ids=False), labels=labels
        ).loss.item()
        expected.append({"log_probability": -loss * labels.numel(), "tokens": labels.numel()})
    assert (
        [each["tokens"] for each in found]
        == [each["tokens"] for each in expected]
        == [2, 5, 1, 2, 8]
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["log_probability"] == pytest.approx(theirs["log_probability"], rel=1e-4)
    total = sum(each["log_probability"] for each in expected)
    assert perplexity(found) == pytest.approx(math.exp(-total / 18), rel=1e-4)


@pytest.mark.parametrize("use", [align, score_forced])
def test_the_callers_tokenizers_stay_as_they_are(use, tmp_path):
    model, own = nllb(tmp_path)
    own.padding_side = "left"
    names = ("src_lang", "tgt_lang", "padding_side", "prefix_tokens", "suffix_tokens")
    before = {name: getattr(own, name) for name in names}
    ids = own("zwei")["input_ids"]
    pair = TokenizerPair(own, own)
    use(model, pair, ["zwei"], ["German:"], src_lang="eng_Latn", tgt_lang="fra_Latn")
    assert {name: getattr(own, name) for name in names} == before
    assert own("zwei")["input_ids"] == ids


def test_the_command_writes_a_score_for_each_line(tmp_path, capsys):
    """With a tiny NLLB checkpoint, whose sources and targets begin with their languages."""
    model, own = nllb(tmp_path)
    for part in (model, own):
        part.save_pretrained(tmp_path / "model")
    lines = ["zwei drei", "German:"]
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    words = (
        f"evaluate --model {tmp_path}/model --device cpu --quiet --output_dir {tmp_path} --forced"
    )
    words += f" --source_lang eng_Latn --target_lang fra_Latn --source {tmp_path}/text"
    words += f" --reference {tmp_path}/text"
    assert main(words.split()) == 0
    own.src_lang = "eng_Latn"
    own.tgt_lang = "fra_Latn"
    loss = 0.0
    tokens = 0
    for line, text in zip(
        (tmp_path / "text.forced.jsonl").read_text().splitlines(), lines, strict=True
    ):
        inputs = own(text, text_target=text, return_tensors="pt")
        with torch.no_grad():
            found = model(**inputs).loss.item() * inputs["labels"].numel()
        assert json.loads(line) == {
            "log_probability": pytest.approx(-found, rel=1e-4),
            "tokens": inputs["labels"].numel(),
        }
        loss, tokens = loss + found, tokens + inputs["labels"].numel()
    table = json.loads((tmp_path / "forced.json").read_text())["forced"]["text"]
    assert table["perplexity"] == pytest.approx(math.exp(loss / tokens), rel=1e-4)
    assert f"{table['perplexity']:,.3f}" in capsys.readouterr().out
    assert main([*words.split(), "--metrics=bleu"]) == 2
