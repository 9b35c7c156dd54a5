#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Prepares SIGMORPHON 2021 task 1 for one multilingual model: symbols with a tag of the language before each word.

python scripts/prepare_g2p.py PATH/TO/2021-task1/data/medium --output data/g2p_medium
"""

import argparse
import sys
from pathlib import Path

from csan_hf.data.sigmorphon import prepare_multilingual
from csan_hf_cli import script

MEDIUM = ("arm_e", "bul", "dut", "fre", "geo", "hbs_latn", "hun", "jpn_hira", "kor", "vie_hanoi")


@script()
def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/prepare_g2p.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data_dir", type=Path, metavar="FOLDER", help="the task's files, LANGUAGE_train.tsv...")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="folder to write to")
    parser.add_argument("--languages", nargs="+", default=MEDIUM, metavar="NAME", help="(default: the ten of medium)")
    options = parser.parse_args(arguments)
    for name, words in prepare_multilingual(options.data_dir, options.output, options.languages).items():
        print(f"{options.output / name}: {words:,} words")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
