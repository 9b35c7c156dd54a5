# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Inline tags of HTML and XLIFF: taken out of a text, and put into its translation where the
aligned words stand.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Literal

from .options import Markup
from .text_files import read_lines_with_ends, uncompressed_name

_EMPTY_TAGS = {"area", "br", "embed", "hr", "img", "input", "wbr"}  # of HTML, without an end tag
# Of HTML: what the standard lays out apart, so that no sentence goes on over such a tag
_BLOCKS = re.compile(
    "address|article|aside|blockquote|body|br|button|caption|center|dd|details|dialog|div|dl|dt|"
    "fieldset|figcaption|figure|footer|form|h[1-6]|header|hgroup|hr|legend|li|main|menu|nav|ol|"
    "option|p|pre|search|section|summary|table|td|textarea|th|title|tr|ul"
)
_WHITE_SPACE = " \t\n\f\r"  # of HTML: not the no-break space
_WHITE_SPACES = re.compile(f"[{_WHITE_SPACE}]+")
# Between the texts of blocks: a line break to Python, and no character of HTML or XML
_BLOCK_BREAK = "\x1e"
# Of HTML: elements whose end tag may be left out; which start tags end them then, and which
# elements within them have such parts of their own
_FLOW = (
    "address article aside blockquote center dd details dialog div dl dt fieldset figcaption "
    "figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr li main menu nav ol p pre search "
    "section summary table td th tr ul"
)
_OPTIONAL_ENDS = {
    "p": (_FLOW, ""),
    "li": ("li", "ul ol menu"),
    "dt": ("dt dd", "dl"),
    "dd": ("dt dd", "dl"),
    "td": ("td th tr tbody tfoot", "table"),
    "th": ("td th tr tbody tfoot", "table"),
    "tr": ("tr tbody tfoot", "table"),
    "thead": ("tbody tfoot", "table"),
    "tbody": ("tbody tfoot", "table"),
    "tfoot": ("tbody", "table"),
    "option": ("option optgroup", "select"),
    "optgroup": ("optgroup", "select"),
    "rt": ("rt rp", "ruby"),
    "rp": ("rt rp", "ruby"),
}
# What these enclose is code, and not text
_CODES = {"html": {"script", "style"}, "xliff": {"bpt", "ept", "it", "ph"}}
_PROTECTED = {"translate": "no", "mtype": "protected"}
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
        return sides.render(self.tags)


@dataclass
class _OpenTag:
    """A tag whose inside is being written, the translation from `place` to `end`.

    `last` is the tag within it that was written last, where that is like a word of its own: white
    space is still to follow."""

    children: Iterator[tuple[int, int, Tag]]
    place: int
    end: int
    closing: str = ""
    last: Tag | None = None


