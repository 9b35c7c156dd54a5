# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Hypotheses of a suite's finished runs beside the references that they were scored with."""

import json
from collections.abc import Sequence
from itertools import chain

from csan_hf.data.corpora import load_translation_dataset
from csan_hf.data.documents import document_lines
from csan_hf.evaluation.metrics import CorpusMetric, load_metric, tokenizer_of
from csan_hf.training.errors import RecipeError
from csan_hf_runtime.text_files import digest_of_lines, one_line, read_lines, write_lines

from .records import SuiteRecords
from .suite import Run


class SuiteTexts:
    """References, kept in the suite's folder, and the finished runs' hypotheses.

    Attributes:
        suite: The suite.
        runs: The finished runs and ensembles.

    Raises:
        RecipeError: Runs were trained on or scored with different data.
    """

    def __init__(self, records: SuiteRecords) -> None:
        self.suite = records.suite
        self.runs = records.finished
        self._records = records
        # References or a training set -> their digest, and who used them
        self._digests: dict[str, tuple[str, str]] = {}
        for run in self.runs:
            data = records.record(run).results.get("data") or {}
            for split, digest in (data.get("references") or {}).items():
                self._expect(f"{run.data}/{split}", digest, run.name)
            if data:
                tokens = json.dumps(data.get("training_set"), sort_keys=True)
                self._expect(f"the training set of {run.data}, {run.system}", tokens, run.name)
        for subject, digest in records.about("references").items():
            self._digests.setdefault(subject, (digest, "the published runs"))

    def _expect(self, subject: str, digest: str, user: str) -> None:
        """Notes which data a run used; all runs must use the same."""
        first_digest, first_user = self._digests.setdefault(subject, (digest, user))
        if first_digest != digest:
            raise RecipeError(
                f"{subject}: {user} and {first_user} in {self._records.output} have other data, "
                "or another tokenizer. Use the same data, prepared in the same way; or delete the "
                "folders of the runs with the old ones, and the suite trains these again."
            )

    def check_data(self) -> None:
        """Raises `RecipeError` unless the data are those that finished runs were scored with."""
        for data in dict.fromkeys(run.data for run in self.runs):
            for split in self.suite.splits[data]:
                self._load(data, split)

    def hypotheses(self, run: Run, splits: Sequence[str]) -> list[str]:
        """A run's translations of the splits, one split after the other."""
        hypotheses = self._records.record(run).hypotheses
        return list(chain.from_iterable(hypotheses[split] for split in splits))

    def references(self, data: str, splits: Sequence[str]) -> list[str]:
        """The references of the splits, one split after the other."""
        return list(chain.from_iterable(self._of_split(data, split) for split in splits))

    def metric(self, data: str, references: Sequence[str]) -> CorpusMetric:
        """The suite's metric, for the references of a data set."""
        tokenize = self.suite.first_run_by_data[data].recipe.get("bleu_tokenize")
        return load_metric(self.suite.metric, tokenize=tokenize or tokenizer_of(references))

    def _of_split(self, data: str, split: str) -> list[str]:
        """References in the suite's folder if the runs were scored with them, else the data's."""
        path = self._records.output / "references" / data / f"{split}.txt"
        lines = list(read_lines(path)) if path.is_file() else None
        digest, _ = self._digests.get(f"{data}/{split}", (None, None))
        if lines is None or digest not in (None, digest_of_lines(lines)):
            lines = self._load(data, split)
            write_lines(path, lines)
        return lines

    def _load(self, data: str, split: str) -> list[str]:
        """The references in the data, which must be those that the runs were scored with."""
        arguments = (
            self.suite.first_run_by_data[data].recipe_in(self._records.output).data_arguments()
        )
        splits, _ = load_translation_dataset(arguments, [split])
        targets = splits[split]["target"]
        if arguments.documents:
            targets = document_lines(targets, targets)
        lines = list(map(one_line, targets))
        source = str(arguments.data_dir or arguments.dataset)
        self._expect(f"{data}/{split}", digest_of_lines(lines), source)
        return lines


def digests_of_references(records: SuiteRecords) -> dict[str, str]:
    """Returns digests of the references that a report was made with: data set/split -> SHA-256."""
    digests = records.about("references")
    for path in sorted((records.output / "references").glob("*/*.txt")):
        digests[f"{path.parent.name}/{path.stem}"] = digest_of_lines(read_lines(path))
    return digests
