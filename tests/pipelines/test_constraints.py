# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Beam search with phrases that hypotheses must hold."""

from itertools import product

import pytest
import tiny
import torch
from pipelines.conftest import SEARCHED
from tiny import EOS, PAD
from tiny import padded_sources as sources

from csan_hf.pipelines.search import search
from csan_hf_runtime.constraints import PhraseState, Progress, bank_sizes

MODELS = ("csan", "csan, windows", "pervasive attention", "rnnsearch")
PHRASES = [[], [[3, 4]], [[5], [3, 4, 3]], [[6, 6], [6]], [[7, 8, 9], [9], [8, 9, 3]]]


def holds(tokens, *phrases):
    """Whether each of the phrases has tokens that are no other's."""
    if not phrases:
        return True
    phrase, *others = phrases
    for start in range(len(tokens)):
        end = start + len(phrase)
        remaining = [*tokens[:start], None, *tokens[end:]]
        if tokens[start:end] == phrase and holds(remaining, *others):
            return True
    return False


def lacked(sequences, phrases, count=1):
    """The numbers of the hypotheses that do not hold their phrases."""
    return [
        number
        for number, tokens in enumerate(sequences.tolist())
        if not holds(tokens, *phrases[number // count])
    ]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("phrases", [[], [[3]], [[4, 4]], [[2, 3], [3]], [[5], [2], [4]]])
def test_the_best_of_all_that_hold_the_phrases_is_found(phrases, length_penalty):
    """With beams for all continuations the search is exhaustive."""
    most = 4
    model = tiny.csan(seed=3, vocab_size=6)
    batch = sources((5,), words=6)
    found = model.generate(
        **batch,
        custom_generate=search,
        phrases=[phrases],
        num_beams=5**4,
        early_stopping="never",
        length_penalty=length_penalty,
        max_new_tokens=most,
    )
    best = (-torch.inf, [])
    words = [token for token in range(6) if token != EOS]
    endings = [[*w, EOS] for length in range(most) for w in product(words, repeat=length)]
    endings = [tokens for tokens in endings if holds(tokens, *phrases)]
    if not phrases:  # free search takes those that are cut, too
        endings += map(list, product(words, repeat=most))
    for length in range(1, most + 1):
        targets = torch.tensor([tokens for tokens in endings if len(tokens) == length])
        if not len(targets):
            continue
        inputs = torch.nn.functional.pad(targets[:, :-1], (1, 0), value=PAD)
        repeated = {name: tensor.expand(len(targets), -1) for name, tensor in batch.items()}
        with torch.no_grad():
            logits = model(**repeated, decoder_input_ids=inputs).logits
        steps = logits.log_softmax(-1).gather(-1, targets[..., None])
        score, number = (steps.sum((1, 2)) / length**length_penalty).max(0)
        best = max(best, (float(score), targets[number].tolist()))
    assert found[0, 1:].tolist() == best[1]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("beams", [1, 4, 8])
def test_sentences_of_a_batch_are_translated_as_alone(name, beams):
    model = SEARCHED[name]()
    batch = sources((9, 3, 7, 1, 12))
    options = {"custom_generate": search, "num_beams": beams, "max_new_tokens": 20}
    together = model.generate(**batch, phrases=PHRASES, **options)
    for number, phrases in enumerate(PHRASES):
        row = {key: each[number : number + 1] for key, each in batch.items()}
        alone = model.generate(**row, phrases=[phrases], **options)[0]
        assert together[number, : len(alone)].tolist() == alone.tolist()
    assert lacked(together, PHRASES) == []
    if beams > 1:
        free = model.generate(**batch, **options)
        assert lacked(free, PHRASES), "the test wants phrases that would not be there"
        assert together[0].tolist()[: free.shape[1]] == free[0].tolist()[: together.shape[1]]


@pytest.mark.parametrize("early_stopping", [False, True])
def test_every_returned_hypothesis_holds_them_and_padding_may_stand_on_the_left(early_stopping):
    model = tiny.csan(seed=2)
    batch = sources((9, 3, 7, 1, 12))
    model.final_logits_bias[0, EOS] += 4.0  # ends are likely before the phrases are there
    found = model.generate(
        **tiny.padded_on_the_left(batch),
        custom_generate=search,
        phrases=PHRASES,
        num_beams=6,
        num_return_sequences=3,
        max_new_tokens=20,
        early_stopping=early_stopping,
    )
    assert lacked(found, PHRASES, count=3) == []
    assert len(found.unique(dim=0)) == len(found)


def test_one_that_has_no_room_for_them_holds_what_it_can():
    phrases = [[[3, 4], [5, 6], [7, 8]]]
    found = tiny.csan(seed=2).generate(
        **sources((9,)), custom_generate=search, phrases=phrases, num_beams=8, max_new_tokens=4
    )
    [tokens] = found.tolist()
    assert sum(holds(tokens, phrase) for phrase in phrases[0]) == 2


def test_other_searches_are_refused():
    with pytest.raises(ValueError, match=r"takes a single model with a dynamic cache"):
        tiny.csan().generate(
            **sources((4,)), custom_generate=search, phrases=[[[3]]], do_sample=True
        )


def test_a_word_that_goes_on_too_long_is_another_one():
    letters = {3: 1, 4: 2}
    start = Progress([PhraseState([5], most_letters=2), PhraseState([6, 3])])
    for tokens, met in {
        (5,): 1,
        (5, 3, 3): 1,
        (5, 4, 7, 4): 1,
        (5, 4, 3): 0,
        (5, 4, 3, 5): 1,
        (6, 3, 4, 4, 5): 3,
    }.items():
        progress = start
        for token in tokens:
            progress = progress.after(token, letters.get(token, 0))
        assert progress.met == met


@pytest.mark.parametrize(
    ("beams", "counts", "expected"),
    [
        (6, [9, 9, 9], [2, 2, 2]),
        (8, [9, 9, 9], [2, 2, 4]),
        (8, [9, 1, 1], [6, 1, 1]),
        (8, [1, 9, 9], [1, 2, 5]),
        (2, [9, 9, 9, 0], [0, 0, 2, 0]),
        (8, [2, 0, 1], [2, 0, 1]),
    ],
)
def test_bank_sizes(beams, counts, expected):
    sizes = bank_sizes(beams, counts)
    assert [min(size, count) for size, count in zip(sizes, counts, strict=True)] == expected
