#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Corpus of whole documents: the help of LibreOffice, whose pages agree paragraph by paragraph.

Debian has it in packages such as `libreoffice-help-de` and `libreoffice-help-en-us` (MPL 2.0).

    python scripts/prepare_help.py corpus usr/share/libreoffice/help/{de,en-US} data/help
    cd data/help && python ../../scripts/prepare_help.py join test_segments.de FILE test_pages.de
"""

import math
import random
import sys
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonargparse

from csan_hf.evaluation.pieces import Pair, group_pieces
from csan_hf_runtime.command_line import script
from csan_hf_runtime.text_files import open_parallel, read_lines, write_lines

TEST_SHARE = 0.015
VALIDATION_SHARE = 0.03
LEAST_PIECE = 10  # words

Page = list[Pair]  # its paragraphs


class Paragraphs(HTMLParser):
    """Texts of a page's paragraphs and headings by their ids."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self.open_id: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "br":
            self.handle_data(" ")
        identifier = dict(attrs).get("id") or ""
        if identifier.startswith(("par_id", "hd_id")):
            self.open_id = identifier
            self.texts[identifier] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag in ("p", "h1", "h2", "h3", "h4", "h5", "h6"):
            self.open_id = None

    def handle_data(self, data: str) -> None:
        if self.open_id:
            self.texts[self.open_id] += data


def prepare_help(
    source: Path,
    target: Path,
    output: Path,
    languages: tuple[str, str] = ("de", "en"),
    piece_words: int = 160,
    page_words: tuple[int, int] = (600, 2400),
) -> dict[str, int]:
    """Write a corpus of documents: short pieces of pages to train on, whole long pages to test on.

    `train` and `validation` have pieces of pages, of random lengths, `test_pages` whole pages of
    `page_words`, `test_segments` the paragraphs of the same pages, and `test_segments.page` the
    number of the page of each. The folder `documents` has all pages as `data.documents` reads them:
    a paragraph in each line, a blank line after each page. Paragraphs that repeat an earlier one's
    source word for word, of which a help has many, are left out of pages; so none of a test page is
    trained on.

    Args:
        source: folder of the source language, such as usr/share/libreoffice/help/de
        target: folder of the target language
        output: folder to write to; created if missing
        languages: endings of the files
        piece_words: most source words of a piece (a longer paragraph is one alone)
        page_words: fewest and most source words of a test page

    Returns:
        Split -> lines in it.

    Raises:
        ValueError: The pages do not suffice for each split.
    """
    generator = random.Random(0)
    pages = [page for _, page in sorted(read_pages(source, target))]
    generator.shuffle(pages)
    long_pages = [page for page in pages if page_words[0] <= source_words(page) <= page_words[1]]
    tests = long_pages[: max(1, int(TEST_SHARE * len(pages)))]
    training_pages = [page for page in pages if page not in tests]
    validation_count = max(1, int(VALIDATION_SHARE * len(training_pages)))
    splits: dict[str, Page] = {"train": [], "validation": [], "test_pages": [], "test_segments": []}
    for number, page in enumerate(training_pages):
        split = "validation" if number < validation_count else "train"
        splits[split] += pieces_of(page, piece_words, generator)
    pages_of_segments: list[str] = []
    for number, page in enumerate(tests):
        splits["test_pages"].append(joined(page))
        splits["test_segments"] += page
        pages_of_segments += [str(number)] * len(page)
    empty = [split for split, pairs in splits.items() if not pairs]
    if empty:
        raise ValueError(
            f"Nothing is left for {', '.join(empty)}: there are {len(pages)} pages text/**/*.html "
            f"in both {source} and {target}, {len(long_pages)} of them of {page_words} words."
        )
    for split, pairs in splits.items():
        for language, texts in zip(languages, zip(*pairs, strict=True), strict=True):
            write_lines(output / f"{split}.{language}", texts)
    write_lines(output / "test_segments.page", pages_of_segments)
    documents = {
        "train": training_pages[validation_count:],
        "validation": training_pages[:validation_count],
        "test": tests,
    }
    for split, split_pages in documents.items():
        write_documents(output / "documents", split, languages, split_pages)
    return {split: len(pairs) for split, pairs in splits.items()}


def write_documents(
    folder: Path, split: str, languages: tuple[str, str], documents: Iterable[Page]
) -> None:
    """Write the lines of documents, with a blank one after each."""
    pairs: list[Pair] = []
    for document in documents:
        pairs += [*document, ("", "")]
    for language, lines in zip(languages, zip(*pairs, strict=True), strict=True):
        write_lines(folder / f"{split}.{language}", lines)


def read_pages(source: Path, target: Path) -> Iterator[tuple[str, Page]]:
    """Names and pages of both languages, without paragraphs that an earlier page has."""
    earlier: set[str] = set()
    for path in sorted(source.glob("text/**/*.html")):
        name = path.relative_to(source)
        translation = target / name
        if not translation.is_file():
            continue
        source_texts = paragraphs_of(path)
        target_texts = paragraphs_of(translation)
        pairs = {  # a text that a page repeats once
            text: target_texts[identifier]
            for identifier, text in source_texts.items()
            if text and target_texts.get(identifier)
        }
        page = [pair for pair in pairs.items() if pair[0] not in earlier]
        if page:
            earlier |= pairs.keys()
            yield str(name), page


def paragraphs_of(path: Path) -> dict[str, str]:
    """Paragraphs of a page by their ids, white space as single spaces."""
    parser = Paragraphs()
    parser.feed(path.read_text(encoding="utf-8"))
    return {identifier: " ".join(text.split()) for identifier, text in parser.texts.items()}


def source_words(page: Page) -> int:
    return sum(len(text.split()) for text, _ in page)


def pieces_of(page: Page, most: int, generator: random.Random) -> Iterator[Pair]:
    """Neighbouring paragraphs joined, up to a number of source words drawn for each piece."""
    piece: Page = []
    limit = piece_length(most, generator)
    for pair in page:
        if piece and source_words([*piece, pair]) > limit:
            yield joined(piece)
            piece = []
            limit = piece_length(most, generator)
        piece.append(pair)
    if piece:
        yield joined(piece)


def piece_length(most: int, generator: random.Random) -> int:
    """Every doubling is as likely as the next: from short pieces a model learns sooner what
    translates what.
    """
    return round(math.exp(generator.uniform(math.log(min(LEAST_PIECE, most)), math.log(most))))


def joined(page: Page) -> Pair:
    source, target = zip(*page, strict=True)
    return " ".join(source), " ".join(target)


def print_joined(segments: Path, translations: Path, pages: Path) -> None:
    """Print the translations of pages whose paragraphs were translated one by one.

    Args:
        segments: source of the paragraphs, test_segments.de
        translations: a translation of each
        pages: source of the pages, test_pages.de
    """
    translated = zip(*open_parallel(segments, translations), strict=True)
    joined_pages = [joined(page) for page in group_pieces(read_lines(pages), translated)]
    for _, translation in joined_pages:
        print(translation)


@script()
def main(arguments: list[str]) -> None:
    commands: dict[str, Any] = {"corpus": prepare_help, "join": print_joined}
    counts = jsonargparse.auto_cli(commands, args=arguments)
    if counts:
        print(", ".join(f"{split}: {count} lines" for split, count in counts.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
