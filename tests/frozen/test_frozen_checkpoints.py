# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints made by an earlier version still load, and still answer what they answered: see
README.md.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    pipeline,
)

from csan_hf.families import FAMILIES
from csan_hf.models.locality import PARTS
from csan_hf.models.short_form import SHORT_FIELDS
from csan_hf.pipelines import TASK
from csan_hf.training.checkpoints import load_weights, read_weights

FIXTURES = Path(__file__).parent
# Written anew by whoever saves: no part of the model
NOT_KEPT = {"transformers_version", "sinusoids"}
# What is local is kept layer by layer
NOT_KEPT |= SHORT_FIELDS.keys() | {f"{part}_locality" for part in PARTS}
every_family = pytest.mark.parametrize("family", FAMILIES)


def load(family):
    model, report = AutoModelForSeq2SeqLM.from_pretrained(
        FIXTURES / family, output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), (
        report
    )
    return model


def recorded(family):
    expected = json.loads((FIXTURES / family / "expected.json").read_text(encoding="utf-8"))
    batch = {
        name: torch.tensor(expected[name]) for name in ("input_ids", "attention_mask", "labels")
    }
    return batch, torch.tensor(expected["logits"]), expected["sentences"], expected["translations"]


@every_family
@torch.no_grad()
def test_logits_are_those_of_old(family):
    model = load(family)
    assert type(model) is FAMILIES[family].model_class
    assert model.dtype == torch.float32
    batch, logits, _, _ = recorded(family)
    torch.testing.assert_close(model(**batch).logits, logits, rtol=1e-5, atol=1e-5)


@every_family
def test_translations_are_those_of_old(family):
    _, _, sentences, translations = recorded(family)
    translate = pipeline(TASK, model=str(FIXTURES / family), device="cpu")
    assert translate.model.generation_config.num_beams == 3, "what the checkpoint says"
    assert len(set(translations)) == len(sentences) == 4
    for options in ({}, {"batch_size": 4}, {"use_cache": False}, {"num_beams": 1}):
        assert [
            result["translation_text"] for result in translate(sentences, **options)
        ] == translations, options


@every_family
def test_every_field_of_the_config_is_kept(family, tmp_path):
    written = json.loads((FIXTURES / family / "config.json").read_text())
    config = AutoConfig.from_pretrained(FIXTURES / family)
    read = config.to_dict()
    kept = {name: value for name, value in written.items() if name not in NOT_KEPT}
    assert len(kept) > 20
    assert {name: read.get(name, "is missing") for name in kept} == kept
    config.save_pretrained(tmp_path)
    again = json.loads((tmp_path / "config.json").read_text())
    assert {name: again.get(name, "is missing") for name in kept} == kept


@every_family
def test_every_weight_of_the_checkpoint_is_kept(family, tmp_path):
    load(family).save_pretrained(tmp_path)
    old, new = (load_file(folder / "model.safetensors") for folder in (FIXTURES / family, tmp_path))
    assert new.keys() == old.keys()
    for name, tensor in old.items():
        assert new[name].dtype == tensor.dtype
        assert torch.equal(new[name], tensor), name


@every_family
def test_its_weights_load_into_a_model_that_is_there(family):
    """As a resumed run loads them."""
    expected = load(family)
    model = type(expected)(expected.config)
    load_weights(model, read_weights(FIXTURES / family))
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)
