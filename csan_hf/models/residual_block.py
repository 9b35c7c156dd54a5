# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The residual block: the network that the authors of Pervasive Attention published after their
paper.

It follows their module `resnet` (elbayadm/attn2d, 2020). It has no normalisation, so a cell's
features are the same whatever else is in the batch. Shapes: R cells, C channels, k kernel size."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .canvas import Canvas
from .configuration_pervasive_attention import PervasiveAttentionConfig
from .dense_block import MaskedConvolution
from .grid_cache import GridCache, RowSums
from .layers import drop

_ROOT_HALF = math.sqrt(0.5)


class DepthwiseConvolution(MaskedConvolution):
    """A masked k×k convolution of each channel by itself, with a bias; see `MaskedConvolution`."""

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__(1, channels, kernel_size)
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(
        self, cells: torch.Tensor, canvas: Canvas, rows_above: RowSums | None = None
    ) -> torch.Tensor:
        """Convolve cells [R, C] to [R, C]; with `rows_above`, the cells are new rows below earlier
        ones.
        """
        channels, (rows, size) = cells.shape[1], self.weight.shape[2:]
        kernel: torch.Tensor = self.weight
        if (
            rows_above is not None
        ):  # each row of the kernel as a channel of its own, the one of the cell's row first
            kernel = self.weight.flip(2).reshape(channels * rows, 1, 1, size)
        image = canvas.paint(cells)
        dtype = image.dtype
        if dtype != kernel.dtype and image.device.type == "cpu" and torch.is_grad_enabled():
            # On CPUs the backward pass takes four times as long in bf16 as in float32
            image = image.to(kernel.dtype)
        with torch.autocast(image.device.type, enabled=False):
            convolved = F.conv2d(
                image, kernel.to(image.dtype), padding=(0, size // 2), groups=channels
            )
        convolved = canvas.read(convolved.to(dtype))
        if rows_above is not None:
            products = (
                convolved.view(-1, channels, rows).transpose(1, 2).reshape(-1, rows * channels)
            )
            convolved = rows_above.add(products, channels)
        return convolved + self.bias


class ResidualLayer(GradientCheckpointingLayer):
    """A 1×1 and a masked depthwise convolution, then a feed-forward network, each with a residual
    connection.
    """

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__()
        channels = config.input_channels
        self.dropout = config.dropout
        self.conv1 = nn.Linear(channels, channels)
        self.conv2 = DepthwiseConvolution(channels, config.kernel_size)
        self.fc1, self.fc2 = (
            nn.Linear(channels, config.ffn_dim),
            nn.Linear(config.ffn_dim, channels),
        )

    def forward(
        self, cells: torch.Tensor, canvas: Canvas, rows_above: RowSums | None = None
    ) -> torch.Tensor:
        """[R, C] -> [R, C]."""
        cells = self._add(cells, self.conv2(self.conv1(cells), canvas, rows_above))
        return self._add(cells, self.fc2(F.relu(self.fc1(cells))))

    def _add(self, cells: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return _ROOT_HALF * (cells + drop(new, self.dropout, self.training))


class ResidualBlock(nn.Module):
    """L residual layers; what leaves the block is the mean of its input and of all layers' outputs."""

    needs_norm = False

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__()
        self.pending_channels = config.kernel_size // 2 * config.input_channels
        self.layers = nn.ModuleList([ResidualLayer(config) for _ in range(config.num_layers)])

    def forward(
        self, inputs: torch.Tensor, canvas: Canvas, cache: GridCache | None = None
    ) -> torch.Tensor:
        """See `DenseBlock`: [R, C] -> [R, C]."""
        rows_above = (
            None
            if cache is None
            else RowSums(cache, canvas, len(self.layers), self.pending_channels)
        )
        total = cells = inputs
        for layer in self.layers:
            cells = layer(cells, canvas, rows_above)
            total = total + cells
        if rows_above is not None:
            rows_above.finish()
        return total / (len(self.layers) + 1)
