# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Whether a difference between two systems is more than chance, and how sure a score is.

The draws are sacreBLEU's: with the same seed and the same number of samples, p-values and intervals are those of
`sacrebleu --paired-bs` and `--paired-ar`, but for two systems of exactly the same score, whose p-value is 1.
sacreBLEU holds the counts of all samples at once, which are gigabytes for a hundred thousand sentences, and knows only
its own metrics; here a few samples at a time are added up, for any metric that is a function of counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from tqdm.auto import tqdm

from .metrics import CorpusMetric

SEED = 12345  # sacreBLEU's
BOOTSTRAP_SAMPLES, RANDOMISATION_TRIALS = 1000, 10_000  # sacreBLEU's
_DRAWS_AT_ONCE = 4_000_000

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
    """

    difference: float
    p_value: float
    interval: tuple[float, float]
    test: Test
    samples: int


def bootstrap_scores(
    metric: CorpusMetric,
    runs: Sequence[np.ndarray],
    *,
    samples: int = BOOTSTRAP_SAMPLES,
    seed: int = SEED,
    progress: bool = False,
) -> np.ndarray:
    """Returns scores of resampled test sets (Koehn, 2004), each of as many segments, drawn with replacement.

    Args:
        metric: The metric.
        runs: The metric's counts [S, K] of the segments, for each run of the system (one, or one for each training
            seed). With several runs, each sample also draws runs with replacement, and its score is their mean.
        samples: How many test sets.
        seed: Seed of the draws; it must be the same for all systems that are compared.
        progress: Shows a bar on standard error.

    Returns:
        The scores, [samples].

    Raises:
        ValueError: If there is no run, the runs differ in segments, or samples is below 1.
    """
    _check_runs(runs, samples)
    number, segments = len(runs), len(runs[0])
    stacked = runs[0] if number == 1 else np.concatenate(runs, axis=1)  # [S, R K]
    which = np.random.default_rng([seed, number]).integers(number, size=(samples, number))
    scores = np.empty(samples)
    for start, stop in _chunks(samples, segments, 1, f"bootstrap, {metric.label}", progress):
        if start == 0:
            generator = np.random.default_rng(seed)
        drawn = generator.integers(segments, size=(stop - start, segments))
        weights = np.stack([np.bincount(row, minlength=segments) for row in drawn]).astype(np.float64)
        sums = (weights @ stacked).reshape(stop - start, number, -1)
        for place, row in enumerate(sums, start):
            of_runs = [metric.score(counts) for counts in row]
            scores[place] = np.mean([of_runs[run] for run in which[place]])
    return scores


def confidence_interval(scores: np.ndarray) -> tuple[float, float]:
    """Returns the bounds between which 95% of the scores lie; 2.5% of them are left out at either end."""
    ordered = np.sort(scores)
    out = len(ordered) // 40
    return float(ordered[out]), float(ordered[len(ordered) - out - 1])


def mean_score(metric: CorpusMetric, runs: Sequence[np.ndarray]) -> float:
    """Returns the mean over the runs of their corpus scores."""
    return float(np.mean([metric.score(run.sum(axis=0)) for run in runs]))


def paired_test(
    metric: CorpusMetric,
    system: Sequence[np.ndarray],
    baseline: Sequence[np.ndarray],
    *,
    test: Test = "bootstrap",
    samples: int | None = None,
    seed: int = SEED,
    progress: bool = False,
) -> PairedTest:
    """Tests whether a system differs from a baseline on the same segments.

    - `"bootstrap"` (Koehn, 2004, as sacreBLEU and Moses have it): how often the absolute difference on a resampled
      test set exceeds its mean by more than the real one. That is the probability of one tail: of equal systems about
      one in ten has a p-value below 0.05.
    - `"two_sided_bootstrap"`: how often the difference on a resampled test set is further from its mean, to either
      side, than the real difference is from 0.
    - `"randomisation"` (Riezler and Maxwell, 2005): how often two systems made by exchanging hypotheses at random,
      segment by segment, differ by more than the real ones. With several runs, run r of one is exchanged with run r
      of the other.

    Args:
        metric: The metric.
        system: The metric's counts [S, K] of the segments, for each run; see `bootstrap_scores`.
        baseline: The same for the baseline.
        test: Which of the three tests.
        samples: None = 1,000 resamples, or 10,000 trials.
        seed: Seed of the draws.
        progress: Shows a bar on standard error.

    Raises:
        ValueError: If the numbers of segments differ, or those of runs in a randomisation, samples is below 1, or
            there is no such test.
    """
    _check_runs([*system, *baseline], 1 if samples is None else samples)
    check_test(test, len(system), len(baseline))
    difference = mean_score(metric, system) - mean_score(metric, baseline)
    resamples = samples if samples is not None and test != "randomisation" else BOOTSTRAP_SAMPLES
    ours, theirs = (
        bootstrap_scores(metric, runs, samples=resamples, seed=seed, progress=progress) for runs in (system, baseline)
    )
    interval = confidence_interval(ours - theirs)
    if test == "bootstrap":
        chance = np.abs(ours - theirs)
        chance = chance - chance.mean()
    elif test == "two_sided_bootstrap":
        chance = np.abs(ours - theirs - (ours - theirs).mean())
    else:
        resamples = RANDOMISATION_TRIALS if samples is None else samples
        chance = _exchanged_differences(metric, system, baseline, resamples, seed, progress)
    # For two systems of equal score, sacreBLEU's strict comparison would give the smallest possible p-value
    p_value = (int((chance > abs(difference)).sum()) + 1) / (resamples + 1) if difference else 1.0
    return PairedTest(difference, p_value, interval, test, resamples)


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
    generators = [np.random.default_rng(seed if run == 0 else [seed, run]) for run in range(len(system))]
    differences = np.empty(trials)
    # One random number gives 32 tosses of a coin: parts of a multiple of 32 draw the same as all trials at once
    for start, stop in _chunks(trials, len(system[0]), 32, f"randomisation, {metric.label}", progress):
        found = np.zeros(stop - start)
        for generator, ours, theirs in zip(generators, system, baseline, strict=True):
            keep = generator.integers(2, size=(stop - start, len(ours)), dtype=bool)
            first = ours.sum(axis=0) + keep.astype(np.float64) @ (theirs - ours)
            second = (ours + theirs).sum(axis=0) - first
            found += [metric.score(a) - metric.score(b) for a, b in zip(first, second, strict=True)]
        differences[start:stop] = np.abs(found) / len(system)
    return differences


def _chunks(samples: int, segments: int, multiple: int, description: str, progress: bool) -> Iterator[tuple[int, int]]:
    """Yields (first, end) of the samples drawn at once: few enough for memory, and a multiple of `multiple`."""
    step = multiple * max(1, _DRAWS_AT_ONCE // segments // multiple)
    with tqdm(total=samples, desc=description, unit="sample", disable=not progress, leave=False, delay=1) as bar:
        for start in range(0, samples, step):
            stop = min(start + step, samples)
            yield start, stop
            bar.update(stop - start)


def _check_runs(runs: Sequence[np.ndarray], samples: int) -> None:
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}.")
    if not runs:
        raise ValueError("There is nothing to resample: 0 runs.")
    if len({len(run) for run in runs}) > 1 or not len(runs[0]):
        raise ValueError(f"All runs must have the same segments, got {[len(run) for run in runs]} of them.")


def sign_flip_test(differences: Sequence[float], *, trials: int = RANDOMISATION_TRIALS, seed: int = SEED) -> float:
    """Tests whether the mean of differences, one for each corpus or language, is 0 (Fisher's randomisation test).

    The p-value is how often the mean would be at least as far from 0 with random signs. All combinations of signs are
    tried if there are at most `trials` of them, otherwise random ones.

    Args:
        differences: Differences of the scores, one for each corpus.
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
    observed = abs(values.sum())
    slack = 1e-9 * max(observed, 1.0)  # sums of the same numbers in another order
    if 2 ** len(values) <= trials:
        signs = 1.0 - 2.0 * (np.arange(2 ** len(values))[:, None] >> np.arange(len(values)) & 1)
        return float(np.mean(np.abs(signs @ values) >= observed - slack))
    signs = 1.0 - 2.0 * np.random.default_rng(seed).integers(2, size=(trials, len(values)))
    return float(((np.abs(signs @ values) >= observed - slack).sum() + 1) / (trials + 1))


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
