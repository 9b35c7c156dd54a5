# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Generation with the cache of grid rows equals generation without it, and a step equals the full
forward.
"""

import pytest
import torch
from tiny import decode_in_steps, padded_sources, padded_targets
from tiny import grid as tiny_model

LENGTHS = (6, 3, 5)
SOURCES = padded_sources(LENGTHS)
STEPS = 14  # kernels reach up to four rows back in two layers: the cache rolls many times
TARGETS = {"decoder_input_ids": padded_targets((STEPS,) * 3)["decoder_input_ids"]}


@pytest.mark.parametrize("training", [False, True], ids=["with gradients", "in training"])
def test_a_cache_is_refused_where_it_would_be_wrong(training):
    """Kept rows carry no gradient, and a batch's statistics need all rows at once: refused, and not
    by default.
    """
    model = tiny_model().train(training)
    assert model(**SOURCES, **TARGETS).cache is None
    with torch.set_grad_enabled(not training), pytest.raises(ValueError, match="use_cache=False"):
        model(**SOURCES, **TARGETS, use_cache=True)


@torch.no_grad()
def test_a_cache_of_other_sentences_or_another_model_is_refused():
    model = tiny_model(kernel_size=3)
    _, [first] = decode_in_steps(model, SOURCES, TARGETS, [2])
    fewer = {name: tensor[:2] for name, tensor in SOURCES.items()}
    shorter = {name: tensor[:, :4] for name, tensor in SOURCES.items()}
    for other, given in (
        (model, fewer),
        (model, shorter),
        (tiny_model(kernel_size=3, num_layers=1), SOURCES),
    ):
        ids = {"decoder_input_ids": TARGETS["decoder_input_ids"][: len(given["input_ids"])]}
        with pytest.raises(ValueError, match="`cache` must hold"):
            decode_in_steps(other, given, ids, [1], cache=first.cache, start=2)
