# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The interface of what searches for translations: exported graphs, models of torch, ensembles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from .alignment import Alignment
from .constraints import Constraints, Endings, Phrases
from .dictionary import PronouncingDictionary
from .generation import Generation
from .prefixes import Prefix
from .search import (
    Beams,
    Choose,
    Decoder,
    Hypothesis,
    Sampling,
    beam_search,
    greedy,
    token_by_token,
)
from .texts import LanguageTags, SourceReader, warn_once
from .vocabulary import Vocabulary


@dataclass(frozen=True)
class SourceBatch:
    """B sources that are translated together, and how.

    Attributes:
        ids: Their tokens [B, J].
        mask: [B, J], 1 for real tokens.
        limits: The most tokens [B] of a translation, the first of the decoder included.
        generation: The settings of the search.
        returned: Hypotheses, or samples, of each source.
        with_scores: Whether log-probabilities are needed.
        generator: Gives the random numbers of samples.
        prefixes: How the hypotheses of each source begin; none where empty.
        phrases: What the hypotheses of each source must hold, anywhere and in any order; none where
            empty.
        endings: What may follow a phrase in its word; None = anything.
    """

    ids: np.ndarray
    mask: np.ndarray
    limits: np.ndarray
    generation: Generation
    returned: int = 1
    with_scores: bool = False
    generator: np.random.Generator | None = None
    prefixes: Sequence[Prefix] = ()
    phrases: Sequence[Phrases] = ()
    endings: Endings | None = None

    @property
    def copies(self) -> int:
        """How many sentences there are of each source: each sample is one of its own."""
        return self.returned if self.generation.do_sample else 1

    @property
    def beams(self) -> int:
        """Beams of each sentence."""
        return 1 if self.generation.do_sample else self.generation.num_beams


Pair: TypeAlias = tuple[str, str]
"""A source and its translation."""


class Engine(Protocol):
    """Searches for translations.

    Attributes:
        positions: Tokens of the longest text that the model has positions for; None = any number.
        extends_positions: Whether it makes more of them where it needs some.
        line_token: The token that ends a line, in sources and translations, of a model that
            translates texts line by line; None = it does not.
    """

    positions: int | None
    extends_positions: bool
    line_token: int | None

    @property
    def dictionary(self) -> PronouncingDictionary | None:
        """Of a pronouncer: words whose pronunciations are looked up."""

    @property
    def source(self) -> Vocabulary:
        """The source's vocabulary."""

    @property
    def target(self) -> Vocabulary:
        """The target's; the same object where it is joint."""

    def defaults(self, source_lang: str | None, target_lang: str | None) -> tuple[str, Generation]:
        """Returns what stands before sources, and the settings of the search, between two
        languages; tokens of languages apart.
        """

    def search(self, batch: SourceBatch) -> list[list[Hypothesis]]:
        """Returns the best hypotheses, or samples, of each source.

        Raises:
            ValueError: No token begins the translations, or a setting is impossible.
        """

    def check_attention(self, needed_for: str) -> None:
        """Raises `ValueError` if there are no attention weights, which something is needed for."""

    def align(
        self, pairs: Sequence[Pair], read: SourceReader, source_lang: str | None
    ) -> list[Alignment]:
        """Aligns pairs by the attention of the model, see `Alignment`; `read` says what of a source
        is its text.
        """


def source_reader(
    engine: Engine, source_lang: str | None, target_lang: str | None, prefix: str | None = None
) -> SourceReader:
    """Returns what tells a text from what stands before it where the model of an engine reads it.

    Args:
        engine: The engine.
        source_lang: The language of the texts.
        target_lang: The language of the translations.
        prefix: What stands before all sources; None = as the model's config says.
    """
    vocabulary = engine.source
    # Sources of a Marian model need no tag
    tags = LanguageTags(() if vocabulary.kind == "MarianTokenizer" else vocabulary.added)
    usual_prefix, _ = engine.defaults(source_lang, target_lang)
    if vocabulary.languages:
        usual_prefix = ""
    elif target_lang is not None and not tags.knows(target_lang):
        mark = f">>{target_lang}<<"
        if vocabulary.holds(mark):
            usual_prefix = f"{mark} "
        elif not usual_prefix:
            warn_once(
                f"target_lang={target_lang!r} has no effect: the model's vocabulary has no {mark}."
            )
    return SourceReader(tags, target_lang, usual_prefix, prefix)


def search_batch(batch: SourceBatch, decoder: Decoder) -> list[list[Hypothesis]]:
    """Returns the best hypotheses, or samples, of each source.

    Args:
        batch: The sources.
        decoder: Of their sentences, `copies` of each source, with `beams` rows each.

    Raises:
        ValueError: No token begins the translations.
    """
    generation = batch.generation
    if generation.decoder_start_token_id is None:
        raise ValueError(
            "generation_config.json lacks `decoder_start_token_id`: it is the token that "
            "translations begin with."
        )
    sentences = np.arange(len(batch.ids)).repeat(batch.copies)
    limits = batch.limits[sentences]
    prefixes = [batch.prefixes[number] for number in sentences.tolist()] if batch.prefixes else []
    rules = list(generation.rules(limits, prefixes))
    stop = generation.stop(limits)
    tokens = np.full((len(sentences), 1), generation.decoder_start_token_id)
    if batch.beams > 1 or batch.phrases:
        constraints = None
        if batch.phrases:
            ends = generation.ends.tolist()
            constraints = Constraints(batch.phrases, batch.beams, ends, batch.endings)
        return beam_search(
            decoder,
            tokens,
            beams=Beams(
                count=batch.beams,
                returned=batch.returned,
                end_count=len(generation.ends),
                length_penalty=float(generation.length_penalty),
                early_stopping=generation.early_stopping,
            ),
            limits=limits,
            stop=stop,
            rules=rules,
            constraints=constraints,
        )
    choose: Choose = greedy
    if generation.do_sample:
        choose = Sampling(
            generator=batch.generator or np.random.default_rng(),
            temperature=generation.temperature,
            top_k=generation.top_k,
            top_p=generation.top_p,
        )
    hypotheses = token_by_token(
        decoder, tokens, choose=choose, stop=stop, rules=rules, with_scores=batch.with_scores
    )
    return grouped(hypotheses, batch.copies)


def grouped(hypotheses: list[Hypothesis], size: int) -> list[list[Hypothesis]]:
    """Groups the hypotheses of each source, of which there are `size`."""
    return [hypotheses[first : first + size] for first in range(0, len(hypotheses), size)]


def padded(rows: Sequence[Sequence[int]], padding: int) -> np.ndarray:
    """Returns rows of tokens as an array, padded on the right."""
    width = max(map(len, rows))
    return np.array([[*row, *[padding] * (width - len(row))] for row in rows], np.int64)
