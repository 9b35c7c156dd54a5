# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Whether a difference between two systems is more than chance.

For systems of one run, p-values are those of `sacrebleu --paired-bs` and `--paired-ar` with the same seed and number
of samples, but for two systems of exactly the same score, whose p-value is 1. Several runs of a system say how much a
training seed changes, which sacreBLEU does not know; see `resampling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from .metrics import CorpusMetric
from .resampling import (
    BOOTSTRAP_SAMPLES,
    SEED,
    Resampled,
    SeedVariance,
    check_runs,
    confidence_interval,
    draw_differences,
    draw_seeds,
    resample,
    sample_chunks,
    seed_variance,
)

RANDOMISATION_TRIALS = 10_000  # sacreBLEU's

Test = Literal["bootstrap", "two_sided_bootstrap", "randomisation"]


@dataclass(frozen=True)
class PairedTest:
    """A system beside a baseline.

    Attributes:
        difference: The system's score minus the baseline's; means over the seeds, where there are several.
        p_value: How often chance alone makes a difference at least as large; two-sided, but for `"bootstrap"`.
        interval: 95% confidence interval of the difference, by bootstrap.
        test: `"bootstrap"`, `"two_sided_bootstrap"` or `"randomisation"`.
        samples: Resamples or trials.
        degrees: Degrees of freedom of the variance between seeds; with 0, nothing here is about other seeds.
    """

    difference: float
    p_value: float
    interval: tuple[float, float]
    test: Test
    samples: int
    degrees: int


def paired_test(
    metric: CorpusMetric,
    system: Sequence[np.ndarray],
    baseline: Sequence[np.ndarray],
    *,
    test: Test = "bootstrap",
    samples: int | None = None,
    seed: int = SEED,
    variance: SeedVariance | None = None,
    progress: bool = False,
) -> PairedTest:
    """Tests whether a system differs from a baseline on the same segments.

    - `"bootstrap"` (Koehn, 2004, as sacreBLEU and Moses have it): how often the absolute difference on a resampled
      test set exceeds its mean by more than the real one. That is the probability of one tail: of equal systems about
      one in ten has a p-value below 0.05.
    - `"two_sided_bootstrap"`: how often the difference on a resampled test set is further from its mean, to either
      side, than the real difference is from 0.
    - `"randomisation"` (Riezler and Maxwell, 2005): how often two systems made by exchanging hypotheses at random,
      segment by segment, differ by more than the real ones. With several runs, those of a segment are exchanged
      together, as they are much alike; the p-value is about these runs, and only the interval about others.

    Where the runs say how much a training seed changes, the bootstraps are about other seeds, too.

    Args:
        metric: The metric.
        system: The metric's counts [S, K] of the segments, for each run; see `resample`.
        baseline: The same for the baseline.
        test: Which of the three tests.
        samples: None = 1,000 resamples, or 10,000 trials.
        seed: Seed of the draws.
        variance: That between training seeds, if more systems than these two show it.
        progress: Shows a bar on standard error.

    Raises:
        ValueError: If the numbers of segments differ, or those of runs in a randomisation, samples is below 1, or
            there is no such test.
    """
    check_runs([*system, *baseline], 1 if samples is None else samples)
    check_test(test, len(system), len(baseline))
    resamples = samples if samples is not None and test != "randomisation" else BOOTSTRAP_SAMPLES
    ours, theirs = (
        resample(metric, runs, samples=resamples, seed=seed, progress=progress) for runs in (system, baseline)
    )
    variance = seed_variance([ours, theirs]) if variance is None else variance
    if test != "randomisation":
        return compare_resampled(ours, theirs, variance, test=test, seed=seed)
    trials = RANDOMISATION_TRIALS if samples is None else samples
    chance = _exchanged_differences(metric, system, baseline, trials, seed, progress)
    drawn = draw_differences(ours, theirs, variance, seed=seed)
    difference = ours.mean - theirs.mean
    p_value = _p_value(chance, difference, trials)
    return PairedTest(difference, p_value, confidence_interval(drawn), test, trials, variance.degrees)


def compare_resampled(
    system: Resampled,
    baseline: Resampled,
    variance: SeedVariance,
    *,
    test: Literal["bootstrap", "two_sided_bootstrap"] = "two_sided_bootstrap",
    seed: int = SEED,
) -> PairedTest:
    """Tests whether a system differs from a baseline, with resampled scores; see `paired_test`.

    Args:
        system: The system.
        baseline: The baseline, with the same draws.
        variance: That between training seeds, of all systems compared.
        test: Which of the two bootstraps.
        seed: Seed of the draws of other seeds.
    """
    difference = system.mean - baseline.mean
    drawn = draw_differences(system, baseline, variance, seed=seed)
    if test == "bootstrap":
        chance = np.abs(drawn)
        chance = chance - chance.mean()
    else:
        # Not around the mean of what is drawn: Student's t of 1 degree of freedom has none
        chance = np.abs(drawn - (system.draws.mean() - baseline.draws.mean()))
    samples = len(system.draws)
    p_value = _p_value(chance, difference, samples)
    return PairedTest(difference, p_value, confidence_interval(drawn), test, samples, variance.degrees)


def _p_value(chance: np.ndarray, difference: float, samples: int) -> float:
    """Returns how often chance exceeds a difference, which counts as one of the samples; no less than 1 of them."""
    # For two systems of equal score, sacreBLEU's strict comparison would give the smallest possible p-value
    if not difference:
        return 1.0
    exceeding = (
        int((chance > abs(difference)).sum()) * samples / len(chance)
    )  # of 100 draws a sample, where seeds vary
    return (exceeding + 1) / (samples + 1)


def check_test(test: str, runs: int, baseline_runs: int) -> None:
    """Checks that there is a test and that it takes these numbers of runs.

    Raises:
        ValueError: If not.
    """
    if test not in get_args(Test):
        raise ValueError(f"test must be one of {', '.join(get_args(Test))}, got {test!r}.")
    if test == "randomisation" and runs != baseline_runs:
        raise ValueError(
            f"{runs} runs and {baseline_runs} of the baseline: the randomisation test needs equally many; give as "
            "many, or use the bootstrap."
        )


def _exchanged_differences(
    metric: CorpusMetric,
    system: Sequence[np.ndarray],
    baseline: Sequence[np.ndarray],
    trials: int,
    seed: int,
    progress: bool,
) -> np.ndarray:
    """Returns the absolute differences between randomly exchanged systems, [trials]."""
    generator = np.random.default_rng(seed)
    differences = np.empty(trials)
    # One random number gives 32 tosses of a coin: parts of a multiple of 32 draw the same as all trials at once
    for start, stop in sample_chunks(trials, len(system[0]), 32, f"randomisation, {metric.label}", progress):
        exchanged = generator.integers(2, size=(stop - start, len(system[0])), dtype=bool).astype(np.float64)
        found = np.zeros(stop - start)
        for ours, theirs in zip(system, baseline, strict=True):
            first = ours.sum(axis=0) + exchanged @ (theirs - ours)
            second = (ours + theirs).sum(axis=0) - first
            found += [metric.score(a) - metric.score(b) for a, b in zip(first, second, strict=True)]
        differences[start:stop] = np.abs(found) / len(system)
    return differences


def sign_flip_test(
    differences: Sequence[float],
    *,
    variance: SeedVariance | None = None,
    per_run: float = 0.0,
    trials: int = RANDOMISATION_TRIALS,
    seed: int = SEED,
) -> float:
    """Tests whether the mean of differences, one for each corpus or language, is 0 (Fisher's randomisation test).

    The p-value is how often the mean would be at least as far from 0 with random signs. All combinations of signs are
    tried if there are at most `trials` of them, otherwise random ones.

    Args:
        differences: Differences of the scores, one for each corpus.
        variance: That between training seeds, if another seed moves all differences at once, as where one training
            serves all corpora; the means with random signs are then moved, too.
        per_run: See `resampling.draw_seeds`.
        trials: How many combinations of signs to try.
        seed: Seed of the draws.

    Returns:
        The two-sided p-value; with few corpora it cannot be small: no less than 2 / 2^n.

    Raises:
        ValueError: If there is no difference.
    """
    values = np.asarray(differences, dtype=np.float64)
    if not len(values):
        raise ValueError("There is nothing to test: 0 differences.")
    observed = abs(values.mean())
    slack = 1e-9 * max(observed, 1.0)  # means of the same numbers in another order
    if exact := 2 ** len(values) <= trials:
        signs = 1.0 - 2.0 * (np.arange(2 ** len(values))[:, None] >> np.arange(len(values)) & 1)
    else:
        signs = 1.0 - 2.0 * np.random.default_rng(seed).integers(2, size=(trials, len(values)))
    chance = signs @ values[:, None] / len(values)
    further = np.mean(np.abs(chance) >= observed - slack)
    if variance is not None and variance.degrees:
        moved = chance + draw_seeds(variance, per_run, len(chance), seed=seed)
        # Not less than before: half of what is moved away from the real signs' own mean would count no more
        further = max(further, np.mean(np.abs(moved) >= observed - slack))
    return float(further if exact else (further * trials + 1) / (trials + 1))


def holm_adjusted(p_values: Sequence[float]) -> list[float]:
    """Returns p-values of several tests, adjusted for their number (Holm, 1979).

    Rejecting every hypothesis whose adjusted p-value is at most α rejects a true one with probability α at most,
    however the tests depend on each other.

    Args:
        p_values: One for each test.

    Returns:
        Adjusted p-values in the same order, at most 1.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda number: p_values[number])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
