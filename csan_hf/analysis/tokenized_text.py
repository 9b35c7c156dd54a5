# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A text with its subword tokens, readable, the word that each belongs to, and how many tokens a
model takes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from csan_hf.text_files import printable

if TYPE_CHECKING:
    from csan_hf.data import TokenizerPair


@dataclass(frozen=True)
class TokenizedText:
    """A text as the model sees it.

    Attributes:
        text: The text as it was given.
        ids: The T token ids, special tokens such as "</s>" included.
        tokens: The T tokens for a reader: a space is "␣", a byte of an unfinished character is
            "\\xe7".
        words: The text's words, which are what white space separates: `text.split()`.
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

    def membership(self) -> np.ndarray:
        """Float32 [tokens, words], 1 where a token belongs to a word."""
        membership = np.zeros((len(self.tokens), len(self.words)), dtype=np.float32)
        for token, word in enumerate(self.word_of_token):
            if word is not None:
                membership[token, word] = 1
        return membership


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
    byte_level = "ByteLevel" in repr(tokenizer.backend_tokenizer.decoder)
    found = []
    columns = (encoded[key] for key in ("input_ids", "offset_mapping", "special_tokens_mask"))
    for text, ids, offsets, special in zip(texts, *columns, strict=True):
        words = [match.span() for match in re.finditer(r"\S+", text)]
        tokens = (_readable(token, byte_level) for token in tokenizer.convert_ids_to_tokens(ids))
        word_of_token = words_of_spans(words, offsets, special)
        named = tuple(text[start:end] for start, end in words)
        starts = tuple(start for start, _ in offsets)
        found.append(
            TokenizedText(text, tuple(ids), tuple(tokens), named, tuple(word_of_token), starts)
        )
    return found


def check_fast(*tokenizers: PreTrainedTokenizerBase) -> None:
    """Raises `ValueError` if one of the tokenizers is not a fast one."""
    for tokenizer in tokenizers:
        if not tokenizer.is_fast:
            raise ValueError(
                f"{type(tokenizer).__name__} does not tell which word a token belongs to; "
                "alignments need a fast tokenizer, one with a tokenizer.json."
            )


def words_of_spans(
    words: Sequence[tuple[int, int]], spans: Iterable[tuple[int, int]], special: Iterable[int]
) -> list[int | None]:
    """Finds the word of each token by where the token begins in the text.

    Words and tokens are given by first character and end in the text as it was given, so that it
    does not matter what the tokenizer normalises. A span may be empty, or the same for several
    tokens (the bytes of one character). `special` is 1 for each token that stands for nothing in
    the text."""
    ends = [end for _, end in words]
    found: list[int | None] = []
    for (start, _), is_special in zip(spans, special, strict=True):
        word = bisect_right(ends, start)  # the word around this place, or else the next one
        found.append(None if is_special or word == len(words) else word)
    return found


# Byte-level BPE writes bytes as printable characters
_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}


def _readable(token: str, byte_level: bool) -> str:
    if byte_level and all(character in _BYTES for character in token):
        token = bytes(_BYTES[character] for character in token).decode(
            "utf-8", errors="backslashreplace"
        )
    return printable(token.replace(" ", "␣"))


# ---- the positions of a model


def position_limit(model: nn.Module) -> int | None:
    """Returns for how many tokens a model has position embeddings; None where it makes them for any
    number.
    """
    names = (
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
    )
    if not any("position" in name for name in names):
        return None
    return getattr(getattr(model, "config", None), "max_position_embeddings", None)


def check_positions(model: PreTrainedModel, lengths: Iterable[int]) -> None:
    """Raises `ValueError` if a model has too few position embeddings for sentences of so many
    tokens.
    """
    limit, longest = position_limit(model), max(lengths, default=0)
    if limit is not None and longest > limit:
        raise ValueError(
            f"A sentence has {longest} tokens, and {type(model).__name__} has positions for "
            f"{limit} (max_position_embeddings): shorten the sentence, or leave it out."
        )


def pairs_within_positions(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sources: Sequence[str],
    targets: Sequence[str] | None = None,
) -> list[int]:
    """Returns the numbers of the sentence pairs, or sources alone, for which a model has position
    embeddings.
    """
    limit = position_limit(model)
    if limit is None or not sources:
        return list(range(len(sources)))
    ids = [tokenizers.source(list(sources), verbose=False)["input_ids"]]
    if targets is not None:
        ids.append(tokenizers.target(text_target=list(targets), verbose=False)["input_ids"])
    pairs = enumerate(zip(*ids, strict=True))
    return [number for number, pair in pairs if all(len(tokens) <= limit for tokens in pair)]
