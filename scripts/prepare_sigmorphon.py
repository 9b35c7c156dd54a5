#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Corpus of one multilingual model: grapheme-to-phoneme conversion of SIGMORPHON 2021 (task 1).

python scripts/prepare_sigmorphon.py PATH/TO/2021-task1/data/medium data/g2p_medium
"""

import sys
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from csan_hf.data.readers import table_pairs
from csan_hf_runtime.command_line import run
from csan_hf_runtime.text_files import write_lines

MEDIUM = ("arm_e", "bul", "dut", "fre", "geo", "hbs_latn", "hun", "jpn_hira", "kor", "vie_hanoi")
SPACE = "\u2581"  # symbol of a space inside a word
# Every fifth word of the dev sets chooses the checkpoint; all would take long
VALIDATION_STEP = 5


def word_symbols(language: str, word: str) -> str:
    """The symbols of a word: its language, such as `<dut>`, then its letters in Unicode's NFD,
    accents apart.
    """
    return " ".join([f"<{language}>", *unicodedata.normalize("NFD", word.replace(" ", SPACE))])


def prepare_multilingual(
    data_dir: Path, output: Path, /, *, languages: Sequence[str] = MEDIUM
) -> None:
    """Write the corpus of a multilingual model.

    `train.tsv` has all languages, `validation.tsv` every fifth word of their dev sets;
    `LANGUAGE_dev.tsv` and `LANGUAGE_test.tsv` are those of one language.

    Args:
        data_dir: folder of the task's files, LANGUAGE_train.tsv and so on, of which the tests may
            be missing
        output: folder to write to; created if missing
        languages: names as in the file names
    """
    files: dict[str, list[str]] = defaultdict(list)
    for language in languages:
        files["train.tsv"] += read_words(data_dir, language, "train")
        dev = read_words(data_dir, language, "dev")
        files[f"{language}_dev.tsv"] = dev
        files["validation.tsv"] += dev[::VALIDATION_STEP]
        if (data_dir / f"{language}_test.tsv").is_file():
            files[f"{language}_test.tsv"] = read_words(data_dir, language, "test")
    for name, lines in files.items():
        write_lines(output / name, lines)
        print(f"{name}: {len(lines)} words")


def read_words(data_dir: Path, language: str, split: str) -> list[str]:
    """Lines of symbols and phones."""
    pairs = table_pairs(data_dir / f"{language}_{split}.tsv", ("0", "1"))
    return [f"{word_symbols(language, pair['source'])}\t{pair['target']}" for pair in pairs]


if __name__ == "__main__":
    sys.exit(run(prepare_multilingual, sys.argv[1:]))
