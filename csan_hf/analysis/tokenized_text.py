# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A text with its subword tokens, readable, and the word that each of them belongs to."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerBase

from csan_hf.text_files import printable


@dataclass(frozen=True)
class TokenizedText:
    """A text as the model sees it.

    Attributes:
        text: The text as it was given.
        ids: The T token ids, special tokens such as "</s>" included.
        tokens: The T tokens for a reader: a space is "␣", a byte of an unfinished character is "\\xe7".
        words: The text's words, which are what white space separates: `text.split()`.
        word_of_token: For each token the number of its word, or None for special tokens and for white space at the
            end of the text. White space elsewhere belongs to the word that follows it.
    """

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    words: tuple[str, ...]
    word_of_token: tuple[int | None, ...]


def tokenize_texts(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, target: bool = False
) -> list[TokenizedText]:
    """Tokenizes texts whole, however long, and finds the word of every token.

    Args:
        tokenizer: A fast tokenizer: only those tell where in the text a token comes from.
        texts: The texts.
        target: Whether they are in the target language, which some tokenizers need to know.

    Raises:
        ValueError: If the tokenizer is not a fast one.
    """
    check_fast(tokenizer)
    if not texts:
        return []
    encoded: Any = tokenizer(
        **{"text_target" if target else "text": list(texts)},
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        verbose=False,
    )
    columns = (encoded[key] for key in ("input_ids", "offset_mapping", "special_tokens_mask"))
    byte_level = "ByteLevel" in repr(tokenizer.backend_tokenizer.decoder)
    return [
        _tokenized_text(text, list(tokenizer.convert_ids_to_tokens(ids)), ids, offsets, special, byte_level)
        for text, ids, offsets, special in zip(texts, *columns, strict=True)
    ]


def check_fast(*tokenizers: PreTrainedTokenizerBase) -> None:
    """Raises `ValueError` if one of the tokenizers is not a fast one."""
    for tokenizer in tokenizers:
        if not tokenizer.is_fast:
            raise ValueError(
                f"{type(tokenizer).__name__} does not tell which word a token belongs to; alignments need a fast "
                "tokenizer, one with a tokenizer.json."
            )


def _tokenized_text(
    text: str,
    tokens: list[str],
    ids: list[int],
    offsets: list[tuple[int, int]],
    special: list[int],
    byte_level: bool,
) -> TokenizedText:
    words = [match.span() for match in re.finditer(r"\S+", text)]
    return TokenizedText(
        text=text,
        ids=tuple(ids),
        tokens=tuple(_readable(tokens, byte_level)),
        words=tuple(text[start:end] for start, end in words),
        word_of_token=tuple(words_of_spans(words, offsets, special)),
    )


def words_of_spans(
    words: Sequence[tuple[int, int]], spans: Iterable[tuple[int, int]], special: Iterable[int]
) -> list[int | None]:
    """Finds the word of each token by where the token begins in the text.

    Spans are in characters of the text as it was given, so that it does not matter what the tokenizer normalises.
    A span may be empty, or the same for several tokens (the bytes of one character).

    Args:
        words: First character and end of each word, in order.
        spans: First character and end of each token.
        special: For each token 1 if it stands for nothing in the text.
    """
    ends = [end for _, end in words]
    found: list[int | None] = []
    for (start, _), is_special in zip(spans, special, strict=True):
        word = bisect_right(ends, start)  # the word around this place, or else the next one
        found.append(None if is_special or word == len(words) else word)
    return found


def _bytes_of_characters() -> dict[str, int]:
    # Byte-level BPE writes a printable byte as the character of that number, and the others, in order, as the
    # characters from 256 on.
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    table = {chr(byte): byte for byte in range(256) if chr(byte) in alphabet}
    others = (byte for byte in range(256) if chr(byte) not in alphabet)
    return table | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _bytes_of_characters()


def _readable(tokens: Iterable[str], byte_level: bool) -> list[str]:
    readable = []
    for token in tokens:
        if byte_level and all(character in _BYTES for character in token):
            token = bytes(_BYTES[character] for character in token).decode("utf-8", errors="backslashreplace")
        readable.append(printable(token.replace(" ", "␣")))
    return readable
