# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Alignments of pairs of a sentence and its translation, read off a model's cross-attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from csan_hf.evaluation.loading import evaluation_view

from .tokenized_text import TokenizedText, check_fast, check_positions, tokenize_texts

if TYPE_CHECKING:
    from csan_hf.data import TokenizerPair

WINDOW_LINES = 2048
"""Sentence pairs that are sorted by length at a time."""
BATCH_CELLS = 2**20
"""Source times target tokens, padding included, of the pairs of a batch, unless one alone has more.
"""
WINDOW_CELLS = 2**27  # characters of the source times those of the target


@dataclass(frozen=True, eq=False)
class Alignment:
    """How strongly each of J source tokens is related to each of I target tokens of a sentence
    pair.

    Row i of `matrix`, float32 [I, J], belongs to the prediction of target token i; `measure` says
    what the numbers are, for the label of a picture."""

    source: TokenizedText
    target: TokenizedText
    matrix: np.ndarray
    measure: str = "attention"

    def word_matrix(self) -> np.ndarray:
        """Merges tokens into words: the sum over the tokens of a source word, the mean over those
        of a target word.

        With weights that sum to 1 over the source tokens, a row so keeps its sum, but for the part
        on "</s>". The rows and columns of words without tokens (a tokenizer may delete characters)
        are 0.

        Returns:
            float32 [target words, source words].
        """
        columns, rows = self.source.membership(), self.target.membership()
        rows /= np.maximum(rows.sum(axis=0, keepdims=True), 1)
        return rows.T @ self.matrix @ columns

    def links(
        self, *, threshold: float | None = None, symmetric: bool = False
    ) -> list[tuple[int, int]]:
        """Links words. "</s>" is left out: it is never linked and does not count in a row's sum.

        Args:
            threshold: None links each target word to the source word with the highest value in its
                row, the first of equals. A number from 0 to 1 links it to all words whose share of
                the row's positive values, summed, exceeds it: to none, one or several.
            symmetric: Keeps a link only if the target word is also the one with the highest value
                in the source word's column.

        Returns:
            Pairs (source word, target word), counted from 0, in order.

        Raises:
            ValueError: If the threshold is not in [0, 1).
        """
        if threshold is not None and not 0 <= threshold < 1:
            raise ValueError(f"threshold must be at least 0 and less than 1, got {threshold}.")
        # Words without tokens have no values to compare
        columns, rows = (
            sorted({word for word in text.word_of_token if word is not None})
            for text in (self.source, self.target)
        )
        if not columns or not rows:
            return []
        values = self.word_matrix()[np.ix_(rows, columns)]
        if threshold is None:
            linked = np.arange(len(columns)) == values.argmax(axis=1)[:, None]
        else:
            positive = np.maximum(values, 0)
            linked = positive > threshold * positive.sum(axis=1, keepdims=True)
        if symmetric:
            linked &= np.arange(len(rows))[:, None] == values.argmax(axis=0)
        return sorted((columns[column], rows[row]) for row, column in np.argwhere(linked))

    def pharaoh(self, *, threshold: float | None = None, symmetric: bool = False) -> str:
        """Writes the links of `links` as "0-0 1-2": source word, target word; "" if there is none."""
        links = self.links(threshold=threshold, symmetric=symmetric)
        return " ".join(f"{source}-{target}" for source, target in links)


