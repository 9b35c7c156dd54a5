# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import pytest
import torch
from matplotlib.image import imread
from tiny import CSAN_SIZES

from csan_hf import CsanConfig, CsanModel, PervasiveAttentionConfig, PervasiveAttentionModel
from csan_hf.hub.locality_picture import draw_locality, plot_locality
from csan_hf.hub.locality_reach import attention_reaches, grid_reach, is_drawn

LENGTH = 9


def csan(**overrides):
    return CsanConfig(**{**CSAN_SIZES, "encoder_layers": 3, **overrides})


class Dependence:
    """Which values an attention's outputs depend on, before its heads are mixed: by gradient."""

    def __init__(self, attention, num_heads):
        attention.v_proj.register_forward_hook(self.keep_values)
        attention.out_proj.register_forward_pre_hook(self.keep_outputs)
        self.num_heads = num_heads

    def keep_values(self, module, inputs, output):
        self.values = output.requires_grad_()

    def keep_outputs(self, module, inputs):
        self.outputs = inputs[0]

    def of(self, head, position):
        """[H, J]: whether a query's output depends on a value."""
        width = self.outputs.shape[-1] // self.num_heads
        output = self.outputs[0, position].view(self.num_heads, width)[head]
        [gradient] = torch.autograd.grad(output.sum(), self.values, retain_graph=True)
        return gradient.reshape(-1, self.num_heads, width).abs().sum(-1).T > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"local_window": None, "head_area": 1},
        {"local_window": 3, "head_area": 3, "localness_layers": [1]},
        {"local_window": 3, "head_area": 5, "decoder_localness_layers": [0]},
        {
            "local_window": 3,
            "head_area": 3,
            "head_boundary": "circular",
            "decoder_localness_layers": [0, 1],
        },
        {
            "local_window": None,
            "head_area": 3,
            "localness_window": "query",
            "cross_localness_layers": [1],
        },
        {
            "encoder_locality": [
                *({"bi_direct": True, **fields} for fields in ({}, {"window": 5, "head_area": 3})),
                {"neighbor": True},
            ]
        },
    ],
)
def test_the_reach_is_the_model_s(fields):
    config = csan(**fields)
    model = CsanModel._from_config(config, attn_implementation="eager").eval()
    seen = {}
    for index, layer in enumerate(model.encoder.layers):
        seen["encoder", index] = Dependence(layer.self_attn, 4)
    for index, layer in enumerate(model.decoder.layers):
        seen["decoder", index] = Dependence(layer.self_attn, 4)
        seen["cross", index] = Dependence(layer.encoder_attn, 4)
    ids = torch.arange(LENGTH)[None] + 2
    model(input_ids=ids, decoder_input_ids=ids, use_cache=False)
    for reach in attention_reaches(config, length=LENGTH):
        head, _ = reach.query
        for layer in reach.layers:
            dependence = seen.pop((reach.part, layer))
            assert torch.equal(dependence.of(*reach.query), reach.heads > 0), reach
            positions = [dependence.of(head, position)[head] for position in range(LENGTH)]
            assert torch.equal(torch.stack(positions), reach.positions > 0), reach
    assert not seen, "every layer is in one reach"


def test_a_text_is_drawn_with_lines():
    config = CsanConfig.preset("lines", **{**CSAN_SIZES, "encoder_layers": 3})
    [cross] = [reach for reach in attention_reaches(config, length=12) if reach.part == "cross"]
    line = torch.arange(12) // 3
    assert torch.equal(cross.positions > 0, line[:, None] == line)


@pytest.mark.parametrize(("layers", "kernel"), [(1, 3), (2, 3), (1, 5), (2, 5), (2, 1)])
def test_the_receptive_field_is_the_model_s(layers, kernel):
    config = PervasiveAttentionConfig(
        vocab_size=9,
        source_embed_dim=16,
        target_embed_dim=16,
        num_layers=layers,
        growth_rate=8,
        kernel_size=kernel,
    )
    decoder = PervasiveAttentionModel(config).double().eval().decoder
    target, source = (
        torch.randn(1, 13, 16, dtype=torch.double, requires_grad=True) for _ in range(2)
    )
    grid = decoder(
        inputs_embeds=target, encoder_hidden_states=source, output_attentions=True
    ).details
    gradients = torch.autograd.grad(grid[0, 7, 6].square().sum(), (target, source))
    rows, columns = (
        gradient[0].abs().sum(-1).nonzero().flatten().tolist() for gradient in gradients
    )
    reach = grid_reach(config)
    radius = reach.shape[0] - 1
    assert rows == list(range(7 - radius, 8))
    assert columns == list(range(6 - radius, 6 + radius + 1))
    assert reach.shape[1] == 2 * radius + 1
    assert reach.max() == (layers if kernel > 1 else 0)
    assert (reach == 0).sum() == 1
    assert reach[-1, radius] == 0


@pytest.mark.parametrize(
    ("config", "titles"),
    [
        (csan(), ["layers 1, 2, 3 of 3: window (size 11), head area (size 3, boundary mask)", 2]),
        (
            csan(
                localness_window="fixed", local_window=None, head_area=1, cross_localness_layers=[0]
            ),
            ["drawn around i + 2, 10 wide", "drawn around i, 10 wide", 2],
        ),
        (
            csan(
                localness_window="layer",
                localness_layers=[0],
                decoder_localness_layers=[1],
                local_window=3,
            ),
            ["boundary mask)\ngaussian", "no later tokens\ngaussian", 3],
        ),
        (PervasiveAttentionConfig(num_layers=4).to_dict(), []),
        (
            csan(local_window=5, architectures=["CsanForSequenceClassification"]),
            ["window (size 5)", 0],
        ),
    ],
)
def test_the_picture_says_what_it_shows(config, titles, tmp_path):
    picture = tmp_path / "new" / "locality.png"
    draw_locality(config, picture)
    assert min(imread(picture).shape[:2]) > 300
    figure = plot_locality(config)
    *titles, not_local = titles or [0]
    for row, title in zip(figure.subfigs, titles, strict=True):
        assert title in row.get_suptitle()
    named = figure.legends[0].get_title().get_text().splitlines()
    assert len(named) == not_local
    assert all("all earlier tokens" in line or "the whole sentence" in line for line in named)
    assert is_drawn(config)


def test_models_of_transformers_are_not_drawn(tmp_path):
    assert not is_drawn({"model_type": "marian"})
    with pytest.raises(ValueError, match="'marian' cannot be drawn"):
        draw_locality({"model_type": "marian"}, tmp_path / "a.png")


def test_pictures_differ_where_models_do():
    alone, neighbours = (
        attention_reaches(csan(head_area=area), length=LENGTH)[0].areas for area in (1, 3)
    )
    heads = torch.arange(4)
    assert torch.equal(alone, torch.eye(4))
    assert torch.equal(neighbours, ((heads[:, None] - heads).abs() < 2).float())
    plain = csan(local_window=None, head_area=1)
    assert not is_drawn(plain)
    with pytest.raises(ValueError, match="Nothing of this model is local"):
        plot_locality(plain)
