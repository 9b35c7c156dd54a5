# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""How sure a score is: other segments by bootstrap, other training seeds by what the seeds of all systems show.

Three seeds drawn with replacement, as segments are, say far too little of what the next seed may do: of equal systems
that depend on their seed alone, one in five would seem to differ. So the bootstrap draws segments and keeps the runs;
what another seed changes is drawn from Student's t distribution, with the variance between the seeds of a system,
pooled over the systems compared (an analysis of variance, seeds within systems). Part of that variance comes from
single segments and is in the bootstrap's, too; it counts once, and never takes more from the bootstrap's interval than
that of the seeds gives back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from tqdm.auto import tqdm

from .metrics import CorpusMetric

SEED = 12345  # sacreBLEU's
BOOTSTRAP_SAMPLES = 1000  # sacreBLEU's
_DRAWS_AT_ONCE = 4_000_000
_NORMAL_95 = NormalDist().inv_cdf(0.975)  # standard deviations on either side of 95% of a normal distribution
_SEEDS_PER_SAMPLE = 100  # draws of other seeds, for each sample of segments


@dataclass(frozen=True)
class Resampled:
    """Scores of a system's runs, one for each training seed.

    Attributes:
        scores: On the test set, [R].
        draws: On resampled test sets, [samples, R]; those of other systems by the same draws are on the same segments.
    """

    scores: np.ndarray
    draws: np.ndarray

    @property
    def mean(self) -> float:
        """The mean of the runs' scores."""
        return float(np.mean(self.scores))


@dataclass(frozen=True)
class SeedVariance:
    """How much runs of a system differ.

    Attributes:
        variance: Variance between the seeds of a system, on this test set, pooled over systems.
        of_segments: What of it would be another on other segments.
        degrees: Degrees of freedom, the number of runs less that of systems; with 0 nothing is known of other seeds.
    """

    variance: float
    of_segments: float
    degrees: int


def resample(
    metric: CorpusMetric,
    runs: Sequence[np.ndarray],
    *,
    samples: int = BOOTSTRAP_SAMPLES,
    seed: int = SEED,
    progress: bool = False,
) -> Resampled:
    """Scores runs on the test set and on resampled ones (Koehn, 2004), each of as many segments, with replacement.

    The draws are sacreBLEU's. It holds the counts of all samples at once, which are gigabytes for a hundred thousand
    sentences, and knows only its own metrics; here a few samples at a time are added up, for any function of counts.

    Args:
        metric: The metric.
        runs: The metric's counts [S, K] of the segments, for each run of the system (one, or one for each seed).
        samples: How many test sets.
        seed: Seed of the draws; it must be the same for all systems that are compared.
        progress: Shows a bar on standard error.

    Raises:
        ValueError: If there is no run, the runs differ in segments, or samples is below 1.
    """
    check_runs(runs, samples)
    number, segments = len(runs), len(runs[0])
    stacked = runs[0] if number == 1 else np.concatenate(runs, axis=1)  # [S, R K]
    draws = np.empty((samples, number))
    generator = np.random.default_rng(seed)
    for start, stop in sample_chunks(samples, segments, 1, f"bootstrap, {metric.label}", progress):
        drawn = generator.integers(segments, size=(stop - start, segments))
        weights = np.stack([np.bincount(row, minlength=segments) for row in drawn]).astype(np.float64)
        sums = (weights @ stacked).reshape(stop - start, number, -1)
        draws[start:stop] = [[metric.score(counts) for counts in row] for row in sums]
    return Resampled(np.array([metric.score(run.sum(axis=0)) for run in runs]), draws)


