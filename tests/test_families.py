# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The table of model families: a new one needs no other file of the package."""

import json

import pytest
from torch import nn
from transformers import AutoModelForSeq2SeqLM
from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.models.auto import configuration_auto, modeling_auto

from csan_hf.families import FAMILIES, ModelFamily
from csan_hf.models.configuration_seq2seq import Seq2SeqConfig, bounded
from csan_hf.models.layers import embed
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


class EchoPreTrained(Seq2SeqPreTrained):
    config_class = EchoConfig
    base_model_prefix = "model"


class EchoEncoder(EchoPreTrained):
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None, **kwargs):
        embeddings = embed(self.embed_tokens, input_ids, inputs_embeds)
        real = embeddings if attention_mask is None else embeddings * attention_mask[..., None]
        return BaseModelOutput(last_hidden_state=real.cumsum(dim=1))


class EchoDecoder(EchoPreTrained):
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.decoder_vocab_size, config.width)
        self.rnn = nn.GRU(config.width, config.width, batch_first=True)
        self.post_init()

    def forward(
        self, input_ids=None, attention_mask=None, encoder_hidden_states=None, encoder_attention_mask=None,
        cache=None, inputs_embeds=None, use_cache=None, **kwargs,
    ):  # fmt: skip
        embeddings = embed(self.embed_tokens, input_ids, inputs_embeds, prefix="decoder_")
        state = encoder_hidden_states[:, -1]
        if cache is not None and cache.get_seq_length():
            state = cache.self_attention_cache.layers[0].keys[:, 0, -1]
        states, _ = self.rnn(embeddings, state[None].contiguous())
        if cache is not None:
            cache.self_attention_cache.update(states[:, None], states[:, None], 0)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=states, cache=cache)


class EchoBase(EchoPreTrained, Seq2SeqModel):
    def __init__(self, config):
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.width)
        self.encoder, self.decoder = EchoEncoder(config), EchoDecoder(config)
        self.post_init()


class EchoModel(EchoPreTrained, Seq2SeqForGeneration):
    def __init__(self, config):
        super().__init__(config)
        self.model = EchoBase(config)
        self.lm_head = nn.Linear(config.width, config.decoder_vocab_size)
        self.post_init()

    def make_cache(self, num_beams):
        own = DynamicCache()
        own.layers.append(DynamicSlidingWindowLayer(2))  # keeps one state, the last
        return EncoderDecoderCache(own, DynamicCache())


def describe(config, task):
    return {"kind": f"Echo of {config['echoes']}", "papers": []}


def draw(config, length):
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
        load_recipe(None, [("model", "echo"), ("echos", "2")])
