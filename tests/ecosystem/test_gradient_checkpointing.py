# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Activation checkpointing changes no gradient."""

import pytest
import torch
from families import FAMILIES, both_families, gradients, training_batch

REENTRANT = {"activation_checkpointing_kwargs": {"use_reentrant": True}}
WAYS = {"every layer": {}, "every second layer": {"every_n_layers": 2}, "reentrant": REENTRANT}


@both_families
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_the_same(family, way, dropout):
    """With dropout, too: the second computation must drop what the first one dropped."""
    drops = {"dropout": dropout, **({"attention_dropout": dropout} if family is FAMILIES["csan"] else {})}
    model = family.tiny_model(**drops).train()
    torch.manual_seed(0)
    expected_loss = model(**training_batch()).loss
    expected_loss.backward()
    expected = gradients(model)
    model = family.tiny_model(**drops).train()
    model.activation_checkpointing_enable(**WAYS[way])
    assert model.is_gradient_checkpointing
    torch.manual_seed(0)
    loss = model(**training_batch()).loss
    loss.backward()
    torch.testing.assert_close(loss, expected_loss, rtol=0, atol=1e-6)
    assert gradients(model).keys() == expected.keys()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5, msg=name)


@both_families
def test_less_is_kept(family):
    """Something is computed again: fewer bytes wait for the backward pass."""
    kept = []
    for checkpointing in (False, True):
        model = family.tiny_model(**({"num_layers": 6} if family is FAMILIES["pervasive attention"] else {})).train()
        if checkpointing:
            model.activation_checkpointing_enable()
        total = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal total
            total += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(**training_batch()).loss.backward()
        kept.append(total)
    assert kept[1] < 0.8 * kept[0]
