# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Keys of the files of an export, with values of every kind: an error that names file, key,
value and what is allowed, or the value as it is.
"""

import json
import math
import re

import pytest

from csan_hf_runtime.export_files import check_files
from csan_hf_runtime.generation import Generation
from csan_hf_runtime.graph_engine import ModelSettings
from csan_hf_runtime.vocabulary import TokenizerSettings

VALUES = [
    *(None, True, False, -1, 0, 1, 2, 0.5, 1e12, -1e300, 10**30, 10**400, math.nan, math.inf, 2.0),
    *("", "never", "3", [], [2], [-1], [[2]], [["x"]], {}, {"content": 3}, {"content": "x"}),
    *({"tokens": 9, "sentences": 1}, {"tokens": "9", "sentences": 1}, {"tokens": 9}),
]
TEXTS = ["", "never", "3"]

# A key of each kind, and what it may be
FILES = {
    "generation_config.json": (
        Generation,
        {
            "decoder_start_token_id": [0, 1, 2],
            "eos_token_id": [0, 1, 2, [], [2]],
            "max_length": [2],
            "num_beams": [1, 2],
            "length_penalty": [-1, 0, 1, 2, 0.5, 2.0],
            "early_stopping": [True, False, "never"],
            "temperature": [1, 2, 0.5, 2.0],
            "top_p": [0, 1, 0.5],
            "bad_words_ids": [[], [[2]]],
            "suppress_tokens": [[], [2]],
            "usual_source": [{"tokens": 9, "sentences": 1}],
            "typical_p": [1, True, 0, False],
            "penalty_alpha": [0, False],
        },
    ),
    "config.json": (ModelSettings, {"vocab_size": [1, 2], "prefix": TEXTS}),
    "tokenizer_config.json": (
        TokenizerSettings,
        {
            "split_special_tokens": [True, False],
            "model_max_length": [1, 2, 10**30],
            "unk_token": [*TEXTS, {"content": "x"}],
        },
    ),
}


CASES = [(file, key) for file, (_, keys) in FILES.items() for key in keys]


def is_among(value, values):
    """Whether a value is there, of the same type: True is not 1."""
    return any(type(value) is type(member) and value == member for member in values)


@pytest.mark.parametrize(("file", "key"), CASES)
def test_values_of_every_kind(file, key, tmp_path):
    settings, keys = FILES[file]
    path = tmp_path / file
    required = {"vocab_size": 7} if settings is ModelSettings else {}
    for value in VALUES:
        path.write_text(json.dumps({**required, key: value}))
        if is_among(value, keys[key]) or (value is None and key != "vocab_size"):
            settings.read(path)
            continue
        with pytest.raises(ValueError, match=rf"^{path}: {key}:? ") as error:
            settings.read(path)
        assert "\n" not in str(error.value)


def test_messages_say_what_is_allowed(tmp_path):
    path = tmp_path / "generation_config.json"
    for settings, message in (
        ({"\x1b[2J": 1}, r"\x1b[2J is 1, which graphs are not searched with"),
        ({"max_length": 0}, "max_length must be an integer from 2 or null, got 0."),
        (
            {"early_stopping": "foo"},
            "early_stopping must be true or false or \"never\", got 'foo'.",
        ),
        ({"min_length": 90, "max_length": 20}, "min_length must be at most 20, as max_length is"),
        ({"usual_source": {"tokens": 3}}, "usual_source: sentences is missing: it is an integer"),
        ([], "an object of decoder_start_token_id, "),
        (3, "an object of decoder_start_token_id, "),
        (None, "an object of decoder_start_token_id, "),
    ):
        path.write_text(json.dumps(settings))
        with pytest.raises(ValueError, match=re.escape(f"{path}: {message}")):
            Generation.read(path)


@pytest.mark.parametrize("content", ["{", "[" * 100_000, "\xff", '{"a": ' + "9" * 5000 + "}"])
def test_damaged_files_are_named(content, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(OSError, match=rf"{path} is damaged"):
        ModelSettings.read(path)


@pytest.mark.parametrize(
    "digests",
    ["[]", "5", "[" * 100_000, "{", '{"/etc/passwd": ""}', '{"a/../../b": ""}', '{"a": 5}'],
    ids=lambda digests: digests[:9],
)
def test_digests_of_other_files_are_refused(digests, tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(OSError, match=rf"{tmp_path}.*export the model again"):
        check_files(tmp_path, digests)


def test_what_a_call_replaces_is_checked_alone():
    settings = Generation(suppress_tokens=[3])
    assert settings.replaced(num_beams=2) == Generation(suppress_tokens=[3], num_beams=2)
    with pytest.raises(ValueError, match="num_beams must be an integer from 1 to 1000, got 0"):
        settings.replaced(num_beams=0)
