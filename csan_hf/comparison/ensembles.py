# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Rows of a report for ensembles: several runs as one model, scored like a run."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from csan_hf.data.corpora import load_translation_dataset
from csan_hf.evaluation import translate
from csan_hf.evaluation.loading import load_translation_model
from csan_hf.training.record import RunRecord

from .records import SuiteRecords
from .suite import Suite, splits_of


def translate_ensembles(suite: Suite, output: Path, *, progress: bool = True) -> None:
    """Translates the held-out splits with the ensembles whose members are finished and have their
    weights here.

    An ensemble's folder then holds hypotheses, `results.json` and the mark of a finished run.
    Published runs have no weights: of an ensemble that these would need a line on standard error
    says so."""
    records = SuiteRecords((*suite.cells, *suite.ensembles), output)
    for cell in suite.ensembles:
        members = cell.members
        if records.is_finished(cell) or not all(map(records.is_finished, members)):
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
        wanted = splits_of(cell.recipe)
        data = members[0].recipe_in(output).data_arguments()
        splits, _ = load_translation_dataset(data, wanted)
        start = time.time()
        hypotheses = {}
        for split in wanted:
            sources = list(splits[split]["source"])
            hypotheses[split] = translate(model, tokenizers, sources, progress=progress)
        member_results = [records.results(member) for member in members]
        trainings = [results["training"] for results in member_results]
        results = {
            "parameters": sum(results["parameters"] for results in member_results),
            "training": {
                "seconds": sum(training["seconds"] for training in trainings),
                "updates": sum(training["updates"] for training in trainings),
            },
            "seconds": round(time.time() - start, 2),
            "data": member_results[0].get("data"),
        }
        finished = time.strftime("%Y-%m-%d %H:%M")
        RunRecord(cell.recipe, results, hypotheses, finished).write(cell.folder(output))
