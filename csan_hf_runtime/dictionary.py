# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A pronouncing dictionary beside a pronouncer, whose words are looked up."""

import gzip
import re
import zlib
from bisect import bisect_left
from pathlib import Path

DICTIONARY = "dictionary.tsv.gz"

_POSSESSIVE = re.compile(r"(.{3,})'s")
_PLURAL = re.compile(r"(.{2,}[^su'])s")  # neither "class" nor "campus"
_ARPABET = re.compile(r".*[A-Z]{2}[012].*")  # a vowel with its stress
_SIBILANTS = ("S", "Z", "SH", "ZH", "CH", "JH")
_VOICELESS = ("P", "T", "K", "F", "TH")


class PronouncingDictionary:
    """Words and their pronunciations.

    Args:
        path: A gzipped file of lines in the order of their bytes: a word in small letters, and
            after a tab each of its pronunciations, phones with spaces between them.

    Raises:
        ValueError: The file is damaged.
    """

    def __init__(self, path: Path) -> None:
        try:
            text = gzip.decompress(path.read_bytes()).decode()
        except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is damaged ({error}): write it again.") from error
        self._lines = text.splitlines()

    def pronunciations(self, word: str) -> list[str]:
        """Returns the pronunciations of a word, the first the most usual; none of another.

        An English word that is not there, but without its ending "'s" or "s" is (three letters or
        more), has those of its base with the ending, if they are written in ARPAbet with stress.
        """
        word = word.strip().lower().replace("’", "'")
        entries = self._entries(word)
        inflected = _POSSESSIVE.fullmatch(word) or _PLURAL.fullmatch(word)
        if inflected and not entries:
            bases = filter(_ARPABET.fullmatch, self._entries(inflected[1]))
            entries = [f"{base} {_ending(base)}" for base in bases]
        return entries

    def _entries(self, word: str) -> list[str]:
        beginning = f"{word}\t"
        place = bisect_left(self._lines, beginning)
        if place == len(self._lines) or not self._lines[place].startswith(beginning):
            return []
        _, *pronunciations = self._lines[place].split("\t")
        return pronunciations


def _ending(base: str) -> str:
    """The phones of "s" or "'s" after a pronunciation."""
    last = base.split()[-1]
    if last in _SIBILANTS:
        return "IH0 Z"
    return "S" if last in _VOICELESS else "Z"