class _Sides:
    """A text and its translation, with their words and the links between these.

    Args:
        source: The text.
        translation: The translation.
        source_words: The spans of the words of the text.
        target_words: Those of the translation.
        targets: The target words of each source word.
    """

    def __init__(
        self,
        *,
        source: str,
        translation: str,
        source_words: Sequence[tuple[int, int]],
        target_words: Sequence[tuple[int, int]],
        targets: Mapping[int, Sequence[int]],
    ) -> None:
        self.source = source
        self.translation = translation
        self.source_words = source_words
        self.target_words = target_words
        numbers = range(len(source_words))
        # A word without a link is behind all in the one, before all in the other
        self._first_targets = [
            min(targets.get(number, ()), default=len(target_words)) for number in numbers
        ]
        self._last_targets = [max(targets.get(number, ()), default=-1) for number in numbers]
        self._next_linked = list(numbers)
        linked = len(source_words)
        for number in reversed(numbers):
            if number in targets:
                linked = number
            self._next_linked[number] = linked

    def render(self, tags: Iterable[Tag]) -> str:
        """Writes the translation with the tags that stand in it, however deep."""
        marked: list[str] = []
        open_tags = [_OpenTag(self._in_order(tags), 0, len(self.translation))]
        while open_tags:
            around = open_tags[-1]
            placed = next(around.children, None)
            if placed is None:
                text = self._escaped(around.place, around.end)
                if around.last is not None and text and not text[0].isspace():
                    marked.append(" ")
                marked += text, around.closing
                open_tags.pop()
                continue
            tag_start, tag_end, tag = placed
            first = min(max(tag_start, around.place), around.end)
            last = min(max(tag_end, first), around.end)
            while tag_start < first < last and self.translation[first].isspace():
                first += 1
            text = self._escaped(around.place, first)
            is_word = self._is_like_word(tag)
            if around.last is None or around.last.start != tag.start:
                if around.last is not None and not text[:1].isspace():
                    text = f" {text}"
                if is_word and text and not text[-1].isspace():
                    text = f"{text} "
            marked += text, tag.opening
            around.place = last
            around.last = tag if is_word else None
            open_tags.append(_OpenTag(self._in_order(tag.children), first, last, tag.closing))
        return "".join(marked)

    def _is_like_word(self, tag: Tag) -> bool:
        """Whether white space stands on both sides of a tag that encloses no text."""
        start = tag.start
        begins_block = self.source.startswith(_BLOCK_BREAK, start)
        after = start + 1 if begins_block else start
        is_apart = start == 0 or begins_block or self.source[start - 1].isspace()
        return start == tag.end and is_apart and self.source[after : after + 1].isspace()

    def _in_order(self, tags: Iterable[Tag]) -> Iterator[tuple[int, int, Tag]]:
        return iter(sorted(map(self._placed, tags), key=itemgetter(0, 1)))

    def _escaped(self, start: int, end: int) -> str:
        return html.escape(self.translation[start:end], quote=False).replace(_BLOCK_BREAK, "")

    def _place_before(self, number: int) -> int:
        """Where the translation of a source word begins, or of the next one that has a link."""
        if number < len(self.source_words) and self._next_linked[number] < len(self.source_words):
            linked = self._next_linked[number]
            return self.target_words[self._first_targets[linked]][0]
        return len(self.translation)

    def _placed(self, tag: Tag) -> tuple[int, int, Tag]:
        """Where in the translation a tag is to begin and to end."""
        following = bisect_right(self.source_words, tag.start, key=itemgetter(1))
        after_last = bisect_left(self.source_words, tag.end, key=itemgetter(0))
        has_link = following < after_last and self._next_linked[following] < after_last
        if not has_link:
            place = self._place_before(following)
            return place, place, tag
        start = self.target_words[min(self._first_targets[following:after_last])][0]
        end = self.target_words[max(self._last_targets[following:after_last])][1]
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


@dataclass(frozen=True)
class Page:
    """A file of HTML, which is one text."""

    text: str

    @classmethod
    def read(cls, path: Path | str) -> Page:
        """Reads a file, compressed or not."""
        return cls("".join(read_lines_with_ends(path)).removeprefix("\ufeff"))

    @property
    def texts(self) -> list[str]:
        """The one text."""
        return [self.text]

    def written(self, number: int, translation: str) -> str:
        """Returns the file with the translation of the text."""
        return translation if translation.endswith("\n") else f"{translation}\n"


def is_page(path: Path | str) -> bool:
    """Whether a file is named as one of HTML."""
    return uncompressed_name(path).lower().endswith((".html", ".htm"))


