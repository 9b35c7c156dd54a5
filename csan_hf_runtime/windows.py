# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Items that are worked on as they come, a window of them at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

WINDOW_LINES = 2048
"""Sentences, or pairs of them, that are sorted by length at a time, in each process."""


def windows_of(
    items: Iterable[Item | None],
    *,
    size_of: Callable[[Item], int],
    largest: int,
    processes: int = 1,
    may_end_with: Callable[[Item], bool] = lambda item: True,
) -> Iterator[list[Item]]:
    """Yields `WINDOW_LINES` items for each process, or what there is where `items` yields None, and
    goes on from there to an item that a window may end with; fewer where their sizes, summed, reach
    `largest`, or before `items` raises an error.
    """
    window: list[Item] = []
    size = 0
    is_due = False
    try:
        for item in items:
            if item is not None:
                window.append(item)
                size += size_of(item)
            if item is None or len(window) >= WINDOW_LINES * processes:
                is_due = True
            # None ends an empty window, too: with it a pool hands on the one before
            can_end = not window or may_end_with(window[-1])
            if (is_due and can_end) or size >= largest:
                yield window
                window = []
                size = 0
                is_due = False
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
