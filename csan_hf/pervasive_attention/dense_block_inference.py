# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The dense block without gradients, on whole grids or on the new rows alone while a sentence is generated.

Running statistics are multiplied into the weights, so features are kept as they are made.
"""

from dataclasses import dataclass

import torch

from .canvas import Canvas
from .convolutions import convolve, convolve_new_rows
from .grid_cache import GridCache


@dataclass
class FoldedLayer:
    """A dense layer with both its normalisations in its weights."""

    scale: torch.Tensor  # [c], first normalisation and its affine map
    shift: torch.Tensor  # [c]
    conv1: torch.Tensor  # [c, 4g], transposed
    bias: torch.Tensor  # [4g]
    # [g or 2g, 4g, ceil(k / 2), k]; for steps with a cache [ceil(k / 2) * (g or 2g), 4g, 1, k], its own row first
    conv2: torch.Tensor  # channels last


@dataclass
class FoldedBlock:
    """The weights of a dense block and its transition with the running statistics multiplied in."""

    layers: list[FoldedLayer]
    scale: torch.Tensor  # [C], of the transition
    shift: torch.Tensor  # [C]
    transition: torch.Tensor  # [C, f_L], transposed
    gated: bool


def run_folded_block(
    block: FoldedBlock, inputs: torch.Tensor, canvas: Canvas, cache: GridCache | None = None
) -> torch.Tensor:
    """The dense block on the cells of target rows.

    Args:
        block: The weights.
        inputs: [R, c_1].
        canvas: The places of the cells.
        cache: The rows before these, and where to keep these.

    Returns:
        [R, f_L].
    """
    width = inputs.shape[1]
    features = inputs.new_empty(inputs.shape[0], block.scale.shape[0])
    # What the layers read in turn: a new matrix for each would cost page faults
    scratch = torch.empty_like(features).flatten()
    features[:, :width] = inputs
    image = None
    if cache is None:
        image = canvas.blank(inputs, block.layers[0].bias.shape[0])
    for number, layer in enumerate(block.layers):
        read = _affine_relu(features[:, :width], layer.scale, layer.shift, scratch)
        inner = torch.addmm(layer.bias, read, layer.conv1).relu_()
        if cache is None:
            new = convolve(canvas.paint(inner, on=image), layer.conv2, canvas)
        else:
            new = convolve_new_rows(inner, layer.conv2, canvas, cache, number)
        if block.gated:
            gate, value = new.chunk(2, dim=1)
            new = torch.sigmoid(gate) * value
        features[:, width : width + new.shape[1]] = new
        width += new.shape[1]
    return _affine_relu(features, block.scale, block.shift, scratch) @ block.transition


def _affine_relu(
    features: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, scratch: torch.Tensor
) -> torch.Tensor:
    """ReLU(scale · features + shift) [R, c], in `scratch`."""
    out = scratch[: features.numel()].view_as(features)
    return torch.addcmul(shift, features, scale, out=out).relu_()
