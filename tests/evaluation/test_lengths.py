# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Scores by length of the source."""

from itertools import pairwise

import numpy as np
import pytest

from csan_hf.evaluation import score_by_length, score_translations


def sentences(lengths, word="x"):
    return [" ".join([word] * length) for length in lengths]


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


def test_sentences_of_one_length_stay_together():
    texts = sentences([3] * 9 + [7])
    assert [group["sentences"] for group in score_by_length(texts, texts, texts, groups=5)] == [9, 1]
    assert [group["sentences"] for group in score_by_length(texts[:9], texts[:9], texts[:9])] == [9]
    assert [group["sentences"] for group in score_by_length(texts, texts, texts, groups=1)] == [10]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((["a"], ["a"], []), {}, "1 hypotheses and 0 references"),
        (([], [], []), {}, "0 sentences"),
        ((["a"], ["a"], ["a"]), {"groups": 0}, "groups is 0"),
    ],
)
def test_what_cannot_be_scored_is_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        score_by_length(*arguments, **options)
