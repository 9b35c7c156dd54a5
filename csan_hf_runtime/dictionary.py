# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A pronouncing dictionary beside a pronouncer, whose words are looked up."""

from bisect import bisect_left
from pathlib import Path

from .text_files import read_lines

DICTIONARY = "dictionary.tsv.gz"


class PronouncingDictionary:
    """Words and their pronunciations.

    Args:
        path: A gzipped file of lines in the order of their bytes: a word in small letters, and
            after a tab each of its pronunciations, phones with spaces between them.

    Raises:
        ValueError: The file is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._lines = list(read_lines(path))

    def pronunciations(self, word: str) -> list[str]:
        """Returns the pronunciations of a word, the first the most usual; none of another."""
        beginning = f"{word.strip().lower()}\t"
        place = bisect_left(self._lines, beginning)
        if place == len(self._lines) or not self._lines[place].startswith(beginning):
            return []
        _, *pronunciations = self._lines[place].split("\t")
        return pronunciations
