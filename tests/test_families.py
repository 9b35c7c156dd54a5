# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The table of model families: a new one needs no other file of the package."""

import json

import pytest
from torch import nn
from transformers import AutoModelForSeq2SeqLM
from transformers.models.auto import configuration_auto, modeling_auto

from csan_hf.families import FAMILIES, ModelFamily
from csan_hf.models.configuration_seq2seq import Seq2SeqConfig, bounded
from csan_hf.models.encoder_decoder import FeatureDecoder, FeatureEncoder, make_feature_cache
from csan_hf.models.seq2seq_model import Seq2SeqForGeneration, Seq2SeqModel, Seq2SeqPreTrained
from csan_hf.training import RecipeError, load_recipe, train_from_recipe
from csan_hf.training.dry_run import dry_run

RECIPE = """
model: echo
config: {width: 8, echoes: 3}
data: {dataset: numbers, train_size: 40, validation_size: 4, test_size: 2}
tokenizer: {vocab_size: 300}
training: {max_steps: 2, eval_steps: 2, report_to: none, bf16: false, max_tokens: 5, max_cells: 5000, warmup_steps: 1,
           generation_num_beams: 1, average_best: false}
generation: {num_beams: 1, max_length: 5}
"""


class EchoConfig(Seq2SeqConfig):
    """A recurrent decoder (Cho et al., 2014) that begins with the sum of the source's words.

    Args:
        width: Of embeddings and states.
        echoes: How often everything is said.
    """

    model_type = "echo"
    width: int = bounded(8, 1)
    echoes: int = 1
    dropout: float = 0.0


class EchoPreTrained(Seq2SeqPreTrained):
    config_class = EchoConfig
    base_model_prefix = "model"


class EchoEncoder(EchoPreTrained, FeatureEncoder):
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.post_init()

    def encode(self, embeddings, mask):
        real = embeddings if mask is None else embeddings * mask[..., None]
        return real.cumsum(dim=1), ()


class EchoDecoder(EchoPreTrained, FeatureDecoder):
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.decoder_vocab_size, config.width)
        self.rnn = nn.GRU(config.width, config.width, batch_first=True)
        self.post_init()

    def make_cache(self):
        return make_feature_cache(num_layers=1, num_positions=1)

    def decode(self, embeddings, mask, source, source_mask, cache):
        state = source[:, -1]
        if cache is not None and cache.get_seq_length():
            state = cache.layers[0].keys[:, 0, -1]
        states, _ = self.rnn(embeddings, state[None].contiguous())
        if cache is not None:
            cache.update(states[:, None], states[:, None, :, :0], 0)
        return states, (), ()


class EchoBase(EchoPreTrained, Seq2SeqModel):
    def __init__(self, config):
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.width)
        self.encoder = EchoEncoder(config)
        self.decoder = EchoDecoder(config)
        self.post_init()


class EchoModel(EchoPreTrained, Seq2SeqForGeneration):
    def __init__(self, config):
        super().__init__(config)
        self.model = EchoBase(config)
        self.lm_head = nn.Linear(config.width, config.decoder_vocab_size)
        self.post_init()


def describe(config, task):
    return {"kind": f"Echo of {config['echoes']}", "papers": []}


def draw(config):
    from matplotlib.figure import Figure

    return Figure(figsize=(1, 1))


def test_a_new_family_is_one_entry(tmp_path, monkeypatch):
    for mapping in (
        configuration_auto.CONFIG_MAPPING,
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    ):
        monkeypatch.setattr(mapping, "_extra_content", dict(mapping._extra_content))
    classes = {"AutoModelForSeq2SeqLM": "EchoModel"}
    pictures = {"describe": f"{__name__}:describe", "draw": f"{__name__}:draw"}
    family = ModelFamily(
        __name__, "EchoConfig", classes, batch_cost="cells", tag="echoing", **pictures
    )
    monkeypatch.setitem(FAMILIES, "echo", family)
    family.register()
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
    with pytest.raises(
        RecipeError,
        match=r"one of conv_s2s, csan, echo, pervasive_attention, rnnsearch, or .*, got 'eco'",
    ):
        load_recipe(None, [("model", "eco")])
    with pytest.raises(RecipeError, match=r"Did you mean config\.echoes\?"):
        load_recipe(None, [("model", "echo"), ("echo", "2")])
