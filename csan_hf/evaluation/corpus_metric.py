# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Base of all metrics: counts by segment, and a score made of their sums."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from itertools import islice, zip_longest
from typing import Any, ClassVar, Literal

import datasets
import evaluate
import numpy as np
from tqdm.auto import tqdm

from csan_hf_runtime.text_files import VARIANTS

Lines = Sequence[str]
Corpus = Collection[str]
"""Anything that has a length and can be gone through; a `csan_hf_runtime.text_files.TextFile` keeps
no line in memory.
"""


class CorpusMetric(evaluate.Metric, ABC):
    """A score of a corpus that is a function of counts added up over its segments.

    Everything else follows from the two halves, `statistics` and `score`: the corpus score, the
    scores of single sentences and of groups of them, and significance by resampling. It is a metric
    of the library evaluate, without network: `metric.compute(predictions=…, references=…)`,
    `add_batch`, `evaluate.combine`.

    A subclass says what it is in class attributes.
    """

    name: ClassVar[str]  # its key in results and recipes, such as "bleu"
    label: ClassVar[str]  # what people read, such as "BLEU"
    summary: ClassVar[str] = (
        ""  # what it measures; by default the first line of the class's description
    )
    citation: ClassVar[str] = ""
    decimals: ClassVar[int] = 2  # after the point when printed
    greater_is_better: ClassVar[bool] = True
    # What a segment is: text as people write it, tokens with spaces between them, or alignments in
    # Pharaoh's format
    needs: ClassVar[Literal["text", "tokens", "alignments"]] = "text"
    needs_sources: ClassVar[bool] = False  # whether `statistics` needs the source sentences, too
    uses_tokenizer: ClassVar[bool] = (
        False  # whether the constructor takes `tokenize`, one of sacreBLEU's tokenizers
    )
    takes_variants: ClassVar[bool] = False  # whether a segment may have several references
    # Whether all references that a source has in the corpus are right, as a word's pronunciations
    takes_all_of_a_source: ClassVar[bool] = False
    segments_at_once: ClassVar[int | None] = 1000  # that `statistics` is given at most; None = all
    on_hub: ClassVar[bool] = (
        False  # whether https://hf.co/metrics has it by this name, for a card's metadata
    )

    def __init__(self) -> None:
        super().__init__(keep_in_memory=True)

    def check_requirements(self) -> None:
        """Raises `OSError` if what the metric needs besides csan_hf is not installed, before
        translations are made.
        """

    @abstractmethod
    def statistics(
        self, predictions: Lines, references: Lines, sources: Lines | None = None
    ) -> np.ndarray:
        """Returns the counts of each segment, float64 [S, K]; a single prediction and reference
        make a row.
        """

    @abstractmethod
    def score(self, sums: np.ndarray) -> float:
        """Returns the score of segments whose counts add up to `sums` [K]."""

    def segment_score(self, counts: np.ndarray) -> float:
        """Returns the score of one segment from its counts [K]."""
        return self.score(counts)

    def details(self, sums: np.ndarray) -> dict[str, Any]:
        """Returns further values that belong to the score, by name."""
        return {}

    @property
    def signature(self) -> str | None:
        """The settings of the metric, in sacreBLEU's form; None if it has none."""
        return None

    def counts(
        self,
        predictions: Corpus,
        references: Corpus,
        sources: Corpus | None = None,
        *,
        progress: bool = False,
    ) -> Iterator[np.ndarray]:
        """Yields the counts of a corpus in order, a part of the segments at a time, float64 [part,
        K].

        Args:
            predictions: The hypotheses.
            references: As many references.
            sources: As many source sentences, for metrics that need them.
            progress: Shows a bar on standard error.

        Raises:
            ValueError: If the numbers of segments differ or are zero, or sources are missing.
        """
        check_segments(predictions, references, sources)
        if self.needs_sources and sources is None:
            raise ValueError(f"{self.label} compares with the source sentences: pass sources, too.")
        if self.takes_all_of_a_source and sources is not None:
            references = _with_variants(sources, references)
        columns = [predictions, references]
        if sources is not None:
            columns.append(sources)
        rows = zip(*columns, strict=True)
        total = len(predictions)
        with tqdm(
            total=total, desc=self.label, unit=" sentences", disable=not progress, delay=1
        ) as bar:
            while part := list(islice(rows, self.segments_at_once or total)):
                yield self.statistics(*zip(*part, strict=True))
                bar.update(len(part))

    def segment_counts(self, *corpus: Corpus | None, progress: bool = False) -> np.ndarray:
        """Returns the counts of all segments, float64 [S, K], which resampling needs; for arguments
        see `counts`.
        """
        return np.concatenate(list(self.counts(*corpus, progress=progress)))  # type: ignore[arg-type]

    def results(self, *corpus: Corpus | None, progress: bool = False) -> dict[str, Any]:
        """Returns the score under the metric's name, `NAME_signature` if it has one, and `details`;
        see `counts`.
        """
        sums: Any = sum(part.sum(axis=0) for part in self.counts(*corpus, progress=progress))  # type: ignore[arg-type]
        results: dict[str, Any] = {self.name: self.score(sums)}
        if self.signature is not None:
            results[f"{self.name}_signature"] = self.signature
        return results | self.details(sums)

    @classmethod
    def format(cls, score: float) -> str:
        """Writes a score with the metric's decimals."""
        return f"{score:.{cls.decimals}f}"

    def _info(self) -> Any:
        columns = ["predictions", "references", *(["sources"] if self.needs_sources else [])]
        return evaluate.MetricInfo(
            description=self.summary or str(self.__doc__).partition("\n")[0],
            citation=self.citation,
            inputs_description=f"{', '.join(columns)}: as many strings each ({self.needs}).",
            features=datasets.Features({column: datasets.Value("string") for column in columns}),
        )

    def _compute(
        self, predictions: Lines, references: Lines, sources: Lines | None = None
    ) -> dict[str, Any]:
        return self.results(predictions, references, sources)


