# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Glossaries: terms and the translations that they must have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from csan_hf_runtime.sentences import is_wide
from csan_hf_runtime.text_files import read_lines


class Terms:
    """Source terms with the target of each, which the translation of a sentence must hold.

    Args:
        targets: The target of each source term, both as they are written.
    """

    def __init__(self, targets: Mapping[str, str]) -> None:
        # The longest first, which is to be found where several begin
        self._targets = dict(sorted(targets.items(), key=lambda term: -len(term[0])))

    @classmethod
    def read(cls, path: Path | str) -> Terms:
        """Reads a file with a source term, a tab and its target on each line; blank lines are
        skipped, and the last target of a source term counts.

        Raises:
            ValueError: A line is something else; the message names file and line.
        """
        targets = {}
        for number, line in enumerate(read_lines(path), 1):
            if not line.strip():
                continue
            fields = [text.strip() for text in line.split("\t")]
            if len(fields) != 2 or not all(fields):
                raise ValueError(
                    f"{path}, line {number}: {line[:60]!r} is no term; write it, a tab and its "
                    "translation."
                )
            targets[fields[0]] = fields[1]
        return cls(targets)

    def targets_of(self, source: str) -> list[str]:
        """The targets of the terms in a sentence, each once.

        A term is found as whole words, as it is written; in scripts without spaces anywhere. Of
        terms that overlap the first is found, of those that begin together the longest."""
        candidates = [term for term in self._targets if term in source]
        if not candidates:
            return []
        terms = re.findall("|".join(map(_as_words, candidates)), source)
        return list(dict.fromkeys(self._targets[term] for term in terms))


def _as_words(term: str) -> str:
    end = "" if is_wide(term[-1]) else r"(?!\w)"
    return _at_word_start(term) + end


def _at_word_start(term: str) -> str:
    start = "" if is_wide(term[0]) else r"(?<!\w)"
    return start + re.escape(term)


def lacking(targets: list[str], translation: str) -> list[str]:
    """Which targets do not stand in a translation, where a word begins; they may have an ending."""
    return [target for target in targets if not re.search(_at_word_start(target), translation)]
