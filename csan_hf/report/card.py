# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The plots of a report in the model card of its first system."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from csan_hf.analysis.figures import save_figure
from csan_hf.hub.model_card import PLOTS, write_model_card
from csan_hf.text_files import path_inside, write_json

from .contents import Report


def check_card(folder: Path | str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the recipe and the results of a run, of which its card is made.

    Raises:
        ValueError: If the folder is not that of a run.
    """
    recipe, results = Path(folder, "recipe.yaml"), Path(folder, "results.json")
    if not (recipe.is_file() and results.is_file()):
        raise ValueError(
            f"{folder} has no recipe.yaml and results.json, of which its card is made: --card needs a run's folder."
        )
    return yaml.safe_load(recipe.read_text(encoding="utf-8")), json.loads(results.read_text(encoding="utf-8"))


def show_in_card(report: Report, folder: Path | str) -> None:
    """Draws the plots of a report's first system into the folder of its run, and shows them in its model card.

    They lie in `plots/` as PNG and SVG; `results.json` lists them, and the card is written anew from it. Those of an
    earlier report are replaced.

    Args:
        report: The report.
        folder: The run's folder, with `recipe.yaml` and `results.json`.

    Raises:
        ValueError: If the folder is not that of a run, or the plots would lie elsewhere.
    """
    recipe, results = check_card(folder)
    plots = [plot for plot in report.plots if plot.system in (None, report.systems[0])]
    for plot in plots:
        for path in _files(folder, plot.name):
            save_figure(plot.figure, path)
    names = {plot.name for plot in plots}
    earlier = [entry["name"] for entry in results.get("plots") or [] if entry["name"] not in names]
    results["plots"] = [{"name": plot.name, "title": plot.title} for plot in plots]
    write_json(Path(folder, "results.json"), results)
    write_model_card(folder, recipe, results)
    for name in earlier:
        for path in _files(folder, name):
            path.unlink(missing_ok=True)


def _files(folder: Path | str, name: str) -> Sequence[Path]:
    return [path_inside(folder, PLOTS, f"{name}.{ending}") for ending in ("png", "svg")]
