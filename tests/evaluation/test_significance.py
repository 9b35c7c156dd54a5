# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Significance by resampling."""

import math
import random
from functools import partial

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest as SacrebleusTest

from csan_hf.evaluation import significance
from csan_hf.evaluation.metrics import load_metric
from csan_hf.evaluation.significance import (
    Resampled,
    SeedVariance,
    compare_resampled,
    confidence_interval,
    draw_scores,
    paired_test,
    resample,
    seed_variance,
)

WORDS = [f"word{number}" for number in range(12)]


def corpus():
    """References, and two systems of which the first makes fewer errors."""
    generator = random.Random(1)

    def sentence():
        return [generator.choice(WORDS) for _ in range(generator.randint(3, 9))]

    references = [sentence() for _ in range(70)]

    def spoil(line, rate):
        return " ".join(
            generator.choice(WORDS) if generator.random() < rate else word for word in line
        )

    ours = [spoil(line, 0.2) for line in references]
    theirs = [spoil(line, 0.26) for line in references]
    return ours, theirs, [" ".join(line) for line in references]


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(
        significance, "DRAWS_AT_ONCE", 70 * 96
    )  # several times 96 samples, and a rest


@pytest.mark.parametrize(("name", "scorer"), [("bleu", BLEU()), ("chrf", CHRF()), ("ter", TER())])
def test_agrees_with_sacrebleu(name, scorer, small_chunks):
    ours, theirs, references = corpus()
    metric = load_metric(name)
    counts, baseline = (metric.statistics(lines, references) for lines in (ours, theirs))
    systems = [("baseline", theirs), ("system", ours)]

    def expected(test, samples):
        _, table = SacrebleusTest(systems, {name: scorer}, [references], test, samples)()
        return next(column for key, column in table.items() if key != "System")

    first, second = expected("ar", 333)
    randomisation = paired_test(metric, [counts], [baseline], test="randomisation", samples=333)
    if name == "ter":  # has differences that are as large, which sacreBLEU does not count
        assert randomisation.p_value > second.p_value
    else:
        assert randomisation.p_value == second.p_value
    assert randomisation.difference == second.score - first.score
    first, second = expected("bs", 300)
    bootstrap = paired_test(metric, [counts], [baseline], samples=300)
    assert bootstrap.difference == second.score - first.score
    draws = [resample(metric, [run], samples=300).draws for run in (baseline, counts)]
    for drawn, result in zip(draws, (first, second), strict=True):
        low, high = confidence_interval(drawn[:, 0])
        assert (high - low) / 2 == pytest.approx(result.ci, abs=1e-4)  # sacreBLEU adds in float32
    drawn = np.abs(draws[1] - draws[0])  # sacreBLEU's p-value is of one side
    exceeding = (drawn - drawn.mean() > abs(bootstrap.difference)).sum()
    assert (exceeding + 1) / (300 + 1) == second.p_value


def test_a_p_value_of_two_sides_says_what_the_interval_says():
    metric = load_metric("exact_match")
    ones = np.ones(200)
    only_ours = (np.arange(200) < 29).astype(float)
    only_theirs = (np.arange(200) >= 183).astype(float)
    # 29 words against 17: 12 are 1.78 of their standard deviations, and 0.075 of a normal
    # distribution lies beyond
    ours, theirs = np.stack([only_ours, ones], axis=1), np.stack([only_theirs, ones], axis=1)
    bootstrap, randomisation = (
        paired_test(metric, [ours], [theirs], test=test) for test in ("bootstrap", "randomisation")
    )
    assert bootstrap.p_value == pytest.approx(0.075, abs=0.02)
    low, high = bootstrap.interval
    assert low < 0 < high
    exact = 2 * sum(math.comb(46, count) for count in range(29, 47)) / 2**46
    assert randomisation.p_value == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize(("differing", "exact"), [(1, 1.0), (2, 0.5), (5, 0.0625)])
def test_a_few_segments_are_as_significant_as_their_signs(differing, exact):
    metric = load_metric("exact_match")
    ones = np.ones(200)
    ours = np.stack([ones, ones], axis=1)
    theirs = np.stack([(np.arange(200) >= differing).astype(float), ones], axis=1)
    comparison = paired_test(metric, [ours], [theirs], test="randomisation")
    assert comparison.p_value == pytest.approx(exact, abs=0.01)


def test_a_system_does_not_differ_from_itself():
    ours, theirs, references = corpus()
    metric = load_metric("wer")
    counts, baseline = (metric.statistics(lines, references) for lines in (ours, theirs))
    comparison = paired_test(metric, [counts], [baseline], samples=200)
    assert comparison.difference < 0, "fewer errors"
    for test in ("randomisation", "bootstrap"):
        same = paired_test(metric, [counts], [counts], test=test, samples=50)
        assert (same.difference, same.interval, same.p_value) == (0, (0, 0), 1)


