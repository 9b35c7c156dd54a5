# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Numbers, dates, times and money in words, for every language that num2words and Babel both know.

num2words needs up to half a millisecond for one long number, which is too slow for a corpus of tens
of thousands of sentences. In practically every language the words of `1000 * a + b` are *words for
a thousands* followed by *words for b*, so a `Verbaliser` asks num2words for the parts once and
joins them. Whether a language really works like that is checked on samples when the verbaliser is
made; one that does not is spelled out in full each time."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from functools import lru_cache

from babel import Locale, UnknownLocaleError
from num2words import CONVERTER_CLASSES, num2words

MAX_NUMBER = 9_999_999
"""The largest cardinal number that a `Verbaliser` says."""

_UNUSABLE = {"am"}  # num2words does not return from Amharic numbers above a thousand
_SAMPLES = (
    1_001,
    2_017,
    21_300,
    81_080,
    325_417,
    999_999,
    1_000_001,
    3_000_320,
    5_001_000,
    8_421_734,
    MAX_NUMBER,
)


@lru_cache(maxsize=1)
def supported_languages() -> tuple[str, ...]:
    """Language codes known to num2words and to Babel, sorted."""
    return tuple(
        sorted(code for code in CONVERTER_CLASSES if code not in _UNUSABLE and _has_locale(code))
    )


def _has_locale(code: str) -> bool:
    try:
        Locale.parse(code)
    except (UnknownLocaleError, ValueError):
        return False
    return True


class _NotAdditiveError(Exception):
    """The words of the whole are not the words of its two parts in a row."""


def _cut(words: str, start: str = "", end: str = "") -> str:
    """The words without those at their start and end, or an error if others are there."""
    if not (words.startswith(start) and words.endswith(end)):
        raise _NotAdditiveError
    return words[len(start) : len(words) - len(end)]


class _Additive:
    """A function of two numbers whose words are `head(i) + tail(j)`; every part is asked for once.

    The words of (2, j) are `prefix` and the tail; heads are read off at j = `anchor`.
    """

    def __init__(self, words: Callable[[int, int], str], prefix: str, anchor: int = 0) -> None:
        self._words = words
        self._prefix = prefix
        self._anchor = anchor
        self._heads: dict[int, str] = {}
        self._tails: dict[int, str] = {}

    def __call__(self, i: int, j: int) -> str:
        return self._head(i) + self._tail(j)

    def _tail(self, j: int) -> str:
        if j not in self._tails:
            self._tails[j] = _cut(self._words(2, j), start=self._prefix)
        return self._tails[j]

    def _head(self, i: int) -> str:
        if i not in self._heads:
            self._heads[i] = _cut(self._words(i, self._anchor), end=self._tail(self._anchor))
        return self._heads[i]


class _Cardinals:
    """Cardinal numbers from 0 to `MAX_NUMBER`, put together from words for up to a thousand."""

    def __init__(self, language: str) -> None:
        self._language = language
        two_millions = self._direct(2_000_000)
        self._thousands = _Additive(lambda a, b: self._direct(1_000 * a + b), self._direct(2_000))
        self._millions = _Additive(lambda m, b: self._direct(1_000_000 * m + b), two_millions)
        # The part below a million reads differently after a million than alone ("und", a comma,
        # nothing).
        self._after_million = _Additive(
            lambda a, b: _cut(self._direct(2_000_000 + 1_000 * a + b), two_millions),
            _cut(self._direct(2_002_000), two_millions),
        )
        self._additive = self._is_additive()

    @lru_cache(maxsize=20_000)  # noqa: B019  (a verbaliser lives as long as the process)
    def _direct(self, number: int) -> str:
        return num2words(number, lang=self._language)

    def _composed(self, number: int) -> str:
        millions, rest = divmod(number, 1_000_000)
        thousands, units = divmod(rest, 1_000)
        if not millions:
            return self._thousands(thousands, units) if thousands else self._direct(units)
        if not thousands:
            return self._millions(millions, units)
        return self._millions(millions, 0) + self._after_million(thousands, units)

    def _is_additive(self) -> bool:
        try:
            return all(self._composed(number) == self._direct(number) for number in _SAMPLES)
        except _NotAdditiveError:
            return False

    def __call__(self, number: int) -> str:
        if self._additive:
            try:
                return self._composed(number)
            except _NotAdditiveError:
                self._additive = False
        return self._direct(number)


