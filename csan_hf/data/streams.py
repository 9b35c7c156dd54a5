# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Training sets without an end: pairs are cut into tokens as they come, and not kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import datasets
import torch
from datasets import Dataset, IterableDataset
from datasets.distributed import split_dataset_by_node

from .corpora import DataArguments, is_filled, language_tags, stream_of_pair, tagged
from .tokenization import TokenizerPair, tokenize_rows


@dataclass(frozen=True)
class TokenStream:
    """A training set of `DataArguments.is_endless`.

    Args:
        args: The corpus.
        tokenizers: The tokenizers.
        sample: Its first pairs, as `prepare_corpus` gives them.
    """

    args: DataArguments
    tokenizers: TokenizerPair
    sample: Dataset


def stream_of_corpus(args: DataArguments) -> IterableDataset:
    """Returns the training pairs as they are read, columns source and target, again and again.

    Several pairs of languages take turns; in one pass each text occurs once, unless `args.train`
    has weights.
    """
    streams = []
    for pair in args.pairs:
        stream = stream_of_pair(args.of_pair(pair))
        if args.documents:
            stream = args.pieces(stream)
        if language_tags(args.pairs):
            stream = tagged(stream, pair)
        streams.append(stream)
    stream = datasets.interleave_datasets(
        streams, stopping_strategy="all_exhausted_without_replacement"
    )
    return stream.filter(is_filled, input_columns=["source", "target"]).repeat(None)


class StreamedBatches(torch.utils.data.IterableDataset):
    """The batches of one process from a stream that several share.

    A buffer of pairs at a time is cut into batches. The state is that after the last batch taken:
    where it is loaded, the next one follows.

    Args:
        stream: The training set.
        cut: Function from a tokenized buffer and its number to its batches, in order.
        rank: Number of the process.
        processes: How many share the stream.
    """

    def __init__(
        self,
        stream: TokenStream,
        cut: Callable[[Dataset, int], Iterable[Any]],
        *,
        rank: int,
        processes: int,
    ) -> None:
        self._stream = stream
        self._cut = cut
        self._pairs = split_dataset_by_node(stream_of_corpus(stream.args), rank, processes)
        self._state = {"pairs": self._pairs.state_dict(), "buffers": 0, "batches": 0}

    def state_dict(self) -> dict[str, Any]:
        """Returns where the stream stood before the buffer, the buffer's number, and how many of
        its batches were taken.
        """
        return dict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where a process of the same rank stood."""
        self._state = dict(state)

    def __iter__(self) -> Iterator[Any]:
        self._pairs.load_state_dict(self._state["pairs"])
        pairs = iter(self._pairs)
        while True:
            rows = list(islice(pairs, self._stream.args.buffer_size))
            after = self._pairs.state_dict()
            buffer = tokenize_rows(rows, self._stream.tokenizers, self._stream.args)
            if len(buffer):
                batches = self._cut(buffer, self._state["buffers"])
                for batch in islice(batches, self._state["batches"], None):
                    self._state["batches"] += 1
                    yield batch
            buffers = self._state["buffers"] + 1
            self._state = {"pairs": after, "buffers": buffers, "batches": 0}
