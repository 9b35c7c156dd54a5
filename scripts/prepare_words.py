#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Words without pronunciations for the suite g2p_students, beside the files of SIGMORPHON 2021
(task 1): words of simplemma, most of which are UniMorph's, and of wordfreq.

pip install simplemma==2.0.0 wordfreq==3.1.1
python scripts/prepare_words.py PATH/TO/2021-task1/data/medium
"""

import random
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from unicodedata import normalize

import wordfreq
from simplemma.strategies.dictionaries.dictionary_factory import DefaultDictionaryFactory

from csan_hf.data.readers import table_pairs
from csan_hf_runtime.command_line import run
from csan_hf_runtime.text_files import write_lines

# The task's name of a language -> simplemma's
SIMPLEMMA = {
    "arm_e": "hy",
    "bul": "bg",
    "dut": "nl",
    "fre": "fr",
    "geo": "ka",
    "hbs_latn": "hbs",
    "hun": "hu",
}
# Those that simplemma does not have -> their names in wordfreq
WORDFREQ = {"jpn_hira": "ja", "kor": "ko", "vie_hanoi": "vi"}
composed = partial(normalize, "NFC")


def prepare_words(data_dir: Path, /, *, count: int = 10_000) -> None:
    """Write LANGUAGE_words.txt for each language.

    Args:
        data_dir: folder of the task's files, LANGUAGE_train.tsv and so on
        count: words of each language; drawn if there are more
    """
    dictionaries = DefaultDictionaryFactory()
    for language, code in SIMPLEMMA.items():
        lemma_of = dictionaries.get_dictionary(code)
        write_words(data_dir, language, [*lemma_of.keys(), *lemma_of.values()], count)
    for language, code in WORDFREQ.items():
        write_words(data_dir, language, wordfreq.iter_wordlist(code), count)


def write_words(data_dir: Path, language: str, candidates: Iterable[str], count: int) -> None:
    """Write words of at least two letters, all of them letters of training words."""
    training_words = table_pairs(data_dir / f"{language}_train.tsv", ("0", "1"))
    letters = set("".join(composed(pair["source"]) for pair in training_words))
    normalized = {composed(word) for word in candidates}
    spellable = sorted(word for word in normalized if len(word) > 1 and letters.issuperset(word))
    drawn = random.Random(1).sample(spellable, k=min(count, len(spellable)))
    path = data_dir / f"{language}_words.txt"
    write_lines(path, sorted(drawn))
    print(f"{path.name}: {len(drawn)} of {len(spellable)} words")


if __name__ == "__main__":
    sys.exit(run(prepare_words, sys.argv[1:]))
