# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import datetime
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from num2words import num2words

import csan_hf
from csan_hf.data.number_sentences import KINDS, Kind, below, money_kind
from csan_hf.data.numbers import PairGenerator, load_numbers, number_languages
from csan_hf.data.verbalise import MAX_NUMBER, get_verbaliser

# Imports the module without the packages around it, which would import transformers
PRINT_NUMBERS = """
import sys, types
for name, folder in (("csan_hf", sys.argv[1]), ("csan_hf.data", sys.argv[1] + "/data")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from csan_hf.data.numbers import load_numbers
print("|".join(load_numbers(train_size=40)["train"]["source"]))
"""


def sentences(dataset, column):
    return [set(split[column]) for split in dataset.values()]


@pytest.mark.parametrize(("source", "target"), [("en", "de"), ("fr", "es"), ("en", "ja"), ("pl", "cs")])
def test_splits_are_disjoint_and_have_the_sizes_asked_for(source, target):
    corpus = load_numbers(source, target, train_size=600, validation_size=150, test_size=200)
    assert corpus.num_rows == {"train": 600, "validation": 150, "test": 200}
    for column in ("source", "target"):
        train, validation, test = sentences(corpus, column)
        assert (len(train), len(validation), len(test)) == (600, 150, 200)
        assert not (train & validation)
        assert not (train & test)
        assert not (validation & test)


def test_the_seed_decides_and_test_does_not_depend_on_the_training_size():
    first = load_numbers(train_size=100, validation_size=20, test_size=30, seed=4)
    again = load_numbers(train_size=100, validation_size=20, test_size=30, seed=4)
    larger = load_numbers(train_size=300, validation_size=20, test_size=30, seed=4)
    other = load_numbers(train_size=100, validation_size=20, test_size=30, seed=5)
    for split in first:
        assert first[split][:] == again[split][:]
        assert first[split][:] != other[split][:]
    assert first["test"][:] == larger["test"][:]
    assert first["validation"][:] == larger["validation"][:]


def test_the_corpus_is_the_same_in_a_process_with_another_hash_seed():
    child = subprocess.run(
        [sys.executable, "-c", PRINT_NUMBERS, str(Path(csan_hf.__file__).parent)],
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        check=True,
        encoding="utf-8",
    )
    assert child.stdout.strip().split("|") == load_numbers(train_size=40)["train"]["source"][:]


def test_swapping_the_languages_swaps_the_columns():
    there = load_numbers("en", "de", train_size=300, validation_size=20, test_size=20)
    back = load_numbers("de", "en", train_size=300, validation_size=20, test_size=20)
    assert there["train"]["source"] == back["train"]["target"]
    assert there["train"]["target"] == back["train"]["source"]


def test_a_frozen_sample_stays():
    """A change here changes every published result on this corpus."""
    corpus = load_numbers(train_size=1, validation_size=1, test_size=2)
    assert [corpus["train"][0], corpus["validation"][0], *corpus["test"]] == [
        {
            "source": "We have found number four hundred and sixty-one thousand, six hundred and sixteen.",
            "target": "Wir haben die Nummer vierhunderteinundsechzigtausendsechshundertsechzehn gefunden.",
        },
        {
            "source": "We meet tomorrow at twenty-nine minutes to four.",
            "target": "Wir treffen uns morgen um neunundzwanzig Minuten vor vier.",
        },
        {"source": "It is thirteen minutes past eight.", "target": "Es ist dreizehn Minuten nach acht."},
        {
            "source": "We have found number twenty-nine thousand, nine hundred and sixty-two.",
            "target": "Wir haben die Nummer neunundzwanzigtausendneunhundertzweiundsechzig gefunden.",
        },
    ]


@pytest.mark.parametrize("language", ["en", "de", "fr", "es", "it", "ru", "ja", "hu", "fi", "nl", "da"])
def test_composed_numbers_are_those_of_num2words(language):
    verbaliser = get_verbaliser(language)
    rng = random.Random(0)
    numbers = {0, 1, 1_000, 80_000, 1_000_000, MAX_NUMBER} | {
        below(rng, 10 ** (1 + below(rng, 7))) for _ in range(150)
    }
    for number in numbers:
        assert verbaliser.cardinal(number) == num2words(number, lang=language)


@pytest.mark.parametrize("language", ["en", "de", "fr", "es", "ru", "fi"])
def test_composed_amounts_are_those_of_num2words(language):
    verbaliser = get_verbaliser(language)
    rng = random.Random(0)
    for currency in verbaliser.currencies():
        for _ in range(40):
            whole, cents = 2 + below(rng, 998), 1 + below(rng, 99)
            expected = num2words(whole + cents / 100, lang=language, to="currency", currency=currency)
            assert verbaliser.money(whole, cents, currency) == expected


