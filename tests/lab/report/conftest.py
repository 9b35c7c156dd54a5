# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Reports of invented translations."""

import random

import numpy as np
import pytest

from csan_hf.lab.report import System, compare_systems
from csan_hf.lab.report.systems import WordAlignment

WORDS = ["ein", "Hund", "Mann", "läuft", "schläft", "rot", "<b>", "&"]


def make_translations(sentences, errors):
    """Sources, references, and a system for each rate of errors."""
    generator = random.Random(1)

    def sentence():
        return [generator.choice(WORDS) for _ in range(generator.randint(2, 9))]

    references = [sentence() for _ in range(sentences)]

    def spoil(line, rate):
        return " ".join(
            generator.choice(WORDS) if generator.random() < rate else word for word in line
        )

    sources = [
        f"source {number} {' '.join(line).upper()}" for number, line in enumerate(references)
    ]
    systems = []
    for rate in errors:
        systems.append([spoil(line, rate) for line in references])
    return sources, [" ".join(line) for line in references], systems


@pytest.fixture(scope="session")
def invented():
    return make_translations


@pytest.fixture(scope="session")
def report():
    sources, references, (ours, theirs) = make_translations(45, (0.15, 0.4))
    systems = [System("ours", [ours]), System("theirs", [theirs])]
    comparison = compare_systems(
        systems, sources, references, metrics=["chrf", "wer", "exact_match"], samples=50
    )
    source_words, target_words = len(sources[0].split()), len(ours[0].split())
    matrix = np.where(np.eye(target_words, source_words), 99, -5).tolist()
    comparison.systems[0].alignments = {0: WordAlignment(matrix, [(2, 0), (0, 1)])}
    return comparison
