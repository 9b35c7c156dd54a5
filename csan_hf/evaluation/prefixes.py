# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translations that begin with a given text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from tokenizers import models
from transformers import LogitsProcessor, PreTrainedTokenizerBase

from csan_hf.pipelines.texts import target_ids
from csan_hf_runtime.prefixes import Prefix, PrefixLines, PrefixPieces


class PrefixReader(PrefixLines):
    """Reads how translations begin, one for each sentence.

    Args:
        texts: The beginnings.
        tokenizer: The target's.
    """

    def __init__(self, texts: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(texts)
        self._tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        cuts_words = isinstance(getattr(backend, "model", None), models.BPE | models.Unigram)
        special = {*tokenizer.all_special_tokens}
        vocabulary = tokenizer.get_vocab()
        tokens = {piece: token for piece, token in vocabulary.items() if piece not in special}
        self._pieces = PrefixPieces(tokens, cuts_words=cuts_words)

    def prefix_of(self, text: str) -> Prefix:
        """Returns the tokens of a text, the last word as characters."""
        ids = target_ids(self._tokenizer, text)
        return self._pieces.prefix_of(ids, self._tokenizer.convert_ids_to_tokens(ids))


class ForcedPrefixes(LogitsProcessor):
    """Lets the hypotheses of each sentence of a batch begin with a given text.

    Args:
        prefixes: How the translation of each sentence begins.
        start: Tokens that stand before it: the start of the decoder, a language.
    """

    def __init__(self, prefixes: Sequence[Prefix], start: int) -> None:
        self.prefixes = prefixes
        self.start = start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Leaves of the scores [B · beams, V] those of the tokens allowed."""
        if input_ids.shape[1] < self.start:
            return scores
        beams = input_ids.shape[0] // len(self.prefixes)
        for row, ids in enumerate(input_ids[:, self.start :].tolist()):
            allowed = self.prefixes[row // beams].allowed(ids)
            if allowed:
                kept = scores[row, allowed]
                scores[row] = -math.inf
                scores[row, allowed] = kept
        return scores
