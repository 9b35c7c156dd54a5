# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The residual block, which the authors of Pervasive Attention published after their paper.

It follows their module `resnet` (elbayadm/attn2d, 2020). It has no normalisation, so a cell's
features are the same whatever else is in the batch. Shapes: R cells, C channels, k kernel size."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .canvas import Canvas
from .configuration_pervasive_attention import PervasiveAttentionConfig
from .dense_block import MaskedConvolution
from .grid_cache import RowSums
from .grid_norm import BACKWARD
from .layers import drop

_ROOT_HALF = math.sqrt(0.5)


class DepthwiseConvolution(MaskedConvolution):
    """A masked k×k convolution of each channel by itself, with a bias; see `MaskedConvolution`."""

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__(1, channels, kernel_size)
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, cells: Tensor, canvas: Canvas, rows_above: RowSums | None = None) -> Tensor:
        """Convolve cells [R, C] to [R, C]."""
        return super().forward(cells, canvas, rows_above) + self.bias

    def multiply(self, cells: Tensor, rows_above: RowSums) -> Tensor:
        """Products [R, ceil(k / 2) · C] with each row of the kernel, the cell's own row first."""
        channels, _, rows, size = self.weight.shape
        kernel = self.weight.flip(2).reshape(channels * rows, 1, 1, size)
        products = self.convolve(cells, rows_above.canvas, kernel)
        return products.view(-1, channels, rows).transpose(1, 2).reshape(-1, rows * channels)

    def convolve(self, cells: Tensor, canvas: Canvas, kernel: Tensor) -> Tensor:
        """See `MaskedConvolution`; each channel by itself."""
        image = canvas.paint(cells)
        dtype = image.dtype
        if dtype != kernel.dtype and image.device.type == "cpu" and torch.is_grad_enabled():
            # On CPUs the backward pass takes four times as long in bf16 as in float32
            image = image.to(kernel.dtype)
        compute = convolve_channels
        if torch.compiler.is_dynamo_compiling():
            compute = BACKWARD.get("depthwise", compute)
        with torch.autocast(image.device.type, enabled=False):
            convolved = compute(image, kernel.to(image.dtype))
        return canvas.read(convolved.to(dtype))


def convolve_channels(image: Tensor, kernel: Tensor) -> Tensor:
    """The masked convolution of an image [S, C, H, W] with a kernel [C, 1, rows, k], each channel
    by itself.
    """
    padding = (0, kernel.shape[3] // 2)
    return F.conv2d(image, kernel, padding=padding, groups=image.shape[1])


class ResidualLayer(GradientCheckpointingLayer):
    """A 1×1 and a masked depthwise convolution, then a feed-forward network, each residual."""

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__()
        channels = config.input_channels
        self.dropout = config.dropout
        self.conv1 = nn.Linear(channels, channels)
        self.conv2 = DepthwiseConvolution(channels, config.kernel_size)
        self.fc1 = nn.Linear(channels, config.ffn_dim)
        self.fc2 = nn.Linear(config.ffn_dim, channels)

    def forward(self, cells: Tensor, canvas: Canvas, rows_above: RowSums | None = None) -> Tensor:
        """[R, C] -> [R, C]."""
        cells = self._add(cells, self.conv2(self.conv1(cells), canvas, rows_above))
        return self._add(cells, self.fc2(F.relu(self.fc1(cells))))

    def _add(self, cells: Tensor, new: Tensor) -> Tensor:
        return _ROOT_HALF * (cells + drop(new, self.dropout, self.training))


class ResidualBlock(nn.Module):
    """L residual layers; the block's output is the mean of its input and of all layers' outputs."""

    needs_norm = False

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__()
        self.pending_channels = config.kernel_size // 2 * config.input_channels
        self.layers = nn.ModuleList([ResidualLayer(config) for _ in range(config.num_layers)])

    def forward(self, inputs: Tensor, canvas: Canvas, rows_above: RowSums | None = None) -> Tensor:
        """See `DenseBlock`: [R, C] -> [R, C]."""
        cells = inputs
        total = inputs
        for layer in self.layers:
            cells = layer(cells, canvas, rows_above)
            total = total + cells
        return total / (len(self.layers) + 1)