def parse_markup(source: str, kind: Markup) -> MarkedText:
    """Takes the tags out of a text and decodes its entities.

    Tags and comments are kept as they were written; a tag without its partner is a single tag.
    In HTML white space is one space, beside the tag of a block it belongs to the tag, and each
    block is a line of the text.
    """
    text = ""
    tags: list[Tag] = []
    starts: list[tuple[str, int]] = []  # names of start tags that may have an end, places in `tags`
    open_names: Counter[str] = Counter()
    is_separated = False
    parts = _parts_of(source, kind)
    for part, following in pairwise([*parts, _Part("end of the text", len(source))]):
        if part.kind == "text":
            if is_separated and text:
                text += _BLOCK_BREAK
            is_separated = False
            keeps_lines = kind == "xliff" or open_names["pre"] or open_names["textarea"]
            text += part.content if keeps_lines else _WHITE_SPACES.sub(" ", part.content)
            continue
        is_separated |= _is_block(kind, part.name)
        written = source[part.start : following.start]
        if part.kind == "end" and open_names[part.name]:
            name = ""
            while name != part.name:  # those after it are single tags
                name, place = starts.pop()
                open_names[name] -= 1
            pair = tags[place]
            pair.end = len(text)
            pair.closing = written
            pair.children = tags[place + 1 :]
            del tags[place + 1 :]
            continue
        if part.kind == "start":
            open_names[part.name] += 1
            starts.append((part.name, len(tags)))
        tags.append(Tag(written, len(text), len(text)))
    return MarkedText(text, tags)


@dataclass
class _Part:
    """A part of a marked text from `start` on; its `kind` is "text", "start", "end" or "empty".

    `name` is that of the tag, with the number of its pair; `content` is the text."""

    kind: str
    start: int
    name: str = ""
    content: str = ""


def _is_block(kind: Markup, name: str) -> bool:
    """Whether a tag is that of a block, whose text is a line of its own."""
    return kind == "html" and _BLOCKS.fullmatch(name) is not None


_TAG_START = re.compile(r"<(/?)([A-Za-z][^\s/<>]*)|<[!?/]")
_ATTRIBUTES = re.compile(r"""(?:[^<>"']+|"[^"]*"|'[^']*')*""")
_ATTRIBUTES_OF_XML = re.compile(r"""(?:[^<>"']+|"[^"<]*"|'[^'<]*')*""")
_ATTRIBUTE = re.compile(r"""=|[^\s=/"']+|"[^"]*"|'[^']*'""")
_ENDS = {"<!--": "-->", "<![CDATA[": "]]>"}


def _tags_of(source: str) -> Iterator[tuple[re.Match[str], int]]:
    """Yields the beginnings of tags and comments and where these end; what has no end is text.

    Takes time that grows with the length of the text alone: what nothing closes is not looked for
    at every tag."""
    unclosed: set[str] = set()
    place = 0
    while tag := _TAG_START.search(source, place):
        place = tag.end()
        if tag[2]:
            attributes = _ATTRIBUTES_OF_XML if "quote" in unclosed else _ATTRIBUTES
            end = _end_of(attributes, source, place)
            if source[end : end + 1] in ('"', "'"):
                unclosed.add("quote")
                end = _end_of(_ATTRIBUTES_OF_XML, source, place)
            if source[end : end + 1] != ">":
                continue
            end += 1
        else:
            signs = (sign for sign in _ENDS if source.startswith(sign, tag.start()))
            closing = _ENDS.get(next(signs, ""), ">")
            end = -1 if closing in unclosed else source.find(closing, place)
            if end < 0:
                unclosed.add(closing)
                continue
            end += len(closing)
        place = end
        yield tag, end


