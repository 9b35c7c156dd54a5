# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Subtitles, SubRip's (.srt) and WebVTT: texts out of a file, and their translations in their
places.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .markup import unescaped
from .sentences import is_wide
from .text_files import read_lines_with_ends, uncompressed_name

_NUMBER = r"[ \t\ufeff]*\d+[ \t\r]*\n"
_TIMES = r"[ \t\ufeff]*\d[\d:.,]*[ \t]*-->.*\n?"
# Where blank lines stand between all lines
_NUMBER_APART = rf"(?:\A|(?<=\n\n)|(?<=\n\r\n)){_NUMBER}(?:[ \t\r]*\n)+"
_HEADER = re.compile(rf"^((?:{_NUMBER_APART}|{_NUMBER})?{_TIMES})", re.MULTILINE)
_BLANK_LINE = re.compile(r"^(?=\r?$)", re.MULTILINE)
_TAG_OF_NO_MARKUP = r"(?:<\d[\d:.]*>|\{\\\w[^<>{}\n]*\})"  # <00:01.000>, {\an8}
_WITH_TEXT = r"(?:v|lang)[ .\t][^<>{}\n]*"  # <v Name>
_ATTRIBUTE = r"""[ \t]+[\w:-]+=(?:"[^"<>\n]*"|'[^'<>\n]*'|(?!["'])[^\s<>]*)"""
# <i>, <c.loud>, <font size=9>
_WITH_ATTRIBUTES = rf"[a-z]\w*(?:\.[\w.-]+)?(?:{_ATTRIBUTE})*[ \t]*/?"
_TAG = rf"(?:</?(?i:{_WITH_TEXT}|{_WITH_ATTRIBUTES})>|{_TAG_OF_NO_MARKUP})"
_SPACE = r"(?:[\s\u200e\u200f\u202a-\u202e\u2066-\u2069]|&[lr]lm;)"  # and marks of direction
# Begins the words of another speaker, or a line that is sung; a dash before a digit is a minus
_SIGN = r"(?:[-–—](?!\d)|[♪♫]|>>|&gt;&gt;)"
_TURN = re.compile(
    rf"^(?:(?<=[♪♫]\n)|(?<=[♪♫]\r\n)|(?=(?:{_TAG}|(?!\n){_SPACE})*(?:{_SIGN}|<v\b)))", re.MULTILINE
)
_BEHIND = rf"(?:{_TAG}|[♪♫]|{_SPACE})"
_AROUND = re.compile(
    rf"\A((?:{_TAG}|{_SIGN}|{_SPACE})*+)((?:{_BEHIND}*+.)*+)({_BEHIND}*+)\Z", re.DOTALL
)
_PLACE = "\ue000"  # of one that stays whole
_WHOLE = rf"{_TAG}|&#?\w+;|{_PLACE}"


@dataclass(frozen=True)
class _Turn:
    """Lines of a cue that are one text.

    Attributes:
        kept: What stands in the file before the text, behind that of the turn before.
        text: The text, in one line.
        lines: Lines that it had.
        line_end: What stood between them.
    """

    kept: str
    text: str
    lines: int
    line_end: str


