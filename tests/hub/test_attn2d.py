# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from transformers import AutoModelForSeq2SeqLM

import csan_hf_cli
from csan_hf.hub import convert_attn2d

BLOCK, TRANSITION = "net.features.denseblock1.denselayer", "net.features.transition1"
FIRST, LIN = "net.features.initial_transiton", "aggregator.lin"
SIZES = {
    "source": 31,
    "target": 27,
    "d_s": 6,
    "d_t": 12,
    "layers": 3,
    "growth": 4,
    "factor": 4,
    "kernel": 5,
}
SHARED = {"source": 27, "d_s": 12, "shared": True}
VARIANTS = {
    "max": {},
    "gated": {"gated": True},
    "k 1": {"kernel": 1},
    "k 3": {"kernel": 3},
    "k 7": {"kernel": 7},
    "one layer": {"layers": 1},
    "one gated layer": {"layers": 1, "gated": True},
    "bottleneck 2": {"factor": 2},
    "untied": {"tied": False},
    "shared": SHARED,
    "shared untied": {**SHARED, "tied": False},
    "positions": {"positions": (20, 20)},
    "uneven positions": {"positions": (16, 12)},
    "shared positions": {**SHARED, "positions": (20, 20)},
    "DataParallel": {"prefix": "module."},
    "masks": {"masks": True},
    "no counters": {"counters": False},
    "average": {"average": True},
    "gated average": {"gated": True, "average": True},
}


