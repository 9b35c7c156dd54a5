# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The table of model families: a new one needs no other file of the package."""

import json

import pytest
from transformers import AutoModelForSeq2SeqLM, MarianConfig, MarianMTModel
from transformers.models.auto import configuration_auto, modeling_auto

from csan_hf.families import FAMILIES, ModelFamily
from csan_hf.training import RecipeError, load_recipe, train_from_recipe
from csan_hf.training.dry_run import dry_run

RECIPE = """
model: echo
config: {d_model: 8, echoes: 3, encoder_layers: 1, decoder_layers: 1, encoder_ffn_dim: 8, decoder_ffn_dim: 8,
         encoder_attention_heads: 2, decoder_attention_heads: 2}
data: {dataset: numbers, train_size: 40, validation_size: 4, test_size: 2}
tokenizer: {vocab_size: 300}
training: {max_steps: 2, eval_steps: 2, report_to: none, bf16: false, max_tokens: 5, max_cells: 5000, warmup_steps: 1,
           generation_num_beams: 1, average_best: false}
generation: {num_beams: 1, max_length: 5}
"""


class EchoConfig(MarianConfig):
    """Marian's configuration.

    Args:
        echoes: how often everything is said.
    """

    model_type = "echo"
    echoes: int = 1


class EchoModel(MarianMTModel):
    """Marian's network."""

    config_class = EchoConfig


def describe(config, task):
    return {"kind": f"Echo of {config['echoes']}", "papers": []}


def draw(config, length, parts):
    from matplotlib.figure import Figure

    return Figure(figsize=(1, 1))


def from_marian(name, **fields):
    return EchoModel(EchoConfig(**{**MarianConfig.from_pretrained(name).to_diff_dict(), **fields}))


@pytest.fixture
def echo(monkeypatch):
    for mapping in (configuration_auto.CONFIG_MAPPING, modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING):
        monkeypatch.setattr(mapping, "_extra_content", dict(mapping._extra_content))
    family = ModelFamily(
        module=__name__,
        config="EchoConfig",
        classes={"AutoModelForSeq2SeqLM": "EchoModel"},
        batch_cost="cells",
        tag="echoing",
        describe=f"{__name__}:describe",
        draw=f"{__name__}:draw",
        converters={"marian": f"{__name__}:from_marian"},
    )
    monkeypatch.setitem(FAMILIES, "echo", family)
    family.register()
    return family


def test_a_new_family_is_one_entry(echo, tmp_path, monkeypatch):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    recipe = load_recipe(tmp_path / "recipe.yaml", [("output_dir", str(tmp_path / "run"))])
    assert "EchoModel" in dry_run(recipe)
    results = train_from_recipe(recipe)
    assert results["model"] == "EchoModel"
    assert json.loads((tmp_path / "run" / "config.json").read_text())["echoes"] == 3
    assert type(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run")) is EchoModel
    card = (tmp_path / "run" / "README.md").read_text()
    assert "Echo of 3" in card
    assert "echoing" in card
    assert (tmp_path / "run" / "locality.png").is_file()


def test_a_misspelt_family_or_key_suggests_the_new_one(echo):
    with pytest.raises(RecipeError, match="one of csan, echo, pervasive_attention, got 'eco'"):
        load_recipe(None, [("model", "eco")])
    with pytest.raises(RecipeError, match=r"Did you mean config\.echoes\?"):
        load_recipe(None, [("model", "echo"), ("echos", "2")])


def test_every_family_can_be_imported():
    for family in FAMILIES.values():
        assert family.config_class.model_type in FAMILIES
        assert issubclass(family.model_class, AutoModelForSeq2SeqLM._model_mapping[family.config_class])
