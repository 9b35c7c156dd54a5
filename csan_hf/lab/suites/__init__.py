# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Suites of training runs: systems compared over data sets and seeds, with their significance."""

from .publish import publish_suite
from .suite import Run, Suite, load_suite
from .workflow import run_suite

__all__ = ["Run", "Suite", "load_suite", "publish_suite", "run_suite"]
