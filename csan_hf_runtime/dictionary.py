# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A pronouncing dictionary beside a pronouncer, whose words are looked up."""

import gzip
import re
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from pathlib import Path

DICTIONARY = "dictionary.tsv.gz"

_POSSESSIVE = re.compile(r"(.{3,})['’]s")
_PLURAL = re.compile(r"(.{2,}[^su'])s")  # neither "class" nor "campus"
_ARPABET = re.compile(r".*[A-Z]{2}[012].*")  # a vowel with its stress
_SIBILANTS = ("S", "Z", "SH", "ZH", "CH", "JH")
_VOICELESS = ("P", "T", "K", "F", "TH")


class PronouncingDictionary:
    """Words and their pronunciations.

    Args:
        path: A gzipped file of lines: a word, and after a tab each of its pronunciations, phones
            with spaces between them.
        normalize: Returns a word as the model reads it.

    Raises:
        ValueError: The file is damaged.
    """

    def __init__(self, path: Path, normalize: Callable[[str], str]) -> None:
        try:
            text = gzip.decompress(path.read_bytes()).decode("utf-8-sig")
        except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is damaged ({error}): write it again.") from error
        self._normalize = normalize
        lines = text.splitlines()
        words = [line.partition("\t")[0] for line in lines]
        letters = "".join(words)
        if not letters.isascii() or letters != letters.lower():  # else they are as they are read
            words = [self._as_read(word) for word in words]
        if words != sorted(words):
            order = sorted(range(len(words)), key=words.__getitem__)
            words = [words[number] for number in order]
            lines = [lines[number] for number in order]
        self._words = words
        self._lines = lines

    def _as_read(self, word: str) -> str:
        return self._normalize(word.strip()).strip()

    def pronunciations(self, word: str) -> list[str]:
        """Returns the pronunciations of a word, the first the most usual; none of another.

        An English word that is not there, but without its ending "'s" or "s" is (three letters or
        more), has those of its base with the ending, if they are written in ARPAbet with stress.
        """
        word = self._as_read(word)
        entries = self._entries(word)
        inflected = _POSSESSIVE.fullmatch(word) or _PLURAL.fullmatch(word)
        if inflected and not entries:
            bases = filter(_ARPABET.fullmatch, self._entries(inflected[1]))
            entries = [f"{base} {_ending(base)}" for base in bases]
        return entries

    def _entries(self, word: str) -> list[str]:
        lines = slice(bisect_left(self._words, word), bisect_right(self._words, word))
        entries: dict[str, None] = {}
        for line in self._lines[lines]:
            entries |= dict.fromkeys(line.split("\t")[1:])
        return list(entries)


def _ending(base: str) -> str:
    """The phones of "s" or "'s" after a pronunciation."""
    last = base.split()[-1]
    if last in _SIBILANTS:
        return "IH0 Z"
    return "S" if last in _VOICELESS else "Z"
