# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""scripts/benchmark_classifiers.py, on a few words and sentences."""

import importlib
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
WORDS = "air EH R\nbare B EH R\nbear B EH R\ncat K AE T\n"
SENTENCE = "# text\n1\tTwo\t_\t_\t_\t_\t2\tnum\n1-2\tTwodogs\n2\tdogs\t_\t_\t_\t_\t3\tnsubj\n\n"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("benchmark_classifiers")


@pytest.fixture
def data(tmp_path):
    for split in ("train", "dev"):
        (tmp_path / f"{split}.dict").write_text(WORDS)
    (tmp_path / "part.conllu").write_text(SENTENCE * 11)
    return tmp_path


def test_the_wrong_phones_are_no_homophone_s(benchmark, data):
    rows = benchmark.read_pronunciations(data / "dev.dict")
    pairs = list(zip(rows["letters"], rows["phones"], rows["label"], strict=True))
    assert pairs[:3] == [("b e a r", "B EH R", 1), ("a i r", "EH R", 1), ("c a t", "K AE T", 1)]
    assert pairs[3:] == [("b e a r", "EH R", 0), ("a i r", "K AE T", 0), ("c a t", "B EH R", 0)]


def test_the_first_token_of_a_word_has_its_relation(benchmark, data):
    task = benchmark.relations(data)
    [row] = task.test.select([0])
    tokens = task.tokenizer.convert_ids_to_tokens(row["input_ids"])
    labels = row["labels"]
    assert dict(zip(tokens, labels, strict=True)) == {"ĠTwo": 1, "Ġdogs": 0, "</s>": -100}
    assert (len(task.train), len(task.test)) == (9, 2)


@pytest.mark.parametrize("task", ["pronunciations", "relations"])
def test_every_encoder_has_a_row(benchmark, data, task, capsys):
    benchmark.benchmark(task, data, 1, seeds=2)
    _, _, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[0] for row in rows] == [f"| {name}" for name in benchmark.SYSTEMS]
    assert all("[" in row for row in rows)
