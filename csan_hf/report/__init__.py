"""A page for the browser that shows what models do: scores, significance, plots and every sentence."""

from .compare import compare_systems
from .contents import Report, ReportPlot, ScoreCell
from .page import render_report, write_report
from .systems import System, load_system

__all__ = [
    "Report",
    "ReportPlot",
    "ScoreCell",
    "System",
    "compare_systems",
    "load_system",
    "render_report",
    "write_report",
]