@dataclass(frozen=True)
class Subtitles:
    """A file of subtitles: texts that are translated, and all else, which stays as it is.

    The lines of a cue are one text, from a line of another speaker on, with a dash or the like,
    another one. Tags and signs around a text stay; tags within it go, unless they are kept for the
    translator.

    Attributes:
        turns: The texts, each with what stands before it.
        end: What stands behind the last one.
        has_entities: Whether `&`, `<` and the end of `-->` are written as entities.
    """

    turns: Sequence[_Turn]
    end: str
    has_entities: bool

    @classmethod
    def read(cls, path: Path | str, *, keeps_tags: bool = False) -> Subtitles:
        """Reads a file, compressed or not.

        Args:
            path: The file.
            keeps_tags: Whether tags and entities within the texts are left to the translator.

        Raises:
            ValueError: There are no subtitles, or it is no text; see `read_lines`.
        """
        content = "".join(read_lines_with_ends(path))
        is_webvtt = content.removeprefix("\ufeff").startswith("WEBVTT")
        has_entities = is_webvtt and not keeps_tags
        turns = []
        parts = iter(_HEADER.split(content))
        kept = next(parts)
        for header, cue in zip(parts, parts, strict=True):
            kept += header
            notes: list[str] = []
            if is_webvtt:  # in .srt, text may go on behind a blank line
                cue, *notes = _BLANK_LINE.split(cue, maxsplit=1)
            for lines in _TURN.split(cue):
                before, marked_text, after = _parted(lines)
                text = re.sub(_TAG_OF_NO_MARKUP if keeps_tags else _TAG, "", marked_text)
                if has_entities:
                    text = unescaped(text)
                text_lines = [line for line in map(str.strip, text.splitlines()) if line]
                if not text_lines:
                    kept += lines
                    continue
                turn = _Turn(
                    kept=kept + before,
                    text=" ".join(text_lines),
                    lines=len(text_lines),
                    line_end="\r\n" if "\r\n" in marked_text else "\n",
                )
                turns.append(turn)
                kept = after
            kept += "".join(notes)
        if not turns:
            raise ValueError(
                f'{path} has no line with times, "-->", and text below it: name subtitles .srt or '
                ".vtt, and text otherwise."
            )
        return cls(turns, kept, has_entities)

    @property
    def texts(self) -> list[str]:
        """The texts, none of them empty."""
        return [turn.text for turn in self.turns]

    def written(self, number: int, translation: str) -> str:
        """Returns the part of the file that ends with the translation of a text; the parts of all
        texts, joined, are the file.
        """
        turn = self.turns[number]
        if self.has_entities:
            translation = translation.replace("&", "&amp;").replace("<", "&lt;")
            translation = translation.replace("-->", "--&gt;")  # a line with it would be times
        part = turn.kept + turn.line_end.join(_in_lines(translation, turn.lines))
        return part + self.end if number == len(self.turns) - 1 else part


def are_subtitles(path: Path | str) -> bool:
    """Whether a file is named as one of subtitles."""
    return uncompressed_name(path).lower().endswith((".srt", ".vtt"))


def _parted(lines: str) -> tuple[str, str, str]:
    """The tags and signs before a text, the text, and those behind it.

    Tags whose names stand within the text, too, are its own: `<i>one</i> and <i>two</i>`; but not
    a place or a speaker's name, which holds for all lines.
    """
    [(before, text, after)] = _AROUND.findall(lines)
    names = {_name_of(tag) for tag in re.findall(_TAG, text) if not tag.startswith("{")} - {"v"}

    def without_names(part: str) -> str:
        return re.sub(_TAG, lambda tag: "" if _name_of(tag[0]) in names else tag[0], part)

    def with_names(part: str) -> str:
        return "".join(tag for tag in re.findall(_TAG, part) if _name_of(tag) in names)

    return (
        without_names(before),
        with_names(before) + text + with_names(after),
        without_names(after),
    )


def _name_of(tag: str) -> str:
    return re.findall(r"\w+", tag)[0]


def _in_lines(text: str, most: int) -> list[str]:
    """Breaks a text into lines, `most` at most, about equally long, and never within a tag or an
    entity.
    """
    whole = iter(re.findall(_WHOLE, text))
    shortened = re.sub(_WHOLE, _PLACE, text)
    wrapper = textwrap.TextWrapper(
        width=len(shortened) // most + 1,
        break_long_words=any(map(is_wide, text)),
        break_on_hyphens=False,
        expand_tabs=False,
        replace_whitespace=False,
    )
    while len(lines := wrapper.wrap(shortened)) > most:
        wrapper.width += 1
    return [re.sub(_PLACE, lambda place: next(whole), line) for line in lines]
