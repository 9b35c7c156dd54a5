# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""How sure a score is, and whether a difference between two systems is more than chance.

Seeds are not drawn with replacement, as segments are: of equal systems that depend on their seed
alone, one in five would seem to differ. The bootstrap draws segments and keeps the runs; what
another seed changes is drawn from Student's t distribution, with the variance between the seeds of
a system, pooled over the systems compared. The part of it that comes from single segments is in the
bootstrap's variance, too; it counts once, and never takes more from the bootstrap's interval than
that of the seeds gives back.

For systems of one run, the draws are those of `sacrebleu --paired-bs` and of `--paired-ar` with the
same seed and number of samples. All p-values here are of both sides, which those of `--paired-bs`
are not, and count differences by chance that are as large as the one found, which sacreBLEU does
not: that of two systems of the same score is 1."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal, Protocol

import numpy as np

from csan_hf_runtime.text_files import counted

from .corpus_metric import CorpusMetric

SEED = 12345  # sacreBLEU's
BOOTSTRAP_SAMPLES = 1000  # sacreBLEU's
RANDOMISATION_TRIALS = 10_000  # sacreBLEU's
DRAWS_AT_ONCE = 4_000_000
FEW_SEGMENTS = 30  # below it intervals and p-values are too small, as pages say
SIGNIFICANT = 0.05  # p-values below it, adjusted for the systems compared (Holm), get a star
_NORMAL_95 = NormalDist().inv_cdf(
    0.975
)  # standard deviations on either side of 95% of a normal distribution
_SEEDS_PER_SAMPLE = 100  # draws of other seeds, for each sample of segments


@dataclass(frozen=True)
class Resampled:
    """Scores of a system's runs, one for each training seed; other systems' by the same draws are
    comparable.
    """

    scores: np.ndarray  # on the test set, [R]
    draws: np.ndarray  # on resampled test sets, [samples, R]

    @property
    def mean(self) -> float:
        """The mean of the runs' scores."""
        return float(np.mean(self.scores))


@dataclass(frozen=True)
class SeedVariance:
    """How much runs of a system differ on this test set."""

    variance: float  # between the seeds of a system, pooled over systems
    of_segments: float  # what of it would be another on other segments
    degrees: int  # of freedom, the runs less the systems; with 0 nothing is known of other seeds


def resample(
    metric: CorpusMetric,
    runs: Sequence[np.ndarray],
    *,
    samples: int = BOOTSTRAP_SAMPLES,
) -> Resampled:
    """Scores runs on the test set and on resampled ones (Koehn, 2004), each of as many segments,
    with replacement.

    The draws are sacreBLEU's; unlike there, a few samples at a time are added up, as all at once
    would be gigabytes.

    Args:
        metric: The metric.
        runs: The metric's counts [S, K] of the segments, for each run of the system (one, or one
            for each seed).
        samples: How many test sets.
    """
    number, segments = len(runs), len(runs[0])
    stacked = runs[0] if number == 1 else np.concatenate(runs, axis=1)  # [S, R K]
    draws = np.empty((samples, number))
    generator = np.random.default_rng(SEED)
    for start, stop in _sample_chunks(samples, segments):
        drawn = generator.integers(segments, size=(stop - start, segments))
        weights = np.stack([np.bincount(row, minlength=segments) for row in drawn]).astype(
            np.float64
        )
        sums = (weights @ stacked).reshape(stop - start, number, -1)
        draws[start:stop] = np.apply_along_axis(metric.score, 2, sums)
    return Resampled(np.array([metric.score(run.sum(axis=0)) for run in runs]), draws)


def seed_variance(systems: Sequence[Resampled]) -> SeedVariance:
    """Estimates how much another seed changes the score of any of these systems, which have the
    same draws.
    """
    degrees = sum(len(system.scores) - 1 for system in systems)
    if not degrees:
        return SeedVariance(0.0, 0.0, 0)
    variance = sum(_squares(system.scores) for system in systems) / degrees
    of_segments = sum(_squares(system.draws - system.scores).mean() for system in systems) / degrees
    return SeedVariance(float(variance), float(of_segments), degrees)


