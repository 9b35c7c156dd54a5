# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""File patterns of a corpus, and the files that they stand for."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from csan_hf_runtime.text_files import COMPRESSIONS, uncompressed_name

from .readers import Part, file_format

if TYPE_CHECKING:
    from .corpora import DataArguments

_ENDINGS = ("", *COMPRESSIONS)


def find_parts(args: DataArguments, split: str, patterns: str | Sequence[str]) -> list[Part]:
    """Returns the files of a split in one pair of languages, in order.

    Raises:
        ValueError: A file is missing.
    """
    parts: list[Part] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        is_table = bool(file_format(pattern))
        if not is_table and "{lang}" not in pattern:
            raise ValueError(
                f"{split} is {pattern!r}: plain text needs one file per language, write {{lang}} "
                "where the language stands (one file for both languages is a .csv, .tsv, .jsonl "
                "or .parquet, of words and phones a .dict)"
            )
        languages = [None] if is_table else [args.source_lang, args.target_lang]
        for name in _without_star(args, pattern, languages):
            parts.append(tuple(_find_file(args, split, name, lang) for lang in languages))
    return parts


def find_unlabelled(args: DataArguments) -> list[Part]:
    """Returns the files of `args.unlabelled` in the source language, plain text twice, as each part
    has two sides; missing ones are a `ValueError`.
    """
    parts: list[Part] = []
    for pattern in args.unlabelled_patterns:
        for name in _without_star(args, pattern, [args.source_lang]):
            path = _find_file(args, "unlabelled", name, args.source_lang)
            parts.append((path,) if file_format(path) else (path, path))
    return parts


def _find_file(args: DataArguments, split: str, pattern: str, lang: str | None) -> Path:
    """Returns the file of a pattern, compressed or not."""
    path = _path_of(args, pattern, lang)
    plain = uncompressed_name(path)
    for candidate in (path, *(Path(plain + ending) for ending in _ENDINGS)):
        if candidate.is_file():
            return candidate
    language = f" of language {lang!r}" if lang else ""
    raise ValueError(
        f"no file for {split}{language}: {split} is {pattern!r}, tried "
        f"{Path(plain).absolute()} alone and with {', '.join(COMPRESSIONS)}; check data_dir, the "
        "pattern and the languages"
    )


def find_references(args: DataArguments, split: str) -> list[Path]:
    """Returns the files of a split's further references; missing ones are a `ValueError`."""
    patterns = args.further_references.get(split, [])
    return [_find_file(args, split, pattern, args.target_lang) for pattern in patterns]


def _path_of(args: DataArguments, pattern: str, lang: str | None) -> Path:
    name = pattern if lang is None else pattern.replace("{lang}", lang)
    name = name.replace("{source_lang}", args.source_lang)
    name = name.replace("{target_lang}", args.target_lang)
    return Path(args.data_dir or "").expanduser() / Path(name).expanduser()


def _without_star(args: DataArguments, pattern: str, languages: Sequence[str | None]) -> list[str]:
    """Patterns for what "*" stands for in the files of any language; the pattern without one."""
    before, star, after = pattern.partition("*")
    if not star:
        return [pattern]
    texts: set[str] = set()
    for lang in languages:
        beginning, _, ending = str(_path_of(args, pattern, lang)).partition("*")
        ending = uncompressed_name(ending)
        for end in _ENDINGS:
            for path in glob.glob(f"{glob.escape(beginning)}*{glob.escape(ending + end)}"):
                name = uncompressed_name(path.removeprefix(beginning))
                texts.add(name.removesuffix(ending))
    return [f"{before}{text}{after}" for text in sorted(texts)] or [pattern]
