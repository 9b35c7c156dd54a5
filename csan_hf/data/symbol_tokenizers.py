# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Tokenizers whose tokens are characters, or symbols with white space between them.

They are for character-level transduction, such as grapheme-to-phoneme conversion, where a word goes in as letters and
comes out as phones. They consist of standard parts only (a word-level vocabulary behind a splitter), so
`AutoTokenizer.from_pretrained` loads them where csan_hf is not installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, get_args

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

PAD_TOKEN, EOS_TOKEN, UNK_TOKEN = "<pad>", "</s>", "<unk>"
SPECIAL_TOKENS = (PAD_TOKEN, EOS_TOKEN, UNK_TOKEN)
"""The special tokens of all tokenizers; their ids are their places here: 0, 1 and 2."""

TokenKind = Literal["bpe", "characters", "symbols"]
UnicodeForm = Literal["NFC", "NFD", "NFKC", "NFKD"]


def train_character_tokenizer(
    texts: Iterable[str], vocab_size: int, *, unicode_form: UnicodeForm = "NFC", show_progress: bool = False
) -> Tokenizer:
    """Trains a tokenizer whose tokens are the characters of texts, white space included.

    `decode(encode(text))` is the text in its Unicode form, as long as its characters were seen.

    Where there are more than `vocab_size`, special tokens included, the most frequent are taken. Texts are put into
    `unicode_form`. A character is a code point: "NFD" takes the letters of a Korean syllable apart, and an accent from
    its letter.
    """
    if unicode_form not in get_args(UnicodeForm):
        raise ValueError(f"unicode_form is {unicode_form!r}; it must be one of {', '.join(get_args(UnicodeForm))}")
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNK_TOKEN))
    tokenizer.normalizer = getattr(normalizers, unicode_form)()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    _train(tokenizer, texts, vocab_size, show_progress)
    return tokenizer


def train_symbol_tokenizer(texts: Iterable[str], vocab_size: int, *, show_progress: bool = False) -> Tokenizer:
    """Trains a tokenizer whose tokens are what white space separates in texts.

    `decode(encode(text))` is the text with one space between symbols, as long as they were seen. Nothing is
    normalised. Where there are more than `vocab_size`, special tokens included, the most frequent are taken.

    Raises:
        ValueError: A symbol is one of the special tokens.
    """
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNK_TOKEN))
    # Without a decoder, tokens are put together with a space between them
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    _train(tokenizer, _without_special_tokens(texts), vocab_size, show_progress)
    return tokenizer


def _train(tokenizer: Tokenizer, texts: Iterable[str], vocab_size: int, show_progress: bool) -> None:
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), show_progress=show_progress
    )
    tokenizer.train_from_iterator(texts, trainer)


def _without_special_tokens(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        if found := set(text.split()) & set(SPECIAL_TOKENS):
            raise ValueError(
                f"the symbol {found.pop()!r} occurs in the text {text[:80]!r}, but it is a special token; write "
                "another symbol"
            )
        yield text