@pytest.mark.parametrize(("source", "target"), [("en", "de"), ("de", "en"), ("fr", "es"), ("ru", "ar"), ("vi", "en")])
def test_a_source_sentence_has_one_translation(source, target):
    """Drawn without the generator's filter, so that a second translation would be seen."""
    generator = PairGenerator(source, target)
    rng, translations = random.Random(1), {}
    for kind in generator._kinds:
        for _ in range(1_200):
            value, template = kind.draw(rng), below(rng, generator._forms(kind))
            left = kind.say(generator._source, value, template, generator._sentences)
            right = kind.say(generator._target, value, template, generator._sentences)
            assert translations.setdefault(left, right) == right


def test_every_kind_occurs_and_sentences_are_short():
    corpus = load_numbers(train_size=2_000, validation_size=1, test_size=1)["train"]
    text = "\n".join(corpus["source"])
    for part in (
        "million",
        "thousand",
        "o'clock",
        "half past",
        "Wednesday",
        "first",
        "dollars",
        "cents",
        "euro",
        "The",
    ):
        assert part in text
    lengths = sorted(len(sentence.split()) for sentence in corpus["source"])
    assert lengths[int(0.97 * len(lengths))] <= 15
    assert lengths[-1] <= 18


@pytest.mark.parametrize(
    ("kind", "value", "template", "english", "german"),
    [
        ("time", (3, 30), 0, "half past three", "halb vier"),
        ("time", (12, 45), 1, "It is quarter to one.", "Es ist Viertel vor eins."),
        ("time", (1, 0), 0, "one o'clock", "ein Uhr"),
        ("time", (1, 1), 0, "one minute past one", "eine Minute nach eins"),
        ("cardinal", 325_417, 2, "Page three hundred and twenty-five thousand, four hundred and seventeen is missing.",
         "Seite dreihundertfünfundzwanzigtausendvierhundertsiebzehn fehlt."),
        ("ordinal", 23, 1, "This is the twenty-third attempt.", "Das ist der dreiundzwanzigste Versuch."),
    ],
)  # fmt: skip
def test_examples(kind, value, template, english, german):
    (chosen,) = (candidate for candidate in KINDS if candidate.name == kind)
    assert chosen.say(get_verbaliser("en"), value, template, True) == english
    assert chosen.say(get_verbaliser("de"), value, template, True) == german


def test_example_of_money_and_of_a_date():
    assert money_kind(("USD",)).say(get_verbaliser("de"), (12, 45, 0), 1, True) == (
        "Die Karte kostet zwölf Dollar und fünfundvierzig Cent."
    )
    (kind,) = (candidate for candidate in KINDS if candidate.name == "date")
    day = datetime.date(1984, 3, 23)
    assert kind.say(get_verbaliser("de"), day, 3, True) == (
        "Am Freitag, dem dreiundzwanzigsten März, ist das Geschäft geschlossen."
    )
    assert kind.say(get_verbaliser("fr"), day, 0, True) == "le vingt-trois mars mille neuf cent quatre-vingt-quatre"
    assert kind.say(get_verbaliser("ja"), day, 0, False) == "千九百八十四年三月二十三日"


def test_an_unknown_language_is_refused_with_the_possible_ones():
    with pytest.raises(ValueError, match=r"'xx'.*choose from: .*de, .*en"):
        load_numbers("en", "xx")
    with pytest.raises(ValueError, match="two different languages"):
        load_numbers("en", "en")
    assert {"en", "de", "fr", "ja"} <= set(number_languages())


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"train_size is -1"):
        load_numbers(train_size=-1)
    with pytest.raises(ValueError, match=r"1,000,002,000.*at most [\d,]+ distinct pairs"):
        load_numbers(train_size=10**9)


def test_a_kind_that_has_nothing_new_ends_with_an_error():
    generator = PairGenerator("en", "de")
    generator._kinds = [kind for kind in KINDS if kind.name == "ordinal"]
    with pytest.raises(ValueError, match=r"only 2,9\d\d new pairs of the 5,000"):
        list(generator.pairs(5_000, "0"))


@pytest.mark.parametrize("vague", ["en", "de"])
def test_sentences_that_one_language_does_not_tell_apart_occur_once(vague):
    def say(verbaliser, value, template, sentences):
        return str(value // 10 if verbaliser.language == vague else value)

    generator = PairGenerator("en", "de")
    generator._forms = lambda kind: 1
    generator._kinds = [Kind("test", 1, 1_000, lambda rng: below(rng, 1_000), say)]
    pairs = list(generator.pairs(90, "0"))
    assert len({source for source, _ in pairs}) == len({target for _, target in pairs}) == 90


def test_a_split_of_size_zero_is_left_out():
    assert set(load_numbers(train_size=5, validation_size=0, test_size=0)) == {"train"}


def test_it_is_fast():
    start = time.process_time()
    load_numbers(train_size=10_000)
    assert time.process_time() - start < 10  # about 1 s; without the tables of words over 10 s
