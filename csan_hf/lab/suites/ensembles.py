# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Ensembles of a suite: several runs as one model, scored like a run."""

import sys
import time

from csan_hf.data.corpora import load_translation_dataset
from csan_hf.data.documents import document_lines
from csan_hf.evaluation import translate
from csan_hf.evaluation.loading import load_translation_model
from csan_hf.training.record import RunRecord

from .records import SuiteRecords


def translate_ensembles(records: SuiteRecords, *, progress: bool = True) -> None:
    """Translates the held-out splits with the ensembles whose members are finished and have their
    weights here.

    An ensemble's folder then holds the record of a run. A line on standard error names an ensemble
    that cannot be loaded.
    """
    for ensemble in records.suite.ensembles:
        members = ensemble.members
        if records.is_finished(ensemble) or not all(map(records.is_finished, members)):
            continue
        folders = [str(member.folder(records.output)) for member in members]
        try:
            model, tokenizers = load_translation_model(folders, progress=False)
        except (OSError, ValueError) as error:  # of published runs there are no models
            print(f"{ensemble.name} is left out: {error}", file=sys.stderr)
            continue
        names = records.suite.splits[ensemble.data]
        data = members[0].recipe_in(records.output).data_arguments()
        splits, _ = load_translation_dataset(data, names)
        start = time.time()
        hypotheses = {}
        for name in names:
            sources = list(splits[name]["source"])
            translations = translate(
                model, tokenizers, sources, progress=progress, split_sentences="never"
            )
            if data.documents:
                translations = list(document_lines(translations, splits[name]["target"]))
            hypotheses[name] = translations
        member_results = [records.record(member).results for member in members]
        trainings = [results["training"] for results in member_results]
        record = RunRecord(
            recipe=ensemble.recipe,
            results={
                "parameters": sum(results["parameters"] for results in member_results),
                "training": {
                    "seconds": sum(training["seconds"] for training in trainings),
                    "updates": sum(training["updates"] for training in trainings),
                },
                "seconds": round(time.time() - start, 2),
                "data": member_results[0].get("data"),
            },
            hypotheses=hypotheses,
            finished=time.strftime("%Y-%m-%d %H:%M"),
        )
        record.write(ensemble.folder(records.output))
