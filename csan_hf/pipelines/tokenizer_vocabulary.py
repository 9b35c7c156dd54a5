# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A tokenizer of transformers as a vocabulary of `csan_hf_runtime`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import models
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from csan_hf_runtime.characters import has_all_bytes, unseen_characters
from csan_hf_runtime.vocabulary import Vocabulary, word_pattern

from ..models.translation import languages_of, source_language


class TokenizerVocabulary(Vocabulary):
    """The tokens of one side, as a tokenizer of transformers makes them.

    Args:
        tokenizer: The tokenizer, fast or slow.
        is_target: Whether the side is the target: some tokenizers have both.
        cleans_up: Whether translations have no spaces before punctuation.
    """

    def __init__(self, tokenizer: Any, *, is_target: bool, cleans_up: bool = False) -> None:
        self.tokenizer = tokenizer
        self._cleans_up = cleans_up
        # `text_target` chooses the target's vocabulary of a tokenizer that has two; multilingual
        # ones have one, and would ask for a target language
        has_two = is_target and not hasattr(tokenizer, "src_lang")
        self._text = "text_target" if has_two else "text"
        self.kind = type(tokenizer).__name__
        longest = tokenizer.model_max_length
        self.most_tokens = longest if longest < VERY_LARGE_INTEGER else None
        self.special = {*tokenizer.all_special_ids}
        self.padding = tokenizer.pad_token_id or 0
        self.unknown = tokenizer.unk_token_id
        self.added = tokenizer.get_added_vocab()
        is_multilingual = hasattr(tokenizer, "src_lang")
        self.languages = languages_of(tokenizer) if is_multilingual else {}
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        self.cuts_words = isinstance(getattr(backend, "model", None), models.BPE | models.Unigram)
        self.word = word_pattern(backend)
        self.no_languages = {
            None,
            tokenizer.eos_token_id,
            tokenizer.bos_token_id,
            tokenizer.pad_token_id,
        }

    @property
    def source_language(self) -> str | None:  # type: ignore[override]
        """See `Vocabulary`; it may be set at any time."""
        return self._language("src_lang", "source_lang")

    @property
    def target_language(self) -> str | None:  # type: ignore[override]
        """See `source_language`."""
        return self._language("tgt_lang", "target_lang")

    def _language(self, *names: str) -> str | None:
        """The first of some attributes of the tokenizer, Marian's among them, that is set."""
        languages = (getattr(self.tokenizer, name, None) for name in names)
        return next(filter(None, languages), None)

    def numbers(self) -> Mapping[str, int]:
        """See `Vocabulary`."""
        vocabulary: Mapping[str, int] = self.tokenizer.get_vocab()
        if self._text == "text_target":  # of Marian with two vocabularies
            return getattr(self.tokenizer, "target_encoder", vocabulary)
        return vocabulary

    def holds(self, token: str) -> bool:
        """See `Vocabulary`."""
        return self.tokenizer.convert_tokens_to_ids(token) not in (None, self.unknown)

    def name_of(self, token: int) -> str:
        """See `Vocabulary`."""
        return self.tokenizer.convert_ids_to_tokens(token) or ""

    def encode(
        self, text: str, *, language: str | None = None, most_tokens: int | None = None
    ) -> list[int]:
        """See `Vocabulary`."""
        with source_language(self.tokenizer, language):
            encoded = self.tokenizer(
                text, truncation=most_tokens is not None, max_length=most_tokens, verbose=False
            )
        ids: list[int] = encoded["input_ids"]
        return ids

    def encode_alone(self, text: str) -> list[int]:
        """See `Vocabulary`."""
        ids: list[int] = self._encoded_alone(text)["input_ids"]
        return ids

    def _encoded_alone(self, text: str | list[str], **options: Any) -> Any:
        texts = {self._text: text}
        return self.tokenizer(**texts, add_special_tokens=False, verbose=False, **options)

    def decode(self, ids: Sequence[int], *, keep_special: bool = False) -> str:
        """See `Vocabulary`."""
        text: str = self.tokenizer.decode(
            ids,
            skip_special_tokens=not keep_special,
            clean_up_tokenization_spaces=self._cleans_up,
        )
        return text

    def unknown_pieces(
        self, texts: Sequence[str], trained_on: str | None = None
    ) -> list[list[str]]:
        """See `Vocabulary`; of a slow tokenizer the letters, one by one."""
        pieces: list[list[str]] = [[] for _ in texts]
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is not None and has_all_bytes(backend):
            return unseen_characters(backend, texts, trained_on)
        if not texts or self.unknown is None:
            return pieces
        encoded = self._encoded_alone(list(texts), return_offsets_mapping=self.tokenizer.is_fast)
        for number, ids in enumerate(encoded["input_ids"]):
            text = texts[number]
            if self.tokenizer.is_fast:
                places = zip(ids, encoded["offset_mapping"][number], strict=True)
                pieces[number] = [
                    text[start:end] for token, (start, end) in places if token == self.unknown
                ]
            elif self.unknown in ids:
                pieces[number] = [
                    letter for letter in text if self.unknown in self.encode_alone(letter)
                ]
        return pieces
