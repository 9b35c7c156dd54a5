# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Significance by resampling."""

import random

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
    shown_p_value,
)

WORDS = [f"word{number}" for number in range(12)]


def corpus():
    """References, and two systems of which the first makes fewer errors."""
    generator = random.Random(1)
    references = [
        [generator.choice(WORDS) for _ in range(generator.randint(3, 9))] for _ in range(70)
    ]

    def system(errors):
        noisy = [
            [generator.choice(WORDS) if generator.random() < errors else word for word in line]
            for line in references
        ]
        return [" ".join(line) for line in noisy]

    return system(0.2), system(0.26), [" ".join(line) for line in references]


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(
        significance, "DRAWS_AT_ONCE", 70 * 96
    )  # several times 96 samples, and a rest


@pytest.mark.parametrize(("name", "scorer"), [("bleu", BLEU()), ("chrf", CHRF()), ("ter", TER())])
@pytest.mark.parametrize(
    ("test", "short", "samples"), [("bootstrap", "bs", 300), ("randomisation", "ar", 333)]
)
def test_agrees_with_sacrebleu(name, scorer, test, short, samples, small_chunks):
    ours, theirs, references = corpus()
    metric = load_metric(name)
    counts, baseline = (metric.statistics(lines, references) for lines in (ours, theirs))
    found = paired_test(metric, [counts], [baseline], test=test, samples=samples)
    systems = [("baseline", theirs), ("system", ours)]
    _, expected = SacrebleusTest(systems, {name: scorer}, [references], short, samples)()
    [column] = [value for key, value in expected.items() if key != "System"]
    if test == "bootstrap":  # sacreBLEU's p-value is of one side
        drawn = np.abs(
            np.subtract(
                *(resample(metric, [own], samples=samples).draws for own in (counts, baseline))
            )
        )
        exceeding = (drawn - drawn.mean() > abs(found.difference)).sum()
        assert (exceeding + 1) / (samples + 1) == column[1].p_value
    else:
        assert found.p_value == column[1].p_value
    assert found.difference == column[1].score - column[0].score
    if test == "bootstrap":
        for runs, result in (([baseline], column[0]), ([counts], column[1])):
            low, high = confidence_interval(resample(metric, runs, samples=samples).draws[:, 0])
            assert (high - low) / 2 == pytest.approx(
                result.ci, abs=1e-4
            )  # sacreBLEU adds in float32


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
    assert bootstrap.p_value == pytest.approx(randomisation.p_value, abs=0.03)


def test_of_skewed_differences_the_interval_may_leave_out_what_p_does_not():
    metric = load_metric("ter")
    edits = np.zeros(400)
    edits[:7] = [1, 1, 2, 4, 8, 16, 40]  # one sentence makes most of the difference
    words = np.full(400, 10.0)
    ours = np.stack([edits, words], axis=1)
    theirs = np.stack([np.zeros(400), words], axis=1)
    result = paired_test(metric, [ours], [theirs])
    assert result.interval[0] > 0
    assert result.p_value > 0.05


def test_error_rates_by_the_same_draws():
    ours, theirs, references = corpus()
    metric = load_metric("wer")
    counts, baseline = (metric.statistics(lines, references) for lines in (ours, theirs))
    drawn = np.random.default_rng(significance.SEED).choice(70, size=(200, 70), replace=True)
    by_hand = [100 * counts[rows, 0].sum() / counts[rows, 1].sum() for rows in drawn]
    draws = resample(metric, [counts], samples=200).draws[:, 0]
    assert draws == pytest.approx(by_hand, abs=1e-9)
    found = paired_test(metric, [counts], [baseline], samples=200)
    low, high = found.interval
    assert low < found.difference < high
    assert found.difference < 0  # fewer errors
    same = paired_test(metric, [counts], [counts], test="randomisation", samples=50)
    assert same.difference == 0
    assert same.interval == (0, 0)
    assert same.p_value == paired_test(metric, [counts], [counts], samples=50).p_value == 1


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
    assert variance.of_segments == pytest.approx(
        100**2 * 0.25 / 40 / 2, rel=0.2
    )  # half of a binomial's
    low, high = confidence_interval(draw_scores(both, variance))
    assert low < 25 - 10 * 25  # two seeds say next to nothing: 12.7 standard errors
    assert high > 25 + 10 * 25
    alone = resample(metric, [hits], samples=200)
    low, high = confidence_interval(draw_scores(alone, seed_variance([alone])))
    assert 25 < low < 50 < high < 75  # segments alone
    assert (
        paired_test(metric, [hits, hits], [miss, miss], test="randomisation", samples=99).p_value
        == 0.01
    )
    with pytest.raises(
        ValueError, match="2 runs and 1 of the baseline: the randomisation test needs equally many"
    ):
        paired_test(metric, [hits, hits], [miss], test="randomisation")


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
        own = of_segment * generator.standard_normal(segments)
        return [
            np.stack(
                [own + noise + of_run * generator.standard_normal(), np.ones(segments)], axis=1
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


def test_runs_on_other_segments_are_refused():
    with pytest.raises(ValueError, match=r"same segments, got \[1, 2\]"):
        paired_test(load_metric("exact_match"), [np.ones((1, 2))], [np.ones((2, 2))])


@pytest.mark.parametrize(
    ("p_value", "text"), [(0.0004, "<0.001*"), (0.0494, "0.049*"), (0.05, "0.050")]
)
def test_significant_p_values_have_a_star(p_value, text):
    assert shown_p_value(p_value) == text
