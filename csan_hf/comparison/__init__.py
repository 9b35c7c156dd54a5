# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Comparison of systems: suites of training runs, one table of scores with their significance."""

from .compare import compare_suite
from .publish import publish_suite
from .suite import Cell, Suite, load_suite

__all__ = ["Cell", "Suite", "compare_suite", "load_suite", "publish_suite"]
