# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Knowledge distillation by sequence (Kim and Rush, EMNLP 2016): teachers translate sources that
have no translations, and a student learns of these pairs as of others.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedModel

from csan_hf.data import DataArguments, TokenizerPair, example_lengths
from csan_hf.data.tokenization import tokenize_rows
from csan_hf.hub.model_card import public_name
from csan_hf.pipelines.torch_engine import torch_engine
from csan_hf_runtime.text_files import digest_of_lines
from csan_hf_runtime.translator import TextTranslator

WEIGHT = "pair_weight"
"""Column of the weights of pairs in the loss."""


@dataclass(frozen=True)
class Unlabelled:
    """Sources without translations.

    Attributes:
        sources: The sources.
        data: Where they are from, and what their pairs may be like.
    """

    sources: Sequence[str]
    data: DataArguments

    def describe(self) -> dict[str, Any]:
        """Returns `files`, their public names, and number and digest of the sources."""
        return {
            "files": [public_name(pattern) for pattern in self.data.unlabelled_patterns],
            "sources": len(self.sources),
            "sha256": digest_of_lines(self.sources),
        }

    def limits(self, pairs: Dataset) -> DataArguments:
        """Returns limits of their pairs: no longer than the longest of the training pairs."""
        source, target = (int(lengths.max()) for lengths in example_lengths(pairs))
        return dataclasses.replace(self.data, max_source_length=source, max_target_length=target)


def translated_pairs(
    rows: Mapping[str, list[str]],
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    *,
    n_best: int,
    limits: DataArguments,
) -> dict[str, list[Any]]:
    """Makes tokenized pairs of sources and their n best translations.

    Left out are sources with letters that the vocabulary, or the training of the model, does not
    have, pairs that `limits` would drop, and empty translations.

    Args:
        rows: The sources, column `source`.
        model: What translates them, in evaluation mode; draws no samples from now on, and has no
            forced end.
        tokenizers: Its tokenizers.
        n_best: Translations of each source.
        limits: Limits of training pairs.

    Returns:
        The columns of training pairs, and `WEIGHT`: the probability of the translation, divided by
        the sum of those of its source that are left.
    """
    # A translation that has not ended is then too long with its end, and dropped
    model.generation_config.forced_eos_token_id = None
    model.generation_config.do_sample = False
    engine = torch_engine(model, tokenizers)
    _, generation = engine.defaults(source_lang=None, target_lang=None)
    unknown = engine.source.unknown_pieces(rows["source"], generation.source_characters)
    encoded = map(engine.source.encode, rows["source"])
    sources = [
        source
        for source, pieces, ids in zip(rows["source"], unknown, encoded, strict=True)
        if not pieces and len(ids) <= (limits.max_source_length or 0)
    ]
    translations = TextTranslator(engine).translate(
        sources,
        n_best=n_best,
        return_scores=True,
        split_sentences="never",
        max_new_tokens=limits.max_target_length,
    )
    log_probabilities: dict[tuple[str, str], float] = {}
    for source, hypotheses in zip(sources, translations, strict=True):
        for hypothesis in hypotheses:
            if hypothesis.text:
                log_probabilities[source, hypothesis.text] = hypothesis.log_probability
    pairs = [{"source": source, "target": target} for source, target in log_probabilities]
    columns = tokenize_rows(pairs, tokenizers, limits).to_dict()
    kept_pairs = zip(columns["source"], columns["target"], strict=True)
    weights: list[float] = []
    for _, pairs_of_source in itertools.groupby(kept_pairs, key=itemgetter(0)):
        logarithms = [log_probabilities[pair] for pair in pairs_of_source]
        weights += torch.tensor(logarithms, dtype=torch.float64).softmax(dim=0).tolist()
    return {**columns, WEIGHT: weights}


def with_weights(labelled: Dataset, translated: Dataset) -> Dataset:
    """Puts pairs with labels, each of weight 1, and those of `translated_pairs` together.

    The weights are divided by their mean over all target tokens, so that a weighted loss divided by
    the number of tokens stays a mean."""
    pairs = concatenate_datasets([labelled, translated.remove_columns(WEIGHT)])
    weights = np.concatenate([np.ones(len(labelled)), translated[WEIGHT][:]])
    _, tokens = example_lengths(pairs)
    mean = np.average(weights, weights=tokens)
    return pairs.add_column(WEIGHT, (weights / mean).astype(np.float32))
