# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What a report says, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.figure import Figure

from csan_hf.evaluation.metrics import CorpusMetric
from csan_hf.evaluation.significance import PairedTest, Test


@dataclass(frozen=True)
class ScoreCell:
    """A score in the table: with its 95% interval and, for a baseline, the test of the first system against it."""

    score: float
    interval: tuple[float, float]
    test: PairedTest | None = None


@dataclass(frozen=True)
class ReportPlot:
    """A figure of the report, with its numbers for those who do not see it.

    Attributes:
        name: A unique name, for files.
        title: What it shows.
        figure: The picture.
        columns: Headings of the table of its numbers.
        rows: The table's cells.
        system: The name of the system that it is about; None = all of them.
    """

    name: str
    title: str
    figure: Figure
    columns: list[str]
    rows: list[list[str]]
    system: str | None = None


@dataclass(frozen=True)
class WordAlignment:
    """The alignment of a sentence.

    Attributes:
        matrix: Integers from -99 to 99 [target words][source words] that say how strongly the words are related.
        links: The best source word for each target word, as (source word, target word), counted from 0. The rounded
            matrix does not show which of two is better.
    """

    matrix: list[list[int]]
    links: list[tuple[int, int]]


@dataclass
class Report:
    """The whole content of a report.

    Attributes:
        title: Its heading.
        metrics: The metrics, in order; the first sorts and plots.
        sources: The source sentences that are listed.
        references: A reference each.
        systems: Names; the first is compared with each of the others.
        hypotheses: For each system its translations, those of its first run.
        scores: For each system its cells, as many as metrics.
        segment_scores: For each system and metric the score of every sentence.
        plots: The figures.
        alignments: For each system, by number of the sentence, its alignment.
        test: The test of significance.
        runs: For each system how many seeds it was trained with.
        sentences: Number of sentences in the test set, on which scores and plots are based; None = those listed.
    """

    title: str
    metrics: list[CorpusMetric]
    sources: Sequence[str]
    references: Sequence[str]
    systems: list[str]
    hypotheses: list[Sequence[str]]
    scores: list[list[ScoreCell]]
    segment_scores: list[list[np.ndarray]]
    plots: list[ReportPlot] = field(default_factory=list)
    alignments: list[dict[int, WordAlignment]] = field(default_factory=list)
    test: Test = "bootstrap"
    runs: list[int] = field(default_factory=list)
    sentences: int | None = None
