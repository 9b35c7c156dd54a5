# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Numbers, dates, times and money in words, for every language that num2words and Babel both know.

Both load only where a corpus is made: a translation needs neither."""

import re
from collections import Counter
from datetime import date
from functools import lru_cache
from typing import Any

from csan_hf_runtime.extras import needs_extra

_UNUSABLE = {"am"}  # num2words does not return from Amharic numbers above a thousand
_CURRENCIES = ("EUR", "USD", "GBP")
_DATE_FIELD = re.compile(r"'(?P<quoted>[^']*)'|d+\.?|M+|y+|G+ ?")


@lru_cache(maxsize=1)
def number_languages() -> tuple[str, ...]:
    """Codes of the languages that the `numbers` corpus can be made in: those known to num2words and
    to Babel, sorted.
    """
    with needs_extra("train"):
        from babel import localedata
        from num2words import CONVERTER_CLASSES

    codes = CONVERTER_CLASSES.keys() - _UNUSABLE
    return tuple(sorted(filter(localedata.exists, codes)))


class Verbaliser:
    """One language's words for numbers, dates and money; None for a value that num2words cannot say
    in it.
    """

    def __init__(self, language: str) -> None:
        if language not in number_languages():
            raise ValueError(
                f"language {language!r} is not known to both num2words and Babel; choose from: "
                + ", ".join(number_languages())
            )
        from babel import Locale

        self.language = language
        self.base = language.split("_")[0]  # without the region: "es" of "es_CO"
        self.locale: Any = Locale.parse(language)

    def _words(self, value: float, **options: str) -> str:
        from num2words import num2words

        return num2words(value, lang=self.language, **options)

    def _try(self, value: float, **options: str) -> str | None:
        try:
            return self._words(value, **options)
        except Exception:  # a missing kind or value fails in many ways (KeyError, TypeError, ...)
            return None

    @lru_cache(maxsize=20_000)  # noqa: B019  (a verbaliser lives as long as the process)
    def cardinal(self, number: int) -> str:
        """Cardinal words of a number."""
        return self._words(number)

    @lru_cache(maxsize=5_000)  # noqa: B019
    def ordinal(self, number: int) -> str | None:
        """Ordinal words, or None where the language has none or uses the cardinal's words."""
        words = self._try(number, to="ordinal")
        return None if words == self.cardinal(number) else words

    @lru_cache(maxsize=1_000)  # noqa: B019
    def year(self, year: int) -> str:
        """The year as it is said ("nineteen eighty-four"); the plain number where there is no such
        form.
        """
        return self._try(year, to="year") or self.cardinal(year)

    def month(self, month: int) -> str:
        """Name of the month (1 to 12) in a date."""
        return self.locale.months["format"]["wide"][month]

    def weekday(self, day: date) -> str:
        """Name of the day of the week in a date."""
        return self.locale.days["format"]["wide"][day.weekday()]

    def long_date(self, day: date) -> str:
        """The date in the order of Babel's long format, its numbers in words."""
        pattern = self.locale.date_formats["long"].pattern
        return _DATE_FIELD.sub(lambda match: self._date_field(match, day), pattern).strip()

    def _date_field(self, match: re.Match[str], day: date) -> str:
        field, quoted = match.group(0, "quoted")
        if quoted is not None:
            return quoted
        if field.startswith("d"):
            ordinal = self.ordinal(day.day) if field.endswith(".") else None
            return ordinal or self.cardinal(day.day)
        if field.startswith("M"):
            return self.month(day.month) if len(field) > 2 else self.cardinal(day.month)
        if field.startswith("y"):
            return self.cardinal(day.year)
        return ""  # eras: every year here is in the current one

    def currencies(self) -> tuple[str, ...]:
        """The currency codes that this language has words of its own for."""
        phrases = {code: self._try(12.45, to="currency", currency=code) for code in _CURRENCIES}
        counts = Counter(phrases.values())
        return tuple(code for code, phrase in phrases.items() if phrase and counts[phrase] == 1)

    def money(self, whole: int, cents: int, currency: str) -> str:
        """An amount in words; `currency` is one of `currencies`."""
        return self._words(whole + cents / 100, to="currency", currency=currency)


@lru_cache(maxsize=8)
def get_verbaliser(language: str) -> Verbaliser:
    """The verbaliser of a language; it keeps its words for the process."""
    return Verbaliser(language)
