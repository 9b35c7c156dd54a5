# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Lines that are translated as they come, a window of them at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")

WINDOW_LINES = 2048
"""Sentences that are sorted by length at a time, in each process."""
WINDOW_CHARACTERS = 2**22


def windows_of(sentences: Iterable[str | None], processes: int = 1) -> Iterator[list[str]]:
    """Yields `WINDOW_LINES` sentences for each process, fewer where they are very long, or what
    there is where `sentences` yields None.
    """
    window: list[str] = []
    characters = 0
    for sentence in sentences:
        if sentence is not None:
            window.append(sentence)
            characters += len(sentence)
        # None ends an empty window, too: with it a pool hands on the one before
        is_full = len(window) == WINDOW_LINES * processes or characters >= WINDOW_CHARACTERS
        if sentence is None or is_full:
            yield window
            window, characters = [], 0
    if window:
        yield window


def ahead(items: Iterable[Item], count: int) -> Iterator[Item]:
    """Yields items, of which so many are made before they are asked for."""
    items = iter(items)
    waiting = deque(islice(items, count))
    try:
        for item in items:
            waiting.append(item)
            yield waiting.popleft()
    except Exception:
        yield from waiting  # what was made before the error
        raise
    yield from waiting


class PrefixLines:
    """The beginnings of translations, one for each sentence."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = iter(texts)

    def take(self, count: int) -> list[str]:
        """Returns the texts of the next sentences; `ValueError` where there are fewer."""
        texts = list(islice(self._texts, count))
        if len(texts) < count:
            raise ValueError(
                "There are fewer prefixes than sentences: give one for each, an empty one for none."
            )
        return texts

    def check_end(self) -> None:
        """Raises `ValueError` where there are more texts than sentences."""
        if next(self._texts, None) is not None:
            raise ValueError("There are more prefixes than sentences: give one for each.")
