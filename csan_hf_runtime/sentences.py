# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Texts cut into what a translation model takes, and put together again with every line break and
space.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated

from .languages import base_language
from .settings import Range, Settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class UsualSource(Settings):
    """Lengths that 99 % of the sources of training had at most.

    Attributes:
        tokens: Tokens, special ones included.
        sentences: Sentences.
        language: Their language.
    """

    tokens: Annotated[int, Range(0)]
    sentences: Annotated[int, Range(0)]
    language: str | None = None


EVERY_LINE = UsualSource(tokens=0, sentences=0)
"""Lengths at which `split_text` splits every line into sentences."""

_LONGEST_PART = 5000  # characters

# Where a sentence that is too long may be cut, the best first: after a clause, a word, any
# character
_CUTS = (
    re.compile(r"(?<=[,;:–—])\s+|(?<=[，、；：])"),
    re.compile(r"\s+"),
    re.compile(r"(?<=.)(?=.)", re.DOTALL),
)

_CLOSING_SIGNS = {
    "“": "”", "„": "“”", "‘": "’", "‚": "‘’", "«": "»", "»": "«", "‹": "›", "›": "‹",
    '"': '"', "'": "'", "「": "」", "『": "』", "(": ")", "[": "]", "（": "）", "【": "】",
}  # fmt: skip
_BRACKETS = "([（【"
_SENTENCE_SIGNS = ".!?…。！？"
_MOST_ENCLOSURES = 3  # within each other
_OPENING = "".join(_CLOSING_SIGNS)
_CLOSING = "".join(_CLOSING_SIGNS.values())
_OPENING_SIGN = re.compile(f"[{re.escape(_OPENING)}]")
_WORD_BEHIND = re.compile(r"\s+\w")
_CLOSING_AT_START = re.compile(rf"[{re.escape(_CLOSING)}]+(?:\s+|$)")

# Numbers whose full stop ends no sentence: "1. One thing", "im 15. Jahrhundert"; of German nouns
# those alone that hardly begin a sentence
_LIST_NUMBER = re.compile(r"\s*\(?\d{1,3}\.\s+")
_ORDINAL = re.compile(r"\b\d{1,2}\.\s+\Z")
_COUNTED = re.compile(
    "Auflage|Entwurf|Geburtstag|Generation|Jahrestag|Jahrhundert|Jahrtausend|Mal|Ordnung|Version|"
    "Weltkrieg"
)


def _enclosures() -> re.Pattern[str]:
    """Matches what stands between two quotation marks or brackets, the last group."""
    patterns = []
    for opening, closing in _CLOSING_SIGNS.items():
        pattern = f"{re.escape(opening)}(.+?)[{re.escape(closing)}]"
        if closing in "\"'’":  # or it is an apostrophe
            pattern = rf"(?<!\w){pattern}(?!\w)"
        patterns.append(pattern)
    return re.compile("|".join(patterns), re.DOTALL)


_ENCLOSURES = _enclosures()


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
    punctuation): Korean has spaces, and emoji stand anywhere.
    """
    is_korean = unicodedata.name(character, "").startswith("HANGUL")
    is_symbol = unicodedata.category(character).startswith("S")
    return unicodedata.east_asian_width(character) in "WF" and not is_korean and not is_symbol


def split_text(
    text: str,
    *,
    count_tokens: Callable[[str], int],
    limit: int | None,
    language: str | None,
    usual: UsualSource | None = None,
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
        usual: The most tokens and sentences of a line that is left whole; None = any number.
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
            is_usual = count_tokens(start + line.strip()) <= usual.tokens
            is_whole = is_whole and is_usual and len(sentences) <= usual.sentences
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
    code = base_language(language or "en")
    # Spaces of other kinds make sentencex panic
    plain = re.sub(r"\s", " ", line)
    sentences = []
    start = 0
    while start < len(line):
        # A part at a time, as sentencex takes the square of a line's length; what a part ends
        # within belongs to the next
        part = plain[start : start + _LONGEST_PART]
        ends = _sentence_ends(part, code)
        if start + len(part) < len(line):
            if len(ends) > 1:
                ends.pop()
            else:
                ends = [part.rfind(" ") + 1 or len(part)]
        for sentence_start, end in pairwise([0, *ends]):
            sentences.append(line[start + sentence_start : start + end])
        start += ends[-1]
    return sentences


def _sentence_ends(text: str, code: str, depth: int = 0) -> list[int]:
    """Where the sentences of a text end, those within quotation marks and brackets, too."""
    from sentencex import segment  # slow to load, and most lines are one sentence

    ends: list[int] = []
    start = 0
    for place in accumulate(map(len, segment(code, text))):
        end = _beside_signs(text, place)
        sentence = text[start:end]
        is_number = _LIST_NUMBER.fullmatch(sentence) or (
            code == "de" and _ORDINAL.search(sentence) and _COUNTED.match(text, end)
        )
        if end <= start or (is_number and end < len(text)):
            continue
        if depth < _MOST_ENCLOSURES and _OPENING_SIGN.search(sentence):
            ends += [start + cut for cut in _cuts_within_enclosures(sentence, code, depth)]
        ends.append(end)
        start = end
    return ends


def _beside_signs(text: str, place: int) -> int:
    """The end of a sentence, behind its closing signs and before the opening ones of the next."""
    closing = _CLOSING_AT_START.match(text, place)
    if closing and not text[place - 1].isspace():
        return closing.end()
    without_signs = text[:place].rstrip(_OPENING)
    is_before_signs = place < len(text) and without_signs[-1:].isspace()
    return len(without_signs) if is_before_signs else place


def _cuts_within_enclosures(sentence: str, code: str, depth: int) -> list[int]:
    """Where what is one sentence but for its quotation marks and brackets is to be cut.

    Brackets within a sentence are left to it, as titles are: quotations without an end that the
    sentence goes on behind."""
    cuts = [0]
    for match in _ENCLOSURES.finditer(sentence):
        is_bracket = match[0][0] in _BRACKETS
        if is_bracket and sentence[cuts[-1] : match.start()].strip():
            continue
        content = match[match.lastindex or 0]
        last_sign = content.rstrip(_CLOSING + " ")[-1:]
        if last_sign not in _SENTENCE_SIGNS + "," and _WORD_BEHIND.match(sentence, match.end()):
            continue
        ends = _sentence_ends(content, code, depth + 1)
        for end in ends[:-1]:
            if content[end - 1].isspace() or is_wide(content[end - 1]):
                cuts.append(match.start() + 1 + end)
        following = re.compile(r"\s+").match(sentence, match.end())
        is_sentence = last_sign in _SENTENCE_SIGNS and len(content.split()) > 1
        if following and is_sentence and (is_bracket or len(ends) > 1):
            letter = re.compile(r"\w").search(sentence, following.end())
            if letter and not letter[0].islower():
                cuts.append(following.end())
    return cuts[1:]


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
