# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Texts cut into subword tokens, readable, with the word that each belongs to."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from csan_hf_runtime.alignment import TokenizedText
from csan_hf_runtime.text_files import printable
from csan_hf_runtime.vocabulary import word_pattern


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
    word = word_pattern(tokenizer.backend_tokenizer)
    tokenized = []
    for text, prefix, encoding in zip(texts, prefixes, encoded.encodings, strict=True):
        tokens = tokenizer.convert_ids_to_tokens(encoding.ids)
        readable = [_readable(token, byte_level) for token in tokens]
        tokenized.append(TokenizedText.of_encoding(text, prefix, encoding, readable, word))
    return tokenized


def check_fast(*tokenizers: PreTrainedTokenizerBase) -> None:
    """Raises `ValueError` if one of the tokenizers is not a fast one."""
    for tokenizer in tokenizers:
        if not tokenizer.is_fast:
            raise ValueError(
                f"{type(tokenizer).__name__} does not tell which word a token belongs to; "
                "alignments need a fast tokenizer, one with a tokenizer.json."
            )


# Byte-level BPE writes bytes as printable characters
_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}


def _readable(token: str, byte_level: bool) -> str:
    if byte_level and all(character in _BYTES for character in token):
        content = bytes(_BYTES[character] for character in token)
        token = content.decode("utf-8", errors="backslashreplace")
    return printable(token.replace(" ", "␣"))
