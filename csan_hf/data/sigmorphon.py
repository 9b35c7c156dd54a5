# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Grapheme-to-phoneme conversion of SIGMORPHON 2021 (task 1) as the corpus of one multilingual model."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from csan_hf.text_files import write_lines

from .readers import read_table

VALIDATION_STEP = 5
"""Every fifth word of the dev sets is used to choose the checkpoint of a multilingual model; all would take long."""
SPACE = "\u2581"
"""Symbol of a space inside a word."""


def word_symbols(language: str, word: str) -> str:
    """The symbols of a word: its language, such as `<dut>`, then its letters in Unicode's NFD, accents apart."""
    return " ".join([f"<{language}>", *unicodedata.normalize("NFD", word.replace(" ", SPACE))])


def prepare_multilingual(data_dir: Path, output: Path, languages: Sequence[str]) -> dict[str, int]:
    """Writes the corpus of a multilingual model.

    `train.tsv` has all languages, `validation.tsv` every fifth word of their dev sets; `LANGUAGE_dev.tsv` and
    `LANGUAGE_test.tsv` are those of one language.

    Args:
        data_dir: Folder of the task's files, `LANGUAGE_train.tsv` and so on, of which the tests may be missing.
        output: Folder to write to; created if missing.
        languages: Names as in the file names.

    Returns:
        File name -> words in it.
    """
    if not languages:
        raise ValueError("there is nothing to prepare: name at least one language")
    written: dict[str, int] = {}
    parts: dict[str, list[str]] = {"train": [], "validation": []}
    for language in languages:
        for split in ("train", "dev", "test"):
            path = data_dir / f"{language}_{split}.tsv"
            if split == "test" and not path.is_file():
                continue
            lines = list(_lines(language, path))
            if split == "train":
                parts["train"] += lines
                continue
            if split == "dev":
                parts["validation"] += lines[::VALIDATION_STEP]
            written[f"{language}_{split}.tsv"] = _write(output / f"{language}_{split}.tsv", lines)
    for split, lines in parts.items():
        written[f"{split}.tsv"] = _write(output / f"{split}.tsv", lines)
    return written


def _lines(language: str, path: Path) -> Iterator[str]:
    if not path.is_file():
        raise ValueError(f"there is no {path}: check the folder and the name of the language")
    for word, phones in zip(*read_table(path, "0", "1"), strict=True):
        yield f"{word_symbols(language, word)}\t{phones}"


def _write(path: Path, lines: Sequence[str]) -> int:
    write_lines(path, lines)
    return len(lines)
