# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Grapheme-to-phoneme conversion of SIGMORPHON 2021 (task 1) as the corpus of one multilingual
model.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from csan_hf.text_files import write_lines

from .readers import read_table

# Of the dev sets every fifth word is used to choose the checkpoint of a multilingual model; all
# would take long
_STEPS = {"train": 1, "dev": 5}
MEDIUM = ("arm_e", "bul", "dut", "fre", "geo", "hbs_latn", "hun", "jpn_hira", "kor", "vie_hanoi")
SPACE = "\u2581"
"""Symbol of a space inside a word."""


def word_symbols(language: str, word: str) -> str:
    """The symbols of a word: its language, such as `<dut>`, then its letters in Unicode's NFD,
    accents apart.
    """
    return " ".join([f"<{language}>", *unicodedata.normalize("NFD", word.replace(" ", SPACE))])


def prepare_multilingual(
    data_dir: Path | str, output: Path | str, languages: Sequence[str] = MEDIUM
) -> dict[str, int]:
    """Writes the corpus of a multilingual model.

    `train.tsv` has all languages, `validation.tsv` every fifth word of their dev sets;
    `LANGUAGE_dev.tsv` and `LANGUAGE_test.tsv` are those of one language.

    Args:
        data_dir: Folder of the task's files, `LANGUAGE_train.tsv` and so on, of which the tests may
            be missing.
        output: Folder to write to; created if missing.
        languages: Names as in the file names.

    Returns:
        File name -> words in it.
    """
    files: dict[str, list[str]] = defaultdict(list)
    for language in languages:
        for split in ("train", "dev", "test"):
            path = Path(data_dir, f"{language}_{split}.tsv")
            if split == "test" and not path.is_file():
                continue
            pairs = zip(*read_table(path, "0", "1"), strict=True)
            lines = [f"{word_symbols(language, word)}\t{phones}" for word, phones in pairs]
            if split != "train":
                files[f"{language}_{split}.tsv"] = lines
            if split != "test":
                files["train.tsv" if split == "train" else "validation.tsv"] += lines[
                    :: _STEPS[split]
                ]
    for name, lines in files.items():
        write_lines(Path(output, name), lines)
    return {name: len(lines) for name, lines in files.items()}
