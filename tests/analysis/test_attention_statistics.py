# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What the encoder's attention does, counted by hand on tiny models."""

import sys

import numpy as np
import pytest
import tiny
import torch
from matplotlib.colors import to_rgb

from csan_hf.analysis.attention_statistics import area_usage, attention_statistics, learned_windows
from csan_hf.analysis.figures import (
    COLOURS,
    SYSTEMS,
    new_figure,
    plot_area_usage,
    save_figure,
    share_heights,
    styles_of,
)
from csan_hf.report.plots import attention_plots

SENTENCES = ["the number is twenty-one.", "one two", "", "three"]


def make_model(tokenizers, **options):
    sizes = {
        "d_model": 16,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "localness_layers": [0, 1],
    }
    return tiny.csan(
        vocab_size=len(tokenizers.source),
        **{**sizes, "local_window": None, "head_area": 1, **options},
    )


def single(model, tokenizers, text):
    """The eager weights of one sentence, [layers, H, I, J], without padding."""
    model.eval().set_attn_implementation("eager")
    ids = torch.tensor([tokenizers.source(text)["input_ids"]])
    with torch.no_grad():
        outputs = model(input_ids=ids, decoder_input_ids=ids[:, :1], output_attentions=True)
    return torch.stack(outputs.encoder_attentions)[:, 0].double().numpy()


def test_mass_by_distance_and_entropy(tokenizers):
    model = make_model(tokenizers).train()
    found = attention_statistics(model, tokenizers, SENTENCES, distance=2, batch_size=2)
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    mass, entropy, queries = np.zeros((2, 2, 4)), np.zeros((2, 2)), 0
    for text in filter(None, SENTENCES):
        weights = single(model, tokenizers, text)
        queries += weights.shape[2]
        for i in range(weights.shape[2]):
            for j in range(weights.shape[3]):
                mass[:, :, min(abs(j - i), 3)] += weights[:, :, i, j]
                entropy -= weights[:, :, i, j] * np.log(weights[:, :, i, j])
    assert found.queries == queries
    assert found.mass == pytest.approx(mass / queries, abs=1e-6)
    assert found.mass.sum(axis=2) == pytest.approx(1)
    assert found.entropy == pytest.approx(entropy / queries, abs=1e-6)


def test_learned_windows(tokenizers):
    model = make_model(tokenizers, localness_window="query", localness_layers=[1])
    found = learned_windows(model, tokenizers, SENTENCES, batch_size=2)
    assert found.layers == [1]
    lengths = sorted(len(tokenizers.source(text)["input_ids"]) for text in filter(None, SENTENCES))
    assert found.widths[0].shape == (2, sum(lengths))
    assert (found.shares[0] > 0).all()
    assert (found.shares[0] < 1).all()  # D = L · sigmoid(z)
    # Alone, without padding: the shortest sentence comes first
    shortest = min(filter(None, SENTENCES), key=len)
    ids = torch.tensor([tokenizers.source(shortest)["input_ids"]])
    localness = next(
        module for module in model.modules() if type(module).__name__ == "GaussianLocalness"
    )
    outputs = []
    with (
        localness.register_forward_hook(lambda module, arguments, output: outputs.append(output)),
        torch.no_grad(),
    ):
        model.eval().get_encoder()(input_ids=ids)
    positions = np.arange(ids.shape[1])
    assert found.widths[0][:, : len(positions)] == pytest.approx(
        outputs[0].width[0].numpy(), rel=1e-5
    )
    assert found.offsets[0][:, : len(positions)] == pytest.approx(
        outputs[0].center[0].numpy() - positions, abs=1e-5
    )
    assert learned_windows(make_model(tokenizers, local_window=3), tokenizers, SENTENCES) is None


def test_windows_of_any_method_that_says_where_a_query_looks(tokenizers):
    """A Gaussian around the query has its middle there; a width that is fixed is the same
    everywhere.
    """
    locality = {
        "localness_layers": None,
        "encoder_locality": [{"neighbor": True}, {"local_hard": 4.0, "window": 5}],
    }
    found = learned_windows(make_model(tokenizers, **locality), tokenizers, SENTENCES)
    assert found.layers == [0, 1]
    assert not found.offsets[0].any()
    assert (found.widths[1] == 4).all()
    model = make_model(tokenizers, localness_window="head")
    for parameter in (
        own for name, own in model.named_parameters() if name.endswith("head_window")
    ):
        torch.nn.init.zeros_(parameter)
    for layer in learned_windows(model, tokenizers, SENTENCES).widths:
        assert layer == pytest.approx(25)  # 50 · sigmoid(0)