def _windows(pairs: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Yields pairs that are aligned at a time: `WINDOW_LINES`, fewer where their matrices would be
    large.
    """
    window: list[tuple[str, str]] = []
    cells = 0
    for pair in pairs:
        window.append(pair)
        cells += len(pair[0]) * len(pair[1])
        if len(window) == WINDOW_LINES or cells >= WINDOW_CELLS:
            yield window
            window, cells = [], 0
    if window:
        yield window


def align_pairs(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    pairs: Iterable[tuple[str, str]],
    *,
    layer: int = -1,
    batch_size: int = 32,
    total: int | None = None,
    progress: bool = False,
    forward: Callable[..., Any] | None = None,
) -> Iterator[Alignment]:
    """Aligns sentence pairs, in memory that does not grow with their number: see `align`.

    Args:
        pairs: Source and target sentences.
        total: Number of pairs, for the bar.
        forward: A function to call instead of the model, with the same arguments; it returns
            cross-attentions.
    """
    check_fast(tokenizers.source, tokenizers.target)
    model = evaluation_view(model)
    if getattr(model.config, "_attn_implementation", None) not in (None, "eager"):
        model.set_attn_implementation(
            "eager"
        )  # the faster implementations never have the attention weights
    with tqdm(total=total, desc="aligning", unit=" sentences", disable=not progress) as bar:
        for window in _windows(pairs):
            sources, targets = zip(*window, strict=True)
            texts = (
                tokenize_texts(tokenizers.source, sources),
                tokenize_texts(tokenizers.target, targets, target=True),
            )
            check_positions(model, (len(text.ids) for side in texts for text in side))
            tokenized = list(zip(*texts, strict=True))
            yield from _align_window(model, tokenizers, tokenized, layer, batch_size, bar, forward)


def _align_window(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    pairs: Sequence[tuple[TokenizedText, TokenizedText]],
    layer: int,
    batch_size: int,
    bar: tqdm,
    forward: Callable[..., Any] | None,
) -> Iterator[Alignment]:
    measure = "attention"
    matrices = [
        np.zeros((len(target.ids), len(source.ids)), dtype=np.float32) for source, target in pairs
    ]
    # An empty sentence has no token at all where the tokenizer adds no "</s>": nothing to give to a
    # model
    numbers = [number for number, matrix in enumerate(matrices) if matrix.size]
    numbers.sort(
        key=lambda number: (-len(pairs[number][0].ids), -len(pairs[number][1].ids), number)
    )
    bar.update(len(pairs) - len(numbers))
    while numbers:
        longest = len(pairs[numbers[0]][0].ids) * max(
            len(pairs[number][1].ids) for number in numbers[:batch_size]
        )
        fitting = max(
            1, min(batch_size, BATCH_CELLS // longest)
        )  # every layer and head has a matrix of each
        batch, numbers = numbers[:fitting], numbers[fitting:]
        weights, measure = _cross_attention(
            model, tokenizers, [pairs[number] for number in batch], layer, forward
        )
        for place, number in enumerate(batch):
            target_length, source_length = matrices[number].shape
            # A copy: a view would keep the padded weights of the whole batch
            matrices[number] = weights[place, :target_length, :source_length].copy()
        bar.update(len(batch))
    for pair, matrix in zip(pairs, matrices, strict=True):
        yield Alignment(*pair, matrix, measure)


@torch.inference_mode()
def _cross_attention(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    pairs: Sequence[tuple[TokenizedText, TokenizedText]],
    layer: int,
    forward: Callable[..., Any] | None,
) -> tuple[np.ndarray, str]:
    """Returns float32 [B, I, J] for a batch of pairs, padding included, and the name of the
    measure.
    """
    padding = tokenizers.source.pad_token_id or 0
    outputs = (forward or model)(
        input_ids=_padded([source.ids for source, _ in pairs], padding).to(model.device),
        attention_mask=_padded([[1] * len(source.ids) for source, _ in pairs], 0).to(model.device),
        labels=_padded([target.ids for _, target in pairs], -100).to(model.device),
        output_attentions=True,
    )
    layers = outputs.cross_attentions
    if not layers or layers[0] is None:
        raise ValueError(
            f"{type(model).__name__} gives no cross_attentions, which alignments are read from."
        )
    if not -len(layers) <= layer < len(layers):
        raise ValueError(f"layer must be from {-len(layers)} to {len(layers) - 1}, got {layer}.")
    weights = layers[layer]
    return weights.float().mean(dim=1).cpu().numpy(), _measure(
        model, layer % len(layers), weights.shape[1]
    )


def _padded(rows: Sequence[Sequence[int]], padding: int) -> torch.Tensor:
    """Returns [B, longest row], padded on the right."""
    return pad_sequence(
        [torch.tensor(row) for row in rows], batch_first=True, padding_value=padding
    )


def _measure(model: PreTrainedModel, layer: int, heads: int) -> str:
    aggregation = getattr(model.config, "aggregation", None)  # Pervasive Attention alone has one
    if aggregation == "attention":
        return "attention weight ρ"
    if aggregation is not None:
        return "contribution to the target token's logit"
    return f"attention weight, decoder layer {layer}" + (
        f", mean of {heads} heads" if heads > 1 else ""
    )
