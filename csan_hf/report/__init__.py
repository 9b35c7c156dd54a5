"""A page for the browser that shows what models do: scores, significance, plots and every sentence."""

from .compare import Report, ReportPlot, compare_systems
from .page import render_report, write_report
from .systems import System, load_system

__all__ = [
    "Report",
    "ReportPlot",
    "System",
    "compare_systems",
    "load_system",
    "render_report",
    "write_report",
]
