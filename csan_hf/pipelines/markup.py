# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Inline tags of HTML and XLIFF: taken out of a text, and put into its translation where the
aligned words stand.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from operator import itemgetter

from csan_hf_runtime.texts import Markup

_EMPTY_TAGS = {"area", "br", "embed", "hr", "img", "input", "wbr"}  # of HTML, without an end tag
# Of HTML: words on both sides of such a tag are two words
_SEPARATORS = {"br", "div", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "p", "td", "th"}
# What these enclose is code, and not text
_CODES = {"html": {"script", "style"}, "xliff": {"bpt", "ept", "it", "ph"}}
# Of XLIFF: tags that are empty, and are the beginning and the end of what a pair encloses
_STARTS = {"bpt": "ept", "bx": "ex", "sc": "ec"}
_PAIR_NUMBERS = ("rid", "startref", "id")


@dataclass
class Tag:
    """A tag, or a pair with what it encloses: the characters from `start` to `end` of a text.

    Attributes:
        opening: The tag as it was written.
        start: Where it stands in the text without tags.
        end: Where the closing tag stands; of an empty tag as `start`.
        closing: The closing tag; "" where there is none.
        children: The tags between the two.
    """

    opening: str
    start: int
    end: int
    closing: str = ""
    children: list[Tag] = field(default_factory=list)


@dataclass(frozen=True)
class MarkedText:
    """A text without its tags, and the tags that stood in it."""

    text: str
    tags: list[Tag]

    def restore(
        self,
        translation: str,
        links: Iterable[tuple[int, int]],
        *,
        source_word: re.Pattern[str],
        target_word: re.Pattern[str],
        first: int = 0,
    ) -> str:
        """Puts the tags into the translation of the text, and writes `&`, `<` and `>` as entities.

        A pair encloses the target words from the first to the last one that is linked to a source
        word within it. A single tag stands before the first target word that is linked to the
        source word after it, or to the next one with a link. Tags stay nested as they were: of two
        pairs side by side that would overlap, the second begins after the end of the first.

        Args:
            translation: The translation.
            links: Pairs (source word, target word).
            source_word: What a word of the text is.
            target_word: What a word of the translation is.
            first: Where the first word of the text may begin: behind the tag of a language.
        """
        targets: dict[int, list[int]] = {}
        for source, target in links:
            targets.setdefault(source, []).append(target)
        sides = _Sides(
            source=self.text,
            translation=translation,
            source_words=[match.span() for match in source_word.finditer(self.text, first)],
            target_words=[match.span() for match in target_word.finditer(translation)],
            targets=targets,
        )
        return sides.render(self.tags, 0, len(translation))


@dataclass(frozen=True)
class _Sides:
    """A text and its translation, the spans of their words, and the target words of each source
    word.
    """

    source: str
    translation: str
    source_words: Sequence[tuple[int, int]]
    target_words: Sequence[tuple[int, int]]
    targets: Mapping[int, Sequence[int]]

    def render(self, tags: Iterable[Tag], start: int, end: int) -> str:
        """Writes a part of the translation with the tags that stand in it."""
        marked = ""
        place = start
        for tag_start, tag_end, tag in sorted(map(self._placed, tags), key=itemgetter(0, 1)):
            first = min(max(tag_start, place), end)
            last = min(max(tag_end, first), end)
            while first > tag_start and self.translation[first:last][:1].isspace():
                first += 1
            inside = self.render(tag.children, first, last)
            marked += self._escaped(place, first) + tag.opening + inside + tag.closing
            place = last
        return marked + self._escaped(place, end)

    def _escaped(self, start: int, end: int) -> str:
        return html.escape(self.translation[start:end], quote=False)

    def _place_before(self, number: int) -> int:
        """Where the translation of a source word begins, or of the next one that has a link."""
        for word in range(number, len(self.source_words)):
            if word in self.targets:
                return self.target_words[min(self.targets[word])][0]
        return len(self.translation)

    def _placed(self, tag: Tag) -> tuple[int, int, Tag]:
        """Where in the translation a tag is to begin and to end."""
        following = bisect_right(self.source_words, tag.start, key=itemgetter(1))
        after_last = bisect_left(self.source_words, tag.end, key=itemgetter(0))
        linked: list[int] = []
        for number in range(following, after_last):
            linked += self.targets.get(number, ())
        if not linked:
            place = self._place_before(following)
            return place, place, tag
        start = self.target_words[min(linked)][0]
        end = self.target_words[max(linked)][1]
        # Punctuation beside the tag, in the same word, stays beside it
        letters = re.search(r"\w(?:.*\w)?", self.translation[start:end], re.DOTALL)
        before = self.source[self.source_words[following][0] : tag.start]
        after = self.source[tag.end : self.source_words[after_last - 1][1]]
        is_at_end = re.fullmatch(r"\W+", after) is not None
        if letters is not None and is_at_end:
            end = start + letters.end()
        if letters is not None and re.fullmatch(r"\W+", before):
            start += letters.start()
        if tag.closing:
            return start, end, tag
        place = end if is_at_end else start  # of a tag within a word
        return place, place, tag


