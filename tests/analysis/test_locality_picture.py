# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import pytest
import torch
from matplotlib.image import imread
from tiny import CSAN_SIZES

from csan_hf import CsanConfig, CsanModel, PervasiveAttentionConfig, PervasiveAttentionModel
from csan_hf.analysis import attention_reaches, draw_locality, grid_reach
from csan_hf.analysis.locality_picture import is_drawn, plot_locality

LENGTH = 9


def csan(**overrides):
    return CsanConfig(**{**CSAN_SIZES, "encoder_layers": 3, **overrides})


def record(attention, kept):
    """Keeps an attention module's values and what it makes of them, before the heads are mixed."""
    attention.v_proj.register_forward_hook(
        lambda module, inputs, output: kept.append(output.requires_grad_())
    )
    attention.out_proj.register_forward_hook(lambda module, inputs, output: kept.append(inputs[0]))


def seen_by(kept, query, num_heads):
    """[H, J]: the values that a query's output depends on, by gradient."""
    values, mixed = kept
    head, position = query
    width = mixed.shape[-1] // num_heads
    part = mixed.reshape(1, -1, num_heads * width)[0, position].view(num_heads, width)[head]
    [gradient] = torch.autograd.grad(part.sum(), values, retain_graph=True)
    return gradient.reshape(-1, num_heads, width).abs().sum(-1).T > 0


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
    modules = {
        "encoder": [layer.self_attn for layer in model.encoder.layers],
        "decoder": [layer.self_attn for layer in model.decoder.layers],
        "cross": [layer.encoder_attn for layer in model.decoder.layers],
    }
    kept = {(part, index): [] for part, layers in modules.items() for index in range(len(layers))}
    for (part, index), list_ in kept.items():
        record(modules[part][index], list_)
    ids = torch.arange(LENGTH)[None] + 2
    model(input_ids=ids, decoder_input_ids=ids, use_cache=False)
    seen = set()
    for reach in attention_reaches(config, length=LENGTH):
        for layer in reach.layers:
            seen.add((reach.part, layer))
            assert torch.equal(seen_by(kept[reach.part, layer], reach.query, 4), reach.heads > 0), (
                reach
            )
            for position in range(LENGTH):
                head = reach.query[0]
                one = seen_by(kept[reach.part, layer], (head, position), 4)[head]
                assert torch.equal(one, reach.positions[position] > 0), reach
    assert seen == set(kept), "every layer is in one reach"


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
    grid = decoder(inputs_embeds=target, encoder_hidden_states=source, output_attentions=True).grid
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
        (csan(), ["layers 1, 2, 3 of 3: window of 11 tokens, area of 3 heads", 2]),
        (
            csan(
                localness_window="fixed", local_window=None, head_area=1, cross_localness_layers=[0]
            ),
            ["width D = 10; here P = i + 2", "width D = 10; here P = i)", 2],
        ),
        (
            csan(
                localness_window="layer",
                localness_layers=[0],
                decoder_localness_layers=[1],
                local_window=3,
            ),
            ["area of 3 heads\nGaussian", "no later tokens\nGaussian", 3],
        ),
        (csan(local_window=201, localness_window="head"), ["D learned for each head", 2]),
        (PervasiveAttentionConfig(num_layers=4).to_dict(), []),
        (
            csan(local_window=5, architectures=["CsanForSequenceClassification"]),
            ["window of 5 tokens", 0],
        ),
    ],
)
def test_the_picture_says_what_it_shows(config, titles, tmp_path):
    draw_locality(config, tmp_path / "new" / "locality.png", title="A $ sign")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["locality.png"]
    assert min(imread(tmp_path / "new" / "locality.png").shape[:2]) > 300
    figure = plot_locality(config, title="A $ sign")
    assert figure.get_suptitle() == "A $ sign"
    found = [row.get_suptitle() for row in figure.subfigs]
    *titles, others = titles or [0]
    assert len(found) == len(titles)
    for text, expected in zip(found, titles, strict=True):
        assert expected in text
    named = figure.legends[0].get_title().get_text().splitlines()
    assert len(named) == others
    assert all("all earlier tokens" in line or "the whole sentence" in line for line in named)
    assert is_drawn(config)
    with pytest.raises(ValueError, match="'marian' cannot be drawn"):
        draw_locality({"model_type": "marian"}, tmp_path / "a.png")
    assert not is_drawn({"model_type": "marian"})


def test_pictures_differ_where_models_do():
    one, two = (attention_reaches(csan(head_area=area), length=LENGTH)[0] for area in (1, 3))
    assert one.areas.tolist() == torch.eye(4).tolist()
    assert two.areas.tolist() == [
        [float(abs(row - column) < 2) for column in range(4)] for row in range(4)
    ]
    plain = csan(local_window=None, head_area=1)
    assert not is_drawn(plain)
    with pytest.raises(ValueError, match="Nothing of this model is local"):
        plot_locality(plain)
