# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Texts cut into what a translation model takes, and put together again with every line break and
space.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from .languages import base_language

logger = logging.getLogger(__name__)

EVERY_LINE = {"tokens": 0, "sentences": 0}
"""What `split_text` leaves whole where every line is to be split into sentences."""

_LONGEST_PART = 5000  # characters

# Where a sentence that is too long may be cut, the best first: after a clause, a word, any
# character
_CUTS = (
    re.compile(r"(?<=[,;:–—])\s+|(?<=[，、；：])"),
    re.compile(r"\s+"),
    re.compile(r"(?<=.)(?=.)", re.DOTALL),
)


@dataclass(frozen=True)
class SplitText:
    """A text as segments and what stands between them.

    Attributes:
        segments: n pieces without white space at their ends, to be translated.
        gaps: n + 1 pieces of white space (or nothing): before, between and after the segments.
        split_lines: Lines that were split at their sentences.
        tag: The tag of a language that each segment begins with, and the text once, with a space.
    """

    segments: tuple[str, ...]
    gaps: tuple[str, ...]
    split_lines: int = 0
    tag: str = ""

    def join(self, translations: Sequence[str]) -> str:
        """Puts translations of the segments in their places.

        White space is that of the source, except between sentences of one line in scripts that
        differ in using it: Chinese or Japanese sentences get a space between them in other scripts,
        and lose a single one in theirs."""
        return "".join(self._pieces(translations))

    def _pieces(self, translations: Sequence[str]) -> list[str]:
        """The gaps, with the translations between them."""
        pieces = [self.gaps[0]]
        for number, translation in enumerate(translations, 1):
            gap = self.gaps[number]
            following = translations[number] if number < len(translations) else ""
            if gap in ("", " ") and translation and following:
                gap = "" if is_wide(translation[-1]) or is_wide(following[0]) else " "
            pieces += [translation, gap]
        return pieces

    def join_links(
        self,
        translations: Sequence[str],
        links: Sequence[Sequence[tuple[int, int]]],
        *,
        source_word: re.Pattern[str],
        target_word: re.Pattern[str],
    ) -> list[tuple[int, int]]:
        """Numbers the linked words of segments and their translations as words of the whole text.

        The tag is no word.

        Args:
            translations: Translations of the segments.
            links: For each segment its links (source word, target word).
            source_word: What a word of the source is.
            target_word: What a word of a translation is.
        """
        source_pieces = [self.gaps[0]]
        for segment, gap in zip(self.segments, self.gaps[1:], strict=True):
            source_pieces += [segment.removeprefix(self.tag), gap]
        source_starts = _first_words(source_pieces, source_word)[1::2]
        target_starts = _first_words(self._pieces(translations), target_word)[1::2]
        joined = []
        for source_start, target_start, segment_links in zip(
            source_starts, target_starts, links, strict=True
        ):
            for source, target in segment_links:
                joined.append((source_start + source, target_start + target))
        return joined


def _first_words(pieces: Sequence[str], word: re.Pattern[str]) -> list[int]:
    """The number of the word of the joined text that each piece begins in, or with."""
    ends = [match.end() for match in word.finditer("".join(pieces))]
    starts = accumulate(map(len, pieces[:-1]), initial=0)
    return [bisect_right(ends, start) for start in starts]


def is_wide(character: str) -> bool:
    """Whether a character belongs to a script that is written without spaces (or is its
    punctuation).
    """
    return unicodedata.east_asian_width(character) in "WF"


def split_text(
    text: str,
    *,
    count_tokens: Callable[[str], int],
    limit: int | None,
    language: str | None,
    usual: Mapping[str, int] | None = None,
    tag: str = "",
) -> SplitText:
    """Splits a text at its line breaks, and long lines at their sentences.

    A sentence that is still too long is cut after a clause or between words, near its middle, until
    its parts fit, and a warning says so.

    Args:
        text: The text.
        count_tokens: Tokens of a piece of text, special ones included.
        limit: The most tokens of a segment; None = any number.
        language: ISO 639 code, alone or leading ("de", "deu_Latn"), of the text; None = unknown.
        usual: The most "tokens" and "sentences" of a line that is left whole; None = any number.
        tag: The tag of a language that the text begins with, which is for all of its sentences.
    """
    start = f"{tag} " if tag else ""

    def fits(piece: str) -> bool:
        return limit is None or count_tokens(start + piece) <= limit

    if tag:
        text = text.removeprefix(tag).lstrip(" ")
    segments: list[str] = []
    gaps = [""]
    split_lines = 0
    for line in text.splitlines(keepends=True):
        pieces = [line]
        is_whole = fits(line.strip())
        sentences = [line] if is_whole and usual is None else sentences_of(line, language)
        if usual is not None:
            is_usual = count_tokens(start + line.strip()) <= usual["tokens"]
            is_whole = is_whole and is_usual and len(sentences) <= usual["sentences"]
        if not is_whole:
            pieces = []
            split_lines += len(sentences) > 1
            for sentence in sentences:
                parts = _halve(sentence, fits)
                pieces += parts
                if len(parts) > 1:
                    logger.warning(
                        f"A sentence is longer than the {limit} tokens that the model takes and is "
                        f"translated in {len(parts)} parts: {sentence.strip()[:60]!r}..."
                    )
        for piece in pieces:
            content = piece.strip()
            before, _, after = piece.partition(content) if content else (piece, "", "")
            gaps[-1] += before
            if content:
                segments.append(start + content)
                gaps.append(after)
    return SplitText(tuple(segments), tuple(gaps), split_lines, tag)


def sentences_of(line: str, language: str | None) -> list[str]:
    """Returns the sentences of a line, which joined are the line; see `split_text`."""
    from sentencex import segment  # slow to load, and most lines are one sentence

    code = base_language(language or "en")
    # Spaces of other kinds make sentencex panic
    plain = re.sub(r"\s", " ", line)
    sentences = []
    start = 0
    while start < len(line):
        # A part at a time, as sentencex takes the square of a line's length; what a part ends
        # within belongs to the next
        part = plain[start : start + _LONGEST_PART]
        lengths = [len(sentence) for sentence in segment(code, part)]
        if start + len(part) < len(line):
            if len(lengths) > 1:
                lengths.pop()
            else:
                lengths = [part.rfind(" ") + 1 or len(part)]
        for length in lengths:
            sentences.append(line[start : start + length])
            start += length
    return sentences


def _halve(text: str, fits: Callable[[str], bool]) -> list[str]:
    if fits(text.strip()) or len(text.strip()) < 2:
        return [text]
    start = len(text) - len(text.lstrip())
    end = len(text.rstrip())
    middle = (start + end) / 2
    for cut in _CUTS:
        places = [match.end() for match in cut.finditer(text, start, end)]
        places = [place for place in places if start < place < end]
        if places:
            place = min(places, key=lambda place: abs(place - middle))
            return [*_halve(text[:place], fits), *_halve(text[place:], fits)]
    return [text]
