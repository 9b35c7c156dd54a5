# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""One search for every engine: the tokens and probabilities of transformers' loops, for any settings
of generation_config.json that it takes, without work on sentences that are done.
"""

import math
import random
from itertools import chain

import numpy as np
import pytest
import tiny
import torch
from search.engines import EXPORTED, MODELS, graph_engine, source_batch, torch_engine
from tiny import padded_sources as sources
from transformers import GenerationConfig

from csan_hf.pipelines.torch_engine import TorchDecoder
from csan_hf_runtime.graphs import GraphDecoder
from csan_hf_runtime.prefixes import Prefix
from csan_hf_runtime.search import Sampling, best_places

LENGTHS = (9, 3, 7, 1)


def random_settings(generator):
    """Settings of a search, many of them at their defaults."""
    choices = {
        "num_beams": [1, 2, 3, 5],
        "length_penalty": [-1.0, 0.0, 0.6, 2.0],
        "early_stopping": [True, "never"],
        "no_repeat_ngram_size": [1, 2, 3],
        "min_length": [4, 6],
        "min_new_tokens": [1, 5],
        "repetition_penalty": [0.8, 1.5],
        "bad_words_ids": [[[5]], [[6, 7], [8]], [[1]]],
        "forced_bos_token_id": [4],
        "forced_eos_token_id": [1],
        "suppress_tokens": [[3, 9]],
        "begin_suppress_tokens": [[3, 7, 8]],
        "renormalize_logits": [True],
        "eos_token_id": [[2, 5, 7, 9, 11]],
    }
    settings = {"eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0}
    for name, values in choices.items():
        if generator.random() < (0.8 if name == "num_beams" else 0.25):
            settings[name] = generator.choice(values)
    return settings


def of_the_library(model, settings, batch, limits, returned, beginnings):
    """The tokens of transformers' own loops, and the model's log-probabilities of them."""
    settings = dict(settings)
    if beginnings is not None:
        first = 1 if settings.get("forced_bos_token_id") is None else 2
        size = getattr(model.config, "decoder_vocab_size", None) or model.config.vocab_size
        vocabulary = list(range(size))

        def allowed(sentence, ids):
            if len(ids) < first:
                return vocabulary
            return beginnings[sentence].allowed(ids[first:].tolist()) or vocabulary

        settings["prefix_allowed_tokens_fn"] = allowed
    limits = torch.tensor(limits)

    def at_limit(ids, scores, **kwargs):
        return ids.shape[1] >= limits.repeat_interleave(len(ids) // len(limits))

    tokens = model.generate(
        **batch,
        **settings,
        max_length=int(limits.max()),
        num_return_sequences=returned,
        stopping_criteria=[at_limit],
    )
    rows = {name: value.repeat_interleave(returned, 0) for name, value in batch.items()}
    logits = model(**rows, decoder_input_ids=tokens[:, :-1], use_cache=False).logits
    scores = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    return tokens[:, 1:], scores


@torch.no_grad()
def compare(model, engine, seed, batch, **more_settings):
    """Searches with settings that are drawn, by the library and by an engine."""
    generator = random.Random(seed)
    settings = random_settings(generator) | more_settings
    returned = generator.randint(1, settings.get("num_beams", 1))
    # Of searches for a forced end the library knows one limit alone
    longest = generator.choice([8, 14])
    limits = [longest] * len(LENGTHS)
    if "forced_eos_token_id" not in settings:
        limits = [generator.randint(8, longest) for _ in LENGTHS]
    beginnings = None
    if generator.random() < 0.3:
        beginnings = [Prefix(generator.sample(range(20, 35), 2)), *[Prefix([])] * 3]
    tokens, scores = of_the_library(model, settings, batch, limits, returned, beginnings)
    translations = engine.search(
        source_batch(
            batch,
            settings,
            limits,
            returned=returned,
            with_scores=True,
            prefixes=beginnings or (),
        )
    )
    hypotheses = [*chain.from_iterable(translations)]
    assert len(hypotheses) == len(tokens)
    for hypothesis, row, values in zip(hypotheses, tokens, scores, strict=True):
        length = len(hypothesis.tokens)
        assert hypothesis.tokens.tolist() == row[:length].tolist(), settings
        assert len(row[length:].unique()) <= 1, "padding"
        expected = torch.tensor(hypothesis.log_probabilities)
        torch.testing.assert_close(expected, values[:length], rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(
    "arguments",
    [
        {"encoder_no_repeat_ngram_size": 2},
        {"cache_implementation": "static"},
        {"generation_config": GenerationConfig(num_beams=2, sequence_bias=[[[5], -9.0]])},
        {"prefix_allowed_tokens_fn": lambda sentence, ids: list(range(3, 20)), "num_beams": 3},
    ],
    ids=lambda arguments: "-".join(arguments),
)
def test_what_the_search_does_not_have_is_left_to_the_library(arguments):
    model = MODELS["csan"]()
    batch = sources(LENGTHS)
    engine = torch_engine(model, **arguments)
    _, generation = engine.defaults(None, None)
    settings = {"num_beams": generation.num_beams, "eos_token_id": 1, "decoder_start_token_id": 0}
    translations = engine.search(source_batch(batch, settings, [12, 9, 12, 12], with_scores=True))
    expected = model.generate(**batch, **arguments, max_length=12)
    for [hypothesis], row, limit in zip(translations, expected, [12, 9, 12, 12], strict=True):
        assert hypothesis.tokens.tolist() == row[1 : 1 + len(hypothesis.tokens)].tolist()
        assert len(hypothesis.tokens) < limit
        assert (hypothesis.log_probabilities < 0).all()


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.6}, {"temperature": 2.0, "top_p": 0.9}],
    ids=str,
)
def test_samples_have_the_distribution_of_the_library(options):
    logits = torch.tensor([[0.3, -1.0, 2.0, 1.2, -math.inf, 0.8, 1.9]])
    config = GenerationConfig(do_sample=True, **{"temperature": 1.0, "top_k": 50, **options})
    warp = tiny.recurrent()._get_logits_processor(config)
    expected = warp(None, logits).softmax(-1)[0].numpy()
    draw = Sampling(generator=np.random.default_rng(0), **options)
    count = 50_000
    drawn = draw(logits.repeat(count, 1).numpy())
    shares = np.bincount(drawn, minlength=len(expected)) / count
    assert (shares[expected == 0] == 0).all()
    np.testing.assert_allclose(shares, expected, atol=0.01)


@pytest.mark.parametrize("length_penalty", [-10.0, 10.0])
def test_no_hypothesis_is_empty_whatever_the_length_penalty(length_penalty, engine_of):
    settings = {"decoder_start_token_id": 0, "num_beams": 3, "length_penalty": length_penalty}
    batch = source_batch(sources(LENGTHS), settings, [99] * len(LENGTHS), returned=3)
    translations = engine_of("rnnsearch", True)[1].search(batch)
    assert all(len(hypothesis.tokens) for hypothesis in chain.from_iterable(translations))


@pytest.mark.parametrize(
    ("name", "decoder"), [("marian", TorchDecoder), ("rnnsearch", GraphDecoder)]
)
@pytest.mark.parametrize("beams", [1, 3])
def test_rows_that_are_done_are_not_computed(beams, name, decoder, engine_of, monkeypatch):
    _, engine = engine_of(name, decoder is GraphDecoder)
    rows = []
    step = decoder.step
    monkeypatch.setattr(decoder, "step", lambda self, ids: rows.append(len(ids)) or step(self, ids))
    settings = {"decoder_start_token_id": 0, "num_beams": beams}
    engine.search(source_batch(sources(LENGTHS), settings, [3, 3, 5, 6]))
    assert rows == [beams * left for left in (4, 4, 2, 2, 1)]


@pytest.fixture
def engine_of(exported):
    """A function that returns a model and an engine of its weights: of torch, or its graphs."""

    def build(name, is_exported=False):
        if is_exported:
            model, folder = exported(name)
            return model, graph_engine(folder)
        model = MODELS[name]()
        return model, torch_engine(model)

    return build


ENGINES = [*((name, False) for name in MODELS), *((name, True) for name in EXPORTED)]


@pytest.mark.parametrize(("name", "is_exported"), ENGINES)
def test_engines_find_what_the_library_finds(name, is_exported, engine_of):
    model, engine = engine_of(name, is_exported)
    for seed in range(8):
        batch = sources(LENGTHS, seed=seed)
        if seed % 3 == 2 and not is_exported:
            batch = tiny.padded_on_the_left(batch)
        compare(model, engine, seed, batch)


@pytest.mark.parametrize(
    "settings",
    [
        {"no_repeat_ngram_size": 2},
        {"no_repeat_ngram_size": 2, "num_beams": 3},
        {"bad_words_ids": [[5, 6]], "num_beams": 2},
        {"begin_suppress_tokens": [5]},
    ],
)
def test_a_prefix_stays_whatever_another_rule_forbids(settings, engine_of):
    _, engine = engine_of("csan")
    settings = {"eos_token_id": 1, "decoder_start_token_id": 0, **settings}
    batch = source_batch(sources((5,)), settings, [9], prefixes=[Prefix([5, 6, 5, 6])])
    [[hypothesis]] = engine.search(batch)
    assert hypothesis.tokens[:4].tolist() == [5, 6, 5, 6]
    assert len(hypothesis.tokens) > 4


@pytest.mark.parametrize("size", [640, 8_000])
@pytest.mark.parametrize("finite", [1, 3, 8, 500])
def test_the_best_places_are_different_ones(size, finite):
    generator = np.random.default_rng(finite)
    scores = np.full((4, size), -np.inf, np.float32)
    scores[:, generator.permutation(size)[:finite]] = generator.normal(size=(4, finite))
    scores[:, 0] = -9
    best = best_places(scores, 6)
    assert all(len(set(places)) == 6 for places in best.tolist())
    expected = np.sort(scores, axis=1)[:, -6:]
    assert np.array_equal(np.sort(np.take_along_axis(scores, best, 1), axis=1), expected)


@pytest.mark.parametrize(
    ("name", "is_exported", "seed"),
    [("csan", False, None), ("csan", False, 1), ("rnnsearch", True, 3)],
)
def test_samples_differ_and_end_within_the_limit_of_their_source(
    name, is_exported, seed, engine_of
):
    settings = {"eos_token_id": 1, "decoder_start_token_id": 0, "do_sample": True}
    limits = [5, 6, 7, 8]
    generator = None if seed is None else np.random.default_rng(seed)
    options = {"returned": 9, "generator": generator, "with_scores": True}
    batch = source_batch(sources(LENGTHS), settings, limits, **options)
    _, engine = engine_of(name, is_exported)
    for samples, limit in zip(engine.search(batch), limits, strict=True):
        assert len(samples) == 9
        assert len({tuple(sample.tokens) for sample in samples}) > 1
        assert max(len(sample.tokens) for sample in samples) < limit
        assert all((sample.log_probabilities < 0).all() for sample in samples)
