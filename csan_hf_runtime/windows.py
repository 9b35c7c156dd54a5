# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Lines that are translated as they come, a window of them at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

WINDOW_LINES = 2048
"""Sentences that are sorted by length at a time, in each process."""
WINDOW_CHARACTERS = 2**22


def windows_of(sentences: Iterable[str | None], processes: int = 1) -> Iterator[list[str]]:
    """Yields `WINDOW_LINES` sentences for each process, fewer where they are very long, or what
    there is where `sentences` yields None, or before it raises an error.
    """
    window: list[str] = []
    characters = 0
    try:
        for sentence in sentences:
            if sentence is not None:
                window.append(sentence)
                characters += len(sentence)
            # None ends an empty window, too: with it a pool hands on the one before
            is_full = len(window) == WINDOW_LINES * processes or characters >= WINDOW_CHARACTERS
            if sentence is None or is_full:
                yield window
                window, characters = [], 0
    except (OSError, ValueError):  # a line that cannot be read
        if window:
            yield window
        raise
    if window:
        yield window


def ahead(items: Iterable[Item], count: int) -> Iterator[Item]:
    """Yields items, of which so many are made before they are asked for."""
    waiting: deque[Item] = deque()
    try:
        for item in items:
            waiting.append(item)
            if len(waiting) > count:
                yield waiting.popleft()
    except Exception:
        yield from waiting  # what was made before the error
        raise
    yield from waiting