@pytest.mark.parametrize("locality", [{"block": {"length": 2}}, {"head_area": 3}])
def test_plots_of_few_dimensions_and_of_blocks(tokenizers, locality):
    options = {
        "localness_layers": None,
        "encoder_locality": [locality, None],
        "encoder_attention_heads": 8,
    }
    plots = attention_plots(make_model(tokenizers, **options), tokenizers, SENTENCES)
    assert [plot.name for plot in plots] == ["distance", "entropy"]


def test_area_usage_of_real_weights(tokenizers):
    """Without an area none, and against the joint softmax written out for one sentence."""
    alone = area_usage(make_model(tokenizers), tokenizers, SENTENCES)
    assert list(alone) == [0, 1]
    assert alone[0] == pytest.approx(np.eye(2), abs=1e-6)
    block = make_model(
        tokenizers, localness_layers=None, encoder_locality=[{"block": {"length": 2}}, None]
    )
    assert list(area_usage(block, tokenizers, SENTENCES)) == [1], "a block replaces the attention"
    model, caught = make_model(tokenizers, head_area=3, localness_layers=[0]), {}
    for name in ("q_proj", "k_proj"):
        projection = getattr(model.get_encoder().layers[0].self_attn, name)
        projection.register_forward_hook(
            lambda m, a, output, name=name: caught.update({name: output})
        )
    found = area_usage(model, tokenizers, ["one two three"])[0]
    query, key = (
        caught[name][0].unflatten(-1, (2, 8)) for name in ("q_proj", "k_proj")
    )  # [T, H, D]
    energies = torch.einsum("ihd,jsd->hisj", query, key) / 8**0.5
    weights = energies.flatten(2).softmax(dim=-1).unflatten(-1, energies.shape[2:])
    assert found == pytest.approx(weights.sum(dim=-1).mean(dim=1).numpy(), abs=1e-5)
    assert abs(found[0, 0] - 0.5) > 0.01  # or the comparison would say little


def test_numbers_stand_out_from_their_cells(tmp_path):
    shares = np.linspace(0.02, 0.98, 16).reshape(4, 4)
    figure = plot_area_usage({0: shares})
    [image] = figure.axes[0].images

    def luminance(colour):
        linear = [
            v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in to_rgb(colour)
        ]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    for text, share in zip(figure.axes[0].texts, shares.flat, strict=True):
        dark, light = sorted(
            [luminance(text.get_color()), luminance(image.to_rgba(100 * share)[:3])]
        )
        assert (light + 0.05) / (dark + 0.05) >= 4.5
    save_figure(figure, tmp_path / "area.svg")
    assert "fill: #ffffff" in (tmp_path / "area.svg").read_text()  # a colour is no identifier


def test_long_sentences_are_measured_a_few_at_a_time(tokenizers, monkeypatch):
    model, sizes = make_model(tokenizers), []
    texts = ["one two", "x", "the number is twenty-one.", "one two", "one two"]
    together = attention_statistics(model, tokenizers, texts)
    model.get_encoder().register_forward_pre_hook(
        lambda _, args, inputs: sizes.append(len(inputs["input_ids"])), with_kwargs=True
    )
    # 2 · 7², for two of "one two"
    monkeypatch.setattr(sys.modules["csan_hf.analysis.attention_statistics"], "BATCH_CELLS", 98)
    alone = attention_statistics(model, tokenizers, texts)
    assert sizes == [2, 2, 1]
    assert alone.mass == pytest.approx(together.mass, abs=1e-6)


def test_systems_are_told_apart_also_without_red_or_green():
    systems = styles_of([*SYSTEMS, "mine", "yours"])
    assert len({tuple(style.items()) for style in systems.values()}) == len(SYSTEMS) + 2
    assert styles_of(["yours", "CNN", "mine"])["CNN"] == systems["CNN"]
    # Machado et al. (2009): complete deuteranopia and protanopia, on linear RGB
    deutan = [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ]
    protan = [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ]
    to_xyz = [[0.412, 0.358, 0.180], [0.213, 0.715, 0.072], [0.019, 0.119, 0.950]]
    colours = np.array([to_rgb(colour) for colour in COLOURS])
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    for seen in (np.eye(3), np.array(deutan), np.array(protan)):
        x, y, z = np.cbrt((linear @ seen.T).clip(0, 1) @ np.transpose(to_xyz) / [0.95, 1, 1.089]).T
        lab = np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)
        distances = np.linalg.norm(lab[:, None] - lab[None], axis=2)
        assert distances[~np.eye(len(lab), dtype=bool)].min() > 10  # 2.3 are just seen


def test_figures_that_are_compared_have_one_range():
    figures = [new_figure(), new_figure()]
    for figure, bounds in zip(figures, ((0, 2), (-1, 1)), strict=True):
        figure.add_subplot().set_ylim(bounds)
    share_heights(figures)
    assert [figure.axes[0].get_ylim() for figure in figures] == [(-1, 2), (-1, 2)]
