# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A text with its subword tokens, readable, and the word that each belongs to."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from csan_hf_runtime.text_files import printable


@dataclass(frozen=True)
class TokenizedText:
    """A text as the model sees it.

    Attributes:
        text: The text as it was given.
        ids: The T token ids, special tokens such as "</s>" included.
        tokens: The T tokens for a reader: a space is "␣", a byte of an unfinished character is
            "\\xe7".
        words: The text's words, which are what white space separates; the letters, where the
            tokenizer is one of characters.
        word_of_token: For each token the number of its word, or None for special tokens and for
            white space at the end of the text. White space elsewhere belongs to the word that
            follows it.
        starts: For each token where in the text it begins; 0 for special tokens.
    """

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    words: tuple[str, ...]
    word_of_token: tuple[int | None, ...]
    starts: tuple[int, ...] = ()

    def is_part_of_word(self) -> list[bool]:
        """For each token whether it belongs to a word."""
        return [word is not None for word in self.word_of_token]

    def words_with_tokens(self) -> list[int]:
        """The numbers of the words that have tokens; a tokenizer may delete characters."""
        return sorted({word for word in self.word_of_token if word is not None})

    def membership(self) -> np.ndarray:
        """Float32 [tokens, words], 1 where a token belongs to a word."""
        words = np.array([-1 if word is None else word for word in self.word_of_token])
        return (words[:, None] == np.arange(len(self.words))).astype(np.float32)


def tokenize_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    target: bool = False,
    prefixes: Sequence[str] = (),
) -> list[TokenizedText]:
    """Tokenizes texts whole, however long, and finds the word of every token.

    Args:
        tokenizer: A fast tokenizer: only those tell where in the text a token comes from.
        texts: The texts.
        target: Whether they are in the target language, which some tokenizers need to know.
        prefixes: What stands before each of the texts, and belongs to no word; () = nothing.

    Raises:
        ValueError: If the tokenizer is not a fast one.
    """
    check_fast(tokenizer)
    if not texts:
        return []
    prefixes = prefixes or [""] * len(texts)
    read = [prefix + text for prefix, text in zip(prefixes, texts, strict=True)]
    encoded: Any = tokenizer(
        **{"text_target" if target else "text": read},
        verbose=False,
    )
    byte_level = "ByteLevel" in repr(tokenizer.backend_tokenizer.decoder)
    word = word_pattern(tokenizer)
    tokenized = []
    for text, prefix, encoding in zip(texts, prefixes, encoded.encodings, strict=True):
        length = len(prefix)
        starts = tuple(max(start - length, 0) for start, _ in encoding.offsets)
        is_outside = []
        for is_special, (_, end) in zip(
            encoding.special_tokens_mask, encoding.offsets, strict=True
        ):
            is_of_prefix = length > 0 and end <= length
            is_outside.append(bool(is_special) or is_of_prefix)
        tokens = tokenizer.convert_ids_to_tokens(encoding.ids)
        tokenized.append(
            TokenizedText(
                text=text,
                ids=tuple(encoding.ids),
                tokens=tuple(_readable(token, byte_level) for token in tokens),
                words=tuple(word.findall(text)),
                word_of_token=tuple(_words_of_tokens(text, word, starts, is_outside)),
                starts=starts,
            )
        )
    return tokenized


def check_fast(*tokenizers: PreTrainedTokenizerBase) -> None:
    """Raises `ValueError` if one of the tokenizers is not a fast one."""
    for tokenizer in tokenizers:
        if not tokenizer.is_fast:
            raise ValueError(
                f"{type(tokenizer).__name__} does not tell which word a token belongs to; "
                "alignments need a fast tokenizer, one with a tokenizer.json."
            )


def word_pattern(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """Returns what a word is in alignments: what white space separates, or each letter of a
    tokenizer of characters.
    """
    is_of_characters = r"[\s\S]" in repr(tokenizer.backend_tokenizer.pre_tokenizer)
    return re.compile(r"\S" if is_of_characters else r"\S+")


def _words_of_tokens(
    text: str, word: re.Pattern[str], starts: Sequence[int], is_outside: Iterable[bool]
) -> list[int | None]:
    """Finds the word of each token by where the token begins in the text.

    The places are those of the text as it was given, so that it does not matter what the tokenizer
    normalises. Several tokens may begin at one place (the bytes of one character). A token
    `is_outside` that stands for nothing in the text.
    """
    ends = [match.end() for match in word.finditer(text)]
    # The word around this place, or else the next one
    numbers = np.searchsorted(ends, starts, side="right").tolist()
    return [
        None if outside or number == len(ends) else number
        for number, outside in zip(numbers, is_outside, strict=True)
    ]


# Byte-level BPE writes bytes as printable characters
_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}


def _readable(token: str, byte_level: bool) -> str:
    if byte_level and all(character in _BYTES for character in token):
        content = bytes(_BYTES[character] for character in token)
        token = content.decode("utf-8", errors="backslashreplace")
    return printable(token.replace(" ", "␣"))
