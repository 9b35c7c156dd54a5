# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2

from csan_hf.analysis.figures import page_svg, save_figure
from csan_hf.text_files import write_text

from .contents import Report, ReportPlot

_TEMPLATES = Path(__file__).parent / "templates"


def write_report(report: Report, path: Path | str, *, plots: Path | str | None = None) -> None:
    """Writes a report.

    Args:
        report: What it says.
        path: The HTML file.
        plots: A folder for the plots, each as PNG and SVG; None = they are only in the page.
    """
    write_text(path, render_report(report))
    if plots is not None:
        write_plots(report.plots, plots)


def write_plots(plots: Iterable[ReportPlot], folder: Path | str) -> None:
    """Writes plots into a folder, each as PNG and SVG."""
    for plot in plots:
        for ending in ("png", "svg"):
            save_figure(plot.figure, Path(folder) / f"{plot.name}.{ending}")


def render_report(report: Report) -> str:
    """Returns the HTML of a report: styles, script, plots and all sentences are in it, and it loads nothing."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.jinja").render(
        report=report,
        sentences=len(report.sources) if report.sentences is None else report.sentences,
        listed=len(report.sources),
        plots=[(plot, page_svg(plot.figure, plot.name)) for plot in report.plots],
        aligned=max((max(found, default=-1) + 1 for found in report.alignments), default=0),
        signatures={metric.label: metric.signature for metric in report.metrics if metric.signature},
        data=_script_json(_examples(report)),
    )
    return re.sub("[\ud800-\udfff]", "\ufffd", page)  # UTF-8 has no halves of surrogate pairs, as in names of files


def _examples(report: Report) -> dict[str, Any]:
    """Returns what the page's script reads."""
    return {
        "sources": list(report.sources),
        "references": list(report.references),
        "metrics": [{"label": metric.label, "decimals": metric.decimals} for metric in report.metrics],
        "systems": [
            {
                "name": name,
                "hypotheses": list(report.hypotheses[number]),
                "scores": [
                    [round(float(score), metric.decimals) for score in scores]
                    for metric, scores in zip(report.metrics, report.segment_scores[number], strict=True)
                ],
                "alignments": {
                    row: {"matrix": found.matrix, "links": found.links}
                    for row, found in (report.alignments[number] if report.alignments else {}).items()
                },
            }
            for number, name in enumerate(report.systems)
        ],
    }


def _script_json(value: Any) -> str:
    """Writes JSON that can stand in a script element, whatever the sentences say."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
