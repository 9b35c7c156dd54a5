#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Corpus of documents: descriptions of Debian's packages and their translations.

Debian's archive has a file of each language, `dists/stable/main/i18n/Translation-de.bz2`. The texts
have the licences of their packages.

    python scripts/prepare_debian.py Translation-de.bz2 Translation-en.bz2 data/debian
"""

import itertools
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from csan_hf_runtime.command_line import run
from csan_hf_runtime.text_files import read_lines, write_lines

LETTERS_OF_FAMILY = 60
"""A paragraph of more letters is of one family, such as the packages made of one source."""

Document = tuple[tuple[str, str], ...]  # its paragraphs in both languages


def prepare_debian(
    source: Path,
    target: Path,
    output: Path,
    /,
    *,
    source_lang: str = "de",
    target_lang: str = "en",
    held_out: int = 250,
    seed: int = 0,
) -> None:
    """Write a corpus of descriptions: a paragraph in each line, the first the synopsis, and a blank
    line after each description.

    Descriptions with other numbers of paragraphs in both languages are left out. Those that share a
    paragraph of more than 60 letters are in one split, in `dev` and `test` one of them.

    Args:
        source: Translation file of the source language, which may be compressed
        target: Translation file of the target language
        output: folder to write to; created if missing
        source_lang: language of the source
        target_lang: language of the target
        held_out: descriptions in each of dev and test
        seed: seed of their choice

    Raises:
        ValueError: There are fewer descriptions than are held out.
    """
    translations = dict(read_descriptions(target, target_lang))
    documents: dict[Document, None] = {}  # each once
    for key, paragraphs in read_descriptions(source, source_lang):
        translation = translations.get(key, [])
        if len(paragraphs) == len(translation):
            documents[tuple(zip(paragraphs, translation, strict=True))] = None
    if held_out < 1:
        raise ValueError(f"--held_out must be at least 1, got {held_out}.")
    families = families_of(list(documents))
    if len(families) <= 2 * held_out:
        raise ValueError(
            f"{source} and {target} have {len(families)} unlike descriptions in common: hold out "
            f"fewer than {held_out}."
        )
    random.Random(seed).shuffle(families)
    splits = {
        "dev": [family[0] for family in families[:held_out]],
        "test": [family[0] for family in families[held_out : 2 * held_out]],
        "train": list(itertools.chain.from_iterable(families[2 * held_out :])),
    }
    for split, split_documents in splits.items():
        pairs: list[tuple[str, str]] = []
        for document in split_documents:
            pairs += [*document, ("", "")]
        source_lines, target_lines = zip(*pairs, strict=True)
        write_lines(output / f"{split}.{source_lang}", source_lines)
        write_lines(output / f"{split}.{target_lang}", target_lines)
        print(f"{split}: {len(split_documents)} descriptions")


def read_descriptions(path: Path, language: str) -> Iterator[tuple[tuple[str, str], list[str]]]:
    """Package and digest of the English description -> paragraphs in a language."""
    fields: dict[str, list[str]] = defaultdict(list)
    name = ""
    for line in [*read_lines(path), ""]:
        if not line:
            text = fields[f"Description-{language}"]
            if text:
                key = (fields["Package"][0], fields["Description-md5"][0])
                yield key, [text[0], *paragraphs_of(text[1:])]
            fields.clear()
        elif line.startswith(" "):
            fields[name].append(line.strip())
        else:
            name, _, value = line.partition(":")
            fields[name].append(value.strip())


def paragraphs_of(lines: Iterable[str]) -> list[str]:
    """Paragraphs of a description, which lines with a dot alone separate."""
    paragraphs = [""]
    for line in lines:
        if line == ".":
            paragraphs.append("")
        else:
            paragraphs[-1] += f"{line} "
    return [" ".join(paragraph.split()) for paragraph in paragraphs if paragraph]


def families_of(documents: Sequence[Document]) -> list[list[Document]]:
    """Documents together that share a long paragraph, directly or through others."""
    relatives = list(range(len(documents)))  # of each, an earlier one or itself

    def first_of_family(number: int) -> int:
        while relatives[number] != number:
            number = relatives[number]
        return number

    first_with: dict[str, int] = {}
    for number, document in enumerate(documents):
        for text in itertools.chain(*document):
            if len(text) > LETTERS_OF_FAMILY:
                relative = first_with.setdefault(text, number)
                relatives[first_of_family(number)] = first_of_family(relative)
    families: dict[int, list[Document]] = defaultdict(list)
    for number, document in enumerate(documents):
        families[first_of_family(number)].append(document)
    return list(families.values())


if __name__ == "__main__":
    sys.exit(run(prepare_debian, sys.argv[1:]))
