# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What every CSAN keeps whatever its locality: batch invariance, causality, receptive field."""

import pytest
import torch
from tiny import (
    LOCALITIES,
    PLAIN,
    STRATEGIES,
    every_implementation,
    labels_of,
    padded_on_the_left,
    padded_sources,
    padded_targets,
)
from tiny import csan as tiny_model
from torch.testing import assert_close

LENGTHS = (9, 4, 13, 1)
TARGETS = (7, 12, 3, 1)
TOLERANCE = 1e-5
every_locality = pytest.mark.parametrize("locality", LOCALITIES.values(), ids=LOCALITIES)
some_localities = pytest.mark.parametrize(
    "locality",
    [
        "plain",
        "encoder area",
        "decoder window",
        *(f"everything, {strategy}" for strategy in STRATEGIES),
    ],
)


def training_batch() -> dict[str, torch.Tensor]:
    return {**padded_sources(LENGTHS), "labels": labels_of(TARGETS)}


@every_implementation
@every_locality
@torch.no_grad()
def test_a_sentence_does_not_notice_its_batch(locality, implementation):
    """Nor a row of padding alone in it (the last one of an uneven evaluation may be one)."""
    model = tiny_model(attn_implementation=implementation, **locality)
    sources = padded_sources((*LENGTHS, 0))
    labels = labels_of((*TARGETS, 2))
    together = model(**sources, labels=labels).logits
    assert together.isfinite().all()
    for row, (source, target) in enumerate(zip(LENGTHS, TARGETS, strict=True)):
        ids = sources["input_ids"][row : row + 1, :source]
        alone = model(input_ids=ids, labels=labels[row : row + 1, :target]).logits
        assert_close(together[row, :target], alone[0], rtol=0, atol=TOLERANCE)


@every_implementation
@some_localities
@torch.no_grad()
def test_padding_on_the_left_and_on_the_right_give_the_same_logits(locality, implementation):
    """Positions are ranks among the real tokens: where the padding stands changes nothing."""
    model = tiny_model(attn_implementation=implementation, **LOCALITIES[locality])
    sources, targets = (9, 4, 1), (6, 3, 5)
    right = {**padded_sources(sources), **padded_targets(targets)}
    expected, found = (
        model(**batch, use_cache=False).logits for batch in (right, padded_on_the_left(right))
    )
    for row, length in enumerate(targets):
        assert_close(found[row, -length:], expected[row, :length], rtol=0, atol=TOLERANCE)


@every_implementation
@torch.no_grad()
def test_without_positions_order_is_what_locality_says(implementation):
    """Full attention sees a set of tokens; windows and relative positions see neighbours, wherever
    these stand.
    """
    ids = torch.randperm(20)[None] + 2
    for name, kept in (
        ("no positions", torch.randperm(20)),
        ("relative positions alone", torch.arange(3, 18)),
    ):
        encoder = tiny_model(attn_implementation=implementation, **LOCALITIES[name]).get_encoder()
        states, found = encoder(ids).last_hidden_state, encoder(ids[:, kept]).last_hidden_state
        inside = (
            slice(None) if name == "no positions" else slice(4, -4)
        )  # two layers of windows of 5
        assert_close(found[:, inside], states[:, kept][:, inside], rtol=0, atol=TOLERANCE)
    assert (encoder(ids.flip(1)).last_hidden_state.flip(1) - states).abs().max() > 0.1, (
        "order counts"
    )


@every_implementation
@every_locality
def test_no_gradient_from_future_targets(locality, implementation):
    model = tiny_model(attn_implementation=implementation, **locality)
    length = 8
    sources = padded_sources((6, 3))
    embeds = torch.randn(2, length, model.config.d_model, requires_grad=True)
    logits = model(**sources, decoder_inputs_embeds=embeds, use_cache=False).logits
    for i in range(length):
        gradient = torch.autograd.grad(logits[:, i].square().sum(), embeds, retain_graph=True)[0]
        assert (gradient[:, i + 1 :] == 0).all(), f"position {i} sees its future"
        assert (gradient[:, i] != 0).any(dim=-1).all()


def test_local_layers_are_the_listed_ones():
    """Two layers, the lower local with m = 1: the field is the whole sentence, and two local layers
    reach 2.
    """
    embeds = torch.randn(1, 9, 32, requires_grad=True)

    def field(layers: list[int]) -> list[int]:
        local = {**PLAIN, "localness_layers": layers, "local_window": 3}
        states = tiny_model(**local).get_encoder()(inputs_embeds=embeds).last_hidden_state
        gradient = torch.autograd.grad(states[0, 4].square().sum(), embeds)[0]
        return (gradient[0] != 0).any(dim=-1).nonzero().flatten().tolist()

    everything = list(range(9))
    assert field([]) == field([0]) == field([1]) == everything
    assert field([0, 1]) == [2, 3, 4, 5, 6]


@some_localities
def test_gradients_reach_the_attention_weights(locality):
    """As with full attention: the output is made from the weights that are returned, padding or
    not.
    """
    model = tiny_model(attn_implementation="eager", **LOCALITIES[locality])
    outputs = model(**training_batch(), output_attentions=True)
    layers = [*outputs.encoder_attentions, *outputs.decoder_attentions, *outputs.cross_attentions]
    for weights, gradient in zip(layers, torch.autograd.grad(outputs.loss, layers), strict=True):
        assert gradient.shape == weights.shape
        assert gradient.any()
