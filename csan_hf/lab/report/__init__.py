# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A page for the browser: scores of models, their significance, plots and every sentence."""

from .comparison import check_settings, compare_systems
from .page import Report, ReportPlot, check_card, render_report, show_in_card, write_report
from .systems import System, load_systems

__all__ = [
    "Report",
    "ReportPlot",
    "System",
    "check_card",
    "check_settings",
    "compare_systems",
    "load_systems",
    "render_report",
    "show_in_card",
    "write_report",
]
