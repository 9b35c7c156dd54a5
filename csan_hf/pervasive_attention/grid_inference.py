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
    conv2: torch.Tensor  # [g or 2g, 4g, ceil(k / 2), k], channels last


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
    width = grid.shape[-1]
    features = grid.new_empty(*grid.shape[:3], block.feature_scale.shape[0])
    _store(block, features, grid, 0)
    mask = None if real is None else real.unsqueeze(-1).to(grid.dtype)
    for number, layer in enumerate(block.layers):
        read = torch.addcmul(layer.shift, features[..., :width], layer.scale).relu_()
        inner = torch.addmm(layer.bias, read.flatten(0, 2), layer.conv1).relu_().view(*grid.shape[:3], -1)
        if mask is not None:
            inner = inner * mask
        new = _convolve(inner, layer.conv2, number, cache)
        if block.gated:
            gate, value = new.chunk(2, dim=-1)
            new = torch.sigmoid(gate) * value
        _store(block, features, new, width)
        width += new.shape[-1]
    read = torch.addcmul(block.transition_shift, features, block.transition_scale).relu_()
    return (read.flatten(0, 2) @ block.transition).view(*grid.shape[:3], -1)


def _store(block: FoldedBlock, features: torch.Tensor, new: torch.Tensor, start: int) -> None:
    """Normalise new features and put them behind the earlier ones."""
    part = slice(start, start + new.shape[-1])
    features[..., part] = torch.addcmul(block.feature_shift[part], new, block.feature_scale[part])


def _convolve(inner: torch.Tensor, kernel: torch.Tensor, number: int, cache: GridCache | None) -> torch.Tensor:
    """The masked convolution of new rows [B, I, J, 4g], below those of the cache; [B, I, J, g or 2g]."""
    above, columns = kernel.shape[2] - 1, kernel.shape[3] // 2
    rows = inner.shape[1] + above
    padded = cache.extend(inner, number) if cache is not None else inner
    if padded.shape[1] < rows:
        padded = F.pad(padded, (0, 0, 0, 0, rows - padded.shape[1], 0))
    image = padded[:, padded.shape[1] - rows :].permute(0, 3, 1, 2)
    return F.conv2d(image, kernel, padding=(0, columns)).permute(0, 2, 3, 1)
