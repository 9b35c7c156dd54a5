# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Metrics: one file each, and a table that everything else reads."""

from .corpus_metric import CorpusMetric, SacrebleuMetric
from .registry import (
    DEFAULT_METRICS,
    find_metric,
    load_metric,
    load_metrics,
    metric_names,
    metrics_in,
    register_metric,
    unregister_metric,
)

__all__ = [
    "DEFAULT_METRICS",
    "CorpusMetric",
    "SacrebleuMetric",
    "find_metric",
    "load_metric",
    "load_metrics",
    "metric_names",
    "metrics_in",
    "register_metric",
    "unregister_metric",
]
