# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Corpus scores."""

import importlib.util
import json

import pytest
import sacrebleu

from csan_hf.evaluation import score_translations
from csan_hf.evaluation.scores import score_by_ngram

HYPOTHESES = ["Ein Hund läuft durch den Schnee.", "Zwei Katzen schlafen.", "Der Mann liest ein Buch im Park."]
REFERENCES = ["Ein Hund rennt durch den Schnee.", "Zwei Katzen schlafen.", "Ein Mann liest ein Buch im Park."]


def test_scores_are_sacrebleus():
    scores = score_translations(HYPOTHESES, REFERENCES)
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score)
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score)
    assert scores["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert scores["chrf_signature"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|")
    assert 0 < scores["brevity_penalty"] <= 1
    json.dumps(scores)


def test_perfect_and_nothing():
    assert score_translations(REFERENCES, REFERENCES)["bleu"] == pytest.approx(100)
    assert score_translations([""] * 3, REFERENCES)["bleu"] == 0


def test_tokenizer_is_passed_on():
    hypotheses, references = ["狗在雪地里奔跑"], ["狗在雪地里跑步"]
    scores = score_translations(hypotheses, references, tokenize="zh")
    assert "tok:zh" in scores["bleu_signature"]
    assert scores["bleu"] > score_translations(hypotheses, references)["bleu"]


def test_a_tokenizer_that_is_not_there_is_named(monkeypatch):
    for score in (score_translations, score_by_ngram):
        with pytest.raises(ValueError, match=r"tokenize must be one of none, zh, 13a, .*, got '31a'"):
            score(HYPOTHESES, REFERENCES, tokenize="31a")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"tokenize is 'ja-mecab', which .* pip install sacrebleu\[ja\]"):
        score_translations(HYPOTHESES, REFERENCES, tokenize="ja-mecab")


def test_wrong_numbers_are_refused():
    with pytest.raises(ValueError, match="2 hypotheses and 3 references"):
        score_translations(HYPOTHESES[:2], REFERENCES)
    with pytest.raises(ValueError, match="nothing to score"):
        score_translations([], [])
