# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The report: its content as plain data, its HTML file, and its plots in a model card."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from matplotlib.figure import Figure

from csan_hf.evaluation.metrics import CorpusMetric
from csan_hf.evaluation.significance import FEW_SEGMENTS, SIGNIFICANT, Test, shown_p_value
from csan_hf.hub.figures import page_svg, save_as_png_and_svg
from csan_hf.hub.model_card import PLOTS, write_model_card
from csan_hf.training.recipe import read_yaml
from csan_hf_runtime.text_files import VARIANTS, write_json, write_text

from .side_by_side import LOW_CHRF, PieceRow
from .systems import System

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class ReportPlot:
    """A figure of the report, its files' unique name, and a table of its numbers for those who do
    not see it.

    `system` names the system that it is about; None = all of them.
    """

    name: str
    title: str
    figure: Figure
    columns: list[str]
    rows: list[list[str]]
    system: str | None = None


@dataclass
class Report:
    """The whole content of a report.

    The first metric sorts and plots; `baseline` is the place of the system that the others are
    compared with. Sources and references are those that are listed; `sentences` is the number of
    all, on which scores and plots are based (None = those listed). `long_texts` has the pieces of
    a few texts, by the text's place."""

    title: str
    metrics: list[CorpusMetric]
    sources: Sequence[str]
    references: Sequence[str]
    systems: list[System]
    plots: list[ReportPlot] = field(default_factory=list)
    baseline: int = 0
    test: Test = "bootstrap"
    sentences: int | None = None
    long_texts: dict[int, list[PieceRow]] = field(default_factory=dict)


def write_report(report: Report, path: Path | str, *, plots: Path | str | None = None) -> None:
    """Writes a report as an HTML file, and its plots into a folder if one is given."""
    write_text(path, render_report(report))
    if plots is not None:
        write_plots(report.plots, plots)


def write_plots(plots: Iterable[ReportPlot], folder: Path | str) -> None:
    """Writes plots into a folder, each as PNG and SVG."""
    for plot in plots:
        save_as_png_and_svg(plot.figure, Path(folder, plot.name))


def render_template(name: str, **values: Any) -> str:
    """Renders one of the templates, `report.html.jinja` or `suite.md.jinja`."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=name.endswith(".html.jinja"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=name.endswith(".md.jinja"),
    )
    json_format = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    environment.policies["json.dumps_kwargs"] = json_format
    return environment.get_template(name).render(values)


def render_report(report: Report) -> str:
    """Returns the HTML of a report: styles, script, plots and all sentences are in it, and it loads
    nothing.
    """
    page = render_template(
        "report.html.jinja",
        report=report,
        plots=[(plot, page_svg(plot.figure, plot.name)) for plot in report.plots],
        aligned=max(max(system.alignments, default=-1) + 1 for system in report.systems),
        data=_examples(report),
        low_chrf=LOW_CHRF,
        p_value=shown_p_value,
        significant=SIGNIFICANT,
        few_segments=FEW_SEGMENTS,
    )
    # UTF-8 has no halves of surrogate pairs, which names of files may hold
    return re.sub("[\ud800-\udfff]", "\ufffd", page)


def _examples(report: Report) -> dict[str, Any]:
    """Returns the data that the page's script reads."""
    systems = []
    for system in report.systems:
        scores = [
            np.round(segment_scores, metric.decimals).tolist()
            for metric, segment_scores in zip(report.metrics, system.segment_scores, strict=True)
        ]
        entry = {
            "name": system.name,
            "hypotheses": list(islice(system.runs[0], len(report.sources))),
            "scores": scores,
            "alignments": {row: asdict(pair) for row, pair in system.alignments.items()},
        }
        systems.append(entry)
    metrics = [{"label": metric.label, "decimals": metric.decimals} for metric in report.metrics]
    return {
        "sources": list(report.sources),
        "references": [text.split(VARIANTS) for text in report.references],
        "baseline": report.baseline,
        "metrics": metrics,
        "systems": systems,
    }


def check_card(folder: Path | str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the recipe and the results of a run, or raises `ValueError`: its card needs them."""
    recipe = Path(folder, "recipe.yaml")
    results = Path(folder, "results.json")
    if not (recipe.is_file() and results.is_file()):
        raise ValueError(
            f"{folder} has no recipe.yaml and results.json, of which its card is made: --card "
            "needs a run's folder."
        )
    return read_yaml(recipe), json.loads(results.read_bytes())


def show_in_card(report: Report, folder: Path | str) -> None:
    """Draws the plots of a report's first system into the folder of its run, and shows them in its
    model card.

    They lie in `plots/` as PNG and SVG; `results.json` lists them, and the card is written anew
    from it. Those of an earlier report are replaced. A folder without `recipe.yaml` and
    `results.json` is a `ValueError`."""
    recipe, results = check_card(folder)
    plots = [plot for plot in report.plots if plot.system in (None, report.systems[0].name)]
    write_plots(plots, Path(folder, PLOTS))
    earlier = {entry["name"] for entry in results.get("plots") or []} - {
        plot.name for plot in plots
    }
    results["plots"] = [{"name": plot.name, "title": plot.title} for plot in plots]
    write_json(Path(folder, "results.json"), results)
    write_model_card(folder, recipe, results)
    for name in earlier:
        for ending in ("png", "svg"):
            Path(folder, PLOTS, f"{name}.{ending}").unlink(missing_ok=True)