def seed_variance(systems: Sequence[Resampled]) -> SeedVariance:
    """Estimates how much another seed changes a score, from systems of which some have several runs.

    Args:
        systems: The systems, with the same draws. All are taken to depend on their seed alike.
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


def draw_scores(system: Resampled, variance: SeedVariance, *, seed: int = SEED) -> np.ndarray:
    """Returns mean scores that a system may have with other segments and seeds.

    Args:
        system: The system.
        variance: That between seeds; with 0 degrees of freedom, only segments are others.
        seed: Seed of the draws.

    Returns:
        As many scores as there are samples or, with other seeds, 100 times as many.
    """
    return _with_other_seeds(system.draws.mean(axis=1), variance, 1 / len(system.scores), seed)


def draw_differences(
    system: Resampled, baseline: Resampled, variance: SeedVariance, *, seed: int = SEED
) -> np.ndarray:
    """Returns differences of mean scores, a system's less its baseline's, with other segments and seeds.

    Args:
        system: The system.
        baseline: The baseline, with the same draws.
        variance: See `draw_scores`.
        seed: Seed of the draws.

    Returns:
        As `draw_scores`.
    """
    runs = 1 / len(system.scores) + 1 / len(baseline.scores)
    return _with_other_seeds(system.draws.mean(axis=1) - baseline.draws.mean(axis=1), variance, runs, seed)


def _with_other_seeds(drawn: np.ndarray, variance: SeedVariance, per_run: float, seed: int) -> np.ndarray:
    if not variance.degrees:
        return drawn
    of_segments, centre = drawn.var(), drawn.mean()
    seeds = draw_seeds(variance, per_run, len(drawn), seed=seed)
    # What segments add to the variance between seeds is in that already, less than expected if seeds happen to agree
    counted_twice = min(variance.of_segments * per_run, (np.quantile(np.abs(seeds), 0.95) / _NORMAL_95) ** 2)
    kept = np.sqrt(max(0.0, 1 - counted_twice / of_segments)) if of_segments else 1.0
    return (centre + kept * (drawn - centre)[:, None] + seeds).ravel()


def draw_seeds(variance: SeedVariance, per_run: float, samples: int, *, seed: int = SEED) -> np.ndarray:
    """Returns what other seeds may add to a mean score or to a difference of two, [samples, 100].

    Args:
        variance: That between seeds, with 1 degree of freedom or more.
        per_run: 1 / the number of runs; for a difference, the sum of both.
        samples: How many samples of something else to draw for.
        seed: Seed of the draws.
    """
    noise = np.random.default_rng([seed, 1]).standard_t(variance.degrees, size=(samples, _SEEDS_PER_SAMPLE))
    return np.sqrt(variance.variance * per_run) * noise


def unequal_seeds_p_value(systems: Sequence[Resampled], *, draws: int = 10_000, seed: int = SEED) -> float:
    """Tests whether the system whose seeds differ most differs from the others in that (Cochran's C).

    Args:
        systems: The systems; those with one run say nothing.
        draws: Random variances of equal systems to compare with.
        seed: Seed of the draws.

    Returns:
        How often the largest variance of equal systems is at least as large a share of all; 1 with fewer than two
        systems of several runs, or if none of their seeds differ.
    """
    scores = [system.scores for system in systems if len(system.scores) > 1]
    variances = np.array([own.var(ddof=1) for own in scores])
    if len(variances) < 2 or not variances.any():
        return 1.0
    degrees = np.array([len(own) - 1 for own in scores])
    chance = np.random.default_rng(seed).chisquare(degrees, size=(draws, len(degrees))) / degrees
    share = chance.max(axis=1) / chance.sum(axis=1)
    return float(((share >= variances.max() / variances.sum()).sum() + 1) / (draws + 1))


def confidence_interval(scores: np.ndarray) -> tuple[float, float]:
    """Returns the bounds between which 95% of the scores lie; 2.5% of them are left out at either end."""
    ordered = np.sort(scores)
    out = len(ordered) // 40
    return float(ordered[out]), float(ordered[len(ordered) - out - 1])


def sample_chunks(
    samples: int, segments: int, multiple: int, description: str, progress: bool
) -> Iterator[tuple[int, int]]:
    """Yields (first, end) of the samples drawn at once: few enough for memory, and a multiple of `multiple`."""
    step = multiple * max(1, _DRAWS_AT_ONCE // segments // multiple)
    with tqdm(total=samples, desc=description, unit="sample", disable=not progress, leave=False, delay=1) as bar:
        for start in range(0, samples, step):
            stop = min(start + step, samples)
            yield start, stop
            bar.update(stop - start)


def check_runs(runs: Sequence[np.ndarray], samples: int) -> None:
    """Checks what is to be resampled.

    Raises:
        ValueError: If there is no run, the runs differ in segments or have none, or samples is below 1.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}.")
    if not runs:
        raise ValueError("There is nothing to resample: 0 runs.")
    if len({len(run) for run in runs}) > 1 or not len(runs[0]):
        raise ValueError(f"All runs must have the same segments, got {[len(run) for run in runs]} of them.")
