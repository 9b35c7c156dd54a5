# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translation by ONNX Runtime in several processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from .pool import ProcessPool
from .texts import Translation
from .translator import Translator

_translator: Callable[[], Translator]  # of a process of the pool


class TranslatorPool(ProcessPool):
    """A `Translator` in each of several processes.

    Args:
        count: See `ProcessPool`.
        directory: What each of them loads, see `Translator.from_directory`.
    """

    def __init__(self, count: int, directory: Path) -> None:
        super().__init__(count, _start, directory)

    def translate_parts(
        self, texts: list[str], *, prefixes: list[str] | None, first_line: int, **options: Any
    ) -> list[Callable[[], list[list[Translation]]]]:
        """Begins to translate texts, a part in each process; each result waits for its part."""
        size = max(1, math.ceil(len(texts) / self.count))
        results: list[Callable[[], list[list[Translation]]]] = []
        for start in range(0, len(texts), size):
            part = slice(start, start + size)
            future = self.submit(
                _translate,
                texts[part],
                prefixes=None if prefixes is None else prefixes[part],
                first_line=first_line + start,
                **options,
            )
            results.append(future.result)
        return results


def _start(threads: int, directory: Path) -> None:
    global _translator
    # Not loaded here, where an error would be that of a dead process
    _translator = cache(partial(Translator.from_directory, directory, threads=threads))


def _translate(texts: list[str], **options: Any) -> list[list[Translation]]:
    return _translator().translate(texts, **options)
