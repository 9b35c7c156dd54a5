#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What joining costs: a suite's joined texts beside the same sentences translated one by one."""

import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from datasets import Dataset
from measuring import Row, print_table

from csan_hf.data.corpora import load_translation_dataset
from csan_hf.data.joining import joined
from csan_hf.evaluation.significance import paired_test
from csan_hf.suites import load_suite
from csan_hf.suites.records import SuiteRecords
from csan_hf.suites.texts import Texts
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
    loaded = load_suite(suite, data_dir=data_dir)
    if loaded.lengths is None:
        raise ValueError(f"{suite} has no table of lengths: nothing is joined there")
    texts = Texts(SuiteRecords(loaded, PUBLISHED / suite))
    print_table(rows(texts, system))


def rows(texts: Texts, system: str) -> Iterator[Row]:
    """A row for each length."""
    runs = [run for run in texts.runs if run.system == system]
    if not runs:
        raise ValueError(f"{system!r} has no published runs, only {', '.join(texts.suite.systems)}")
    title, _ = texts.suite.lengths
    columns = texts.suite.tables[title]
    data, singles = columns["1"]
    corpus, _ = load_translation_dataset(runs[0].recipe_in(Path()).data_arguments(), singles)
    references = corpus[singles[0]]["target"]
    metric = texts.metric(data, references)
    for count, (_, splits) in columns.items():
        if count == "1":
            continue
        expected = join(references, int(count))
        together = [texts.hypotheses(run, splits) for run in runs]
        alone = [join(texts.hypotheses(run, singles), int(count)) for run in runs]
        joined_counts = [metric.segment_counts(hypotheses, expected) for hypotheses in together]
        alone_counts = [metric.segment_counts(hypotheses, expected) for hypotheses in alone]
        test = paired_test(metric, joined_counts, alone_counts)
        by_seed = [metric.score(counts.sum(axis=0)) for counts in joined_counts]
        alone_by_seed = [metric.score(counts.sum(axis=0)) for counts in alone_counts]
        low, high = test.interval
        yield {
            "joined": count,
            "texts": str(len(expected)),
            "translated joined": scores(by_seed),
            "translated one by one, then joined": scores(alone_by_seed),
            "difference": f"{test.difference:+.1f} [{low:+.1f}, {high:+.1f}]",
            "p": f"{test.p_value:.3f}",
        }


def join(sentences: Sequence[str], count: int) -> list[str]:
    """Joins sentences as a corpus joins its pairs."""
    pairs = Dataset.from_dict({"source": sentences, "target": sentences})
    return joined(pairs, itertools.repeat(count))["target"]


def scores(by_seed: list[float]) -> str:
    """The mean and the scores of the seeds."""
    mean = sum(by_seed) / len(by_seed)
    return f"{mean:.1f} ({', '.join(f'{score:.1f}' for score in by_seed)})"


if __name__ == "__main__":
    sys.exit(run(joined_alone, sys.argv[1:]))
