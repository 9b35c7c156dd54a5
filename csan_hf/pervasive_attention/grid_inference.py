# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The dense block without gradients: whole grids, or the new rows alone while a sentence is generated."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .grid_cache import GridCache


@dataclass(frozen=True)
class FoldedLayer:
    """A dense layer whose second normalisation is folded into its 1×1 convolution."""

    scale: torch.Tensor  # [c], affine map of the normalised features
    shift: torch.Tensor  # [c]
    conv1: torch.Tensor  # [c, 4g], transposed
    bias: torch.Tensor  # [4g]
    # [g or 2g, 4g, ceil(k / 2), k]; for steps with a cache [ceil(k / 2) * (g or 2g), 4g, 1, k], its own row first
    conv2: torch.Tensor  # channels last


@dataclass(frozen=True)
class FoldedBlock:
    """The weights of a dense block and its transition with the running statistics multiplied in."""

    layers: list[FoldedLayer]
    feature_scale: torch.Tensor  # [C], what normalises the features
    feature_shift: torch.Tensor  # [C]
    transition_scale: torch.Tensor  # [C]
    transition_shift: torch.Tensor  # [C]
    transition: torch.Tensor  # [C, f_L], transposed
    gated: bool


def run_folded_block(
    block: FoldedBlock, grid: torch.Tensor, real: torch.Tensor | None, cache: GridCache | None = None
) -> torch.Tensor:
    """The dense block on a grid of new target rows.

    Args:
        block: The weights.
        grid: [B, I, J, c_1].
        real: [B, I, J], True = a real cell; None = all are.
        cache: The rows before these, and where to keep these.

    Returns:
        [B, I, J, f_L].
    """
    width, inputs = grid.shape[-1], grid.flatten(0, 2)
    features = inputs.new_empty(inputs.shape[0], block.feature_scale.shape[0])
    # What the layers read in turn: a new matrix for each would cost page faults
    scratch = None if torch.compiler.is_compiling() else torch.empty_like(features).flatten()
    _store(block, features, inputs, 0)
    mask = None if real is None else real.unsqueeze(-1).to(grid.dtype)
    for number, layer in enumerate(block.layers):
        read = _affine_relu(features[:, :width], layer.scale, layer.shift, scratch)
        inner = torch.addmm(layer.bias, read, layer.conv1).relu_().view(*grid.shape[:3], -1)
        if mask is not None:
            inner = inner * mask
        if cache is None:
            new = _convolve(inner, layer.conv2)
        else:
            new = _convolve_new_rows(inner, layer.conv2, number, cache)
        if block.gated:
            gate, value = new.chunk(2, dim=-1)
            new = torch.sigmoid(gate) * value
        _store(block, features, new.flatten(0, 2), width)
        width += new.shape[-1]
    read = _affine_relu(features, block.transition_scale, block.transition_shift, scratch)
    return (read @ block.transition).view(*grid.shape[:3], -1)


def _store(block: FoldedBlock, features: torch.Tensor, new: torch.Tensor, start: int) -> None:
    """Normalise new features [N, channels] and put them behind the earlier ones."""
    part = slice(start, start + new.shape[-1])
    features[:, part] = torch.addcmul(block.feature_shift[part], new, block.feature_scale[part])


def _affine_relu(
    features: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, scratch: torch.Tensor | None
) -> torch.Tensor:
    """ReLU(scale · features + shift) [N, c], in `scratch` where there is one."""
    if scratch is None:
        return torch.addcmul(shift, features, scale).relu()
    out = scratch[: features.numel()].view_as(features)
    return torch.addcmul(shift, features, scale, out=out).relu_()


def _convolve(inner: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """The masked convolution of whole grids [B, I, J, 4g]; [B, I, J, g or 2g]."""
    above, columns = kernel.shape[2] - 1, kernel.shape[3] // 2
    image = F.pad(inner, (0, 0, 0, 0, above, 0)).permute(0, 3, 1, 2)
    return F.conv2d(image, kernel, padding=(0, columns)).permute(0, 2, 3, 1)


def _convolve_new_rows(inner: torch.Tensor, kernel: torch.Tensor, number: int, cache: GridCache) -> torch.Tensor:
    """The masked convolution of new rows [B, I, J, 4g], below those of the cache; [B, I, J, g or 2g].

    A row is multiplied at once with what its own outputs and those of the rows below need of it. The latter products
    are kept: they are narrower than the row itself.
    """
    above = kernel.shape[3] // 2  # rows, and as many columns to either side
    width = kernel.shape[0] // (above + 1)
    products = F.conv2d(inner.permute(0, 3, 1, 2), kernel, padding=(0, above)).permute(0, 2, 3, 1)
    new, count = products[..., :width].contiguous(), inner.shape[1]
    kept = cache.extend(products[..., width:], number)
    past = kept.shape[1] - count
    for distance in range(1, above + 1):
        rows = kept[:, max(past - distance, 0) : max(past + count - distance, 0)]
        if rows.shape[1]:
            new[:, count - rows.shape[1] :] += rows[..., (distance - 1) * width : distance * width]
    return new
