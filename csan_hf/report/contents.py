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
        name: a unique name, for files.
        title: what it shows.
        figure: the picture.
        columns: headings of the table of its numbers.
        rows: the table's cells.
        system: the name of the system that it is about; None = all of them.
    """

    name: str
    title: str
    figure: Figure
    columns: list[str]
    rows: list[list[str]]
    system: str | None = None


@dataclass
class Report:
    """The whole content of a report.

    Attributes:
        title: its heading.
        metrics: the metrics, in order; the first sorts and plots.
        sources: the source sentences that are listed.
        references: a reference each.
        systems: names; the first is compared with each of the others.
        hypotheses: for each system its translations, those of its first run.
        scores: for each system its cells, as many as metrics.
        segment_scores: for each system and metric the score of every sentence.
        plots: the figures.
        alignments: for each system, by number of the sentence, integers from -99 to 99 [target words][source words]
            that say how strongly the words are related.
        test: the test of significance.
        runs: for each system how many seeds it was trained with.
        sentences: number of sentences in the test set, on which scores and plots are based; None = those listed.
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
    alignments: list[dict[int, list[list[int]]]] = field(default_factory=list)
    test: Test = "bootstrap"
    runs: list[int] = field(default_factory=list)
    sentences: int | None = None
