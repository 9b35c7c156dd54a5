#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Prepares SIGMORPHON 2021 task 1 for one multilingual model."""

import sys
from pathlib import Path

from csan_hf.data.sigmorphon import prepare_multilingual
from csan_hf_cli import run

MEDIUM = ("arm_e", "bul", "dut", "fre", "geo", "hbs_latn", "hun", "jpn_hira", "kor", "vie_hanoi")


def prepare(data_dir: Path, /, *, output: Path, languages: list[str] | None = None) -> None:
    """Writes the symbols of all languages' words with a tag of the language before each word.

        python scripts/prepare_g2p.py PATH/TO/2021-task1/data/medium --output data/g2p_medium

    Args:
        data_dir: folder of the task's files, LANGUAGE_train.tsv...
        output: folder to write to
        languages: (default: the ten of medium)
    """
    for name, words in prepare_multilingual(data_dir, output, languages or MEDIUM).items():
        print(f"{output / name}: {words:,} words")


if __name__ == "__main__":
    sys.exit(run(prepare, sys.argv[1:], "scripts/prepare_g2p.py"))
