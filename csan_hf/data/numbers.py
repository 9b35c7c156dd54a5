# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The built-in corpus `numbers`: number words, ordinals, dates, times and amounts in two languages.

The mapping is deterministic (a source sentence has exactly one translation) and yet not word by
word: German says units before tens and writes a number as one word, verbs and dates stand in other
places. A small model learns it in minutes on a CPU, so it serves the quick start and the tests of
the training code.

A *kind* of sentence draws a value (a number, a day, ...) that does not depend on the language, and
every language says that value with a template of its own; the same value and template number in two
languages make a pair. Template 0 is the bare phrase, which every language has. English, German,
French and Spanish have sentences, too."""

import csv
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict

from csan_hf_runtime.text_files import read_lines

from .verbalise import Verbaliser, get_verbaliser, number_languages

__all__ = ["load_numbers", "number_languages"]

_MOST_REJECTIONS = 300  # after as many repeats in a row, a kind of sentence counts as exhausted
_FIRST_DAY = date(1900, 1, 1)
_DAYS = (date(2100, 1, 1) - _FIRST_DAY).days


@cache
def _templates(language: str) -> dict[str, list[str]]:
    """Kind -> sentences of a language, the bare phrase first; none where the table has no column
    for it.

    A number stands only where it does not agree with a noun in gender or case: "page {}", not "{}
    pages"."""
    table = Path(__file__).with_suffix(".tsv")
    templates: dict[str, list[str]] = defaultdict(list)
    for row in csv.DictReader(read_lines(table), delimiter="\t", quoting=csv.QUOTE_NONE):
        if language in row:
            templates[row["kind"]].append(row[language])
    return templates


def _below(rng: random.Random, bound: int) -> int:
    """A number from 0 to bound - 1; built on `random()`, whose stream Python keeps the same across
    versions.
    """
    return int(rng.random() * bound)


def _draw_cardinal(rng: random.Random) -> int:
    # Short numbers are few: they soon repeat
    digits = (1, 2, 3, 3, 4, 4, 5, 5, 6, 6, 6, 7)[_below(rng, 12)]
    low = 0 if digits == 1 else 10 ** (digits - 1)
    return low + _below(rng, 10**digits - low)


def _draw_ordinal(rng: random.Random) -> int:
    return 1 + _below(rng, 999)


def _draw_date(rng: random.Random) -> date:
    return _FIRST_DAY + timedelta(days=_below(rng, _DAYS))


def _draw_time(rng: random.Random) -> tuple[int, int]:
    minute = _below(rng, 60) if rng.random() < 0.7 else 15 * _below(rng, 4)
    return 1 + _below(rng, 12), minute


def _draw_money(rng: random.Random) -> tuple[int, int, int]:
    whole = 2 + _below(rng, 98 if rng.random() < 0.4 else 998)
    return whole, 1 + _below(rng, 99), _below(rng, 1_000)


_QUARTERS = {15: "quarter past", 30: "half past", 45: "quarter to"}


def _clock(verbaliser: Verbaliser, value: tuple[int, int]) -> str:
    """The time of day in the words of the table's kinds of hours, quarters and minutes."""
    hour, minute = value
    if minute == 0:
        return _of_hour(verbaliser, "full hour", hour)
    language = verbaliser.base
    count = minute if minute < 30 else 60 - minute
    count_words = verbaliser.cardinal(count)
    if language == "fr" and count % 10 == 1 and count != 11:
        count_words += "e"  # "minute" is feminine: vingt et une
    kind = _QUARTERS.get(minute)
    if kind is None:
        kind = "minute " if count == 1 else "minutes "
        kind += "past" if minute < 30 else "to"
    [template] = _templates(language)[kind]
    return template.format(
        hour=_of_hour(verbaliser, "hour", hour),
        next=_of_hour(verbaliser, "hour", hour % 12 + 1),
        count=count_words,
    )


def _of_hour(verbaliser: Verbaliser, kind: str, hour: int) -> str:
    """Writes an hour, for which 1 has a template of its own."""
    if hour == 1:
        kind += " of one"
    [template] = _templates(verbaliser.base)[kind]
    return template.format(verbaliser.cardinal(hour))


@dataclass(frozen=True)
class _Kind:
    """One kind of sentence: its share of the corpus, how a value is drawn and said."""

    name: str
    weight: float
    draw: Callable[[random.Random], Any]
    words: Callable[[Verbaliser, Any], str | None]


_CARDINAL = _Kind("cardinal", weight=0.45, draw=_draw_cardinal, words=Verbaliser.cardinal)
_ORDINAL = _Kind("ordinal", weight=0.1, draw=_draw_ordinal, words=Verbaliser.ordinal)
_DATE = _Kind("date", weight=0.2, draw=_draw_date, words=Verbaliser.long_date)
_TIME = _Kind("time", weight=0.1, draw=_draw_time, words=_clock)
_KINDS = (_CARDINAL, _ORDINAL, _DATE, _TIME)


