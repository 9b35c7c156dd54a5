# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Statistics of the encoder's attention, counted by hand on tiny models."""

import sys

import numpy as np
import pytest
import tiny
import torch

from csan_hf.lab.analysis.attention_statistics import (
    area_usage,
    attention_statistics,
    learned_windows,
)
from csan_hf.lab.report.plots import attention_plots

SENTENCES = ["the number is twenty-one.", "one two", "", "three"]
MODULE = sys.modules[attention_statistics.__module__]  # whose name is the function's, too


def make_model(tokenizers, **options):
    sizes = {"d_model": 16, "decoder_layers": 1, "encoder_attention_heads": 2}
    locality = {"local_window": None, "head_area": 1, "localness_layers": [0, 1]}
    if "encoder_locality" in options:
        locality = {**tiny.PLAIN, "localness_layers": None}
    return tiny.csan(vocab_size=len(tokenizers.source), **{**sizes, **locality, **options})


@pytest.fixture
def two_at_a_time(monkeypatch):
    # 2 · 25², for two as long as the longest
    monkeypatch.setattr(MODULE, "BATCH_CELLS", 1250)


def single(model, tokenizers, text):
    """The eager weights of one sentence, [layers, H, I, J], without padding."""
    model.eval().set_attn_implementation("eager")
    ids = torch.tensor([tokenizers.source(text)["input_ids"]])
    with torch.no_grad():
        outputs = model(input_ids=ids, decoder_input_ids=ids[:, :1], output_attentions=True)
    return torch.stack(outputs.encoder_attentions)[:, 0].double().numpy()


def test_mass_by_distance_and_entropy(tokenizers, two_at_a_time):
    model = make_model(tokenizers).train()
    statistics = attention_statistics(model, tokenizers, SENTENCES, distance=2)
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    mass = np.zeros((2, 2, 4))
    entropy = np.zeros((2, 2))
    queries = 0
    for text in filter(None, SENTENCES):
        weights = single(model, tokenizers, text)
        queries += weights.shape[2]
        for i in range(weights.shape[2]):
            for j in range(weights.shape[3]):
                mass[:, :, min(abs(j - i), 3)] += weights[:, :, i, j]
                entropy -= weights[:, :, i, j] * np.log(weights[:, :, i, j])
    assert statistics.queries == queries
    assert statistics.mass == pytest.approx(mass / queries, abs=1e-6)
    assert statistics.mass.sum(axis=2) == pytest.approx(1)
    assert statistics.entropy == pytest.approx(entropy / queries, abs=1e-6)


def test_an_encoder_without_attention_is_named(tokenizers):
    with pytest.raises(ValueError, match=r"RnnSearch.* gives no encoder_attentions"):
        attention_statistics(
            tiny.recurrent(vocab_size=len(tokenizers.source)), tokenizers, SENTENCES
        )


def test_learned_windows(tokenizers, two_at_a_time):
    model = make_model(tokenizers, localness_window="query", localness_layers=[1])
    windows = learned_windows(model, tokenizers, SENTENCES)
    assert windows.layers == [1]
    tokens = sum(len(tokenizers.source(text)["input_ids"]) for text in filter(None, SENTENCES))
    assert windows.widths[0].shape == windows.offsets[0].shape == (2, tokens)
    # Alone, without padding: the longest sentence comes first
    ids = torch.tensor([tokenizers.source(SENTENCES[0])["input_ids"]])
    [localness] = (m for m in model.modules() if type(m).__name__ == "GaussianLocalness")
    outputs = []
    localness.register_forward_hook(lambda module, arguments, output: outputs.append(output))
    with torch.no_grad():
        model.eval().get_encoder()(input_ids=ids)
    [term] = outputs
    positions = np.arange(ids.shape[1])
    width = windows.widths[0][:, : len(positions)]
    offset = windows.offsets[0][:, : len(positions)]
    assert width == pytest.approx(term.width[0].numpy(), rel=1e-5)
    assert offset == pytest.approx(term.center[0].numpy() - positions, abs=1e-5)


def test_a_model_without_centres_has_no_windows(tokenizers):
    assert learned_windows(make_model(tokenizers, local_window=3), tokenizers, SENTENCES) is None


def test_windows_of_any_method_that_says_where_a_query_looks(tokenizers):
    """A Gaussian around the query has its middle there; a width that is fixed is the same
    everywhere.
    """
    locality = [{"neighbor": True}, {"local_hard": 4.0, "window": 5}]
    model = make_model(tokenizers, encoder_locality=locality)
    windows = learned_windows(model, tokenizers, SENTENCES)
    assert windows.layers == [0, 1]
    assert not windows.offsets[0].any()
    assert (windows.widths[1] == 4).all()


def test_widths_of_heads(tokenizers):
    model = make_model(tokenizers, localness_window="head")
    for name, parameter in model.named_parameters():
        if name.endswith("head_window"):
            torch.nn.init.zeros_(parameter)
    for widths in learned_windows(model, tokenizers, SENTENCES).widths:
        assert widths == pytest.approx(25)  # 50 · sigmoid(0)


@pytest.mark.parametrize("locality", [{"block": {"length": 2}}, {"head_area": 3}])
def test_plots_of_few_dimensions_and_of_blocks(tokenizers, locality):
    model = make_model(tokenizers, encoder_locality=[locality, None], encoder_attention_heads=8)
    plots = attention_plots(model, tokenizers, SENTENCES)
    assert [plot.name for plot in plots] == ["distance", "entropy"]


def test_without_an_area_a_head_takes_from_itself(tokenizers):
    usage = area_usage(make_model(tokenizers), tokenizers, SENTENCES)
    assert list(usage) == [0, 1]
    assert usage[0] == pytest.approx(np.eye(2), abs=1e-6)


def test_a_block_replaces_the_attention(tokenizers):
    model = make_model(tokenizers, encoder_locality=[{"block": {"length": 2}}, None])
    assert list(area_usage(model, tokenizers, SENTENCES)) == [1]


def test_area_usage_is_that_of_the_joint_softmax(tokenizers):
    model = make_model(tokenizers, head_area=3, localness_layers=[0])
    attention = model.get_encoder().layers[0].self_attn
    projected = []  # queries and keys, [T, H, D] each
    for projection in (attention.q_proj, attention.k_proj):
        projection.register_forward_hook(
            lambda module, inputs, output: projected.append(output[0].unflatten(-1, (2, 8)))
        )
    usage = area_usage(model, tokenizers, ["one two three"])[0]
    query, key = projected[:2]
    energies = torch.einsum("ihd,jsd->hisj", query, key) / 8**0.5
    weights = energies.flatten(2).softmax(dim=-1).unflatten(-1, energies.shape[2:])
    assert usage == pytest.approx(weights.sum(dim=-1).mean(dim=1).numpy(), abs=1e-5)
    assert abs(usage[0, 0] - 0.5) > 0.01  # or the comparison would say little
