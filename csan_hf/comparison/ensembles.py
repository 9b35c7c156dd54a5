# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Rows of a report for ensembles: several runs as one model, scored like a run."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from csan_hf.data.corpora import load_translation_dataset
from csan_hf.evaluation import translate
from csan_hf.evaluation.loading import load_translation_model
from csan_hf.text_files import write_json, write_lines, write_text

from .results import read_results
from .schedule import FINISHED, RECIPE, is_finished, load_cell, recipe_text
from .suite import Suite, splits_of


def translate_ensembles(suite: Suite, output: Path, *, progress: bool = True) -> None:
    """Translates the held-out splits with the ensembles whose members are finished and have their
    weights here.

    An ensemble's folder then holds hypotheses, `results.json` and the mark of a finished run.
    Published runs have no weights: of an ensemble that these would need a line on standard error
    says so."""
    for cell in suite.ensembles:
        members = cell.members
        if is_finished(cell, output) or not all(is_finished(member, output) for member in members):
            continue
        folders = [member.folder(output) for member in members]
        if missing := [folder for folder in folders if not (folder / "config.json").is_file()]:
            print(
                f"{cell.name}: {missing[0]} has no model, so the ensemble is left out.",
                file=sys.stderr,
            )
            continue
        try:
            model, tokenizers = load_translation_model(
                [str(folder) for folder in folders], progress=False
            )
        except ValueError as error:
            print(f"{cell.name} is left out: {error}", file=sys.stderr)
            continue
        wanted, folder = splits_of(cell.recipe), cell.folder(output)
        splits, _ = load_translation_dataset(load_cell(members[0], output).data_arguments(), wanted)
        start = time.time()
        for split in wanted:
            hypotheses = translate(
                model, tokenizers, list(splits[split]["source"]), progress=progress
            )
            write_lines(folder / f"hypotheses/{split}.txt", hypotheses)
        of_members = [read_results(member, output) for member in members]
        results = {
            "parameters": sum(own["parameters"] for own in of_members),
            "training": {
                "seconds": sum(own["training"]["seconds"] for own in of_members),
                "updates": sum(own["training"]["updates"] for own in of_members),
            },
            "seconds": round(time.time() - start, 2),
            "data": of_members[0].get("data"),
        }
        write_json(folder / "results.json", results)
        write_text(folder / RECIPE, recipe_text(cell, output))
        write_json(folder / FINISHED, {"finished": time.strftime("%Y-%m-%d %H:%M")})
