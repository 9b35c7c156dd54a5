# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The built-in corpus `numbers`: number words, ordinals, dates, times and amounts in two languages.

The mapping is deterministic (a source sentence has exactly one translation) and yet not word by word: German says
units before tens and writes a number as one word, verbs and dates stand in other places. A small model learns it in
minutes on a CPU, so it serves the quick start and the tests of the training code.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from datasets import Dataset, DatasetDict

from .number_sentences import KINDS, Kind, below, has_sentences, money_kind, templates
from .verbalise import get_verbaliser, supported_languages

__all__ = ["load_numbers", "number_languages"]

_MOST_REJECTIONS = 300  # after as many repeats in a row, a kind of sentence counts as exhausted

Pair = tuple[str, str]


def number_languages() -> tuple[str, ...]:
    """Codes of the languages that the `numbers` corpus can be made in."""
    return supported_languages()


def load_numbers(
    source_lang: str = "en",
    target_lang: str = "de",
    train_size: int = 30_000,
    validation_size: int = 1_000,
    test_size: int = 1_000,
    seed: int = 0,
) -> DatasetDict:
    """Makes the `numbers` corpus.

    No sentence, source or target, occurs in two splits or twice in one. Test and validation depend on the seed and
    their own size only, not on the size of the training split. Swapping the languages swaps the columns.

    Args:
        source_lang: One of `number_languages`.
        target_lang: Another one of them.
        train_size: Training pairs.
        validation_size: Validation pairs; with 0 there is no such split.
        test_size: Test pairs; with 0 there is no such split.
        seed: The same seed gives the same corpus on every machine.

    Returns:
        Splits train, validation and test with the string columns source and target.

    Raises:
        ValueError: An unknown language, two equal languages, a negative size, or more pairs than can be made.
    """
    sizes = {"test": test_size, "validation": validation_size, "train": train_size}
    for split, size in sizes.items():
        if size < 0:
            raise ValueError(f"{split}_size is {size}; it must be 0 or more")
    generator = PairGenerator(source_lang, target_lang)
    if (total := sum(sizes.values())) > generator.capacity:
        raise ValueError(
            f"train_size + validation_size + test_size is {total:,}, but the numbers corpus "
            f"{source_lang}-{target_lang} has at most {generator.capacity:,} distinct pairs; ask for fewer"
        )
    splits = {split: list(generator.pairs(size, f"{seed}/{split}")) for split, size in sizes.items() if size}
    return DatasetDict(
        {
            split: Dataset.from_dict({"source": [pair[0] for pair in pairs], "target": [pair[1] for pair in pairs]})
            for split, pairs in reversed(splits.items())
        }
    )


class PairGenerator:
    """Draws pairs of sentences that were not drawn before.

    Args:
        source_lang: One of `number_languages`.
        target_lang: Another one of them.

    Raises:
        ValueError: An unknown language, or two equal ones.
    """

    def __init__(self, source_lang: str, target_lang: str) -> None:
        self._source, self._target = get_verbaliser(source_lang), get_verbaliser(target_lang)
        if source_lang == target_lang:
            raise ValueError(f"source_lang and target_lang are both {source_lang!r}; choose two different languages")
        self._sentences = has_sentences(source_lang) and has_sentences(target_lang)
        self._kinds = self._possible_kinds()
        self._seen: tuple[set[str], set[str]] = (set(), set())

    def _possible_kinds(self) -> list[Kind]:
        kinds = [kind for kind in KINDS if (kind.bare or self._sentences)]
        both = (self._source, self._target)
        if any(language.ordinal(number) is None for language in both for number in (1, 2, 3, 23)):
            kinds = [kind for kind in kinds if kind.name != "ordinal"]
        # A fixed order, so that both directions draw the same currencies.
        shared = sorted(set(self._source.currencies()) & set(self._target.currencies()))
        return [*kinds, money_kind(tuple(shared))] if shared else kinds

    @property
    def capacity(self) -> int:
        """An upper bound on the pairs that can be made."""
        return sum(kind.values * self._forms(kind) for kind in self._kinds)

    def _forms(self, kind: Kind) -> int:
        return len(templates(self._source.language, kind.name)) if self._sentences else 1

    def pairs(self, count: int, seed: str) -> Iterator[Pair]:
        """Yields `count` new pairs.

        Args:
            count: How many.
            seed: What is drawn depends on it and on the pairs drawn before.

        Raises:
            ValueError: There are not that many.
        """
        rng = random.Random(seed)  # seeded with a string: sha512 of it, not Python's salted hash
        kinds = list(self._kinds)
        rejections = dict.fromkeys((kind.name for kind in kinds), 0)
        made = 0
        while made < count:
            if not kinds:
                raise ValueError(
                    f"only {made:,} new pairs of the {count:,} asked for can be made for the numbers corpus "
                    f"{self._source.language}-{self._target.language}; ask for fewer"
                )
            kind = _choose(rng, kinds)
            pair = self._draw(rng, kind)
            if pair is None:
                rejections[kind.name] += 1
                if rejections[kind.name] >= _MOST_REJECTIONS:
                    kinds.remove(kind)
                continue
            rejections[kind.name] = 0
            made += 1
            yield pair

    def _draw(self, rng: random.Random, kind: Kind) -> Pair | None:
        value, template = kind.draw(rng), below(rng, self._forms(kind))
        source = kind.say(self._source, value, template, self._sentences)
        target = kind.say(self._target, value, template, self._sentences)
        if source is None or target is None or source in self._seen[0] or target in self._seen[1]:
            return None
        self._seen[0].add(source)
        self._seen[1].add(target)
        return source, target


def _choose(rng: random.Random, kinds: list[Kind]) -> Kind:
    point = rng.random() * sum(kind.weight for kind in kinds)
    for kind in kinds:
        point -= kind.weight
        if point < 0:
            return kind
    return kinds[-1]
