# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints of attn2d's residual network: the same logits as the function that its modules
describe.
"""

import argparse
import math

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import csan_hf_cli
from csan_hf.hub import convert_attn2d_residual

WIDTH = 6
FFN = 9
LAYERS = 2
KERNEL = 5
SOURCE_WORDS = 13
TARGET_WORDS = 11
OPTIONS = {"arch": "pervasive", "convnet": "resnet", "aggregator": "gated-max", "conv_stride": 1}


def weights_of(*, gated=True, tied=True, learned=False, shared=False, conv_bias=True):
    """A random state dict with their names and shapes."""
    torch.manual_seed(1)
    words = TARGET_WORDS if shared else SOURCE_WORDS
    shapes = {
        "encoder.embed_tokens.weight": (words, WIDTH),
        "decoder.embed_tokens.weight": (TARGET_WORDS, WIDTH),
        "decoder.net.reduce_channels": (WIDTH, 2 * WIDTH),
        "decoder.projection": (WIDTH, WIDTH),
        "decoder.prediction": (TARGET_WORDS, WIDTH),
    }
    for side in ("encoder", "decoder"):
        shapes[f"{side}.embed_positions.{'weight' if learned else '_float_tensor'}"] = (
            (40, WIDTH) if learned else (1,)
        )
    for number in range(LAYERS):
        layer = f"decoder.net.residual_blocks.{number}"
        shapes[f"{layer}.conv1"] = (WIDTH, WIDTH, 1, 1)
        shapes[f"{layer}.mconv2"] = (WIDTH, 1, KERNEL, KERNEL)
        shapes[f"{layer}.mconv2.mask"] = (WIDTH, 1, KERNEL, KERNEL)
        shapes |= {f"{layer}.fc1": (FFN, WIDTH), f"{layer}.fc2": (WIDTH, FFN)}
    if gated:
        shapes["decoder.aggregator.linear"] = (2 * WIDTH, WIDTH)
    weights = {}
    for name, shape in shapes.items():
        if name.rpartition(".")[2] in ("weight", "mask", "_float_tensor"):
            weights[name] = torch.randn(shape)
            continue
        weights[f"{name}.weight"] = torch.randn(shape) / math.prod(shape[1:]) ** 0.5
        if conv_bias or not name.endswith("mconv2"):
            weights[f"{name}.bias"] = 0.3 * torch.randn(shape[0])
    if shared:
        weights["encoder.embed_tokens.weight"] = weights["decoder.embed_tokens.weight"]
    if tied:
        weights["decoder.prediction.weight"] = weights["decoder.embed_tokens.weight"]
    return weights


def theirs(weights, source, target, gated, learned):
    """Logits [I, V] of one sentence, on the grid as an image with full kernels times a mask."""

    def embed(side, tokens):
        embedded = math.sqrt(WIDTH) * weights[f"{side}.embed_tokens.weight"][tokens]
        if learned:
            return embedded + weights[f"{side}.embed_positions.weight"][2 : 2 + len(tokens)]
        places = torch.arange(2, 2 + len(tokens))[:, None]
        angles = places * torch.exp(
            torch.arange(WIDTH // 2) * -(math.log(10000) / (WIDTH // 2 - 1))
        )
        return embedded + torch.cat([angles.sin(), angles.cos()], dim=1)

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"].flatten(1), weights[f"{name}.bias"])

    columns, rows = embed("encoder", source), embed("decoder", target)
    grid = torch.cat(
        [columns.expand(len(target), -1, -1), rows[:, None].expand(-1, len(source), -1)], dim=2
    )
    x = linear(grid, "decoder.net.reduce_channels")
    outputs = [x]
    mask = torch.ones(KERNEL, KERNEL)
    mask[KERNEL // 2 + 1 :] = 0
    for number in range(LAYERS):
        layer = f"decoder.net.residual_blocks.{number}"
        image = linear(x, f"{layer}.conv1").permute(2, 0, 1)
        kernel = weights[f"{layer}.mconv2.weight"] * mask
        bias = weights.get(f"{layer}.mconv2.bias")
        image = F.conv2d(image, kernel, bias, padding=KERNEL // 2, groups=WIDTH)
        x = math.sqrt(0.5) * (image.permute(1, 2, 0) + x)
        x = math.sqrt(0.5) * (linear(linear(x, f"{layer}.fc1").relu(), f"{layer}.fc2") + x)
        outputs.append(x)
    x = sum(outputs) / len(outputs)
    if gated:
        x = F.glu(linear(x, "decoder.aggregator.linear"), dim=2)
    return linear(linear(x.amax(dim=1), "decoder.projection"), "decoder.prediction")


def save(path, weights, **options):
    torch.save({"args": argparse.Namespace(**{**OPTIONS, **options}), "model": weights}, path)
    return path


@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"gated": False},
        {"tied": False},
        {"learned": True},
        {"shared": True},
        {"conv_bias": False},
    ],
    ids=[
        "gated max",
        "max",
        "projection of its own",
        "learned positions",
        "one vocabulary",
        "no bias",
    ],
)
@torch.no_grad()
def test_the_same_logits(variant, tmp_path):
    weights = weights_of(**variant)
    aggregator = "gated-max" if variant.get("gated", True) else "max"
    model = convert_attn2d_residual(
        save(tmp_path / "checkpoint_best.pt", weights, aggregator=aggregator)
    )
    sources, targets = [[3, 4, 5, 6, 2], [7, 8, 2]], [[2, 4, 5, 9, 10], [2, 3, 8]]
    batch = [
        torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, each)), True, 1)
        for each in (sources, targets)
    ]
    found = model(batch[0], batch[0].ne(1), batch[1], use_cache=False).logits
    assert model.config.decoder_start_token_id == model.config.eos_token_id == 2
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        expected = theirs(
            weights, source, target, variant.get("gated", True), variant.get("learned", False)
        )
        torch.testing.assert_close(found[row, : len(target)], expected, rtol=1e-4, atol=1e-5)


def test_the_command(tmp_path, capsys):
    path = save(tmp_path / "checkpoint_best.pt", weights_of())
    assert (
        csan_hf_cli.main(["convert-attn2d", str(path), str(tmp_path / "model"), "--residual"]) == 0
    )
    assert "Pervasive Attention with" in capsys.readouterr().out
    assert "model.decoder.residual_block.layers.1.fc2.bias" in load_file(
        tmp_path / "model" / "model.safetensors"
    )


@pytest.mark.parametrize(
    ("options", "trained_with"),
    [
        ({"unidirectional": True}, "{'unidirectional': True}"),
        ({"convnet": "densenet"}, "{'convnet': 'densenet'}"),
        ({"aggregator": "path-gated-max"}, "{'aggregator': 'path-gated-max'}"),
    ],
)
def test_variants_that_are_not_offered_are_refused(options, trained_with, tmp_path):
    path = save(tmp_path / "checkpoint.pt", weights_of(), **options)
    with pytest.raises(ValueError, match=f"trained with {trained_with}, which this package does"):
        convert_attn2d_residual(path)


def test_weights_that_are_missing_or_do_not_fit_are_refused(tmp_path):
    less = {name: tensor for name, tensor in weights_of().items() if "fc2" not in name}
    with pytest.raises(ValueError, match=r"attn2d's residual .*missing: .*residual_blocks\.0\.fc2"):
        convert_attn2d_residual(save(tmp_path / "checkpoint.pt", less))
    short = weights_of(learned=True) | {"encoder.embed_positions.weight": torch.ones(9, WIDTH)}
    with pytest.raises(ValueError, match=r"(?s)another shape: .*model\.encoder\.embed_positions"):
        convert_attn2d_residual(save(tmp_path / "checkpoint.pt", short))


def test_another_file_is_refused(tmp_path):
    torch.save({"weights": 1}, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match=r"\.pt is no checkpoint of fairseq"):
        convert_attn2d_residual(tmp_path / "checkpoint.pt")
