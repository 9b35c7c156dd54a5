# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Training batches, bounded in tokens or cells."""

from typing import Any

from datasets import Dataset

from csan_hf.data import MixedBatchSampler, TokenBatchSampler, example_lengths
from csan_hf.families import ModelFamily

from .arguments import TranslationTrainingArguments
from .errors import refusing


def training_batches(
    dataset: Dataset, args: TranslationTrainingArguments, family: ModelFamily, *, processes: int
) -> MixedBatchSampler | TokenBatchSampler:
    """Draws training batches: a function of seed and epoch, so that a resumed run sees the same.

    Args:
        dataset: The tokenized training set.
        args: The arguments, which bound a batch of the family.
        family: The model family, whose batches are bounded in tokens or in cells.
        processes: How many share the batches.

    Raises:
        RecipeError: If a sentence pair exceeds the bound.
    """
    mix_lengths = args.mix_lengths
    if mix_lengths is None:
        mix_lengths = family.batch_cost == "cells"
    sampler = MixedBatchSampler if mix_lengths else TokenBatchSampler
    source_lengths, target_lengths = example_lengths(dataset)
    bound: Any = args.batch_bound(family)
    with refusing("The section training is refused"):
        return sampler(
            source_lengths,
            target_lengths,
            bound,
            seed=args.seed if args.data_seed is None else args.data_seed,
            # An update takes one group of equal batches, however many processes share it
            num_replicas=processes * args.gradient_accumulation_steps,
            max_sentences=args.max_sentences,
            cost=family.batch_cost,
        )
