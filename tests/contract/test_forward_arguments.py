# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What transformers hands to a forward pass is understood, or an error: never left out."""

import pytest
import torch
from families import FAMILIES, sources, targets
from torch.testing import assert_close

from csan_hf import EnsembleForConditionalGeneration
from csan_hf.models.seq2seq_model import CACHE


@pytest.fixture(params=[*FAMILIES, "ensemble"])
def model(request):
    if request.param != "ensemble":
        return FAMILIES[request.param].tiny_model()
    members = [FAMILIES["csan"].tiny_model(seed) for seed in (0, 1)]
    return EnsembleForConditionalGeneration.of(members)


def parts_of(model, batch):
    """Every module that transformers calls by keywords, with inputs that it takes."""
    states = model.get_encoder()(**batch)[0]
    targets = batch["input_ids"][:, :3]
    yield model, {**batch, "decoder_input_ids": targets}
    yield model.get_encoder(), batch
    if hasattr(model, "model"):
        yield model.model, {**batch, "decoder_input_ids": targets}
        yield model.model.decoder, {"input_ids": targets, "encoder_hidden_states": states}


@torch.no_grad()
def test_unknown_keywords_are_refused(model):
    batch = sources((4, 3))
    model(**batch, decoder_input_ids=batch["input_ids"], task_mood=None)  # None is no value
    for part, inputs in parts_of(model, batch):
        part(**inputs, output_attentions=None, output_hidden_states=False, return_dict=True)
        with pytest.raises(TypeError, match="'task_mood'"):
            part(**inputs, task_mood="merry")


@torch.no_grad()
def test_segments_of_a_tokenizer_have_no_effect(model):
    batch = {**sources((4, 3)), "decoder_input_ids": targets(2, 3)}
    segments = torch.ones_like(batch["input_ids"])
    assert_close(model(**batch, token_type_ids=segments).logits, model(**batch).logits)


@torch.no_grad()
def test_a_tuple_is_returned_where_it_is_asked_for(model):
    """By the config, under which a model still generates."""
    batch = sources((4, 3))
    inputs = {**batch, "decoder_input_ids": batch["input_ids"], "use_cache": False}
    expected = model(**inputs).logits
    translations = model.generate(**batch)
    model.config.return_dict = False
    assert torch.equal(model(**inputs)[0], expected)
    assert torch.equal(model.generate(**batch), translations)


@torch.no_grad()
def test_a_cache_by_a_new_name_fails_instead_of_being_left_out(model, monkeypatch):
    """As when transformers 5.24 renamed `past_key_values`, and each step saw one token."""
    prepare = model.prepare_inputs_for_generation

    def prepare_renamed(*args, **kwargs):
        inputs = prepare(*args, **kwargs)
        inputs["memory"] = inputs.pop(CACHE)
        return inputs

    monkeypatch.setattr(model, "prepare_inputs_for_generation", prepare_renamed)
    with pytest.raises(TypeError, match="'memory'"):
        model.generate(**sources((4, 3)), max_new_tokens=3)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
@pytest.mark.filterwarnings("ignore:.*past_key_values:FutureWarning")
@torch.no_grad()
def test_the_cache_has_both_names_under_every_transformers(model, name):
    batch = sources((4, 3))
    prefix = targets(rows=2, length=8)
    expected = model(**batch, decoder_input_ids=prefix[:, :-1], use_cache=False).logits
    first = model(**batch, decoder_input_ids=prefix[:, :3], use_cache=True)
    later = model(**batch, decoder_input_ids=prefix[:, 3:-1], **{name: getattr(first, name)})
    torch.testing.assert_close(later.logits, expected[:, 3:], rtol=0, atol=1e-5)
    options = {name: later.cache, "max_new_tokens": 4, "return_dict_in_generate": True}
    translated = model.generate(**batch, decoder_input_ids=prefix, **options)
    assert getattr(translated, name) is later.cache
