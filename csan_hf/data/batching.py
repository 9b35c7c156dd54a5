"""Batches bounded by tokens, padding included, the same number for every process.

How the batches of an epoch are formed, for R processes:

1. The examples are sorted by their two lengths; which of several examples with equal lengths comes first is drawn anew
   in every epoch.
2. The sorted examples are cut into *groups* of R batches with equally many examples each, as many as the bound
   allows for the longest source and the longest target of the group.
3. The examples of a group are dealt to its R batches like cards, R at a time, so the batches that the processes work
   on at the same moment are about equally large.
4. The groups are shuffled.

The sequence of lengths in step 1 is the same in every epoch, hence the cuts and the number of batches are too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import pyarrow.compute as pc
from accelerate.data_loader import BatchSamplerShard
from datasets import Dataset
from torch.utils.data import DataLoader, Sampler

_STRIP_WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16)

Cost = Literal["tokens", "cells"]


class TokenBatchSampler(Sampler[list[int]]):
    """Yields batches (lists of indices) bounded by what they cost with their padding.

    Every index occurs exactly once in an epoch. The number of batches is a multiple of `num_replicas` and the same in
    every epoch. Under accelerate, process r gets batches r, r + R, r + 2R, ...: pass the sampler as the
    `batch_sampler` of a `DataLoader`, prepare that, and call :func:`share_epoch` on the result.

    Args:
        source_lengths: [N] tokens of every source.
        target_lengths: [N] tokens of every target.
        max_tokens: bound on the cost of a batch of n examples: with ``cost="tokens"`` on
            n * (longest source + longest target), with ``cost="cells"`` on n * longest source * longest target
            (models that work on the source × target grid).
        seed: the order is a function of the seed and the epoch alone.
        num_replicas: number of processes R.
        shuffle: False gives the batches from short to long, the same in every epoch.
        max_sentences: bound on the examples of a batch.
        cost: "tokens" or "cells".
        pad_to_multiple_of: what the collator rounds lengths up to, so that the bound holds for its batches.

    Raises:
        ValueError: lengths that do not match or are not positive, an example that exceeds the bound alone, too few
            examples for the processes, or an argument out of range.
    """

    def __init__(
        self,
        source_lengths: Sequence[int] | np.ndarray,
        target_lengths: Sequence[int] | np.ndarray,
        max_tokens: int,
        *,
        seed: int = 0,
        num_replicas: int = 1,
        shuffle: bool = True,
        max_sentences: int | None = None,
        cost: Cost = "tokens",
        pad_to_multiple_of: int | None = None,
    ) -> None:
        for name, value in (
            ("max_tokens", max_tokens),
            ("num_replicas", num_replicas),
            ("max_sentences", max_sentences),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if cost not in ("tokens", "cells"):
            raise ValueError(f"cost is {cost!r}; it must be 'tokens' or 'cells'")
        if seed < 0:
            raise ValueError(f"seed is {seed}; it must be 0 or more")
        self._real = (_lengths("source_lengths", source_lengths), _lengths("target_lengths", target_lengths))
        if len(self._real[0]) != len(self._real[1]):
            raise ValueError(
                f"there are {len(self._real[0])} source_lengths and {len(self._real[1])} target_lengths; "
                "give both for every example"
            )
        multiple = pad_to_multiple_of or 1
        self._padded = tuple(-(-lengths // multiple) * multiple for lengths in self._real)
        self.max_tokens = max_tokens
        self.max_sentences = max_sentences
        self.seed = seed
        self.num_replicas = num_replicas
        self.shuffle = shuffle
        self.cost: Cost = cost
        self.epoch = 0
        self._check_bound()
        self._keys, self._cuts = self._plan()

    def _cost(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Cost of one example in a batch whose longest source and target have these lengths."""
        return source + target if self.cost == "tokens" else source * target

    def _check_bound(self) -> None:
        alone = self._cost(*self._padded)
        worst = int(alone.argmax())
        if alone[worst] > self.max_tokens:
            raise ValueError(
                f"example {worst} has {self._real[0][worst]} source and {self._real[1][worst]} target tokens: "
                f"alone it costs {alone[worst]} {self.cost}, more than max_tokens={self.max_tokens}; "
                "raise max_tokens or filter long pairs"
            )
        if len(alone) < self.num_replicas:
            raise ValueError(
                f"{len(alone)} examples cannot be shared by num_replicas={self.num_replicas} processes; "
                "every process needs one"
            )

    def _plan(self) -> tuple[tuple[np.ndarray, ...], list[int]]:
        """Sort keys (most significant last) and the cuts between groups for the sort that pads least.

        Sorting by source length in strips, by target length within a strip, pads the target more the narrower the
        strips are and the source more the wider: the best width depends on how many examples a group takes.
        """
        best_size, best = self._plan_with(_STRIP_WIDTHS[0])
        for width in _STRIP_WIDTHS[1:]:
            size, plan = self._plan_with(width)
            if size >= best_size:
                break
            best_size, best = size, plan
        return best

    def _plan_with(self, width: int) -> tuple[int, tuple[tuple[np.ndarray, ...], list[int]]]:
        keys = self._sort_keys(width)
        order = np.lexsort(keys)
        cuts = self._cut_groups(order)
        return self._padded_size(order, cuts), (keys, cuts)

    def _sort_keys(self, width: int) -> tuple[np.ndarray, ...]:
        source, target = self._padded
        strip = source // width
        # Targets rise in one strip and fall in the next, so that a group across two strips has similar ones.
        return source, np.where(strip % 2 == 0, target, -target), strip

    def _cut_groups(self, order: np.ndarray) -> list[int]:
        """Where groups begin in the sorted examples, and the end.

        A group has a multiple of R examples, but for one: it takes the remainder, and is the first that has at
        least two examples per batch, so that no batch stays empty.
        """
        source, target = (lengths[order] for lengths in self._padded)
        total, replicas = len(order), self.num_replicas
        remainder = total % replicas
        cuts = [0]
        while cuts[-1] < total:
            start = cuts[-1]
            missing = replicas - remainder if remainder else 0
            size = self._group_size(source[start:], target[start:])
            if missing and size > replicas:
                size, remainder = size - missing, 0
            elif size > total - start:
                raise ValueError(
                    f"the last {total - start} of {total} examples cannot be shared by num_replicas={replicas} "
                    f"processes in batches of one example; raise max_tokens={self.max_tokens} "
                    f"(max_sentences={self.max_sentences})"
                )
            cuts.append(start + size)
        return cuts

    def _group_size(self, source: np.ndarray, target: np.ndarray) -> int:
        """The largest multiple of R with which a group of the first of these examples keeps the bound."""
        replicas = self.num_replicas
        most = -(-len(source) // replicas)
        if self.max_sentences is not None:
            most = min(most, self.max_sentences)
        # The bound on one example of this group's first block limits how far it is worth looking.
        most = max(1, min(most, self.max_tokens // int(self._cost(source[:1], target[:1])[0])))
        ends = np.minimum(np.arange(1, most + 1) * replicas, len(source)) - 1
        longest_source = np.maximum.accumulate(source[: ends[-1] + 1])[ends]
        longest_target = np.maximum.accumulate(target[: ends[-1] + 1])[ends]
        fits = np.arange(1, most + 1) * self._cost(longest_source, longest_target) <= self.max_tokens
        per_batch = most if fits.all() else int(fits.argmin())
        return max(1, per_batch) * replicas

    def _padded_size(self, order: np.ndarray, cuts: list[int]) -> int:
        """Cost of all batches if every batch were as long as its group."""
        starts = np.array(cuts[:-1])
        longest = [np.maximum.reduceat(lengths[order], starts) for lengths in self._padded]
        return int((np.diff(cuts) * self._cost(*longest)).sum())

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration gives."""
        self.epoch = epoch

    @property
    def sampler(self) -> TokenBatchSampler:
        """The sampler itself: accelerate passes `set_epoch` on to the `sampler` of a batch sampler."""
        return self

    def __len__(self) -> int:
        return (len(self._cuts) - 1) * self.num_replicas

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches())

    def batches(self) -> list[list[int]]:
        """The batches of the current epoch, in order."""
        rng = np.random.RandomState([self.seed, self.epoch])  # its streams never change between numpy versions
        ties = rng.permutation(len(self._keys[0])) if self.shuffle else np.arange(len(self._keys[0]))
        order = np.lexsort((ties, *self._keys))
        groups = [self._deal(order[start:end], rng) for start, end in pairwise(self._cuts)]
        if self.shuffle:
            groups = [groups[index] for index in rng.permutation(len(groups))]
        return [batch for group in groups for batch in group]

    def _deal(self, group: np.ndarray, rng: np.random.RandomState) -> list[list[int]]:
        """Split a group into R batches: of R consecutive examples, each batch gets one."""
        replicas = self.num_replicas
        if replicas == 1:
            return [group.tolist()]
        empty = -len(group) % replicas
        rows = np.concatenate([group, np.full(empty, -1)]).reshape(-1, replicas)
        if self.shuffle:
            rows = np.take_along_axis(rows, rng.random_sample(rows.shape).argsort(axis=1), axis=1)
        return [column[column >= 0].tolist() for column in rows.T]

    def batch_costs(self) -> list[int]:
        """What every batch of the current epoch costs with its padding, in order."""
        return [
            len(batch) * int(self._cost(*(lengths[batch].max() for lengths in self._padded)))
            for batch in self.batches()
        ]

    def efficiency(self) -> float:
        """Share of the current epoch's cost that is not padding."""
        return float(self._cost(*self._real).sum() / sum(self.batch_costs()))


def _lengths(name: str, values: Sequence[int] | np.ndarray) -> np.ndarray:
    lengths = np.asarray(values, dtype=np.int64)
    if lengths.ndim != 1 or not len(lengths):
        raise ValueError(f"{name} must be a list with one length per example, got shape {list(lengths.shape)}")
    if lengths.min() < 1:
        index = int(lengths.argmin())
        raise ValueError(f"{name}[{index}] is {lengths[index]}; every example needs at least one token")
    return lengths


def example_lengths(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Token counts of the columns input_ids and labels.

    Args:
        dataset: a tokenized split.

    Returns:
        Source lengths [N] and target lengths [N].
    """
    table = dataset.select_columns(["input_ids", "labels"]).with_format("arrow")[:]
    source, target = (pc.list_value_length(table[name]).to_numpy() for name in ("input_ids", "labels"))
    return source, target


def share_epoch(dataloader: DataLoader) -> DataLoader:
    """Let `set_epoch` reach a :class:`TokenBatchSampler` through a prepared dataloader, also after skipped batches.

    With several processes accelerate wraps the sampler in a `BatchSamplerShard`, and a run resumed within an epoch
    wraps that in a `SkipBatchSampler`. `DataLoaderShard.set_epoch` looks for the attribute `sampler` one level down
    only: it is given to the shard here.

    Args:
        dataloader: what `accelerator.prepare` returned for a `DataLoader` with a token batch sampler.

    Returns:
        The same dataloader.
    """
    shard = dataloader.batch_sampler
    if isinstance(shard, BatchSamplerShard) and isinstance(shard.batch_sampler, TokenBatchSampler):
        shard.sampler = shard.batch_sampler
    return dataloader
