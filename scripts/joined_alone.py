#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What joining costs: a suite's joined texts beside the same sentences translated one by one."""

import itertools
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from datasets import Dataset
from measuring import Row, print_table

from csan_hf.data.corpora import load_translation_dataset
from csan_hf.data.joining import joined
from csan_hf.evaluation.metrics import CorpusMetric
from csan_hf.evaluation.significance import paired_test
from csan_hf.lab.suites import load_suite
from csan_hf.lab.suites.records import SuiteRecords
from csan_hf.lab.suites.texts import Texts
from csan_hf_cli import run

PUBLISHED = Path(__file__).parent.parent / "model_cards" / "suites"


def joined_alone(suite: str, /, *, data_dir: str | None = None, system: str = "long") -> None:
    """Prints BLEU of joined texts, and of their sentences translated one by one and then joined.

        python scripts/joined_alone.py keep_place
        python scripts/joined_alone.py keep_place_multi30k --data_dir data/multi30k

    The translations are those published in model_cards/suites; nothing is trained or translated.
    The interval of the difference is for other texts and seeds (bootstrap).

    Args:
        suite: a suite with a table of lengths: keep_place, keep_place_multi30k, lengths...
        data_dir: the folder with its corpus
        system: the system whose translations are scored
    """
    print_table(rows(suite, data_dir, system))


def rows(suite: str, data_dir: str | None, system: str) -> Iterator[Row]:
    """A row for each number of sentences joined."""
    loaded = load_suite(suite, data_dir=data_dir)
    if loaded.lengths is None:
        raise ValueError(f"{suite} joins no texts; take keep_place, for example")
    texts = Texts(SuiteRecords(loaded, PUBLISHED / suite))
    runs = [run for run in texts.runs if run.system == system]
    if not runs:
        names = ", ".join({run.system: None for run in texts.runs})
        raise ValueError(f"{suite} has no published runs of {system!r}, only of {names}")
    title, _ = loaded.lengths
    columns = loaded.tables[title]
    data, singles = columns["1"]
    corpus, _ = load_translation_dataset(runs[0].recipe_in(Path()).data_arguments(), singles)
    references = corpus[singles[0]]["target"]
    metric = texts.metric(data, references)
    for count, (_, splits) in columns.items():
        if count == "1":
            continue
        yield {"joined": count} | compare(
            metric,
            references=join(references, int(count)),
            together=[texts.hypotheses(run, splits) for run in runs],
            alone=[join(texts.hypotheses(run, singles), int(count)) for run in runs],
        )


def compare(
    metric: CorpusMetric,
    *,
    references: list[str],
    together: list[list[str]],
    alone: list[list[str]],
) -> Row:
    """Both scores of the texts, by run, and their difference."""
    together_counts = [metric.segment_counts(texts, references) for texts in together]
    alone_counts = [metric.segment_counts(texts, references) for texts in alone]
    test = paired_test(metric, together_counts, alone_counts)
    low, high = test.interval
    return {
        "texts": str(len(references)),
        "translated joined": scores(metric, together_counts),
        "translated one by one, then joined": scores(metric, alone_counts),
        "difference": f"{test.difference:+.1f} [{low:+.1f}, {high:+.1f}]",
        "p": f"{test.p_value:.3f}",
    }


def join(sentences: Sequence[str], count: int) -> list[str]:
    """Joins sentences as a corpus joins its pairs."""
    pairs = Dataset.from_dict({"source": sentences, "target": sentences})
    return joined(pairs, itertools.repeat(count))["target"]


def scores(metric: CorpusMetric, runs: list[np.ndarray]) -> str:
    """The mean score, and that of each run."""
    by_run = [metric.score(counts.sum(axis=0)) for counts in runs]
    return f"{statistics.mean(by_run):.1f} ({', '.join(f'{score:.1f}' for score in by_run)})"


if __name__ == "__main__":
    sys.exit(run(joined_alone, sys.argv[1:]))
