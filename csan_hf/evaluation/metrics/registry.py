# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The table of metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .aer import AlignmentErrorRate
from .bleu import Bleu
from .chrf import Chrf
from .comet import Comet
from .corpus_metric import CorpusMetric
from .exact_match import ExactMatch
from .g2p_wer import GraphemeToPhonemeWordErrorRate
from .per import PhoneErrorRate
from .ter import Ter
from .tokenized_bleu import TokenizedBleu
from .wer import WordErrorRate

DEFAULT_METRICS = ("bleu", "chrf")

_METRICS: dict[str, type[CorpusMetric]] = {
    metric.name: metric
    for metric in (
        Bleu,
        Chrf,
        Ter,
        ExactMatch,
        WordErrorRate,
        GraphemeToPhonemeWordErrorRate,
        PhoneErrorRate,
        TokenizedBleu,
        Comet,
        AlignmentErrorRate,
    )
}


def register_metric(metric: type[CorpusMetric]) -> type[CorpusMetric]:
    """Adds a metric to the table; recipes, results, cards and reports then know it by its name.

    Use it as a decorator, or call it.

    Raises:
        TypeError: If it is no class of a metric, or lacks name, label or summary.
        ValueError: If another metric has that name.
    """
    if not (isinstance(metric, type) and issubclass(metric, CorpusMetric)):
        raise TypeError(f"{metric!r} is no metric: write a class that inherits from CorpusMetric.")
    for attribute in ("name", "label", "summary"):
        if not isinstance(getattr(metric, attribute, None), str):
            raise TypeError(f"{metric.__name__} has no {attribute}: give it the class attribute, a string.")
    if _METRICS.setdefault(metric.name, metric) is not metric:
        raise ValueError(f"There is a metric {metric.name!r} already: {_METRICS[metric.name].__name__}.")
    return metric


def unregister_metric(name: str) -> None:
    """Takes a metric out of the table."""
    del _METRICS[name]


def metric_names() -> list[str]:
    """Returns the names in the table, in its order."""
    return list(_METRICS)


def find_metric(name: str) -> type[CorpusMetric]:
    """Returns the class of a metric.

    Raises:
        ValueError: If there is none of that name.
    """
    if name not in _METRICS:
        raise ValueError(f"There is no metric {name!r}; choose from {', '.join(_METRICS)}.")
    return _METRICS[name]


def load_metric(name: str, *, tokenize: str | None = None, **arguments: Any) -> CorpusMetric:
    """Makes a metric, without network.

    Args:
        name: Its name in the table.
        tokenize: sacreBLEU's tokenizer for the target language; metrics without a tokenizer ignore it.
        arguments: For its constructor.

    Raises:
        ValueError: If there is none of that name.
    """
    metric = find_metric(name)
    return metric(**({"tokenize": tokenize} if metric.uses_tokenizer else {}), **arguments)


def load_metrics(names: Iterable[str] = DEFAULT_METRICS, *, tokenize: str | None = None) -> list[CorpusMetric]:
    """Makes several metrics; see `load_metric`.

    Raises:
        ValueError: If there is none of a name, or the names are one string, whose letters would be names.
    """
    if isinstance(names, str):
        raise ValueError(f"metrics must be a list of names, such as [{names!r}], got {names!r}.")
    return [load_metric(name, tokenize=tokenize) for name in names]


def metrics_in(entry: Iterable[str]) -> Iterator[type[CorpusMetric]]:
    """Yields the metrics whose names are among the keys of a result, in the order of the table."""
    keys = set(entry)
    return (metric for name, metric in _METRICS.items() if name in keys)
