# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""COMET, run as a program of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from csan_hf.evaluation.metrics import corpus_metric

DEFAULT_MODEL = "Unbabel/wmt22-comet-da"


class Comet(corpus_metric.CorpusMetric):
    """COMET (Rei et al., 2020): a neural network's judgement of source, hypothesis and reference, times 100.

    The package unbabel-comet needs older versions of transformers, huggingface_hub and numpy than csan_hf does, so its
    program `comet-score` runs in an environment of its own: `pipx install unbabel-comet`.

    Args:
        model: Name or path of COMET's model; it is downloaded the first time.
        gpus: The number of GPUs that COMET uses.
        evaluate_arguments: For `evaluate.Metric`.
    """

    name = "comet"
    label = "COMET"
    summary = "A neural network's judgement of source, hypothesis and reference, times 100."
    citation = "Rei et al. (2020), COMET: A Neural Framework for MT Evaluation"
    upper_bound = None
    needs_sources = True
    segments_at_once = None
    on_hub = True

    def __init__(self, model: str = DEFAULT_MODEL, gpus: int = 0, **evaluate_arguments: Any) -> None:
        super().__init__(**evaluate_arguments)
        self.model, self.gpus = model, gpus

    def check_requirements(self) -> None:
        """Checks that `comet-score` is installed."""
        self._program()

    @staticmethod
    def _program() -> str:
        program = shutil.which("comet-score")
        if program is None:
            raise OSError("COMET needs the program comet-score: install it with `pipx install unbabel-comet`.")
        return program

    def statistics(
        self, predictions: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> np.ndarray:
        """Returns for each segment its score, and 1.

        Raises:
            ValueError: If there are no sources.
            OSError: If `comet-score` is not installed or fails; the message holds its last line.
        """
        if sources is None:
            raise ValueError("COMET compares with the source sentences: pass sources, too.")
        program = self._program()
        with tempfile.TemporaryDirectory() as folder:
            scores = self._run(program, Path(folder), predictions, references, sources)
        return np.array([(score, 1.0) for score in scores], dtype=np.float64)

    def _run(
        self,
        program: str,
        folder: Path,
        predictions: Sequence[str],
        references: Sequence[str],
        sources: Sequence[str],
    ) -> list[float]:
        for name, lines in (("src", sources), ("mt", predictions), ("ref", references)):
            text = "".join(f"{' '.join(line.splitlines())}\n" for line in lines)
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
        command = [program, "-s", "src", "-t", "mt", "-r", "ref", "--model", self.model, "--gpus", str(self.gpus)]
        command += ["--quiet", "--only_system", "--to_json", "scores.json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        output = folder / "scores.json"
        if done.returncode or not output.is_file():
            lines = (done.stderr or done.stdout).strip().splitlines() or ["it printed nothing"]
            raise OSError(f"comet-score failed with status {done.returncode}: {lines[-1]}")
        [entries] = json.loads(output.read_text(encoding="utf-8")).values()
        return [float(entry["COMET"]) for entry in entries]

    def score(self, sums: np.ndarray) -> float:
        """Returns the mean over the segments, times 100."""
        return float(100 * sums[0] / sums[1])

    @property
    def signature(self) -> str:
        """The name of COMET's model."""
        return f"nrefs:1|model:{self.model}"
