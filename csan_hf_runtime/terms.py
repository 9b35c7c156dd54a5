# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Glossaries: terms and the translations that they must have."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from itertools import chain, groupby
from pathlib import Path

from .text_files import one_line, read_lines
from .texts import checked_texts


class Terms:
    """Source terms with the target of each, which the translation of a sentence must hold.

    Args:
        targets: The target of each source term, both as they are written.

    Raises:
        ValueError: A term is blank, or has a line break.
    """

    def __init__(self, targets: Mapping[str, str]) -> None:
        for text in checked_texts("terms", [*targets, *targets.values()]):
            if not text.strip() or one_line(text) != text:
                raise ValueError(f"{text!r:.80} is no term: write words, on one line.")
        # The longest first, which is to be found where several begin
        by_term = {_comparable(term): target for term, target in targets.items()}
        self._targets = dict(sorted(by_term.items(), key=lambda term: -len(term[0])))

    def __repr__(self) -> str:
        return f"Terms({self._targets!r})"

    @classmethod
    def read(cls, path: Path | str) -> Terms:
        """Reads a file with a source term, a tab and its target on each line; blank lines are
        skipped, and the last target of a source term counts.

        Raises:
            ValueError: A line is something else; the message names file and line.
        """
        targets = {}
        for number, line in enumerate(read_lines(path), 1):
            if not line.strip():
                continue
            fields = [text.strip() for text in line.split("\t")]
            if len(fields) != 2 or not all(fields):
                raise ValueError(
                    f"{path}, line {number}: {line[:60]!r} is no term; write it, a tab and its "
                    "translation."
                )
            targets[fields[0]] = fields[1]
        return cls(targets)

    def targets_of(self, source: str) -> list[str]:
        """The targets of the terms in a sentence, once for each term.

        A term is found as whole words, as it is written, in any Unicode form and with any spaces;
        in scripts without spaces anywhere. Of terms that overlap the first is found, of those that
        begin together the longest."""
        source = _comparable(source)
        candidates = [term for term in self._targets if term in source]
        if not candidates:
            return []
        patterns = []
        for (before, behind), terms in groupby(candidates, key=_edges):
            patterns.append(f"{before}(?:{'|'.join(map(re.escape, terms))}){behind}")
        terms_in_source = re.findall("|".join(patterns), source)
        return [self._targets[term] for term in dict.fromkeys(terms_in_source)]


def _comparable(text: str) -> str:
    """A text in one Unicode form, with plain spaces: tokenizers read others as the same."""
    return re.sub(r"\s", " ", unicodedata.normalize("NFC", text))


_LONGEST_ENDING = 3  # letters
# Vowel signs and accents are part of a word, and no letters to Python: of Latin, Hebrew, Arabic and
# the scripts of India, but their full stops
_LETTER = (
    r"[\w\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u0670"
    r"\u0900-\u0963\u0966-\u0dff]"
)
# Besides wide ones: Thai and Lao, Burmese, Khmer
_WITHOUT_SPACES = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")


def _stands_anywhere(character: str) -> bool:
    """Whether words that begin or end so stand beside others without a space, as in Chinese, or
    with particles, as in Korean.
    """
    has_wide_form = unicodedata.east_asian_width(character) in "WF"
    return has_wide_form or _WITHOUT_SPACES.match(character) is not None


def _edges(term: str) -> tuple[str, str]:
    """Patterns of what may stand before a term and behind it."""
    before = "" if _stands_anywhere(term[0]) else f"(?<!{_LETTER})"
    behind = "" if _stands_anywhere(term[-1]) else f"(?!{_LETTER})"
    return before, behind


def most_letters_after(target: str) -> int | None:
    """The most letters that are an ending and no other word: three, and of a short word half of it.

    None where anything may follow: signs, and scripts without spaces.
    """
    last_word = re.search(f"{_LETTER}*$", _comparable(target))
    if not last_word or not last_word[0] or _stands_anywhere(target[-1]):
        return None
    return min(_LONGEST_ENDING, (len(last_word[0]) + 1) // 2)


def lacking(targets: list[str], translation: str) -> list[str]:
    """Which targets do not stand in a translation, where a word begins, perhaps with an ending.

    Each piece of the translation serves one target. The longest chooses first, a place that the
    fewest others could take."""
    translation = _comparable(translation)
    places: dict[int, list[tuple[int, int]]] = {}
    numbered = enumerate(map(_comparable, targets))
    for number, target in sorted(numbered, key=lambda pair: -len(pair[1])):
        most_letters = most_letters_after(target)
        ending = "" if most_letters is None else f"{_LETTER}{{0,{most_letters}}}(?!{_LETTER})"
        before, _ = _edges(target)
        pattern = before + re.escape(target) + ending
        places[number] = [match.span() for match in re.finditer(pattern, translation)]
    missing = set()
    while places:
        number = next(iter(places))
        candidates = places.pop(number)
        if not candidates:
            missing.add(number)
            continue
        rivals = list(chain.from_iterable(places.values()))
        chosen = min(candidates, key=lambda place: len(_overlapping(place, rivals)))
        for rival, rival_places in places.items():
            taken = _overlapping(chosen, rival_places)
            places[rival] = [place for place in rival_places if place not in taken]
    return [target for number, target in enumerate(targets) if number in missing]


def _overlapping(
    place: tuple[int, int], rivals: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    start, end = place
    return [rival for rival in rivals if rival[0] < end and start < rival[1]]
