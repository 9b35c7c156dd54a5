# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What every Pervasive Attention model keeps: padding, labels, alignments, caches, sizes."""

import pytest
import torch
from tiny import (
    decode_in_steps,
    gradients,
    labels_of,
    mask_of,
    padded_batch,
    padded_sources,
    padded_targets,
)
from tiny import grid as tiny_model
from torch import Tensor
from torch.testing import assert_close

from csan_hf import PervasiveAttentionConfig, PervasiveAttentionForConditionalGeneration

SOURCES = (6, 3, 7, 1)
TARGETS = (5, 7, 2, 1)


@pytest.mark.parametrize(
    "explicit_ids", [False, True], ids=["labels alone", "labels and decoder inputs"]
)
def test_trailing_labels_of_minus_100_are_padding(explicit_ids):
    """In training, rows after the last label count as padding; an ignored label between others is a
    real row.
    """
    labels = labels_of(TARGETS)
    labels[0, 1] = labels[1, 0] = labels[1, 3] = -100
    results = []
    for masked in (False, True):
        model = tiny_model(kernel_size=3).double().train()
        batch = {**padded_sources(SOURCES), "labels": labels}
        if masked or explicit_ids:
            batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
        if masked:
            batch["decoder_attention_mask"] = mask_of(TARGETS)
        outputs = model(**batch)
        outputs.loss.backward()
        results.append(
            (
                outputs.loss,
                outputs.logits[mask_of(TARGETS).bool()],
                dict(model.named_buffers()),
                gradients(model),
            )
        )
    assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("aggregation", ["max", "average", "max_attention"])
@torch.no_grad()
def test_contributions_are_those_to_the_next_word(aggregation):
    """The label; where there is none, the next decoder input; after the last one, the likeliest."""
    model = tiny_model(aggregation=aggregation, kernel_size=3).double()
    batch = padded_batch(SOURCES, TARGETS)
    ids, mask = batch["decoder_input_ids"], batch["decoder_attention_mask"]
    likeliest = model(**batch).logits.argmax(dim=-1)
    following = ids.roll(-1, dims=1).where(mask.roll(-1, dims=1).bool(), likeliest)
    following[:, -1] = likeliest[:, -1]
    labels = labels_of(TARGETS)
    labels[0, 1] = labels[1, 2] = -100
    ignored = torch.where(labels == -100, following, labels)

    def contributions(**options: Tensor) -> Tensor:
        outputs = model(**batch, output_attentions=True, **options)
        return outputs.cross_attentions[0][:, 0][mask.bool()]

    assert_close(contributions(), contributions(labels=following))
    assert_close(contributions(labels=labels), contributions(labels=ignored))


@pytest.mark.parametrize("training", [False, True], ids=["with gradients", "in training"])
def test_a_cache_is_refused_where_it_would_be_wrong(training):
    """Kept rows carry no gradient, and a batch's statistics need all rows at once: refused, and not
    by default.
    """
    model = tiny_model().train(training)
    batch = padded_batch(SOURCES, TARGETS)
    assert model(**batch).cache is None
    with torch.set_grad_enabled(not training), pytest.raises(ValueError, match="use_cache=False"):
        model(**batch, use_cache=True)


@torch.no_grad()
def test_a_cache_of_other_sentences_or_another_model_is_refused():
    model = tiny_model(kernel_size=3)
    sources = padded_sources(SOURCES)
    targets = {"decoder_input_ids": padded_targets(TARGETS)["decoder_input_ids"]}
    _, [first] = decode_in_steps(model, sources, targets, [2])
    fewer = {name: tensor[:2] for name, tensor in sources.items()}
    shorter = {name: tensor[:, :4] for name, tensor in sources.items()}
    for second_model, second_sources in (
        (model, fewer),
        (model, shorter),
        (tiny_model(kernel_size=3, num_layers=1), sources),
    ):
        ids = {
            "decoder_input_ids": targets["decoder_input_ids"][: len(second_sources["input_ids"])]
        }
        with pytest.raises(ValueError, match="`cache` must hold"):
            decode_in_steps(second_model, second_sources, ids, [1], cache=first.cache, start=2)


# Tables 1 and 2 of the paper: kernel, layers, parameters in millions; then the two variants of k =
# 5, L = 24.
PUBLISHED = {
    "k=3, L=16": ({"kernel_size": 3, "num_layers": 16}, 4.32),
    "k=3, L=20": ({"kernel_size": 3, "num_layers": 20}, 4.92),
    "k=5, L=8": ({"kernel_size": 5, "num_layers": 8}, 3.88),
    "k=5, L=12": ({"kernel_size": 5, "num_layers": 12}, 4.59),
    "k=5, L=16": ({"kernel_size": 5, "num_layers": 16}, 5.37),
    "k=5, L=20": ({"kernel_size": 5, "num_layers": 20}, 6.23),
    "the defaults": ({}, 7.18),
    "k=5, L=28": ({"kernel_size": 5, "num_layers": 28}, 8.21),
    "k=7, L=12": ({"kernel_size": 7, "num_layers": 12}, 5.76),
    "max and attention": ({"aggregation": "max_attention"}, 7.24),
    "gated": ({"gated": True}, 9.64),
}
# "Around 12K and 9K types": with these, nine of the eleven figures come out to their rounding. No
# vocabularies fit all eleven: L = 12 would need embeddings of at least 2,680,488 parameters, L = 28
# of at most 2,676,312 (here 2,677,800). These two miss their rounding by 0.0027M and 0.0015M.
VOCABULARIES = {"vocab_size": 11_850, "decoder_vocab_size": 9_000}
ROUNDING = 0.005
MISSED = {"k=5, L=12": 0.0077, "k=5, L=28": 0.0065}


def published_model(**options) -> PervasiveAttentionForConditionalGeneration:
    with torch.device("meta"):
        return PervasiveAttentionForConditionalGeneration(
            PervasiveAttentionConfig(**VOCABULARIES, **options)
        )


@pytest.mark.parametrize(("options", "millions"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_sizes(options, millions, request):
    counted = published_model(**options).num_parameters_with_masked_taps() / 1e6
    bound = MISSED.get(request.node.callspec.id, ROUNDING)
    assert abs(counted - millions) <= bound, f"{counted:.4f}M"
