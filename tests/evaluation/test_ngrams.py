# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Scores by the length of n-grams."""

import pytest

from csan_hf.evaluation.metrics import load_metric
from csan_hf.evaluation.scores import score_by_ngram


def test_counts_by_hand():
    # 5 and 2 words; of the 7 words "d", and one "a" of two, are not in the reference as often
    scores = score_by_ngram(["a b c d e", "a a"], ["a b c x e", "a f"], orders=6)
    assert [(score.matches, score.total) for score in scores] == [(5, 7), (2, 5), (1, 3), (0, 2), (0, 1), (0, 0)]
    assert [score.order for score in scores] == [1, 2, 3, 4, 5, 6]
    assert scores[0].accuracy == pytest.approx(500 / 7)
    assert scores[5].accuracy == 0
    assert scores[1].bleu == pytest.approx(100 * (5 / 7 * 2 / 5) ** 0.5)


def test_four_grams_are_bleu():
    lines = (
        ["Ein Hund läuft durch den Schnee.", "Zwei Katzen schlafen."],
        ["Ein Hund rennt durch den Schnee.", "Katzen."],
    )
    assert score_by_ngram(*lines)[3].bleu == pytest.approx(load_metric("bleu").results(*lines)["bleu"], abs=1e-12)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="orders is 0"):
        score_by_ngram(["a"], ["a"], orders=0)
    with pytest.raises(ValueError, match="1 hypotheses and 2 references"):
        score_by_ngram(["a"], ["a", "b"])
