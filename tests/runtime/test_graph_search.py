# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Search without torch gives the tokens and probabilities of transformers' loops, for every family
and any settings of generation_config.json that it takes.
"""

import math
import random
from unittest.mock import Mock

import numpy as np
import pytest
import tiny
import torch
from exports import EXPORTED
from tiny import padded_sources as sources
from transformers import GenerationConfig

from csan_hf.evaluation.prefixes import ForcedPrefixes
from csan_hf_runtime.generation import Generation
from csan_hf_runtime.graphs import Graphs
from csan_hf_runtime.prefixes import Prefix
from csan_hf_runtime.search import Sampling

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


def searched(graphs, settings, batch, **options):
    ids, mask = (batch[name].numpy() for name in ("input_ids", "attention_mask"))
    return Generation.from_dict(settings).search(graphs, ids, mask=mask, **options)


def of_the_library(model, settings, batch, limits, returned, beginnings):
    """The tokens of transformers' own loops, and the model's log-probabilities of them."""
    settings = dict(settings)
    processors = []
    if beginnings is not None:
        first = 1 if settings.get("forced_bos_token_id") is None else 2
        processors = [ForcedPrefixes(beginnings, first)]
    limits = torch.tensor(limits)

    def at_limit(ids, scores, **kwargs):
        return ids.shape[1] >= limits.repeat_interleave(len(ids) // len(limits))

    tokens = model.generate(
        **batch,
        **settings,
        max_length=int(limits.max()),
        num_return_sequences=returned,
        stopping_criteria=[at_limit],
        logits_processor=processors,
    )
    rows = {name: value.repeat_interleave(returned, 0) for name, value in batch.items()}
    logits = model(**rows, decoder_input_ids=tokens[:, :-1], use_cache=False).logits
    scores = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    return tokens[:, 1:], scores


@torch.no_grad()
def compare(model, graphs, seed):
    """Searches with settings that are drawn, by the library and without torch."""
    generator = random.Random(seed)
    batch = sources(LENGTHS, seed=seed)
    settings = random_settings(generator)
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
    found = searched(
        graphs,
        settings,
        batch,
        limits=np.array(limits),
        returned=returned,
        beginnings=beginnings,
    )
    hypotheses = [hypothesis for several in found for hypothesis in several]
    assert len(hypotheses) == len(tokens)
    for hypothesis, row, values in zip(hypotheses, tokens, scores, strict=True):
        length = len(hypothesis.tokens)
        assert hypothesis.tokens.tolist() == row[:length].tolist(), settings
        assert len(row[length:].unique()) <= 1, "padding"
        expected = torch.tensor(hypothesis.log_probabilities)
        torch.testing.assert_close(expected, values[:length], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", EXPORTED)
def test_tokens_and_probabilities_of_the_library(name, exported):
    model, folder = exported(name)
    graphs = Graphs.from_directory(folder)
    for seed in range(15):
        compare(model, graphs, seed)


def test_settings_that_cannot_be_are_named():
    Generation.from_dict({"typical_p": 1.0, "num_beam_groups": 1, "diversity_penalty": 0.0})
    with pytest.raises(ValueError, match=r"^typical_p is 0.9"):
        Generation.from_dict({"typical_p": 0.9})


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


def test_samples_of_a_sentence_differ_and_end_within_its_limit(exported):
    samples = searched(
        Graphs.from_directory(exported("rnnsearch")[1]),
        {"eos_token_id": 1, "decoder_start_token_id": 0, "do_sample": True},
        sources(LENGTHS),
        limits=np.array([5, 6, 7, 8]),
        returned=9,
        generator=np.random.default_rng(3),
    )
    for several, limit in zip(samples, [5, 6, 7, 8], strict=True):
        assert len(several) == 9
        assert len({tuple(sample.tokens) for sample in several}) > 1
        assert max(len(sample.tokens) for sample in several) < limit


@pytest.mark.parametrize("length_penalty", [-10.0, 10.0])
def test_no_hypothesis_is_empty_whatever_the_length_penalty(length_penalty, exported):
    found = searched(
        Graphs.from_directory(exported("rnnsearch")[1]),
        {"decoder_start_token_id": 0, "num_beams": 3, "length_penalty": length_penalty},
        sources(LENGTHS),
        limits=np.array([99] * len(LENGTHS)),
        returned=3,
    )
    assert all(len(hypothesis.tokens) for several in found for hypothesis in several)


@pytest.mark.parametrize("beams", [1, 3])
def test_rows_that_are_done_are_not_computed(beams, exported):
    graphs = Graphs.from_directory(exported("rnnsearch")[1])
    graphs.step = Mock(wraps=graphs.step)
    settings = {"decoder_start_token_id": 0, "num_beams": beams}
    searched(graphs, settings, sources(LENGTHS), limits=np.array([3, 3, 5, 6]))
    rows = [len(call.args[0]) for call in graphs.step.call_args_list]
    assert rows == [beams * left for left in (4, 4, 2, 2, 1)]
