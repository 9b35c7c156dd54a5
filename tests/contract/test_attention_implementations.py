# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""attn_implementation: what runs computes the same, what cannot run says what to use instead."""

from itertools import product

import pytest
import tiny
import torch
from families import FAMILIES, logits_of, sources, targets
from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

CSAN = FAMILIES["csan"]


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "flex_attention", "blocked"])
def test_csan_is_the_same_under_each(implementation, tmp_path):
    model = CSAN.tiny_model(seed=1, attn_implementation="eager")
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, attn_implementation=implementation)
    assert loaded.config._attn_implementation == implementation
    torch.testing.assert_close(logits_of(loaded), logits_of(model), rtol=0, atol=1e-5)
    model.set_attn_implementation(implementation)
    assert torch.equal(logits_of(model), logits_of(loaded))


@pytest.fixture
def flash_calls(monkeypatch):
    """FlashAttention, whose kernel needs a GPU, played by its definition; and the parts and layers
    that called it.
    """
    calls = []

    def flash_attention(
        module, query, key, value, attention_mask, scaling, sliding_window=None, **kwargs
    ):
        """The library's interface: no mask or a padding mask [B, J]."""
        assert attention_mask is None or attention_mask.dim() == 2
        assert sliding_window is None
        calls.append((module.is_cross_attention, module.is_causal, module.layer_idx))
        last = key.shape[2] - query.shape[2]
        visible = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
        if module.is_causal:
            visible = visible.tril(last)
        if attention_mask is not None:
            visible = visible & attention_mask[:, None, None, :].bool()
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scaling)
        return output.transpose(1, 2), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "flash_attention_2", flash_attention)
    return calls


ENCODER = (False, False)
DECODER = (False, True)
CROSS = (True, False)


@pytest.mark.parametrize(
    ("locality", "expected"),
    [
        ({}, {(*part, layer) for part, layer in product((ENCODER, DECODER, CROSS), (0, 1))}),
        (
            {
                "encoder_locality": [{"window": 5, "head_area": 3}, None],
                "decoder_locality": [None, {"relative_bias": True}],
            },
            {(*ENCODER, 1), (*DECODER, 0), (*CROSS, 0), (*CROSS, 1)},
        ),
    ],
    ids=["plain", "local layers"],
)
@torch.no_grad()
def test_flash_attention_gets_the_full_layers(locality, expected, flash_calls):
    """Padding, in decoding, too; local layers have backends of their own."""
    model = tiny.csan(seed=1, **tiny.PLAIN, **locality)
    search = {"max_new_tokens": 8, "min_new_tokens": 8, "no_repeat_ngram_size": 1}
    logits = logits_of(model)
    translations = model.generate(**sources(), **search)
    model.config._attn_implementation_internal = "flash_attention_2"
    torch.testing.assert_close(logits_of(model), logits, rtol=0, atol=1e-5)
    assert torch.equal(model.generate(**sources(), **search), translations)
    assert set(flash_calls) == expected


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "csan"])
@pytest.mark.parametrize("implementation", ["sdpa", "flex_attention", "flash_attention_2"])
def test_other_families_have_nothing_to_choose(name, implementation, tmp_path):
    message = "does not support"
    model = FAMILIES[name].tiny_model()
    with pytest.raises(ValueError, match=message):
        model.set_attn_implementation(implementation)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path, attn_implementation=implementation)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path, attn_implementation="eager"
    )  # the neutral choice
    assert torch.equal(logits_of(loaded), logits_of(model))


def test_flex_attention_on_a_cpu_says_that_it_does_not_train():
    model = CSAN.tiny_model(attn_implementation="flex_attention").train()
    with pytest.raises(ValueError, match="no backward on CPU; use 'blocked', 'sdpa' or 'eager'"):
        model(**sources(), decoder_input_ids=targets(3, 5))