class Verbaliser:
    """One language's words for numbers, dates and money; None for a value that num2words cannot say
    in it.
    """

    def __init__(self, language: str) -> None:
        if language not in supported_languages():
            raise ValueError(
                f"language {language!r} is not known to both num2words and Babel; choose from: "
                + ", ".join(supported_languages())
            )
        self.language = language
        self.locale = Locale.parse(language)
        self.cardinal = _Cardinals(language)
        self._money: dict[str, _Additive] = {}

    def _try(self, value: float, to: str, **options: str) -> str | None:
        try:
            return num2words(value, lang=self.language, to=to, **options)
        except (
            Exception
        ):  # a language that lacks a kind or a value fails in many ways (KeyError, TypeError, ...)
            return None

    @lru_cache(maxsize=5_000)  # noqa: B019
    def ordinal(self, number: int) -> str | None:
        """Ordinal words, or None where the language has none or uses the cardinal's words."""
        words = self._try(number, "ordinal")
        return None if words == self.cardinal(number) else words

    @lru_cache(maxsize=1_000)  # noqa: B019
    def year(self, year: int) -> str:
        """The year as it is said ("nineteen eighty-four"); the plain number where there is no such
        form.
        """
        return self._try(year, "year") or self.cardinal(year)

    def month(self, month: int) -> str:
        """Name of the month (1 to 12) in a date."""
        return self.locale.months["format"]["wide"][month]

    def weekday(self, day: date) -> str:
        """Name of the day of the week in a date."""
        return self.locale.days["format"]["wide"][day.weekday()]

    def long_date(self, day: date) -> str:
        """The date in the order of Babel's long format, its numbers in words."""
        return _DATE_FIELD.sub(
            lambda match: self._date_field(match, day), self.locale.date_formats["long"].pattern
        ).strip()

    def _date_field(self, match: re.Match[str], day: date) -> str:
        field = match.group(0)
        if match.group("quoted") is not None:
            return match.group("quoted")
        if field.startswith("d"):
            ordinal = self.ordinal(day.day) if field.endswith(".") else None
            return ordinal or self.cardinal(day.day)
        if field.startswith("M"):
            return self.month(day.month) if len(field) > 2 else self.cardinal(day.month)
        if field.startswith("y"):
            return self.cardinal(day.year)
        return ""  # eras: every year here is in the current one

    def currencies(self, candidates: tuple[str, ...] = ("EUR", "USD", "GBP")) -> tuple[str, ...]:
        """The currency codes that this language has words of its own for."""
        said = {code: self._try(12.45, "currency", currency=code) for code in candidates}
        words = list(said.values())
        return tuple(
            code for code, phrase in said.items() if phrase is not None and words.count(phrase) == 1
        )

    def money(self, whole: int, cents: int, currency: str) -> str:
        """An amount in words; `currency` is one of `currencies`."""
        if currency not in self._money:
            self._money[currency] = self._money_table(currency)
        try:
            return self._money[currency](whole, cents)
        except _NotAdditiveError:
            return self._amount(whole, cents, currency)

    def _amount(self, whole: int, cents: int, currency: str) -> str:
        return num2words(whole + cents / 100, lang=self.language, to="currency", currency=currency)

    def _money_table(self, currency: str) -> _Additive:
        amounts = [self._amount(2, cents, currency) for cents in range(1, 100)]
        pairs = enumerate(zip(min(amounts), max(amounts), strict=False))
        prefix = amounts[0][: next(place for place, (left, right) in pairs if left != right)]
        return _Additive(
            lambda whole, cents: self._amount(whole, cents, currency), prefix, anchor=7
        )


_DATE_FIELD = re.compile(r"'(?P<quoted>[^']*)'|d+\.?|M+|y+|G+ ?")


@lru_cache(maxsize=8)
def get_verbaliser(language: str) -> Verbaliser:
    """The verbaliser of a language; its tables of words are kept for the process."""
    return Verbaliser(language)
