# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Scores of a corpus, by length of the source and by length of n-grams."""

import importlib.util
from itertools import pairwise

import numpy as np
import pytest

from csan_hf.evaluation import score_by_length, score_translations
from csan_hf.evaluation.scores import score_by_ngram

HYPOTHESES = ["Ein Hund läuft durch den Schnee.", "Zwei Katzen schlafen.", "Der Mann liest ein Buch im Park."]
REFERENCES = ["Ein Hund rennt durch den Schnee.", "Zwei Katzen schlafen.", "Ein Mann liest ein Buch im Park."]


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
    with pytest.raises(ValueError, match="1 sources and 2 references"):
        score_translations(["a", "b"], ["a", "b"], sources=["a"])
    for score in (score_by_ngram, score_translations):
        with pytest.raises(ValueError, match="0 hypotheses and 0 references"):
            score([], [])
    with pytest.raises(ValueError, match="1 hypotheses and 0 references"):
        score_by_length(["a"], ["a"], [])


# ---- by length of the source


def sentences(lengths, word="x"):
    return [" ".join([word] * length) for length in lengths]


@pytest.mark.parametrize(("rows", "groups", "sizes"), [(10, 5, [9, 1]), (9, 5, [9]), (10, 1, [10])])
def test_sentences_of_one_length_stay_together(rows, groups, sizes):
    texts = sentences([3] * 9 + [7])[:rows]
    assert [group["sentences"] for group in score_by_length(texts, texts, texts, groups=groups)] == sizes


def test_groups_are_those_of_the_whole_corpus_by_length():
    rng = np.random.RandomState(0)
    lengths = rng.randint(1, 30, 200)
    words = np.array(list("abcdefghij"))
    references = [" ".join(rng.choice(words, length + 1)) for length in lengths]
    hypotheses = [" ".join(rng.permutation(text.split()[:8])) for text in references]
    groups = score_by_length(sentences(lengths), hypotheses, references, groups=4)
    assert sum(group["sentences"] for group in groups) == 200
    assert all(40 <= group["sentences"] <= 60 for group in groups)
    assert all(one["longest"] < other["shortest"] for one, other in pairwise(groups))
    for group in groups:
        rows = [row for row in range(200) if group["shortest"] <= lengths[row] <= group["longest"]]
        assert len(rows) == group["sentences"]
        assert group["reference_words"] == pytest.approx((lengths[rows] + 1).mean())
        assert group["hypothesis_words"] == pytest.approx(np.minimum(lengths[rows] + 1, 8).mean())
        scores = score_translations([hypotheses[row] for row in rows], [references[row] for row in rows])
        assert (group["bleu"], group["chrf"]) == (scores["bleu"], scores["chrf"])


# ---- by length of n-grams


def test_n_grams_by_hand():
    # 5 and 2 words; of the 7 words "d", and one "a" of two, are not in the reference as often
    scores = score_by_ngram(["a b c d e", "a a"], ["a b c x e", "a f"], orders=6)
    assert [(score.matches, score.total) for score in scores] == [(5, 7), (2, 5), (1, 3), (0, 2), (0, 1), (0, 0)]
    assert [score.order for score in scores] == [1, 2, 3, 4, 5, 6]
    assert scores[0].accuracy == pytest.approx(500 / 7)
    assert scores[5].accuracy == 0
    assert scores[1].bleu == pytest.approx(100 * (5 / 7 * 2 / 5) ** 0.5)
    bleu = score_translations(HYPOTHESES, REFERENCES)["bleu"]
    assert score_by_ngram(HYPOTHESES, REFERENCES)[3].bleu == pytest.approx(bleu, abs=1e-12)