def parse_markup(source: str, kind: Markup) -> MarkedText:
    """Takes the tags out of a text and decodes its entities.

    Tags and comments are kept as they were written; a tag without its partner is a single tag.
    """
    text = ""
    tags: list[Tag] = []
    names: list[str] = []  # of start tags that may have an end
    places: list[int] = []  # of these among `tags`
    is_separated = False
    parts = _Parser(source, kind).parts
    for part, following in pairwise([*parts, _Part("end of the text", len(source))]):
        if part.kind == "text":
            if is_separated and text[-1:].strip() and part.content[:1].strip():
                text += " "
            text += part.content
            is_separated = False
            continue
        is_separated |= kind == "html" and part.name in _SEPARATORS
        written = source[part.start : following.start]
        if part.kind == "end" and part.name in names:
            last = len(names) - 1 - names[::-1].index(part.name)
            first_child = places[last] + 1
            del names[last:], places[last:]  # those after it are single tags
            pair = tags[first_child - 1]
            pair.end = len(text)
            pair.closing = written
            pair.children = tags[first_child:]
            del tags[first_child:]
            continue
        if part.kind == "start":
            names.append(part.name)
            places.append(len(tags))
        tags.append(Tag(written, len(text), len(text)))
    return MarkedText(text, tags)


@dataclass
class _Part:
    """What begins at `start` of a marked text; its `kind` is "text", "start", "end" or "empty".

    `name` is that of the tag, with the number of its pair; `content` is the text."""

    kind: str
    start: int
    name: str = ""
    content: str = ""


class _Parser(HTMLParser):
    """Reads the parts of a marked text."""

    def __init__(self, source: str, kind: Markup) -> None:
        super().__init__()
        self.parts: list[_Part] = []
        self._is_html = kind == "html"
        self._codes = _CODES[kind]
        self._code = ""  # the element whose content is code
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", source))]
        self.feed(source)
        self.close()

    def _add(self, kind: str, name: str = "", content: str = "") -> None:
        line, column = self.getpos()
        if not self._code:
            start = self._line_starts[line - 1] + column
            self.parts.append(_Part(kind, start, name=name, content=content))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A start tag, or one that is empty."""
        if tag in self._codes:
            self.handle_startendtag(tag, attrs)
            self._code = self._code or tag
        elif self._is_html and tag in _EMPTY_TAGS:
            self._add("empty", tag)
        else:
            self._add("start", tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An empty tag, or one that is a half of a pair."""
        values = dict(attrs)
        number = next((values[name] for name in _PAIR_NUMBERS if values.get(name)), None)
        if self._is_html or number is None:
            self._add("empty", tag)
        elif tag in _STARTS:
            self._add("start", f"{_STARTS[tag]} {number}")
        elif tag in _STARTS.values():
            self._add("end", f"{tag} {number}")
        else:
            self._add("empty", tag)

    def handle_endtag(self, tag: str) -> None:
        """An end tag; that of code belongs to the part before."""
        if tag == self._code:
            self._code = ""
        else:
            self._add("end", tag)

    def handle_data(self, data: str) -> None:
        """Text."""
        self._add("text", content=data)

    def handle_comment(self, data: str) -> None:
        """A comment, kept as an empty tag."""
        self._add("empty")

    def handle_decl(self, decl: str) -> None:
        """A declaration, likewise."""
        self._add("empty")

    handle_pi = handle_comment
    unknown_decl = handle_comment
