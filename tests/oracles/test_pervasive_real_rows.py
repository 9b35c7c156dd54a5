# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Which rows and columns are real is told by masks, and positions count them."""

import pytest
import torch
from tiny import (
    PAD,
    padded_batch,
    padded_on_the_left,
    padded_sources,
    statistics,
    tokenizer,
)
from tiny import grid as tiny_model
from torch.testing import assert_close

from csan_hf import PervasiveAttentionModel
from csan_hf.data import TargetMaskCollator

SOURCES, TARGETS = (6, 3, 5), (4, 6, 2)


@pytest.mark.parametrize(
    "eos", [1, [1, 4], None, PAD], ids=["one end", "two ends", "no end", "padding is the end"]
)
def test_the_collators_mask_decides_without_labels(eos):
    """A Trainer that computes the loss itself keeps the labels; ends of sentences may stand inside
    a target.
    """
    targets = [[2, 1, 3, 1], [5, 4, 1, 1, 6, 1], [7, 1]]
    features = [
        {"input_ids": [3, 4, 5, 1][: 2 + row], "labels": labels}
        for row, labels in enumerate(targets)
    ]
    running_statistics = []
    for keep_labels in (True, False):
        model = tiny_model(kernel_size=3, eos_token_id=eos).double().train()
        batch = TargetMaskCollator(tokenizer("defghijk"), model=model)(features)
        assert batch["decoder_attention_mask"].sum(1).tolist() == [4, 6, 2]
        assert batch["decoder_attention_mask"].shape == batch["decoder_input_ids"].shape
        if not keep_labels:
            del batch["labels"]
        model(**batch)
        running_statistics.append(statistics(model))
    assert_close(running_statistics[1], running_statistics[0], rtol=0, atol=0)


@pytest.mark.parametrize("eos", [1, [1, 4], None], ids=["one end", "two ends", "no end"])
def test_without_a_mask_padding_decides(eos):
    """And the last end of a sentence, from which nothing is to be predicted; the others are tokens
    like any other.
    """
    labels = torch.tensor([[2, 1, 3, 1, -100, -100], [5, 1, 1, 6, 7, 1]])
    lengths = [4, 6] if eos is not None else [5, 6]
    model, twin = (tiny_model(kernel_size=3, eos_token_id=eos).double().train() for _ in range(2))
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
    sources = padded_sources((5, 3))
    model(**sources, decoder_input_ids=decoder_input_ids)
    mask = (torch.arange(6) < torch.tensor(lengths)[:, None]).long()
    twin(**sources, decoder_input_ids=decoder_input_ids, decoder_attention_mask=mask)
    assert_close(statistics(model), statistics(twin), rtol=0, atol=0)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@torch.no_grad()
def test_nan_under_padding_stays_there(compiled):
    model = tiny_model(kernel_size=3)
    batch = padded_batch(SOURCES, TARGETS)
    embeddings = model.get_input_embeddings()(batch["input_ids"])
    targets = model.model.decoder.embed_tokens(batch["decoder_input_ids"])
    masks = {name: batch[name] for name in ("attention_mask", "decoder_attention_mask")}
    real = masks["decoder_attention_mask"].bool()
    expected = model(**batch, use_cache=False).logits[real]
    inputs = {
        "inputs_embeds": embeddings.masked_fill(
            masks["attention_mask"].eq(0).unsqueeze(-1), torch.nan
        ),
        "decoder_inputs_embeds": targets.masked_fill(~real.unsqueeze(-1), torch.nan),
    }
    torch._dynamo.reset()
    run = torch.compile(model, backend="eager") if compiled else model
    assert_close(run(**inputs, **masks, use_cache=False).logits[real], expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_dead_channels_point_nowhere():
    """A channel that is 0 everywhere has its maximum at no source token, nor at padding."""
    model = PervasiveAttentionModel(tiny_model(kernel_size=3).config).eval()
    norm = model.decoder.final_norm
    norm.bias[:2] = -1.0
    norm.weight[:2] = 0.0
    batch = padded_on_the_left(padded_batch(SOURCES, TARGETS))
    share = model(**batch, output_attentions=True).cross_attentions[0][:, 0]
    assert share[batch["attention_mask"].eq(0).unsqueeze(1).expand_as(share)].eq(0).all()
    real = batch["decoder_attention_mask"].bool()
    assert share.sum(2)[real].max() <= 1 - 2 / norm.num_features + 1e-6
    assert share.sum(2)[real].max() > 0


@torch.no_grad()
def test_a_reset_cache_serves_other_weights_and_another_batch():
    model = tiny_model(kernel_size=5)
    batch = {**padded_sources((5, 3)), "decoder_input_ids": torch.tensor([[2, 3, 4], [5, 6, 7]])}
    cache = model(**batch, use_cache=True).cache
    model.load_state_dict(tiny_model(seed=7, kernel_size=5).state_dict())
    other_batch = {
        **padded_sources((4, 2, 6)),
        "decoder_input_ids": torch.tensor([[2, 3], [5, 6], [1, 2]]),
    }
    for inputs in (batch, other_batch):
        cache.reset()
        assert cache.get_seq_length() == 0
        expected = model(**inputs, use_cache=False).logits
        assert_close(model(**inputs, cache=cache).logits, expected, rtol=0, atol=1e-5)