def _squares(values: np.ndarray) -> np.ndarray:
    """Sum of squared deviations from the mean, over the last dimension."""
    return np.square(values - values.mean(axis=-1, keepdims=True)).sum(axis=-1)


def draw_scores(system: Resampled, variance: SeedVariance) -> np.ndarray:
    """Returns mean scores that a system may have on other segments and, 100 a sample, with other
    seeds if known.
    """
    return _with_other_seeds(system.draws.mean(axis=1), variance, 1 / len(system.scores))


def _with_other_seeds(drawn: np.ndarray, variance: SeedVariance, per_run: float) -> np.ndarray:
    if not variance.degrees:
        return drawn
    of_segments, centre = drawn.var(), drawn.mean()
    seeds = _draw_seeds(variance, per_run, len(drawn))
    # What segments add to the variance between seeds is in that already, less than expected if
    # seeds happen to agree
    counted_twice = min(
        variance.of_segments * per_run, (np.quantile(np.abs(seeds), 0.95) / _NORMAL_95) ** 2
    )
    kept = np.sqrt(max(0.0, 1 - counted_twice / of_segments)) if of_segments else 1.0
    return (centre + kept * (drawn - centre)[:, None] + seeds).ravel()


def _draw_seeds(variance: SeedVariance, per_run: float, samples: int) -> np.ndarray:
    """Returns what other seeds may add to a mean score or to a difference of two, [samples, 100].

    `variance` has 1 degree of freedom or more; `per_run` is 1 / the number of runs, for a
    difference the sum of both."""
    noise = np.random.default_rng([SEED, 1]).standard_t(
        variance.degrees, size=(samples, _SEEDS_PER_SAMPLE)
    )
    return np.sqrt(variance.variance * per_run) * noise


def unequal_seeds_p_value(systems: Sequence[Resampled]) -> float:
    """Tests whether the seeds of one system differ more than those of the others (Cochran's C).

    Returns how often the largest variance of equal systems (10,000 random ones) is at least as
    large a share of all; 1 with fewer than two systems of several runs, or if no seeds differ."""
    scores = [system.scores for system in systems if len(system.scores) > 1]
    variances = np.array([system_scores.var(ddof=1) for system_scores in scores])
    if len(variances) < 2 or not variances.any():
        return 1.0
    degrees = np.array([len(system_scores) - 1 for system_scores in scores])
    size = (RANDOMISATION_TRIALS, len(degrees))
    chance = np.random.default_rng(SEED).chisquare(degrees, size=size) / degrees
    share = chance.max(axis=1) / chance.sum(axis=1)
    as_unequal = (share >= variances.max() / variances.sum()).sum()
    return float((as_unequal + 1) / (RANDOMISATION_TRIALS + 1))


def confidence_interval(scores: np.ndarray) -> tuple[float, float]:
    """Returns the bounds between which 95% of the scores lie; 2.5% of them are left out at either
    end.
    """
    ordered = np.sort(scores)
    out = len(ordered) // 40
    return float(ordered[out]), float(ordered[len(ordered) - out - 1])


