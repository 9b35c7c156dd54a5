# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Greedy and beam search of the package: transformers' tokens, without work on sentences that are
done.
"""

from unittest.mock import Mock

import pytest
import tiny
import torch
from pipelines.conftest import SEARCHED, translator_of
from tiny import padded_sources as sources

from csan_hf.pipelines.search import search

ENDS = [2, 5, 7, 9, 11]  # so that many hypotheses end
OPTIONS = {
    "greedy": {},
    "beams": {"num_beams": 4},
    "several": {"num_beams": 4, "num_return_sequences": 3},
    "early": {"num_beams": 3, "early_stopping": True, "eos_token_id": ENDS},
    "never": {
        "num_beams": 3,
        "early_stopping": "never",
        "length_penalty": 2.0,
        "eos_token_id": ENDS,
    },
    "short": {
        "num_beams": 3,
        "length_penalty": -1.0,
        "min_new_tokens": 4,
        "no_repeat_ngram_size": 2,
    },
    "prompt": {"num_beams": 2, "decoder_input_ids": torch.tensor([[1, 5, 6]] * 5)},
    "padded on the left": {"num_beams": 3},
    "several ends": {"num_beams": 3, "eos_token_id": ENDS},
    "own limits": {
        "stopping_criteria": [lambda ids, scores: ids.shape[1] >= 4 + torch.arange(len(ids)) // 2]
    },
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", SEARCHED)
def test_tokens_of_the_library(name, options):
    model = SEARCHED[name]()
    batch = sources((9, 3, 7, 1, 12))
    if options == "padded on the left":
        batch = tiny.padded_on_the_left(batch)
    arguments = {**batch, "max_new_tokens": 20, **OPTIONS[options]}
    expected = model.generate(**arguments)
    assert torch.equal(model.generate(**arguments, custom_generate=search), expected)


@pytest.mark.parametrize("beams", [1, 3])
def test_rows_of_ended_sentences_are_not_computed(beams):
    model = tiny.csan(seed=2)
    rows = []
    model.register_forward_hook(lambda module, inputs, output: rows.append(len(output.logits)))
    model.generate(
        **sources((9, 3, 7, 1, 12)),
        custom_generate=search,
        num_beams=beams,
        min_new_tokens=19,
        max_new_tokens=20,
        stopping_criteria=[
            lambda ids, scores: ids.shape[1] >= 3 + torch.arange(5).repeat_interleave(len(ids) // 5)
        ],
    )
    assert rows == [beams * left for left in (5, 5, 4, 3, 2, 1)]


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True},
        {"do_sample": True, "num_beams": 2},
        {"return_dict_in_generate": True, "output_scores": True, "num_beams": 2},
        {"encoder_no_repeat_ngram_size": 2},
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"attention_mask": None},
    ],
)
def test_the_rest_is_the_librarys(options):
    model = tiny.csan(seed=2)
    arguments = {**sources((9, 3, 7)), "max_new_tokens": 9, **options}
    torch.manual_seed(1)
    expected = model.generate(**arguments)
    torch.manual_seed(1)
    output = model.generate(**arguments, custom_generate=search)
    assert str(output) == str(expected)


@pytest.mark.parametrize(
    "options", [{"penalty_alpha": 0.6, "top_k": 4}, {"prompt_lookup_num_tokens": 2}]
)
def test_another_strategy_is_not_replaced_by_a_plain_one(options):
    with pytest.raises(ValueError, match=r"has no .*: pass custom_generate=None"):
        tiny.csan().generate(**sources((4,)), custom_generate=search, **options)


def test_the_pipeline_searches_so():
    model = tiny.csan(seed=2)
    model.generate = Mock(wraps=model.generate)
    translate = translator_of(model, tiny.tokenizer(["a", "b"]))
    translate("a b")
    assert model.generate.call_args.kwargs["custom_generate"] is search
    translate("a b", tokenizer=None)  # which the library keeps from a loop that it is given
    assert "custom_generate" not in model.generate.call_args.kwargs