def build_state_dict(
    *,
    gated=False,
    tied=True,
    shared=False,
    positions=None,
    prefix="",
    masks=False,
    counters=True,
    dtype=torch.float64,
    **sizes,
):
    """A random state dict with the names of the 2018 code; every normalisation has its own
    statistics.
    """
    size = {**SIZES, **sizes}
    width = size["d_s"] + size["d_t"]
    k = size["kernel"]
    growth = size["growth"]
    inner, channels = size["factor"] * growth, width // 2
    weights = {}

    def random(name, *shape, scale=1.0):
        weights[name] = scale * torch.randn(shape, dtype=dtype)

    def norm(name, channels):
        random(f"{name}.weight", channels)
        random(f"{name}.bias", channels, scale=0.5)
        random(f"{name}.running_mean", channels)
        weights[f"{name}.running_var"] = 0.2 + torch.rand(channels, dtype=dtype)
        if counters:
            weights[f"{name}.num_batches_tracked"] = torch.tensor(17)

    def convolution(name, out, *shape):
        random(name, out, *shape, scale=(2 / torch.Size(shape).numel()) ** 0.5)

    random("src_embedding.label_embedding.weight", size["source"], size["d_s"], scale=0.3)
    random("trg_embedding.label_embedding.weight", size["target"], size["d_t"], scale=0.3)
    if shared:
        weights["src_embedding.label_embedding.weight"] = weights[
            "trg_embedding.label_embedding.weight"
        ].clone()
    for side, rows, d in zip(
        ("src", "trg"), positions or (), (size["d_s"], size["d_t"]), strict=False
    ):
        random(f"{side}_embedding.pos_embedding.weight", rows, d)
    convolution(f"{FIRST}.weight", channels, width, 1, 1)
    random(f"{FIRST}.bias", channels)
    for number in range(1, size["layers"] + 1):
        layer = f"{BLOCK}{number}"
        norm(f"{layer}.norm1", channels)
        convolution(f"{layer}.conv1.weight", inner, channels, 1, 1)
        norm(f"{layer}.norm2", inner)
        convolution(f"{layer}.conv2.weight", growth * (1 + gated), inner, k, k)
        if masks:
            weights[f"{layer}.conv2.mask"] = torch.ones_like(weights[f"{layer}.conv2.weight"])
            weights[f"{layer}.conv2.mask"][:, :, k // 2 + 1 :] = 0
        channels += growth
    norm(f"{TRANSITION}.norm", channels)
    convolution(f"{TRANSITION}.conv.weight", channels // 2, channels, 1, 1)
    norm("net.features.norm_last", channels // 2)
    if tied:
        convolution(f"{LIN}.weight", size["d_t"], channels // 2)
        random(f"{LIN}.bias", size["d_t"])
        weights["prediction.weight"] = weights["trg_embedding.label_embedding.weight"].clone()
    else:
        convolution("prediction.weight", size["target"], channels // 2)
    random("prediction.bias", size["target"])
    return {prefix + name: weight for name, weight in weights.items()}


def reference_logits(weights, source, target, *, gated=False, average=False):
    """What such a state dict means, for sentences without padding: source [B, J], target [B, I] ->
    [B, I, V].
    """
    weights = {name.removeprefix("module."): weight for name, weight in weights.items()}

    def embed(side, tokens, first):
        embeddings = weights[f"{side}_embedding.label_embedding.weight"][tokens]
        table = weights.get(f"{side}_embedding.pos_embedding.weight")
        if table is None:
            return embeddings
        return 0.5**0.5 * (embeddings + table[first : first + tokens.shape[1]])

    def norm_relu(x, name):
        names = ("running_mean", "running_var", "weight", "bias")
        return F.batch_norm(
            x, *(weights[f"{name}.{part}"] for part in names), training=False, eps=1e-5
        ).relu()

    x, y = embed("src", source, 1), embed("trg", target, 0)
    shape = target.shape[1], source.shape[1]
    columns = x.transpose(1, 2).unsqueeze(2).expand(-1, -1, *shape)
    rows = y.transpose(1, 2).unsqueeze(3).expand(-1, -1, *shape)
    grid = F.conv2d(
        torch.cat([columns, rows], dim=1), weights[f"{FIRST}.weight"], weights[f"{FIRST}.bias"]
    )
    number = 1
    while f"{BLOCK}{number}.conv1.weight" in weights:
        layer = f"{BLOCK}{number}"
        new = F.conv2d(norm_relu(grid, f"{layer}.norm1"), weights[f"{layer}.conv1.weight"])
        kernel = weights[f"{layer}.conv2.weight"]
        past = torch.arange(kernel.shape[2]).view(-1, 1) <= kernel.shape[2] // 2
        new = F.conv2d(
            norm_relu(new, f"{layer}.norm2"), kernel * past, padding=kernel.shape[2] // 2
        )
        if gated:
            gate, value = new.chunk(2, dim=1)
            new = gate.sigmoid() * value
        grid = torch.cat([grid, new], dim=1)
        number += 1
    grid = F.conv2d(norm_relu(grid, f"{TRANSITION}.norm"), weights[f"{TRANSITION}.conv.weight"])
    grid = norm_relu(grid, "net.features.norm_last").permute(0, 2, 3, 1)
    features = grid.sum(dim=2) / source.shape[1] ** 0.5 if average else grid.amax(dim=2)
    if f"{LIN}.weight" in weights:
        features = F.linear(features, weights[f"{LIN}.weight"], weights[f"{LIN}.bias"])
    return F.linear(features, weights["prediction.weight"], weights["prediction.bias"])


def sentences(source_length=9, target_length=6):
    source = torch.randint(1, 27, (3, source_length))
    target = torch.randint(1, 27, (3, target_length))
    target[:, 0] = 3
    return source, target


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-10), (torch.float32, 1e-5)],
    ids=["float64", "float32"],
)
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
@torch.no_grad()
def test_computes_what_the_state_dict_means(variant, dtype, tolerance):
    kind = {name: variant.get(name, False) for name in ("gated", "average")}
    weights = build_state_dict(
        dtype=dtype, **{name: value for name, value in variant.items() if name != "average"}
    )
    aggregation = "truncated-mean" if kind["average"] else "truncated-max"
    model = convert_attn2d(weights, aggregation=aggregation)
    assert model.dtype == dtype
    assert not model.training
    source, target = sentences()
    expected = reference_logits(weights, source, target, **kind)
    assert expected.std() > 0.3
    found = model(source, decoder_input_ids=target).logits
    assert_close(found, expected, atol=tolerance, rtol=tolerance)


def test_config_follows_from_the_shapes():
    config = convert_attn2d(build_state_dict(gated=True, positions=(16, 12))).config
    expected = {
        "vocab_size": 31,
        "decoder_vocab_size": 27,
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": True,
        "source_embed_dim": 6,
        "target_embed_dim": 12,
        "num_layers": 3,
        "growth_rate": 4,
        "kernel_size": 5,
        "bottleneck_factor": 4,
        "gated": True,
        "aggregation": "max",
        "dropout": 0.2,
        "embedding_dropout": 0.2,
        "position_embeddings": "learned",
        "max_position_embeddings": 12,
        "pad_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 3,
    }
    assert config.to_dict().items() >= expected.items()


@pytest.mark.parametrize(
    ("variant", "field", "value"),
    [
        ({"positions": (12, 12)}, "max_position_embeddings", 11),
        (SHARED, "share_encoder_decoder_embeddings", True),
        ({"tied": False}, "tie_word_embeddings", False),
    ],
)
def test_a_field_follows_from_the_weights(variant, field, value):
    assert getattr(convert_attn2d(build_state_dict(**variant)).config, field) == value


def test_tokens_and_other_fields_may_be_given():
    tokens = {"pad_token_id": 5, "eos_token_id": 6, "decoder_start_token_id": 7}
    model = convert_attn2d(build_state_dict(), **tokens, dropout=0.1)
    assert model.config.to_dict().items() >= {**tokens, "dropout": 0.1}.items()
    assert model.generation_config.to_dict().items() >= tokens.items()


class Surprise:
    def __reduce__(self):
        return exec, ("raise SystemExit('code was run')",)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "model.pth"
    with pytest.raises(FileNotFoundError):
        convert_attn2d(path)
    torch.save(build_state_dict(), path)
    half = path.read_bytes()[: path.stat().st_size // 2]
    for content in (
        b"",
        b"no pickle",
        half,
        pickle.dumps({"epoch": 3, "loss": Surprise()}, protocol=2),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"model\.pth cannot be read as a file of tensors"):
            convert_attn2d(path)
    torch.save({"state": {0: torch.ones(2)}, "param_groups": [{"lr": 0.1}]}, path)
    with pytest.raises(ValueError, match=r"model\.pth is not a state dict of tensors"):
        convert_attn2d(path)
    with pytest.raises(
        ValueError, match="no checkpoint of attn2d's dense network that can be converted"
    ):
        convert_attn2d({"fc1.weight": torch.ones(2, 2)})


# What the 2018 code could add, leave out (None) or shape otherwise, and what is said of it
OTHERS = {
    **dict.fromkeys(
        (
            "aggregator.project.attend.weight",
            f"{BLOCK}1.conv2.weight_g",
            "net.features.denseblock2.denselayer1.conv1.weight",
            f"{BLOCK}2.conv1.bias",
            "trg_embedding.length_embedding.weight",
            "trg_embedding.pos_embedding.weight",
        ),
        ((5, 10), "unknown: .*{name}.*Supported: .*bias 0"),
    ),
    **dict.fromkeys(
        (
            FIRST,
            f"{TRANSITION}.norm",
            f"{BLOCK}1.norm1",
            f"{BLOCK}2",
            "trg_embedding",
            "prediction.bias",
        ),
        (None, "(?i)missing: .*{name}.*Supported: .*half_inputs 1"),
    ),
    f"{BLOCK}2.conv2.weight": (
        (4, 16, 3, 3),
        r"(?s)of another shape: .*layers\.1\.conv2.*Supported",
    ),
}


@pytest.mark.parametrize(
    ("name", "shape", "message"), [(name, *other) for name, other in OTHERS.items()]
)
def test_what_cannot_be_converted_is_refused_by_name(name, shape, message):
    weights = build_state_dict()
    if shape is None:
        weights = {key: weight for key, weight in weights.items() if not key.startswith(name)}
    else:
        weights[name] = torch.ones(shape, dtype=torch.float64)
    with pytest.raises(ValueError, match=message.format(name=name)):
        convert_attn2d(weights)


@pytest.mark.parametrize(
    ("variant", "options", "message"),
    [
        ({}, {"aggregation": "mean"}, "'mean' cannot be converted; supported: 'max'.*sentence's"),
        ({}, {"droput": 0.1}, "'droput'.*'dropout'"),
        ({"positions": (20, 20)}, {"pad_token_id": 1}, "pad_token_id=1.*pos_embedding"),
        ({"kernel": 4}, {}, "kernel_size"),
    ],
)
def test_other_values_are_refused(variant, options, message):
    with pytest.raises(ValueError, match=message):
        convert_attn2d(build_state_dict(**variant), **options)


def test_an_output_layer_that_is_not_tied_is_refused_beside_a_linear_map():
    weights = build_state_dict()
    weights["prediction.weight"] += 1
    with pytest.raises(ValueError, match=r"equal beside aggregator\.lin: prediction\.weight, trg_"):
        convert_attn2d(weights)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "as in 2018"])
def test_script(zipped, tmp_path, capsys):
    weights = build_state_dict(masks=True)
    torch.save(weights, tmp_path / "model.pth", _use_new_zipfile_serialization=zipped)
    files = [str(tmp_path / "model.pth"), str(tmp_path / "out")]
    command = ["convert-attn2d", *files, "--aggregation", "truncated-mean"]
    assert csan_hf_cli.main(command) == 0
    assert "parameters" in capsys.readouterr().out
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    source, target = sentences()
    expected = reference_logits(weights, source, target, average=True)
    assert_close(
        model(source, decoder_input_ids=target).logits.detach(), expected, atol=1e-10, rtol=1e-10
    )
