# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A misspelt field or argument is refused, not ignored."""

import pytest
from tiny import grid as tiny_model
from tiny import padded_batch

from csan_hf import PervasiveAttentionConfig


def test_a_misspelt_field_of_the_config():
    with pytest.raises(ValueError, match=r"no field 'growth_rat'. Did you mean 'growth_rate'"):
        PervasiveAttentionConfig(growth_rat=8)
    saved = {**PervasiveAttentionConfig().to_dict(), "transformers_version": "5", "growth_rat": 8}
    assert PervasiveAttentionConfig.from_dict(saved), "what was saved earlier loads"


def test_a_misspelt_argument_of_the_model():
    model, batch = tiny_model(), padded_batch((4, 3), (2, 5))
    for network in (model, model.model):
        with pytest.raises(TypeError, match=r"'decoder_atention_mask'. Did you mean 'decoder_attention_mask'"):
            network(**batch, decoder_atention_mask=batch["decoder_attention_mask"])
    model(**batch, num_items_in_batch=3, return_dict=True)