def test_several_seeds():
    metric = load_metric("exact_match")
    hits = np.array([[1.0, 1.0], [0.0, 1.0]] * 20)
    miss = np.array([[0.0, 1.0]] * 40)
    both = resample(metric, [hits, miss], samples=200)
    assert both.mean == 25
    assert list(both.scores) == [50, 0]
    variance = seed_variance([both])
    assert variance.degrees == 1
    assert variance.variance == pytest.approx(1250)  # of 50 and 0
    half_of_a_binomials = 100**2 * 0.25 / 40 / 2
    assert variance.of_segments == pytest.approx(half_of_a_binomials, rel=0.2)
    low, high = confidence_interval(draw_scores(both, variance))
    assert low < 25 - 10 * 25  # two seeds say next to nothing: 12.7 standard errors
    assert high > 25 + 10 * 25
    alone = resample(metric, [hits], samples=200)
    low, high = confidence_interval(draw_scores(alone, seed_variance([alone])))
    assert 25 < low < 50 < high < 75  # segments alone
    test = partial(paired_test, metric, test="randomisation", samples=99)
    assert test([hits, hits], [miss, miss]).p_value == 0.01
    with pytest.raises(ValueError, match="2 runs and 1 of the baseline: the randomisation test"):
        test([hits, hits], [miss])
    with pytest.raises(ValueError, match=r"same segments, got \[1, 2\]"):
        paired_test(metric, [np.ones((1, 2))], [np.ones((2, 2))])


@pytest.mark.parametrize(
    ("seeds", "of_run", "of_segment_in_run", "of_segment"),
    [
        ((3, 3, 3, 3), 0.15, 0.0, 0.0),
        ((3, 3, 3, 3), 0.0, 1.0, 0.0),
        ((1, 1), 0.0, 0.0, 1.0),
        ((3, 1, 2), 0.3, 1.0, 0.5),
        ((2, 2, 2, 2, 2, 2), 0.05, 1.0, 1.0),
    ],
)
def test_equal_systems_seem_to_differ_as_often_as_promised(
    seeds, of_run, of_segment_in_run, of_segment
):
    """Scores are drawn at random; segments and seeds are a sample of possible ones."""
    metric = load_metric("exact_match")
    trials = 1000
    segments = 60
    generator = np.random.default_rng(11)

    def system(number):
        segment_effects = of_segment * generator.standard_normal(segments)
        return [
            np.stack(
                [segment_effects + noise + of_run * generator.standard_normal(), np.ones(segments)],
                axis=1,
            )
            for noise in of_segment_in_run * generator.standard_normal((number, segments))
        ]

    significant = 0
    for _ in range(trials):
        systems = [resample(metric, system(number), samples=60) for number in seeds]
        test = compare_resampled(systems[1], systems[0], seed_variance(systems))
        significant += test.p_value < 0.05
    assert 0.02 < significant / trials < 0.09


@pytest.mark.parametrize("degrees", [1, 2, 8, 1000])
@pytest.mark.parametrize("between_seeds", [0.0, 0.01, 0.1, 1.0, 3.0])
def test_seeds_that_happen_to_agree_do_not_make_other_segments_certain(between_seeds, degrees):
    draws = np.random.default_rng(1).standard_normal((2000, 1))
    two_runs = Resampled(np.zeros(2), np.repeat(2 * draws / draws.std(), 2, axis=1))

    def width(variance):
        low, high = compare_resampled(two_runs, one_run(0.0, 2000), variance).interval
        return high - low

    assert width(SeedVariance(between_seeds, 2.0, degrees)) > 0.98 * width(
        SeedVariance(0.0, 0.0, 0)
    )


def one_run(score, samples):
    return Resampled(np.array([score]), np.full((samples, 1), score))


@pytest.mark.parametrize("sign", [1, -1])
def test_one_degree_of_freedom(sign):
    smallest = compare_resampled(one_run(7.0, 19), one_run(0.0, 19), SeedVariance(0.0, 0.0, 4))
    assert smallest.p_value == 1 / 20, "no smaller than the test sets drawn can say"
    # Student's t of 1 degree has no mean: beyond 3.078 lies a fifth of it, and its draws' mean is
    # anywhere
    difference = sign * 3.078 * 2**0.5  # one run less one, each of variance 1
    test = compare_resampled(one_run(difference, 100), one_run(0.0, 100), SeedVariance(1.0, 0.0, 1))
    assert test.p_value == pytest.approx(0.2, abs=0.02)
