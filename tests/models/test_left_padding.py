# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Positions are ranks among the real tokens: where the padding stands changes nothing."""

import pytest
import torch
from reference.tiny_csan import LOCALITIES, PAD, padded_sources, tiny_model
from torch.utils._python_dispatch import TorchDispatchMode

from csan_hf.models.positions import SinusoidalPositionalEmbedding

LENGTHS = (9, 4, 1)
TARGETS = (6, 3, 5)
NAMES = ("plain", "encoder area", "decoder window", "everything, query", "everything, layer")


def shift_right(tensor: torch.Tensor, lengths: tuple[int, ...]) -> torch.Tensor:
    """Rows padded on the right as rows padded on the left."""
    return torch.stack([row.roll(tensor.shape[1] - length) for row, length in zip(tensor, lengths, strict=True)])


def batch() -> dict[str, torch.Tensor]:
    targets = padded_sources(TARGETS, seed=1)
    return {
        **padded_sources(LENGTHS),
        "decoder_input_ids": targets["input_ids"],
        "decoder_attention_mask": targets["attention_mask"],
    }


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "blocked"])
@pytest.mark.parametrize("locality", NAMES)
@torch.no_grad()
def test_padding_on_the_left_and_on_the_right_give_the_same_logits(locality, implementation):
    model = tiny_model(attn_implementation=implementation, **LOCALITIES[locality])
    right = batch()
    left = {name: shift_right(t, TARGETS if name.startswith("decoder") else LENGTHS) for name, t in right.items()}
    assert (left["input_ids"][1, :-4] == PAD).all()
    expected = model(**right, use_cache=False).logits
    found = model(**left, use_cache=False).logits
    for row, length in enumerate(TARGETS):
        torch.testing.assert_close(found[row, -length:], expected[row, :length], rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_translation_does_not_notice_where_its_padding_stands():
    model = tiny_model(**LOCALITIES["everything, query"])
    right = padded_sources(LENGTHS)
    left = {name: shift_right(tensor, LENGTHS) for name, tensor in right.items()}
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "num_beams": 2, "no_repeat_ngram_size": 1}
    assert torch.equal(model.generate(**left, **options), model.generate(**right, **options))


@pytest.mark.parametrize(("length", "offset"), [(6, 0), (1, 12), (5, 30)])
def test_sinusoids_start_at_the_first_real_token(length, offset):
    positions = SinusoidalPositionalEmbedding(20, 8)
    first = torch.tensor([0, 2, 5])
    found = positions(length, offset, first)
    places = torch.arange(offset, offset + length)
    expected = positions.create_weight(40)[(places - first[:, None]).clamp(min=0)]
    assert torch.equal(found, expected)
    assert torch.equal(positions(length, torch.tensor(offset), first), expected)


class _OnDevice(TorchDispatchMode):
    """Holds every result of an operation to a device."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        assert result.device.type == "meta", f"{function} gave a tensor on {result.device}"
        return result


@pytest.mark.parametrize("offset", [3, 19, 40])
def test_sinusoids_are_computed_where_the_model_is(offset):
    """In the table and past it: no step of generation waits for the host."""
    positions = SinusoidalPositionalEmbedding(20, 8).to("meta")
    with _OnDevice():
        assert positions(3, offset).device.type == "meta"
