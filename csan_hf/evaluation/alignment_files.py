# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Word alignments as files: Pharaoh's format and that of the NAACL 2003 shared task."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from csan_hf.text_files import read_lines

_LINK = re.compile(r"(\d+)([-p?])(\d+)")


@dataclass(frozen=True)
class Links:
    """The links of a sentence pair: (source word, target word), counted from 0.

    Attributes:
        sure: The links that must be found.
        possible: Those that may be found, the sure ones among them.
    """

    sure: frozenset[tuple[int, int]]
    possible: frozenset[tuple[int, int]]

    def pharaoh(self) -> str:
        """Writes "0-0 1p2": sure links with "-", possible ones with "p"."""
        return " ".join(f"{s}{'-' if (s, t) in self.sure else 'p'}{t}" for s, t in sorted(self.possible))


def parse_links(text: str, *, line: int | None = None) -> Links:
    """Reads one line of Pharaoh's format, such as "0-0 1-2 2p3": source, "-" (sure), "p" or "?" (possible), target.

    Raises:
        ValueError: If something in it is no link; the message has the number of the `line`.
    """
    sure, possible = set(), set()
    for part in text.split():
        match = _LINK.fullmatch(part)
        if match is None:
            where = "" if line is None else f"line {line}: "
            raise ValueError(f"{where}{part!r} is no link; write source-target, counted from 0, such as 0-0 or 1p2.")
        link = (int(match[1]), int(match[3]))
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Links(frozenset(sure), frozenset(possible))


def parse_naacl(lines: Sequence[str], sentences: int) -> list[Links]:
    """Reads the format of the NAACL 2003 shared task, such as "18 1 2 P": sentence, source word, target word, counted
    from 1, and S (sure, the default) or P (possible); a confidence may follow.

    The links of `sentences` sentence pairs stand in any order; blank lines are skipped.

    Raises:
        ValueError: If a line is no link, is marked with another letter, or its sentence is not from 1 to `sentences`;
            the message has its number.
    """
    sure: list[set[tuple[int, int]]] = [set() for _ in range(sentences)]
    possible: list[set[tuple[int, int]]] = [set() for _ in range(sentences)]
    for number, line in enumerate(lines, 1):
        if not (parts := line.split()):
            continue
        if len(parts) < 3 or not all(part.isdecimal() and int(part) for part in parts[:3]):
            raise ValueError(f"line {number}: {line!r} is no link; write sentence, source and target word from 1.")
        sentence, source, target = (int(part) for part in parts[:3])
        if sentence > sentences:
            raise ValueError(f"line {number}: there is no sentence {sentence}, but {sentences} in all.")
        possible[sentence - 1].add((source - 1, target - 1))
        label = next(iter(parts[3:4]), "S")
        if label not in ("S", "P") and not re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", label):
            raise ValueError(f"line {number}: {label!r} is neither S (sure), nor P (possible), nor a confidence.")
        if label != "P":
            sure[sentence - 1].add((source - 1, target - 1))
    return [Links(frozenset(s), frozenset(p)) for s, p in zip(sure, possible, strict=True)]


def check_links(gold: Sequence[Links], sources: Iterable[str], targets: Iterable[str]) -> None:
    """Checks that links lie in their sentences: those of other sentences, or counted from 1, would give a wrong rate.

    Args:
        gold: The links of each sentence pair.
        sources: The source sentences, words as white space separates them.
        targets: A target sentence each.
    """
    for number, (links, source, target) in enumerate(zip(gold, sources, targets, strict=True), 1):
        lengths = len(source.split()), len(target.split())
        for link in sorted(links.possible):
            if any(word >= length for word, length in zip(link, lengths, strict=True)):
                raise ValueError(
                    f"sentence {number}: the link {link[0]}-{link[1]}, counted from 0, is outside of its {lengths[0]} "
                    f"source and {lengths[1]} target words. Links count words between white space, in Pharaoh's "
                    "format from 0."
                )


def read_alignments(path: Path | str, sentences: int) -> list[Links]:
    """Reads a gold file in either format, which its content shows.

    Args:
        path: Pharaoh's format (a line for each sentence pair) or NAACL's (a line for each link).
        sentences: The number of sentence pairs.

    Raises:
        ValueError: If a line is no link, or the number of sentences does not fit; the message names file and line.
    """
    lines = list(read_lines(path))
    try:
        if any(line.split()[:1] and line.split()[0].isdecimal() for line in lines):
            return parse_naacl(lines, sentences)
        if len(lines) != sentences:
            raise ValueError(f"it has {len(lines)} lines for {sentences} sentence pairs")
        return [parse_links(line, line=number) for number, line in enumerate(lines, 1)]
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from error
