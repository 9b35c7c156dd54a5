# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Corpora, tokenizers and batches."""

from .batching import (
    MixedBatchSampler,
    TargetMaskCollator,
    TokenBatchSampler,
    describe_dataset,
    example_lengths,
    forward_set_epoch,
)
from .corpora import DataArguments, FilterReport, load_translation_dataset
from .numbers import load_numbers, number_languages
from .prepared import PreparedCorpus, prepare_corpus
from .streams import StreamedBatches, TokenStream
from .tokenization import (
    TokenizerArguments,
    TokenizerPair,
    tokenize_dataset,
    train_tokenizer,
    train_tokenizers,
    with_bpe_dropout,
)

__all__ = [
    "DataArguments",
    "FilterReport",
    "MixedBatchSampler",
    "PreparedCorpus",
    "StreamedBatches",
    "TargetMaskCollator",
    "TokenBatchSampler",
    "TokenStream",
    "TokenizerArguments",
    "TokenizerPair",
    "describe_dataset",
    "example_lengths",
    "forward_set_epoch",
    "load_numbers",
    "load_translation_dataset",
    "number_languages",
    "prepare_corpus",
    "tokenize_dataset",
    "train_tokenizer",
    "train_tokenizers",
    "with_bpe_dropout",
]
