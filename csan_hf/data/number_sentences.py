# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The kinds of sentence of the built-in corpus, and how each language says them.

A *kind* draws a value (a number, a day, ...) that does not depend on the language, and every language says that value
with a template of its own; the same value and the same template number in two languages make a translation pair.
Template 0 is the bare phrase, which every language has. English, German, French and Spanish have whole sentences
beside it, on purpose with verbs, prepositions and dates in different places.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from .verbalise import MAX_NUMBER, Verbaliser

# Sentences only put a number where it does not agree with a noun in gender or case: "page {}", not "{} pages".
_TEMPLATES: dict[str, dict[str, tuple[str, ...]]] = {
    "en": {
        "cardinal": (
            "{}",
            "The number is {}.",
            "Page {} is missing.",
            "She wants to count to {}.",
            "We have found number {}.",
            "Did you write {} on the board?",
        ),
        "ordinal": ("{}", "This is the {} attempt.", "He was the {} guest yesterday."),
        "date": (
            "the {day} of {month} {year}",
            "{weekday}, the {day} of {month} {year}",
            "The meeting is on the {day} of {month} {year}.",
            "On {weekday}, the {day} of {month}, the shop is closed.",
        ),
        "time": ("{}", "It is {}.", "The train leaves at {}.", "We meet tomorrow at {}."),
        "money": ("{}", "The ticket costs {}.", "You must pay {} today."),
    },
    "de": {
        "cardinal": (
            "{}",
            "Die Zahl ist {}.",
            "Seite {} fehlt.",
            "Sie will bis {} zählen.",
            "Wir haben die Nummer {} gefunden.",
            "Hast du {} an die Tafel geschrieben?",
        ),
        "ordinal": ("{}", "Das ist der {} Versuch.", "Gestern war er der {} Gast."),
        "date": (
            "der {day} {month} {year}",
            "{weekday}, der {day} {month} {year}",
            "Das Treffen ist am {day}n {month} {year}.",
            "Am {weekday}, dem {day}n {month}, ist das Geschäft geschlossen.",
        ),
        "time": ("{}", "Es ist {}.", "Der Zug fährt um {} ab.", "Wir treffen uns morgen um {}."),
        "money": ("{}", "Die Karte kostet {}.", "Heute musst du {} bezahlen."),
    },
    "fr": {
        "cardinal": (
            "{}",
            "Le nombre est {}.",
            "La page {} manque.",
            "Elle veut compter jusqu'à {}.",
            "Nous avons trouvé le numéro {}.",
            "As-tu écrit {} au tableau ?",
        ),
        "ordinal": ("{}", "C'est le {} essai.", "Hier, il était le {} invité."),
        "date": (
            "le {day} {month} {year}",
            "{weekday} {day} {month} {year}",
            "La réunion est le {day} {month} {year}.",
            "Le magasin est fermé le {weekday} {day} {month}.",
        ),
        "time": ("{}", "Il est {}.", "Le train part à {}.", "Demain, nous nous retrouvons à {}."),
        "money": ("{}", "Le billet coûte {}.", "Tu dois payer {} aujourd'hui."),
    },
    "es": {
        "cardinal": (
            "{}",
            "El número es {}.",
            "Falta la página {}.",
            "Ella quiere contar hasta {}.",
            "Hemos encontrado el número {}.",
            "¿Has escrito {} en la pizarra?",
        ),
        "ordinal": ("{}", "Es el intento {}.", "Ayer fue el invitado {}."),
        "date": (
            "el {day} de {month} de {year}",
            "{weekday}, {day} de {month} de {year}",
            "La reunión es el {day} de {month} de {year}.",
            "La tienda está cerrada el {weekday} {day} de {month}.",
        ),
        "time": ("{}", "La hora es: {}.", "El tren sale a {}.", "Mañana nos vemos a {}."),
        "money": ("{}", "El billete cuesta {}.", "Hoy tienes que pagar {}."),
    },
}

Say = Callable[[Verbaliser, Any, int, bool], "str | None"]
"""Verbaliser, value, template number and whether whole sentences are used -> the words, None where there are none."""


@dataclass(frozen=True)
class Kind:
    """One kind of sentence.

    Attributes:
        name: Key in the templates.
        weight: Share of the corpus.
        values: How many different values can be drawn.
        draw: Draws one value.
        say: Says it in a language.
        bare: Whether languages without sentences have it too.
    """

    name: str
    weight: float
    values: int
    draw: Callable[[random.Random], Any]
    say: Say
    bare: bool = True


def base_language(language: str) -> str:
    """The language of a code with or without a region ("es" of "es_CO")."""
    return language.split("_")[0]


def has_sentences(language: str) -> bool:
    """Whether there are whole sentences in this language, not only bare phrases."""
    return base_language(language) in _TEMPLATES


def templates(language: str, kind: str) -> tuple[str, ...]:
    """The templates of a kind in a language that `has_sentences`."""
    return _TEMPLATES[base_language(language)][kind]


def below(rng: random.Random, bound: int) -> int:
    """A number from 0 to bound - 1; built on `random()`, whose stream Python keeps the same across versions."""
    return int(rng.random() * bound)


def _draw_cardinal(rng: random.Random) -> int:
    digits = (1, 2, 3, 3, 4, 4, 5, 5, 6, 6, 6, 7)[below(rng, 12)]  # short numbers are few: they soon repeat
    low = 0 if digits == 1 else 10 ** (digits - 1)
    return low + below(rng, 10**digits - low)


def _draw_date(rng: random.Random) -> date:
    return _FIRST_DAY + timedelta(days=below(rng, _DAYS))


def _draw_time(rng: random.Random) -> tuple[int, int]:
    minute = below(rng, 60) if rng.random() < 0.7 else 15 * below(rng, 4)
    return 1 + below(rng, 12), minute


