# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What the layers of one forward share: masks made once, and nothing that differs from layer to
layer.
"""

from dataclasses import dataclass

import pytest
import torch
from reference.dispatch import Operations
from tiny import PLAIN, every_implementation, padded_on_the_left, padded_sources
from tiny import csan as tiny_model

from csan_hf.models.attention_call import AttentionCall, ForwardPass, KeyArea, Term
from csan_hf.models.backends import run


def operations_of_a_layer(specification, train):
    """What each layer after the first adds to the encoder's operations, for a padded batch."""
    counts = []
    for depth in (1, 2):
        fields = {
            **PLAIN,
            "dropout": 0.1,
            "encoder_layers": depth,
            "encoder_locality": [specification] * depth,
        }
        encoder = tiny_model(**fields).get_encoder().train(train)
        with torch.set_grad_enabled(train), Operations() as operations:
            encoder(**padded_sources((9, 4)))
        counts.append(operations.count)
    return counts[1] - counts[0]


@pytest.mark.parametrize("train", [False, True])
def test_a_local_layer_costs_no_more_operations_than_a_plain_one(train):
    """An area of heads lays keys and values beside the neighbours': pad, three slices, stack,
    flatten, each.
    """
    plain = operations_of_a_layer(None, train)
    assert operations_of_a_layer({"window": 5}, train) <= plain
    assert operations_of_a_layer({"window": 5, "head_area": 3}, train) <= plain + 12
    assert operations_of_a_layer({"bi_direct": True}, train) <= plain


MIXED = {
    **PLAIN,
    "encoder_layers": 6,
    "encoder_locality": [
        {"window": 5},
        {"window": 3},
        {"window": 5, "bi_direct": True},
        {"window": 5, "local_hard": {"width": 1.5, "cut_off": True}},
        {"window": 5, "local_hard": {"width": 3.0, "cut_off": True}},
        {"window": 5, "head_area": 3, "local_hard": {"width": 3.0, "cut_off": True}},
    ],
    "decoder_layers": 4,
    "decoder_locality": [
        {"window": 5},
        {"window": 3},
        {"window": 5, "gaussian": "layer"},
        {"window": 5},
    ],
}


@every_implementation
@torch.no_grad()
def test_layers_that_see_something_else_share_nothing(implementation, monkeypatch):
    """Whole sentences and decoding from the cache, padded on the left, as with masks made by each
    layer.
    """
    model = tiny_model(attn_implementation=implementation, **MIXED)
    inputs = padded_on_the_left(padded_sources((9, 4)))
    targets = {f"decoder_{name}": tensor for name, tensor in inputs.items()}
    search = {"max_new_tokens": 8, "min_new_tokens": 8, "num_beams": 2, "output_logits": True}

    def everything():
        whole = model(**inputs, **targets).logits
        return [whole, *model.generate(**inputs, **search, return_dict_in_generate=True).logits]

    shared = everything()
    monkeypatch.setattr(AttentionCall, "share", lambda self, name, make: make())
    for logits, expected_logits in zip(shared, everything(), strict=True):
        assert torch.equal(logits, expected_logits)


@dataclass
class Near(Term):
    """A term of somebody else's that sees so many tokens on either side."""

    reach: list[int]

    def visible(self, cells):
        return cells.distance.abs() <= max(self.reach)


@every_implementation
def test_terms_that_hold_anything_share_no_mask_wrongly(implementation):
    tensor = torch.randn(1, 2, 6, 4)
    shared = ForwardPass()
    for reach in ([0], [2]):
        terms = (Near(reach),)
        once = AttentionCall(
            tensor, tensor, tensor, KeyArea(window=7), 0.5, terms=terms, shared=shared
        )
        alone = AttentionCall(tensor, tensor, tensor, KeyArea(window=7), 0.5, terms=terms)
        assert torch.equal(run(once, implementation), run(alone, implementation))
