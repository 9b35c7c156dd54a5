# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Whole documents in two languages: the help of LibreOffice, whose pages agree paragraph by
paragraph in their ids.

Debian has it in packages such as `libreoffice-help-de` and `libreoffice-help-en-us` (MPL 2.0).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path

from csan_hf.text_files import write_lines

_SHARES = {"test": 0.015, "validation": 0.03}
_LEAST_PIECE = 10  # words
Page = list[tuple[str, str]]
"""Source and target of each paragraph."""


class _Paragraphs(HTMLParser):
    """Texts of a page's paragraphs and headings by their ids."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self.inside: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "br" and self.inside:
            self.texts[self.inside] += " "
        name = dict(attrs).get("id") or ""
        if name.startswith(("par_id", "hd_id")):
            self.inside = name
            self.texts[name] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag in ("p", "h1", "h2", "h3", "h4", "h5", "h6"):
            self.inside = None

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts[self.inside] += data


def prepare_help(
    source: Path | str,
    target: Path | str,
    output: Path | str,
    languages: tuple[str, str] = ("de", "en"),
    *,
    piece_words: int = 160,
    page_words: tuple[int, int] = (600, 2400),
) -> dict[str, int]:
    """Writes a corpus of documents: short pieces of pages to train on, whole long pages to test on.

    `train` and `validation` have pieces of pages, of random lengths, `test_pages` whole pages of
    `page_words`, `test_segments` the paragraphs of the same pages. Paragraphs that repeat an
    earlier one's source word for word, of which a help has many, are left out of pages; so none of
    a test page is trained on.

    Args:
        source, target: Folders of the two languages, such as `usr/share/libreoffice/help/de`.
        output: Folder to write to; created if missing.
        languages: Endings of the files.
        piece_words: Most source words of a piece (a longer paragraph is one alone).
        page_words: Fewest and most source words of a test page.

    Returns:
        Split -> lines in it.

    Raises:
        FileNotFoundError: A folder has no pages.
        ValueError: The pages do not suffice for each split, or the languages have one name.
    """
    if len(set(languages)) < 2:
        raise ValueError(f"languages must be two endings of files, got {languages}.")
    pages = [page for _, page in sorted(_read_pages(Path(source), Path(target)))]
    generator = random.Random(0)
    generator.shuffle(pages)
    sizes = [sum(len(text.split()) for text, _ in page) for page in pages]
    long = [place for place, size in enumerate(sizes) if page_words[0] <= size <= page_words[1]]
    tests = set(long[: max(1, int(_SHARES["test"] * len(pages)))])
    others = [page for place, page in enumerate(pages) if place not in tests]
    pieces = [list(_pieces(page, piece_words, generator)) for page in others]
    last = max(1, int(_SHARES["validation"] * len(pieces)))
    splits = {
        "train": [piece for page in pieces[last:] for piece in page],
        "validation": [piece for page in pieces[:last] for piece in page],
        "test_pages": [_joined(pages[place]) for place in sorted(tests)],
        "test_segments": [pair for place in sorted(tests) for pair in pages[place]],
    }
    if empty := [split for split, lines in splits.items() if not lines]:
        found = (
            f"{len(pages)} pages in both {source} and {target}, {len(long)} of them of "
            f"{page_words} words"
        )
        raise ValueError(f"Nothing is left for {', '.join(empty)}: there are {found}.")
    for split, lines in splits.items():
        for language, texts in zip(languages, zip(*lines, strict=True), strict=True):
            write_lines(Path(output, f"{split}.{language}"), texts)
    return {split: len(lines) for split, lines in splits.items()}


def join_segments(
    segments: Sequence[str], translations: Sequence[str], pages: Sequence[str]
) -> list[str]:
    """Joins translations of `test_segments` to those of `test_pages`, given the sources of both;
    else a ValueError.
    """
    joined, start = [], 0
    for page in pages:
        end = next(
            (n for n in range(start + 1, len(segments) + 1) if " ".join(segments[start:n]) == page),
            None,
        )
        if end is None:
            break
        joined.append(" ".join(translations[start:end]))
        start = end
    if len(joined) != len(pages) or not start == len(segments) == len(translations):
        raise ValueError(
            f"segments, translations and pages are not of one corpus, from segment {start + 1} on."
        )
    return joined


def _read_pages(source: Path, target: Path) -> Iterator[tuple[str, Page]]:
    paths = sorted(source.glob("text/**/*.html"))
    if not paths:
        raise FileNotFoundError(
            f"{source} has no pages text/**/*.html: give the folder of one language's help."
        )
    seen: set[str] = set()
    for path in paths:
        name = path.relative_to(source)
        if (target / name).is_file():
            own, other = (_paragraphs(folder / name) for folder in (source, target))
            pairs = {
                own[key]: other[key] for key in own if own[key] and other.get(key)
            }  # a repeated one once
            if page := [pair for pair in pairs.items() if pair[0] not in seen]:
                seen |= pairs.keys()
                yield str(name), page


def _paragraphs(path: Path) -> dict[str, str]:
    parser = _Paragraphs()
    parser.feed(path.read_text(encoding="utf-8"))
    return {name: " ".join(text.split()) for name, text in parser.texts.items()}


def _pieces(page: Page, most: int, generator: random.Random) -> Iterator[tuple[str, str]]:
    """Neighbouring paragraphs joined, up to a number of source words drawn for each piece."""
    piece: Page = []
    limit = _piece_length(most, generator)
    for pair in page:
        if piece and sum(len(text.split()) for text, _ in [*piece, pair]) > limit:
            yield _joined(piece)
            piece, limit = [], _piece_length(most, generator)
        piece.append(pair)
    if piece:
        yield _joined(piece)


def _piece_length(most: int, generator: random.Random) -> int:
    """Every doubling as likely as the next: from short pieces a model learns sooner what translates
    what.
    """
    return round(math.exp(generator.uniform(math.log(min(_LEAST_PIECE, most)), math.log(most))))


def _joined(page: Page) -> tuple[str, str]:
    source, target = zip(*page, strict=True)
    return " ".join(source), " ".join(target)
