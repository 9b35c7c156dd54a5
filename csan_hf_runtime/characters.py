# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Characters that a model was trained on, by which a vocabulary of bytes knows what it never saw.

They are written as ranges in ascending order, "!-~ à-ü", without the space.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer


def has_all_bytes(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer knows everything, byte by byte: there is no token of what is unknown."""
    return getattr(tokenizer.model, "unk_token", "") is None


def characters_of(tokenizer: Tokenizer, text: str) -> list[str]:
    """The characters of a text as a tokenizer reads it, each once, without spaces and line ends."""
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    return [character for character in dict.fromkeys(text) if character not in " \n"]


def write_ranges(characters: Iterable[str]) -> str:
    """Writes characters as ranges."""
    ranges: list[list[str]] = []
    for character in sorted(characters):
        if ranges and ord(character) == ord(ranges[-1][1]) + 1:
            ranges[-1][1] = character
        else:
            ranges.append([character, character])
    return " ".join(first if first == last else f"{first}-{last}" for first, last in ranges)


def read_ranges(ranges: str) -> set[str]:
    """Reads what `write_ranges` wrote."""
    characters: set[str] = set()
    for part in ranges.split(" "):
        if part:
            characters.update(map(chr, range(ord(part[0]), ord(part[-1]) + 1)))
    return characters


def join_ranges(first: str, second: str) -> str:
    """Writes the characters of two texts of ranges as one."""
    return write_ranges(read_ranges(first) | read_ranges(second))


def unseen_characters(
    tokenizer: Tokenizer, texts: Sequence[str], ranges: str | None
) -> list[list[str]]:
    """Returns, for each text, the characters that are not in ranges; none where these are None."""
    if ranges is None:
        return [[] for _ in texts]
    seen = read_ranges(ranges)
    unseen = []
    for text in texts:
        characters = characters_of(tokenizer, text)
        unseen.append([character for character in characters if character not in seen])
    return unseen
