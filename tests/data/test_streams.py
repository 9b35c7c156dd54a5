# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Training sets without an end."""

import json
from collections import Counter
from itertools import chain, islice

import pytest

from csan_hf.data import (
    DataArguments,
    StreamedBatches,
    TokenizerArguments,
    TokenStream,
    corpora,
    load_translation_dataset,
    train_tokenizers,
)
from csan_hf.data.streams import stream_of_corpus
from csan_hf_runtime.text_files import write_lines

PAIRS = 24


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A corpus in three files of a language each, and the same as a data set of tables."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    for part in range(3):
        numbers = range(part * 8, part * 8 + 8)
        for language in ("en", "de"):
            lines = [f"{language} {number}" for number in numbers]
            write_lines(tmp_path / f"part-{part}.{language}", lines)
        rows = [json.dumps({"en": f"en {n}", "de": f"de {n}"}) for n in numbers]
        write_lines(tmp_path / f"tables/train-{part}.jsonl", rows)
    return tmp_path


def arguments(train="part-*.{lang}", buffer_size=4, **options):
    return DataArguments(train=train, buffer_size=buffer_size, streaming=True, **options)


def batches_of(args, *, state=None, **share):
    """The batches of a process, from another's state on: the sources of two pairs each."""
    sample = load_translation_dataset(args, ["train"])[0]["train"]
    stream = TokenStream(args, train_tokenizers(sample, TokenizerArguments(300)), sample)

    def cut(buffer, number):
        sources = buffer["source"][:]
        return [sources[start : start + 2] for start in range(0, len(sources), 2)]

    batches = StreamedBatches(stream, cut, **{"rank": 0, "processes": 1, **share})
    if state is not None:
        batches.load_state_dict(json.loads(json.dumps(state)))
    return batches


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("corpus", [{}, {"train": None, "dataset": "tables"}])
@pytest.mark.parametrize("taken", [1, 2, 3])
def test_a_resumed_stream_gives_every_pair_once_in_a_pass(taken, corpus, processes):
    args = arguments(**corpus)
    seen = Counter()
    for rank in range(processes):
        share = {"rank": rank, "processes": processes}
        stopped = batches_of(args, **share)
        batches = list(islice(stopped, taken))
        left = PAIRS // 2 // processes - taken
        batches += islice(batches_of(args, state=stopped.state_dict(), **share), left)
        seen.update(chain.from_iterable(batches))
    assert seen == Counter(f"en {number}" for number in range(PAIRS))


@pytest.mark.parametrize("longest", [256, 6])
def test_pairs_that_a_training_set_would_not_hold_are_left_out(longest, folder):
    (folder / "part-0.en").write_text("\n" * 4 + "a b c d e f g h i\n" + "en 7\n" * 3)
    batches = islice(batches_of(arguments(max_source_length=longest)), 2 * PAIRS)
    sources = {*chain.from_iterable(batches)}
    kept = {"en 7", *(f"en {number}" for number in range(8, PAIRS))}
    assert sources == (kept if longest == 6 else kept | {"a b c d e f g h i"})


def test_several_pairs_of_languages_take_turns():
    args = arguments(language_pairs=["en-de", "de-en"], buffer_size=PAIRS * 2)
    sources = [*chain.from_iterable(islice(batches_of(args), PAIRS))]
    assert sources[:4] == [">>de<< en 0", ">>en<< de 0", ">>de<< en 1", ">>en<< de 1"]
    assert len({*sources}) == PAIRS * 2


def test_a_mixture_is_drawn_by_its_weights_and_resumed(monkeypatch):
    monkeypatch.setattr(corpora, "_SAMPLE_SIZE", 100)
    args = arguments(train={"part-0.{lang}": 3, "part-1.{lang}": 1})
    stopped = batches_of(args)
    batches = list(islice(stopped, 7))
    batches += islice(batches_of(args, state=stopped.state_dict()), 93)
    assert batches == list(islice(batches_of(args), 100))
    sources = Counter(chain.from_iterable(batches))
    assert sum(sources[f"en {number}"] for number in range(8)) == pytest.approx(150, abs=15)
    assert len(sources) == 16


def test_no_validation_set_is_drawn_from_a_stream():
    with pytest.raises(ValueError, match="a stream has no validation set to draw"):
        load_translation_dataset(arguments(validation_size=2))


DOCUMENTS = 24


@pytest.fixture
def documents(folder):
    """Arguments of documents of eight lines each."""
    for language in ("en", "de"):
        texts = []
        for document in range(DOCUMENTS):
            texts += [f"{language} {document} {line}" for line in range(8)] + [""]
        write_lines(folder / f"docs.{language}", texts)
    return {"train": "docs.{lang}", "documents": True}


def test_a_stream_of_documents_has_the_pieces_of_a_training_set(documents):
    args = arguments(**documents)
    whole = DataArguments(**documents)
    expected = load_translation_dataset(whole, ["train"])[0]["train"]["source"][:]
    assert {text.count("\n") + 1 for text in expected} > {1, 8}
    sample = load_translation_dataset(args, ["train"])[0]["train"]["source"][:]
    assert sorted("\n".join(sample).split("\n")) == sorted("\n".join(expected).split("\n"))
    pieces = list(islice(stream_of_corpus(args), 2 * len(expected)))
    assert [pair["source"] for pair in pieces] == expected * 2
    for pair in pieces:
        assert pair["target"] == pair["source"].replace("en", "de")
    some = arguments(**documents, train_size=3)
    sources = load_translation_dataset(some, ["train"])[0]["train"]["source"]
    assert sum(text.count("\n") + 1 for text in sources) == 24


def test_a_stream_of_documents_is_resumed(documents):
    stopped = batches_of(arguments(**documents))
    batches = list(islice(stopped, 7))
    batches += islice(batches_of(arguments(**documents), state=stopped.state_dict()), 93)
    assert batches == list(islice(batches_of(arguments(**documents)), 100))
