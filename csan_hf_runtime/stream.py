# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translation of many lines as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from .prefixes import PrefixLines
from .texts import Translation
from .translator import Translator
from .windows import ahead, windows_of

if TYPE_CHECKING:
    from .translator_pool import TranslatorPool


def translate_stream(
    translator: Translator | TranslatorPool,
    sentences: Iterable[str | None],
    *,
    prefixes: Iterable[str] | None = None,
    lines_before: int = 0,
    **options: Any,
) -> Iterator[list[list[Translation]]]:
    """Translates sentences as they come, in memory that does not grow with their number.

    A window of them, see `windows_of`, is translated at a time; a pool reads one ahead.

    Args:
        translator: What translates.
        sentences: The texts; None = translate what there is.
        prefixes: How the translation of each begins.
        lines_before: Lines of a file ahead of these, for the numbers in messages.
        **options: See `Translator.translate`.
    """
    reader = None if prefixes is None else PrefixLines(prefixes)
    processes = 1 if isinstance(translator, Translator) else translator.count
    lines_read = lines_before

    def begun(window: list[str]) -> list[Callable[[], list[list[Translation]]]]:
        nonlocal lines_read
        arguments = {
            **options,
            "prefixes": None if reader is None else reader.take(len(window)),
            "first_line": lines_read + 1,
        }
        lines_read += len(window)
        if isinstance(translator, Translator):
            return [partial(translator.translate, window, **arguments)]
        return translator.translate_parts(window, **arguments)

    windows = windows_of(sentences, processes)
    for parts in ahead(map(begun, windows), 0 if isinstance(translator, Translator) else 1):
        translations: list[list[Translation]] = []
        for translate_part in parts:
            translations += translate_part()
        yield translations
    if reader is not None:
        reader.check_end()