def _end_of(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return start if match is None else match.end()


@dataclass
class _Kept:
    """An element whose content stays as it is, while its tags are read.

    Attributes:
        name: Its name.
        is_code: Whether the content is code, without elements; else it is protected.
        may_lack_end: Whether its end tag may be left out.
        depth: Elements of its name that are open, where none lacks an end tag.
        inner: Open elements within it by name, where it may lack an end tag.
    """

    name: str
    is_code: bool
    may_lack_end: bool
    depth: int = 1
    inner: Counter[str] = field(default_factory=Counter)

    def end(self, name: str, attributes: str, *, is_end: bool) -> Literal["here", "before"] | None:
        """Whether it ends with a tag, or before it; None = it goes on."""
        if self.may_lack_end:
            return self._end_without_tag(name, is_end=is_end)
        if name == self.name and is_end:
            self.depth -= 1
        elif name == self.name and not self.is_code and not attributes.endswith("/"):
            self.depth += 1
        return None if self.depth else "here"

    def _end_without_tag(self, name: str, *, is_end: bool) -> Literal["here", "before"] | None:
        starts, containers = (names.split() for names in _OPTIONAL_ENDS[self.name])
        is_within = any(self.inner[container] for container in containers)
        if not is_within and is_end and name == self.name:
            return "here"
        # The start of the next one, or the end of what is around it
        is_over = not self.inner[name] if is_end else name in starts
        if not is_within and is_over:
            return "before"
        if not is_within or name in containers:
            self.inner[name] += -1 if is_end else 1
        return None


def _parts_of(source: str, kind: Markup) -> list[_Part]:
    """The parts of a marked text."""
    parts: list[_Part] = []
    kept: _Kept | None = None
    text_start = 0
    for tag, end in _tags_of(source):
        name = (tag[2] or "").lower()
        is_end = bool(tag[1])
        attributes = source[tag.end() : end - 1]
        if kept is not None:
            place = kept.end(name, attributes, is_end=is_end)
            if place is not None:
                kept = None
                text_start = end if place == "here" else tag.start()
            if place != "before":
                continue
        start = tag.start()
        is_block = _is_block(kind, name)
        if is_block:
            start = text_start + len(source[text_start:start].rstrip(_WHITE_SPACE))
            end = _end_of(_WHITE_SPACES, source, end)
        content = unescaped(source[text_start:start])
        # No-break spaces alone, beside a block, belong to the tag before them
        is_beside_block = is_block or (bool(parts) and _is_block(kind, parts[-1].name))
        is_spacing = bool(parts) and is_beside_block and not content.strip()
        if content and not is_spacing:
            parts.append(_Part("text", text_start, content=content))
        text_start = end
        part = _part_of_tag(kind, start, name, attributes, is_end=is_end)
        parts.append(part)
        is_code = name in _CODES[kind] and not is_end and not attributes.endswith("/")
        if is_code or (part.kind == "start" and _is_protected(attributes)):
            part.kind = "empty"
            kept = _Kept(name, is_code, may_lack_end=kind == "html" and name in _OPTIONAL_ENDS)
    if kept is None and text_start < len(source):
        parts.append(_Part("text", text_start, content=unescaped(source[text_start:])))
    return parts


def _part_of_tag(kind: Markup, start: int, name: str, attributes: str, *, is_end: bool) -> _Part:
    """A tag, or a comment, which has no name."""
    if is_end:
        return _Part("end", start, name)
    is_single = not name or attributes.endswith("/") or name in _CODES[kind]
    if not is_single and not (kind == "html" and name in _EMPTY_TAGS):
        return _Part("start", start, name)
    if kind == "html" or not name:
        return _Part("empty", start, name)
    return _part_of_single_tag(start, name, attributes)


def _part_of_single_tag(start: int, name: str, attributes: str) -> _Part:
    """A tag of XLIFF that may be the beginning or the end of what two such tags enclose."""
    values = _attribute_values(attributes)
    number = next((values[number] for number in _PAIR_NUMBERS if values.get(number)), None)
    if number is not None and name in _STARTS:
        return _Part("start", start, f"{_STARTS[name]} {number}")
    if number is not None and name in _STARTS.values():
        return _Part("end", start, f"{name} {number}")
    return _Part("empty", start, name)


def _is_protected(attributes: str) -> bool:
    values = _attribute_values(attributes)
    return any(values.get(name, "").lower() == value for name, value in _PROTECTED.items())


def _attribute_values(attributes: str) -> dict[str, str]:
    values = {}
    tokens = _ATTRIBUTE.findall(attributes)
    for name, equals, value in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if equals == "=":
            values[name.lower()] = unescaped(value.strip("\"'"))
    return values


def unescaped(text: str) -> str:
    """A text with its entities decoded; Python refuses numbers of more than 4,300 digits."""
    return html.unescape(re.sub(r"&#0*([0-9]{1,8})[0-9]*", r"&#\1", text))