def _draw_money(rng: random.Random) -> tuple[int, int, int]:
    whole = 2 + below(rng, 98 if rng.random() < 0.4 else 998)
    return whole, 1 + below(rng, 99), below(rng, 1_000)


_FIRST_DAY = date(1900, 1, 1)
_DAYS = (date(2100, 1, 1) - _FIRST_DAY).days


def _in_sentence(verbaliser: Verbaliser, kind: str, template: int, sentences: bool, words: str | None) -> str | None:
    if words is None or not sentences:
        return words
    return _capitalised(templates(verbaliser.language, kind)[template].format(words), template)


def _capitalised(text: str, template: int) -> str:
    return text[:1].upper() + text[1:] if template and text.endswith((".", "?")) else text


def _say_cardinal(verbaliser: Verbaliser, value: int, template: int, sentences: bool) -> str | None:
    return _in_sentence(verbaliser, "cardinal", template, sentences, verbaliser.cardinal(value))


def _say_ordinal(verbaliser: Verbaliser, value: int, template: int, sentences: bool) -> str | None:
    return _in_sentence(verbaliser, "ordinal", template, sentences, verbaliser.ordinal(value))


def _say_date(verbaliser: Verbaliser, value: date, template: int, sentences: bool) -> str | None:
    if not sentences:
        return verbaliser.long_date(value)
    language = base_language(verbaliser.language)
    # English and German days are ordinals; French has one for the first day only.
    ordinal = language in ("en", "de") or (language == "fr" and value.day == 1)
    day = verbaliser.ordinal(value.day) if ordinal else verbaliser.cardinal(value.day)
    text = templates(language, "date")[template].format(
        day=day,
        month=verbaliser.month(value.month),
        year=verbaliser.year(value.year),
        weekday=verbaliser.weekday(value),
    )
    return _capitalised(text, template)


def _say_time(verbaliser: Verbaliser, value: tuple[int, int], template: int, sentences: bool) -> str | None:
    hour, minute = value
    words = _CLOCKS[base_language(verbaliser.language)](verbaliser, hour, minute, hour % 12 + 1)
    return _in_sentence(verbaliser, "time", template, sentences, words)


def _english_clock(say: Verbaliser, hour: int, minute: int, following: int) -> str:
    here, there = say.cardinal(hour), say.cardinal(following)
    fixed = {0: f"{here} o'clock", 15: f"quarter past {here}", 30: f"half past {here}", 45: f"quarter to {there}"}
    if minute in fixed:
        return fixed[minute]
    count, relation = (minute, f"past {here}") if minute < 30 else (60 - minute, f"to {there}")
    return f"{say.cardinal(count)} {'minute' if count == 1 else 'minutes'} {relation}"


def _german_clock(say: Verbaliser, hour: int, minute: int, following: int) -> str:
    here, there = say.cardinal(hour), say.cardinal(following)
    full = "ein" if hour == 1 else here
    fixed = {0: f"{full} Uhr", 15: f"Viertel nach {here}", 30: f"halb {there}", 45: f"Viertel vor {there}"}
    if minute in fixed:
        return fixed[minute]
    count, relation = (minute, f"nach {here}") if minute < 30 else (60 - minute, f"vor {there}")
    return f"eine Minute {relation}" if count == 1 else f"{say.cardinal(count)} Minuten {relation}"


def _french_clock(say: Verbaliser, hour: int, minute: int, following: int) -> str:
    here, there = ("une heure" if value == 1 else f"{say.cardinal(value)} heures" for value in (hour, following))
    fixed = {0: here, 15: f"{here} et quart", 30: f"{here} et demie", 45: f"{there} moins le quart"}
    if minute in fixed:
        return fixed[minute]
    count, start = (minute, here) if minute < 30 else (60 - minute, f"{there} moins")
    # "minute" is feminine: vingt et une.
    return f"{start} {say.cardinal(count)}{'e' if count % 10 == 1 and count != 11 else ''}"


def _spanish_clock(say: Verbaliser, hour: int, minute: int, following: int) -> str:
    here, there = ("la una" if value == 1 else f"las {say.cardinal(value)}" for value in (hour, following))
    fixed = {0: f"{here} en punto", 15: f"{here} y cuarto", 30: f"{here} y media", 45: f"{there} menos cuarto"}
    if minute in fixed:
        return fixed[minute]
    return f"{here} y {say.cardinal(minute)}" if minute < 30 else f"{there} menos {say.cardinal(60 - minute)}"


_CLOCKS: dict[str, Callable[[Verbaliser, int, int, int], str]] = {
    "en": _english_clock,
    "de": _german_clock,
    "fr": _french_clock,
    "es": _spanish_clock,
}


def money_kind(currencies: tuple[str, ...]) -> Kind:
    """Amounts of money in the given currency codes."""

    def say(verbaliser: Verbaliser, value: tuple[int, int, int], template: int, sentences: bool) -> str | None:
        whole, cents, choice = value
        words = verbaliser.money(whole, cents, currencies[choice % len(currencies)])
        return _in_sentence(verbaliser, "money", template, sentences, words)

    return Kind("money", 0.15, 998 * 99 * len(currencies), _draw_money, say)


KINDS: tuple[Kind, ...] = (
    Kind("cardinal", 0.45, MAX_NUMBER + 1, _draw_cardinal, _say_cardinal),
    Kind("ordinal", 0.1, 999, lambda rng: 1 + below(rng, 999), _say_ordinal),
    Kind("date", 0.2, _DAYS, _draw_date, _say_date),
    Kind("time", 0.1, 720, _draw_time, _say_time, bare=False),
)
"""Every kind but money, whose currencies depend on the two languages (`money_kind`)."""
