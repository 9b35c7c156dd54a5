# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Batches bounded by what they cost, the same number for every process.

How `TokenBatchSampler` forms the batches of an epoch, for R processes:

1. The examples are sorted by their two lengths; which of several examples with equal lengths comes
   first is drawn anew in every epoch.
2. The sorted examples are cut into batches, each as large as the bound allows. The last ones, with
   the shortest sentences, are cut again so that the number of batches is a multiple of R.
3. R batches with about equal costs form a group: the processes work on them at the same moment.
4. The groups are shuffled, and so are the batches within a group.

The sequence of lengths in step 1 is the same in every epoch, hence the cuts and the number of
batches are too.

`MixedBatchSampler` makes all batches alike instead: each holds long and short sentences as the
corpus does. It deals the examples out, the longest first, each to the batch that costs least so
far."""

from __future__ import annotations

import bisect
import hashlib
import heapq
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
import torch
from accelerate.data_loader import BatchSamplerShard
from datasets import Dataset
from torch.utils.data import DataLoader, Sampler
from transformers import DataCollatorForSeq2Seq

_STRIP_WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16)
# Noise on the order in which examples are dealt out: each counts as cheaper by a random share of
# its price, up to this
_NOISE = 0.1

Cost = Literal["tokens", "cells"]


class BoundedBatchSampler(Sampler[list[int]], ABC):
    """Yields batches (lists of indices) bounded by what they cost.

    Every index occurs exactly once in an epoch. The number of batches is a multiple of
    `num_replicas` and the same in every epoch. Under accelerate, process r gets batches r, r + R, r
    + 2R, ...: pass the sampler as the `batch_sampler` of a `DataLoader`, prepare that, and call
    `forward_set_epoch` on the result.

    Args:
        source_lengths: [N] tokens of every source.
        target_lengths: [N] tokens of every target.
        max_tokens: Bound on the cost of a batch.
        seed: The order is a function of the seed and the epoch alone.
        num_replicas: Number of processes R.
        max_sentences: Bound on the examples of a batch.
        cost: The unit of the bound: "tokens", source plus target, or "cells" of the source × target
            grid.

    Raises:
        ValueError: An example exceeds the bound alone, or there are too few for the processes.
    """

    def __init__(
        self,
        source_lengths: Sequence[int] | np.ndarray,
        target_lengths: Sequence[int] | np.ndarray,
        max_tokens: int,
        *,
        seed: int = 0,
        num_replicas: int = 1,
        max_sentences: int | None = None,
        cost: Cost = "tokens",
    ) -> None:
        self._source = np.asarray(source_lengths, dtype=np.int64)
        self._target = np.asarray(target_lengths, dtype=np.int64)
        self.max_tokens = max_tokens
        self.max_sentences = max_sentences or sys.maxsize
        self.seed = seed
        self.num_replicas = num_replicas
        self.cost: Cost = cost
        self.epoch = 0
        alone = self._cost(self._source, self._target)
        worst = int(alone.argmax())
        if alone[worst] > max_tokens:
            raise ValueError(
                f"example {worst} has {self._source[worst]} source and {self._target[worst]} "
                f"target tokens: alone it costs {alone[worst]} {cost}, more than "
                f"max_{cost}={max_tokens}; raise max_{cost} or filter long pairs"
            )
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Computes what is the same in every epoch."""

    def _cost(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Cost of one example in a batch whose longest source and target have these lengths."""
        return source + target if self.cost == "tokens" else source * target

    def _round_up(self, batches: int) -> int:
        """The next multiple of R."""
        wanted = -(-batches // self.num_replicas) * self.num_replicas
        if wanted > len(self._source):
            raise ValueError(
                f"{len(self._source)} examples in {batches} batches cannot be shared equally by "
                f"num_replicas={self.num_replicas} processes; give more examples or raise "
                f"max_{self.cost}={self.max_tokens}"
            )
        return wanted

    def _random(self) -> np.random.RandomState:
        """The random numbers of the current epoch; their streams never change between numpy
        versions.
        """
        return np.random.RandomState([self.seed, self.epoch])

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch whose order the next iteration gives."""
        self.epoch = epoch

    @property
    def sampler(self) -> BoundedBatchSampler:
        """The sampler itself: accelerate calls `set_epoch` of a batch sampler's `sampler`."""
        return self


class TokenBatchSampler(BoundedBatchSampler):
    """Batches of examples with like lengths, so that little is padded.

    The bound holds with padding: a batch of n examples costs n * (longest source + longest target)
    tokens or n * longest source * longest target cells. For arguments and errors see
    `BoundedBatchSampler`."""

    def _prepare(self) -> None:
        """Sorts the way that pads least.

        Sorting by source length in strips, by target length within a strip, pads the target more
        the narrower the strips are and the source more the wider: the best width depends on how
        many examples a batch takes."""
        smallest = np.inf
        for width in _STRIP_WIDTHS:
            strip = self._source // width
            # From long to short. Targets fall in one strip and rise in the next: a batch across two
            # has similar ones.
            targets = np.where(strip % 2 == 0, self._target, -self._target)
            keys = (-self._source, targets, -strip)
            order = np.lexsort(keys)
            cuts = self._cut(order, self.max_tokens)
            size = self._sizes(order, cuts).sum()
            if size >= smallest:
                break
            smallest = size
            self._keys = keys  # the most significant last
            best_order = order
            best_cuts = cuts
        self._cuts = self._share_out(best_order, best_cuts)
        self._groups = self._form_groups(best_order)

    def _cut(self, order: np.ndarray, bound: int) -> np.ndarray:
        """Where batches begin in the sorted examples, and the end, if every batch takes as many as
        it can.
        """
        source = self._source[order]
        target = self._target[order]
        cuts = [0]
        while cuts[-1] < len(order):
            start = cuts[-1]
            most = max(1, bound // int(self._cost(source[start], target[start])))
            most = min(most, len(order) - start, self.max_sentences)
            window = slice(start, start + most)
            longest = np.maximum.accumulate(source[window]), np.maximum.accumulate(target[window])
            fits = np.arange(1, most + 1) * self._cost(*longest) <= bound
            cuts.append(start + (most if fits.all() else max(1, int(fits.argmin()))))
        return np.array(cuts)

    def _sizes(self, order: np.ndarray, cuts: np.ndarray) -> np.ndarray:
        """Cost of every batch with its padding."""
        longest_source = np.maximum.reduceat(self._source[order], cuts[:-1])
        longest_target = np.maximum.reduceat(self._target[order], cuts[:-1])
        return np.diff(cuts) * self._cost(longest_source, longest_target)

    def _share_out(self, order: np.ndarray, cuts: np.ndarray) -> np.ndarray:
        """Cuts further until the number of batches is a multiple of R."""
        replicas = self.num_replicas
        batches = len(cuts) - 1
        wanted = self._round_up(batches)
        # The last batches become one group of R: fewer than R of them before, or R of which the
        # last is not full.
        start = cuts[batches - (batches % replicas or replicas)]
        tail = order[start:]
        tail_cuts = self._cut_low(tail, replicas)
        if len(tail_cuts) <= replicas:
            return _halve_largest(cuts, wanted)
        return np.concatenate([cuts[cuts < start], start + tail_cuts])

    def _cut_low(self, order: np.ndarray, batches: int) -> np.ndarray:
        """Cuts with the lowest bound that needs no more than `batches` batches."""
        bounds = range(self.max_tokens)
        lowest = bisect.bisect_left(
            bounds, True, lo=1, key=lambda bound: len(self._cut(order, bound)) - 1 <= batches
        )
        return self._cut(order, lowest)

    def _form_groups(self, order: np.ndarray) -> np.ndarray:
        """Numbers of batches with about equal costs, [groups, R]."""
        costs = self._sizes(order, self._cuts)
        full = np.argsort(costs[: -self.num_replicas], kind="stable")
        # Those that _share_out has made equal
        last = np.arange(len(costs) - self.num_replicas, len(costs))
        return np.concatenate([full, last]).reshape(-1, self.num_replicas)

    def __len__(self) -> int:
        return len(self._cuts) - 1

    def __iter__(self) -> Iterator[list[int]]:
        rng = self._random()
        ties = rng.permutation(len(self._source))
        groups = self._groups[rng.permutation(len(self._groups))]
        groups = np.take_along_axis(groups, rng.random_sample(groups.shape).argsort(axis=1), axis=1)
        batches = np.split(np.lexsort((ties, *self._keys)), self._cuts[1:-1])
        return (batches[number].tolist() for number in groups.ravel())


class MixedBatchSampler(BoundedBatchSampler):
    """Batches of examples with all lengths, each like the corpus and all about equally expensive.

    For models whose layers compare the examples of a batch, as batch normalisation does: where a
    batch holds one length, its statistics tell the model how long its sentences are; at inference
    that cue is missing.

    The bound holds for the examples as they are, each with its own lengths: it is meant for models
    that compute little at padding. For arguments and errors see `BoundedBatchSampler`."""

    def _prepare(self) -> None:
        # A sentence costs at least its share of max_sentences
        cost = self._cost(self._source, self._target)
        self._price = np.maximum(cost, self.max_tokens / self.max_sentences)
        self._count = self._least_batches()

    def _least_batches(self) -> int:
        """The smallest number of batches, a multiple of R, that keeps the bound whatever an epoch
        draws.

        An example goes to the cheapest batch, which costs at most the average of all batches so
        far. These hold only examples that may come earlier: those whose price is not lower by more
        than the noise. As long as there are fewer earlier examples than batches, the cheapest batch
        is empty."""
        prices = np.sort(self._price)[::-1]
        earlier = np.searchsorted(-prices, -prices * (1.0 - _NOISE), side="right") - 1
        room = np.maximum(self.max_tokens - prices, 1e-9)
        needed = np.minimum(
            np.ceil((np.cumsum(prices)[earlier] - prices) / room), earlier + 1
        ).max()
        return self._round_up(max(1, int(needed)))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[int]]:
        rng = self._random()
        keys = self._price * (1.0 - _NOISE * rng.random_sample(len(self._price)))
        order = rng.permutation(self._count)
        dealt: list[list[int]] = [[] for _ in order]
        # Which of several empty batches comes first is drawn, too
        cheapest = [(0.0, place, number) for place, number in enumerate(order.tolist())]
        for index in np.argsort(-keys, kind="stable").tolist():
            price, place, number = cheapest[0]
            dealt[number].append(index)
            heapq.heapreplace(cheapest, (price + float(self._price[index]), place, number))
        return iter(dealt)


def _halve_largest(cuts: np.ndarray, wanted: int) -> np.ndarray:
    """Halves the batch with the most examples until there are `wanted` batches."""
    while len(cuts) - 1 < wanted:
        largest = int(np.diff(cuts).argmax())
        cuts = np.insert(cuts, largest + 1, (cuts[largest] + cuts[largest + 1]) // 2)
    return cuts


def example_lengths(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Token counts of the columns input_ids and labels of a tokenized split, [N] each."""
    table = dataset.select_columns(["input_ids", "labels"]).with_format("arrow")[:]
    source, target = map(pc.list_value_length, table.columns)
    return source.to_numpy(), target.to_numpy()


def describe_dataset(dataset: Dataset, *, references: bool = False) -> dict[str, Any]:
    """Number and fingerprints of the pairs of a tokenized split, which depend on the content alone.

    Returns:
        `pairs`, `sha256_of_lengths` (source and target tokens of every pair) and `sha256` (of the
        lengths, the tokens and, with `references`, the texts of the column target, in order).
    """
    lengths = np.ascontiguousarray(np.stack(example_lengths(dataset)), dtype="<i8").tobytes()
    digest = hashlib.sha256(lengths)
    tokens = dataset.select_columns(["input_ids", "labels"]).with_format("arrow")
    for batch in tokens.iter(batch_size=10_000):
        for column in batch.columns:
            digest.update(pc.list_flatten(column).to_numpy().astype("<i8").tobytes())
    if references and "target" in dataset.column_names:
        for text in dataset["target"]:
            digest.update(f"{len(text)} {text}".encode())
    return {
        "pairs": len(dataset),
        "sha256_of_lengths": hashlib.sha256(lengths).hexdigest(),
        "sha256": digest.hexdigest(),
    }


def forward_set_epoch(dataloader: DataLoader) -> DataLoader:
    """Lets `set_epoch` reach a `BoundedBatchSampler` through a prepared dataloader, also after
    skipped batches.

    `DataLoaderShard.set_epoch` looks for the attribute `sampler` one level down only: a
    `BatchSamplerShard`, which accelerate wraps around the sampler of several processes, gets it
    here."""
    shard = dataloader.batch_sampler
    if isinstance(shard, BatchSamplerShard):
        shard.sampler = shard.batch_sampler
    return dataloader


class TargetMaskCollator(DataCollatorForSeq2Seq):
    """The library's collator, which also tells which target positions are real, as batch
    normalisation needs.

    Token numbers cannot tell, where an end of sentence stands inside a target, or the padding token
    is the end."""

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> Any:
        """Returns the batch with `decoder_attention_mask` [B, I], 1 up to the last label of each
        target.
        """
        batch = super().__call__(features, return_tensors)
        if batch.get("labels") is not None:
            labels = torch.as_tensor(batch["labels"])
            batch["decoder_attention_mask"] = labels.ne(-100).flip(1).cumsum(1).flip(1).gt(0).long()
        return batch
