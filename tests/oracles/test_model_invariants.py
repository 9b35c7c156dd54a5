# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What every CSAN keeps whatever its locality: batch invariance, causality, receptive field."""

import pytest
import torch
from tiny import (
    LOCALITIES,
    STRATEGIES,
    every_implementation,
    labels_of,
    padded_sources,
)
from tiny import csan as tiny_model
from torch.testing import assert_close

LENGTHS = (9, 4, 13, 1)
TARGETS = (7, 12, 3, 1)
TOLERANCE = 1e-5
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
