# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A pronouncing dictionary beside a pronouncer, whose words are looked up."""

import gzip
import re
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

DICTIONARY = "dictionary.tsv.gz"

_POSSESSIVE = re.compile(r"(.{3,})['’]s", re.IGNORECASE)
_PLURAL = re.compile(r"(.{2,}[^su'])s", re.IGNORECASE)  # neither "class" nor "campus"
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
        lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
        if lines != sorted(lines):
            lines.sort(key=lambda line: f"{_word_of(line)}\t")
        self._lines = lines

    @cached_property
    def _other_spellings(self) -> dict[str, list[str]]:
        """Pronunciations by how the model reads their words, if the dictionary writes some
        otherwise; it takes a moment, and most words need none.
        """
        entries: dict[str, list[str]] = {}
        letters = "".join(map(_word_of, self._lines))
        if letters.isascii() and letters == letters.lower():
            return entries
        for line in self._lines:
            entries.setdefault(self._as_read(_word_of(line)), []).extend(_entries_of(line))
        return entries

    def _as_read(self, word: str) -> str:
        return self._normalize(word.strip()).strip()

    def pronunciations(self, word: str) -> list[str]:
        """Returns the pronunciations of a word, the first the most usual; none of another.

        An English word that is not there, but without its ending "'s" or "s" is (three letters or
        more), has those of its base with the ending, if they are written in ARPAbet with stress.
        """
        entries = self._entries(word.strip())
        word = self._as_read(word)
        inflected = _POSSESSIVE.fullmatch(word) or _PLURAL.fullmatch(word)
        if inflected and not entries:
            bases = filter(_ARPABET.fullmatch, self._entries(inflected[1]))
            entries = [f"{base} {_ending(base)}" for base in bases]
        return entries

    def _entries(self, word: str) -> list[str]:
        """Those of this spelling, then, of a word that the model reads otherwise or that is not
        there, those read alike; else in small letters.
        """
        read = self._as_read(word)
        entries = [*self._spelled(word), *self._spelled(read)]
        if word != read or not entries:
            entries += self._other_spellings.get(read, [])
        return list(dict.fromkeys(entries or self._spelled(read.lower().replace("’", "'"))))

    def _spelled(self, word: str) -> list[str]:
        first = bisect_left(self._lines, f"{word}\t")
        end = bisect_left(self._lines, f"{word}\n")
        entries: list[str] = []
        for line in self._lines[first:end]:
            entries += _entries_of(line)
        return entries


def _word_of(line: str) -> str:
    return line.partition("\t")[0]


def _entries_of(line: str) -> Iterator[str]:
    return filter(str.strip, line.split("\t")[1:])


def _ending(base: str) -> str:
    """The phones of "s" or "'s" after a pronunciation."""
    last = base.split()[-1]
    if last in _SIBILANTS:
        return "IH0 Z"
    return "S" if last in _VOICELESS else "Z"
