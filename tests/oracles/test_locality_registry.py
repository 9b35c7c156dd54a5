# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Locality methods from outside the package."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from tiny import PLAIN, padded_sources
from tiny import csan as tiny_model

from csan_hf import CsanConfig
from csan_hf.hub.locality_picture import draw_locality
from csan_hf.hub.locality_reach import attention_reaches
from csan_hf.hub.network_text import describe_locality, short_name
from csan_hf.models import locality
from csan_hf.models.attention_call import Term
from csan_hf.models.locality import LocalityMethod, LocalityModule, register_locality

# An eighth method, as somebody else would add it: even heads see keys of one parity alone, with a
# learned preference.


@dataclass
class StridedTerm(Term):
    strength: torch.Tensor  # [H]
    step: int

    def visible(self, cells):
        return (cells.distance % self.step == 0) | (cells.head % 2 == 1)

    def energy(self, cells):
        strength = cells.of_query(self.strength[None, :, None])
        return -strength * (cells.key_position - cells.query_position).abs()


class StridedModule(LocalityModule):
    def __init__(self, heads):
        super().__init__()
        self.strength = torch.nn.Parameter(torch.zeros(heads))


@dataclass(frozen=True)
class Strided(LocalityMethod):
    step: int
    key: ClassVar[str] = "strided"

    def build(self, site):
        return StridedModule(site.num_heads)

    def term(self, module, call):
        return StridedTerm(module.strength, self.step)


@pytest.fixture
def registry(monkeypatch):
    """Names that are registered are forgotten afterwards."""
    monkeypatch.setattr(locality, "_REGISTRY", dict(locality._REGISTRY))


@pytest.fixture
def strided(registry):
    register_locality(Strided)
    return {**PLAIN, "encoder_locality": [{"strided": 2}, {"strided": {"step": 3}, "window": 5}]}


def test_a_method_from_outside_is_drawn_and_described(strided, tmp_path):
    """It is trained and saved in test_own_code.py."""
    config = tiny_model(**strided).config
    draw_locality(config, tmp_path / "picture.png")
    seen = attention_reaches(config, length=7)[0].positions > 0
    assert seen[0].tolist() == [True, False] * 3 + [True]
    assert "strided (step 2)" in " ".join(describe_locality(config.to_dict()))
    assert short_name(config.to_dict()) == "1D-CSAN (5) with strided"


@pytest.mark.parametrize("implementation", ["sdpa", "blocked", "flex_attention"])
@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*")
@torch.no_grad()
def test_every_backend_runs_a_method_from_outside(strided, implementation):
    sources = padded_sources((9, 4))
    models = [tiny_model(attn_implementation=name, **strided) for name in ("eager", implementation)]
    for model in models:
        model.model.encoder.layers[0].self_attn.strided.strength.fill_(0.3)
    real = sources["attention_mask"].bool()
    states = [model.get_encoder()(**sources).last_hidden_state[real] for model in models]
    torch.testing.assert_close(*states, rtol=1e-4, atol=1e-5)


def test_keys_are_taken_once():
    with pytest.raises(ValueError, match=r"'window'.* taken by Window"):
        register_locality(type("Other", (Strided,), {"key": "window"}))


def test_a_replacement_stands_alone(registry):
    @dataclass(frozen=True)
    class Averaging(LocalityMethod):
        key: ClassVar[str] = "averaging"

        def attend(self, module, states, padding):
            return states.mean(dim=1, keepdim=True).expand_as(states), None

        def before(self, module, states, padding):
            return states + 1

    register_locality(Averaging)
    with pytest.raises(ValueError, match=r"averaging`.*beside 'window'.*replaces the attention"):
        CsanConfig(encoder_layers=2, encoder_locality=[{"averaging": True, "window": 3}, None])
    for part in ("decoder", "cross"):
        with pytest.raises(ValueError, match=rf"{part}_locality\[0\].averaging.* no meaning in"):
            CsanConfig(decoder_layers=1, **{f"{part}_locality": [{"averaging": True}]})
    model = tiny_model(**{**PLAIN, "encoder_locality": [{"averaging": True}, None]})
    layer = model.model.encoder.layers[0]
    states = torch.randn(2, 5, 32)
    attended = layer.self_attn_layer_norm(states + 1 + (states + 1).mean(dim=1, keepdim=True))
    expected = layer.final_layer_norm(attended + layer.fc2(torch.relu(layer.fc1(attended))))
    torch.testing.assert_close(layer(states), expected)
    assert not hasattr(layer.self_attn, "q_proj")
