# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Word alignments as files: Pharaoh's format and that of the NAACL 2003 shared task."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from csan_hf_runtime.text_files import read_lines

_PHARAOH = re.compile(r"(\d+)([-p?])(\d+)")
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_NAACL = re.compile(
    rf"\s*0*([1-9]\d*)\s+0*([1-9]\d*)\s+0*([1-9]\d*)(?:\s+(S|P|{_NUMBER})(?:\s.*)?)?\s*"
)


@dataclass
class Links:
    """The links of a sentence pair: (source word, target word), counted from 0."""

    sure: set[tuple[int, int]] = field(default_factory=set)  # those that must be found
    # Those that may be found, the sure ones among them
    possible: set[tuple[int, int]] = field(default_factory=set)

    def add(self, source: int, target: int, *, sure: bool) -> None:
        """Adds a link."""
        self.possible.add((source, target))
        if sure:
            self.sure.add((source, target))

    def pharaoh(self) -> str:
        """Writes "0-0 1p2": sure links with "-", possible ones with "p"."""
        return " ".join(
            f"{s}{'-' if (s, t) in self.sure else 'p'}{t}" for s, t in sorted(self.possible)
        )


def parse_links(text: str, *, where: str = "alignment") -> Links:
    """Reads one line of Pharaoh's format, such as "0-0 1-2 2p3": source, "-" (sure), "p" or "?"
    (possible), target.

    Raises:
        ValueError: If something in it is no link; the message says `where`.
    """
    links = Links()
    for part in text.split():
        match = _PHARAOH.fullmatch(part)
        if match is None:
            raise ValueError(
                f"{where}: {part!r} is no link; write source-target, counted from 0, such as 0-0 "
                "or 1p2."
            )
        links.add(int(match[1]), int(match[3]), sure=match[2] == "-")
    return links


def parse_naacl(lines: Sequence[str], sentences: int, *, where: str = "alignments") -> list[Links]:
    """Reads the format of the NAACL 2003 shared task, such as "18 1 2 P": sentence, source word,
    target word, counted from 1, and S (sure, the default) or P (possible); a confidence may follow.

    The links of `sentences` sentence pairs stand in any order; blank lines are skipped.

    Raises:
        ValueError: If a line is no link of one of these sentences; the message says `where` and its
            number.
    """
    links = [Links() for _ in range(sentences)]
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        match = _NAACL.fullmatch(line)
        if match is None or int(match[1]) > sentences:
            raise ValueError(
                f"{where}, line {number}: {line!r} is no link; write the sentence, up to "
                f"{sentences}, source and target word, from 1, and S (sure) or P (possible)."
            )
        sentence, source, target = (int(part) - 1 for part in match.groups()[:3])
        links[sentence].add(source, target, sure=match[4] != "P")
    return links


def read_alignments(
    path: Path | str, sources: Collection[str], targets: Collection[str]
) -> list[Links]:
    """Reads a gold file in either format, which its content shows.

    Args:
        path: Pharaoh's format (a line for each sentence pair) or NAACL's (a line for each link).
        sources: The source sentences, words as white space separates them.
        targets: A target sentence each.

    Raises:
        ValueError: If a line is no link, the number of sentences does not fit, or a link is outside
            of its sentences, as those of other sentences, or counted from 1, would be; the message
            names file and line.
    """
    lines = list(read_lines(path))
    if any(line.split()[:1] and line.split()[0].isdecimal() for line in lines):
        gold = parse_naacl(lines, len(sources), where=str(path))
    else:
        gold = [
            parse_links(line, where=f"{path}, line {number}")
            for number, line in enumerate(lines, 1)
        ]
    if len(gold) != len(sources):
        raise ValueError(f"{path} has {len(lines)} lines for {len(sources)} sentence pairs")
    for number, (links, source, target) in enumerate(zip(gold, sources, targets, strict=True), 1):
        words = len(source.split()), len(target.split())
        if outside := [
            link for link in sorted(links.possible) if link[0] >= words[0] or link[1] >= words[1]
        ]:
            raise ValueError(
                f"{path}, sentence {number}: the link {outside[0][0]}-{outside[0][1]}, counted "
                f"from 0, is outside of its {words[0]} source and {words[1]} target words. Links "
                "count words between white space, in Pharaoh's format from 0."
            )
    return gold
