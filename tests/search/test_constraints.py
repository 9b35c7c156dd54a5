# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Beam search with phrases that hypotheses must hold."""

from itertools import product

import pytest
import tiny
import torch
from search.engines import MODELS, source_batch, torch_engine
from tiny import EOS, PAD
from tiny import padded_sources as sources

from csan_hf_runtime.constraints import PhraseState, Progress

NAMES = ("csan", "csan, windows", "pervasive attention", "rnnsearch", "marian", "ensemble")
SETTINGS = {"eos_token_id": EOS, "decoder_start_token_id": PAD}
PHRASES = [[], [[3, 4]], [[5], [3, 4, 3]], [[6, 6], [6]], [[7, 8, 9], [9], [8, 9, 3]]]


def holds(tokens, *phrases):
    """Whether each of the phrases has tokens that are no other's."""
    if not phrases:
        return True
    phrase, *later_phrases = phrases
    for start in range(len(tokens)):
        end = start + len(phrase)
        remaining = [*tokens[:start], None, *tokens[end:]]
        if tokens[start:end] == phrase and holds(remaining, *later_phrases):
            return True
    return False


def found_by(model, batch, phrases, *, most, returned=1, **settings):
    """The tokens of the hypotheses of each source."""
    sources = source_batch(
        batch,
        {**SETTINGS, **settings},
        [1 + most] * len(batch["input_ids"]),
        phrases=phrases,
        returned=returned,
    )
    translations = []
    for hypotheses in torch_engine(model).search(sources):
        translations.append([tokens.tolist() for tokens, _ in hypotheses])
    return translations


def lacked(translations, phrases):
    """The numbers of the sources with a hypothesis that does not hold their phrases."""
    numbers = []
    for number, hypotheses in enumerate(translations):
        if not all(holds(tokens, *phrases[number]) for tokens in hypotheses):
            numbers.append(number)
    return numbers


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("phrases", [[], [[3]], [[4, 4]], [[2, 3], [3]], [[5], [2], [4]]])
def test_the_best_of_all_that_hold_the_phrases_is_found(phrases, length_penalty):
    """With beams for all continuations the search is exhaustive."""
    most = 4
    model = tiny.csan(seed=3, vocab_size=6)
    batch = sources((5,), words=6)
    settings = {"num_beams": 5**4, "early_stopping": "never", "length_penalty": length_penalty}
    [[best]] = found_by(model, batch, [phrases], most=most, **settings)
    words = [token for token in range(6) if token != EOS]
    endings = []
    for length in range(most):
        endings += [[*beginning, EOS] for beginning in product(words, repeat=length)]
    endings = [tokens for tokens in endings if holds(tokens, *phrases)]
    if not phrases:  # free search takes those that are cut, too
        endings += map(list, product(words, repeat=most))
    lengths = torch.tensor([len(tokens) for tokens in endings])
    targets = torch.tensor([tokens + [PAD] * (most - len(tokens)) for tokens in endings])
    inputs = torch.nn.functional.pad(targets[:, :-1], (1, 0), value=PAD)
    repeated = {name: tensor.expand(len(targets), -1) for name, tensor in batch.items()}
    with torch.no_grad():
        logits = model(**repeated, decoder_input_ids=inputs).logits
    steps = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    totals = (steps * (torch.arange(most) < lengths[:, None])).sum(1)
    assert best == endings[(totals / lengths**length_penalty).argmax()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("beams", [1, 4, 8])
def test_sentences_of_a_batch_are_translated_as_alone(name, beams):
    model = MODELS[name]()
    batch = sources((9, 3, 7, 1, 12))
    together = found_by(model, batch, PHRASES, most=20, num_beams=beams)
    for number, phrases in enumerate(PHRASES):
        row = {key: tensor[number : number + 1] for key, tensor in batch.items()}
        assert found_by(model, row, [phrases], most=20, num_beams=beams) == [together[number]]
    assert lacked(together, PHRASES) == []
    if beams > 1:
        free = found_by(model, batch, (), most=20, num_beams=beams)
        assert lacked(free, PHRASES), "the test wants phrases that would not be there"
        assert together[0] == free[0]


@pytest.mark.parametrize("early_stopping", [False, True])
def test_every_returned_hypothesis_holds_them_and_padding_may_stand_on_the_left(early_stopping):
    model = tiny.csan(seed=2)
    batch = tiny.padded_on_the_left(sources((9, 3, 7, 1, 12)))
    model.final_logits_bias[0, EOS] += 4.0  # ends are likely before the phrases are there
    settings = {"num_beams": 6, "early_stopping": early_stopping}
    translations = found_by(model, batch, PHRASES, most=20, returned=3, **settings)
    assert lacked(translations, PHRASES) == []
    assert all(len({*map(tuple, hypotheses)}) == 3 for hypotheses in translations)


def test_one_that_has_no_room_for_them_holds_what_it_can():
    phrases = [[3, 4], [5, 6], [7, 8]]
    [[tokens]] = found_by(tiny.csan(seed=2), sources((9,)), [phrases], most=4, num_beams=8)
    assert sum(holds(tokens, phrase) for phrase in phrases) == 2


def test_what_only_the_library_has_is_refused():
    engine = torch_engine(tiny.csan(), encoder_no_repeat_ngram_size=2)
    batch = source_batch(sources((4,)), SETTINGS, [9], phrases=[[[3]]])
    with pytest.raises(ValueError, match="cannot be searched for with all of encoder_no_repeat"):
        engine.search(batch)


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