def _sample_chunks(samples: int, segments: int, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Yields (first, end) of the samples drawn at once: few enough for memory, and a multiple of
    `multiple`.
    """
    step = multiple * max(1, DRAWS_AT_ONCE // segments // multiple)
    for start in range(0, samples, step):
        yield start, min(start + step, samples)


Test = Literal["bootstrap", "randomisation"]


@dataclass(frozen=True)
class PairedTest:
    """A system beside a baseline; of several runs, means over the seeds."""

    difference: float  # the system's score minus the baseline's
    p_value: float  # two-sided: how often chance alone makes a difference at least as large
    interval: tuple[float, float]  # 95% confidence interval of the difference, by bootstrap
    test: Test
    samples: int  # resamples or trials
    degrees: (
        int  # of freedom of the variance between seeds; with 0, nothing here is about other seeds
    )


def paired_test(
    metric: CorpusMetric,
    system: Sequence[np.ndarray],
    baseline: Sequence[np.ndarray],
    *,
    test: Test = "bootstrap",
    samples: int | None = None,
) -> PairedTest:
    """Tests whether a system differs from a baseline on the same segments.

    - `"bootstrap"` (Koehn, 2004): how often the difference on a resampled test set is as far from
      its mean, to either side, as the real difference is from 0. (sacreBLEU and Moses look at one
      side: of equal systems about one in ten has a p-value below 0.05 there. The interval is of
      percentiles: of skewed differences it may leave out 0 where the p-value is above 0.05.)
    - `"randomisation"` (Riezler and Maxwell, 2005): how often two systems made by exchanging
      hypotheses at random, segment by segment, differ by as much as the real ones. The runs of a
      segment are exchanged together, as they are much alike; the p-value is about these runs, and
      only the interval about others.

    Args:
        metric: The metric.
        system: The metric's counts [S, K] of the segments, for each run; see `resample`.
        baseline: The same for the baseline.
        test: Which of the two tests; where there are several runs, the bootstrap is about other
            seeds, too.
        samples: None = 1,000 resamples, or 10,000 trials.

    Raises:
        ValueError: If the numbers of segments differ, or those of runs in a randomisation.
    """
    check_test(test, len(system), len(baseline))
    if len(segments := {len(run) for run in (*system, *baseline)}) > 1:
        raise ValueError(f"All runs must have the same segments, got {sorted(segments)} of them.")
    resamples = BOOTSTRAP_SAMPLES
    trials = RANDOMISATION_TRIALS
    if samples is not None and test == "bootstrap":
        resamples = samples
    elif samples is not None:
        trials = samples
    ours, theirs = (resample(metric, runs, samples=resamples) for runs in (system, baseline))
    bootstrap = compare_resampled(ours, theirs, seed_variance([ours, theirs]))
    if test == "bootstrap":
        return bootstrap
    return randomised(bootstrap, metric, system, baseline, trials=trials)


def compare_resampled(system: Resampled, baseline: Resampled, variance: SeedVariance) -> PairedTest:
    """Tests whether a system differs from a baseline with the same draws, by a bootstrap; see
    `paired_test`.
    """
    difference = system.mean - baseline.mean
    drawn = _with_other_seeds(
        system.draws.mean(axis=1) - baseline.draws.mean(axis=1),
        variance,
        1 / len(system.scores) + 1 / len(baseline.scores),
    )
    # Not around the mean of what is drawn: Student's t of 1 degree of freedom has none
    chance = np.abs(drawn - (system.draws.mean() - baseline.draws.mean()))
    samples = len(system.draws)
    p_value = _p_value(chance, difference, samples)
    return PairedTest(
        difference, p_value, confidence_interval(drawn), "bootstrap", samples, variance.degrees
    )


def _p_value(chance: np.ndarray, difference: float, samples: int) -> float:
    """Returns how often chance is at least as large as a difference, which counts as one of the
    samples; no less than 1 of them.
    """
    # Equal sums may differ in their last digits
    as_large = chance >= abs(difference) * (1 - 1e-9)
    # Of 100 draws a sample, where seeds vary
    return (int(as_large.sum()) * samples / len(chance) + 1) / (samples + 1)


def check_test(test: str, runs: int, baseline_runs: int) -> None:
    """Raises `ValueError` unless a test takes these numbers of runs."""
    if test == "randomisation" and runs != baseline_runs:
        raise ValueError(
            f"{counted(runs, 'run')} and {baseline_runs} of the baseline: the randomisation test "
            "needs equally many; give as many, or use the bootstrap."
        )


def randomised(
    bootstrap: PairedTest,
    metric: CorpusMetric,
    system: Sequence[np.ndarray],
    baseline: Sequence[np.ndarray],
    *,
    trials: int = RANDOMISATION_TRIALS,
) -> PairedTest:
    """Returns a bootstrap's result with the p-value of a randomisation; see `paired_test`."""
    generator = np.random.default_rng(SEED)
    differences = np.empty(trials)
    segments = len(system[0])
    # One random number gives 32 tosses of a coin: parts of a multiple of 32 draw the same as all
    # trials at once
    for start, stop in _sample_chunks(trials, segments, multiple=32):
        exchanged = generator.integers(2, size=(stop - start, segments), dtype=bool)
        weights = exchanged.astype(np.float64)
        difference = np.zeros(stop - start)
        for ours, theirs in zip(system, baseline, strict=True):
            first = ours.sum(axis=0) + weights @ (theirs - ours)
            second = (ours + theirs).sum(axis=0) - first
            difference += [
                metric.score(a) - metric.score(b) for a, b in zip(first, second, strict=True)
            ]
        differences[start:stop] = np.abs(difference) / len(system)
    p_value = _p_value(differences, bootstrap.difference, trials)
    return replace(bootstrap, test="randomisation", samples=trials, p_value=p_value)


def sign_flip_test(
    differences: Sequence[float],
    *,
    variance: SeedVariance | None = None,
    per_run: float = 0.0,
) -> float:
    """Tests whether the mean of differences, one for each corpus or language, is 0 (Fisher's
    randomisation test).

    The p-value is how often the mean would be at least as far from 0 with random signs. All
    combinations of signs are tried if there are at most 10,000 of them, otherwise random ones.

    Args:
        differences: Differences of the scores, one for each corpus.
        variance: That between training seeds, if another seed moves all differences at once, as
            where one training serves all corpora; the means with random signs are then moved, too.
        per_run: See `_draw_seeds`.

    Returns:
        The two-sided p-value, which is no less than 2 / 2^n for n corpora.
    """
    values = np.asarray(differences, dtype=np.float64)
    observed = abs(values.mean())
    slack = 1e-9 * max(observed, 1.0)  # means of the same numbers in another order
    trials = RANDOMISATION_TRIALS
    is_exact = 2 ** len(values) <= trials
    if is_exact:
        flipped = np.arange(2 ** len(values))[:, None] >> np.arange(len(values)) & 1
    else:
        flipped = np.random.default_rng(SEED).integers(2, size=(trials, len(values)))
    chance = (1.0 - 2.0 * flipped) @ values[:, None] / len(values)
    further = np.mean(np.abs(chance) >= observed - slack)
    if variance is not None and variance.degrees:
        moved = chance + _draw_seeds(variance, per_run, len(chance))
        # Not less than before: half of what is moved away from the real signs' own mean would count
        # no more
        further = max(further, np.mean(np.abs(moved) >= observed - slack))
    return float(further if is_exact else (further * trials + 1) / (trials + 1))


def holm_adjusted(p_values: Sequence[float]) -> list[float]:
    """Returns p-values of several tests in the same order, adjusted for their number (Holm, 1979),
    at most 1.

    However the tests depend on each other, rejecting all up to α rejects a true one with
    probability α at most."""
    ordered = np.argsort(p_values, kind="stable")
    tests_left = np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[ordered] = np.maximum.accumulate(tests_left * np.asarray(p_values)[ordered])
    return np.minimum(adjusted, 1).tolist()


class Tested(Protocol):
    """Subject of a test, with a place for the test's p-value adjusted for the systems tested."""

    adjusted: float | None


def adjust_p_values(family: Iterable[tuple[Tested, PairedTest | None]]) -> None:
    """Sets p-values adjusted for the number of tests (`holm_adjusted`); None is no test."""
    tested = [(entry, test.p_value) for entry, test in family if test is not None]
    p_values = holm_adjusted([p_value for _, p_value in tested])
    for (entry, _), adjusted in zip(tested, p_values, strict=True):
        entry.adjusted = adjusted


def shown_p_value(adjusted: float) -> str:
    """Writes an adjusted p-value with three decimals, and with a star if it is significant."""
    return ("<0.001" if adjusted < 0.001 else f"{adjusted:.3f}") + "*" * (adjusted < SIGNIFICANT)
