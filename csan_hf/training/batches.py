# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Batches of the trainer: bounded in tokens or cells, loaded by workers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from datasets import Dataset
from torch.utils.data import DataLoader, Sampler

from csan_hf.data import MixedBatchSampler, TokenBatchSampler, example_lengths
from csan_hf.families import ModelFamily

from .arguments import TranslationTrainingArguments
from .recipe import refusing
from .stopping import prepare_worker, signal_blocking_context

if TYPE_CHECKING:
    from .trainer import TranslationTrainer


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


def load_batches(
    trainer: TranslationTrainer, rows: Dataset, batches: Sampler[list[int]]
) -> DataLoader:
    """Loads batches, each process its own.

    Args:
        trainer: Its collator, its accelerator, and what its arguments say of workers.
        rows: The examples.
        batches: Lists of row numbers.
    """
    args = trainer.args
    context = None
    if args.dataloader_num_workers:
        context = signal_blocking_context(args.dataloader_multiprocessing_context)
    prepare = partial(
        prepare_worker, num_workers=args.dataloader_num_workers, rank=args.process_index
    )
    loader: DataLoader = DataLoader(
        rows,
        batch_sampler=batches,
        collate_fn=trainer.data_collator,
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory,
        persistent_workers=args.dataloader_persistent_workers,
        prefetch_factor=args.dataloader_prefetch_factor,
        worker_init_fn=prepare,
        multiprocessing_context=context,
    )
    return trainer.accelerator.prepare(loader)