def _with_variants(sources: Corpus, references: Corpus) -> list[str]:
    """For each source all references that it has."""
    variants: dict[str, dict[str, None]] = {}
    for source, reference in zip(sources, references, strict=True):
        variants.setdefault(source, {})[reference] = None
    return [VARIANTS.join(variants[source]) for source in sources]


class RateMetric(CorpusMetric):
    """100 times one count over another, of each segment with the reference that fits best."""

    takes_variants = True
    num_refs = 1
    """Most references that a segment had."""

    @abstractmethod
    def count(self, prediction: str, reference: str) -> tuple[float, float]:
        """Returns the two counts of a segment."""

    def statistics(
        self, predictions: Lines, references: Lines, sources: Lines | None = None
    ) -> np.ndarray:
        """Returns the two counts of each segment."""
        best = max if self.greater_is_better else min
        rows = []
        for prediction, variants in zip(predictions, references, strict=True):
            counts = [self.count(prediction, variant) for variant in variants.split(VARIANTS)]
            rows.append(best(counts, key=self.score))
            self.num_refs = max(self.num_refs, len(counts))
        return np.array(rows, dtype=np.float64)

    def score(self, sums: np.ndarray | tuple[float, float]) -> float:
        """Returns the rate, times 100."""
        return float(100 * sums[0] / sums[1])


class SacrebleuMetric(CorpusMetric):
    """A metric of sacreBLEU: `scorer_class` with `options`, and `tokenize` if given."""

    takes_variants = True

    scorer_class: ClassVar[Any]
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, tokenize: str | None = None) -> None:
        super().__init__()
        self.scorer_options = dict(self.options)
        if tokenize is not None:
            self.scorer_options["tokenize"] = tokenize
        self.scorer = self.scorer_class(**self.scorer_options)
        self.scorer.num_refs = 1  # part of the signature

    def statistics(
        self, predictions: Lines, references: Lines, sources: Lines | None = None
    ) -> np.ndarray:
        """Returns sacreBLEU's counts of each segment, float64 [S, K]."""
        check_segments(predictions, references)
        streams = list(zip_longest(*(variants.split(VARIANTS) for variants in references)))
        statistics = self.scorer._extract_corpus_statistics(predictions, streams)
        return np.array(statistics, dtype=np.float64)

    def score(self, sums: np.ndarray) -> float:
        """Returns sacreBLEU's score."""
        return float(self.scorer._compute_score_from_stats(sums.tolist()).score)

    @property
    def signature(self) -> str:
        """sacreBLEU's signature."""
        return str(self.scorer.get_signature())


def check_segments(predictions: Corpus, references: Corpus, sources: Corpus | None = None) -> None:
    """Raises `ValueError` unless predictions, references and sources are equally many, and at least
    one.
    """
    for name, lines in (("hypotheses", predictions), ("sources", sources)):
        if lines is not None and not len(lines) == len(references) > 0:
            raise ValueError(
                f"{len(lines)} {name} and {len(references)} references: there must be one for "
                "each, and something to score."
            )