def _money_kind(currencies: list[str]) -> _Kind:
    def words(verbaliser: Verbaliser, value: tuple[int, int, int]) -> str:
        whole, cents, choice = value
        return verbaliser.money(whole, cents, currencies[choice % len(currencies)])

    return _Kind(name="money", weight=0.15, draw=_draw_money, words=words)


def _date_fields(verbaliser: Verbaliser, value: date) -> dict[str, str | None]:
    language = verbaliser.base
    # English and German days are ordinals; French has one for the first day only.
    ordinal = language in ("en", "de") or (language == "fr" and value.day == 1)
    return {
        "day": verbaliser.ordinal(value.day) if ordinal else verbaliser.cardinal(value.day),
        "month": verbaliser.month(value.month),
        "year": verbaliser.year(value.year),
        "weekday": verbaliser.weekday(value),
    }


def load_numbers(
    source_lang: str = "en",
    target_lang: str = "de",
    train_size: int = 30_000,
    validation_size: int = 1_000,
    test_size: int = 1_000,
    seed: int = 0,
) -> DatasetDict:
    """Makes the `numbers` corpus.

    No sentence, source or target, occurs in two splits or twice in one. Test and validation depend
    on the seed and their own size only, not on the size of the training split. Swapping the
    languages swaps the columns.

    Args:
        source_lang: One of `number_languages`.
        target_lang: Another one of them.
        train_size: Training pairs; with a size of 0 there is no such split.
        validation_size: Validation pairs.
        test_size: Test pairs.
        seed: The same seed gives the same corpus on every machine.

    Raises:
        ValueError: An unknown language, or more pairs than can be made.
    """
    sizes = {"test": test_size, "validation": validation_size, "train": train_size}
    generator = _PairGenerator(source_lang, target_lang)
    splits = {}
    for split, size in sizes.items():
        if size:
            sources, targets = zip(*generator.pairs(size, f"{seed}/{split}"), strict=True)
            splits[split] = Dataset.from_dict({"source": sources, "target": targets})
    return DatasetDict(reversed(splits.items()))


class _PairGenerator:
    """Draws pairs of sentences that were not drawn before."""

    def __init__(self, source_lang: str, target_lang: str) -> None:
        source = get_verbaliser(source_lang)
        target = get_verbaliser(target_lang)
        self._languages = (source, target)
        self._sentences = all(_templates(language.base) for language in self._languages)
        self._seen: tuple[set[str], set[str]] = (set(), set())  # sources and targets
        self._kinds = list(_KINDS)
        if not self._sentences:
            self._kinds.remove(_TIME)
        if any(None in map(language.ordinal, (1, 2, 3, 23)) for language in self._languages):
            self._kinds.remove(_ORDINAL)
        # A fixed order, so that both directions draw the same currencies.
        currencies = sorted({*source.currencies()} & {*target.currencies()})
        if currencies:
            self._kinds.append(_money_kind(currencies))

    def pairs(self, count: int, seed: str) -> Iterator[tuple[str, str]]:
        """Yields `count` new pairs, which depend on the seed and on the pairs drawn before."""
        rng = random.Random(seed)  # seeded with a string: sha512 of it, not Python's salted hash
        kinds = list(self._kinds)
        rejections: Counter[str] = Counter()
        drawn = 0
        while drawn < count:
            if not kinds:
                raise ValueError(
                    f"only {drawn:,} of {count:,} new pairs of numbers can be made; ask for fewer"
                )
            [kind] = rng.choices(kinds, weights=[kind.weight for kind in kinds])
            pair = self._draw(rng, kind)
            if pair is not None:
                rejections[kind.name] = 0
                drawn += 1
                yield pair
                continue
            rejections[kind.name] += 1
            if rejections[kind.name] >= _MOST_REJECTIONS:
                kinds.remove(kind)

    def _draw(self, rng: random.Random, kind: _Kind) -> tuple[str, str] | None:
        value = kind.draw(rng)
        forms = len(_templates(self._languages[0].base)[kind.name]) if self._sentences else 1
        template = _below(rng, forms)
        texts = []
        for verbaliser, seen in zip(self._languages, self._seen, strict=True):
            text = self._sentence(verbaliser, kind, value, template)
            if text is None or text in seen:
                return None
            texts.append(text)
        for text, seen in zip(texts, self._seen, strict=True):
            seen.add(text)
        return texts[0], texts[1]

    def _sentence(self, verbaliser: Verbaliser, kind: _Kind, value: Any, number: int) -> str | None:
        words = kind.words(verbaliser, value)
        if words is None or not self._sentences:
            return words
        template = _templates(verbaliser.base)[kind.name][number]
        fields = _date_fields(verbaliser, value) if kind is _DATE else {}
        text = template.format(words, **fields)
        if number and text.endswith((".", "?")):
            return text[:1].upper() + text[1:]
        return text
