# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The modules of the convolutional network over the source × target grid (section 3 of Elbayad et al., 2018).

Shapes: B batch, I target rows, J source columns, R <= B · I · J real cells, L layers, g growth rate, k kernel size,
C channels that leave the dense block, f_L those of the final grid. Grids are [B, I, J, channels].
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from .batch_norm import GridBatchNorm, NormSettings, add_running_statistics
from .configuration_pervasive_attention import PervasiveAttentionConfig
from .dense_block import BlockSettings, DenseBlockFunction, LayerWeights, TransitionWeights
from .grid_cache import GridCache
from .grid_cells import GridCells
from .grid_inference import FoldedBlock, FoldedLayer, run_folded_block


class JointProjection(nn.Module):
    """The grid's input: [y_i ; x_j] (equation 1) through the 1×1 convolution that halves the channels.

    Computed as the sum of a projection of the targets and one of the sources, so that the grid of all pairs is never
    built at full width.
    """

    def __init__(self, target_dim: int, source_dim: int) -> None:
        super().__init__()
        self.target_dim = target_dim
        channels = target_dim + source_dim
        self.weight = nn.Parameter(torch.empty(channels // 2, channels))
        self.bias = nn.Parameter(torch.zeros(channels // 2))

    def forward(self, target: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Project target [B, I, d_t] and source embeddings [B, J, d_s].

        Returns:
            [B, I, channels] and [B, J, channels], (d_t + d_s) / 2 channels: a cell is the sum of its row's and its
            column's.
        """
        rows = F.linear(target, self.weight[:, : self.target_dim])
        return rows, F.linear(source, self.weight[:, self.target_dim :], self.bias)

    def extra_repr(self) -> str:
        """What print(model) shows."""
        return f"{self.target_dim} + {self.weight.shape[1] - self.target_dim}, {self.weight.shape[0]}"


class PointwiseConvolution(nn.Module):
    """The matrix [out, in] of a 1×1 convolution without bias."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels))

    def extra_repr(self) -> str:
        """What print(model) shows."""
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}"


class MaskedConvolution(nn.Module):
    """The live rows [out, in, ceil(k / 2), k] of a masked k×k convolution without bias.

    Axis 2 runs over target rows, the last entry being the row itself; axis 3 over source columns, the middle entry
    being the column itself. The masked taps are not stored.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel_size // 2 + 1, kernel_size))

    @property
    def masked_taps(self) -> int:
        """Weights of the full k×k kernel that are masked."""
        out_channels, in_channels, rows, kernel_size = self.weight.shape
        return out_channels * in_channels * (kernel_size - rows) * kernel_size

    def extra_repr(self) -> str:
        """What print(model) shows."""
        out_channels, in_channels, rows, kernel_size = self.weight.shape
        return f"{in_channels}, {out_channels}, kernel_size=({rows}, {kernel_size})"


class DenseLayer(nn.Module):
    """The weights of one dense layer: BN, ReLU, 1×1 convolution, BN, ReLU, masked convolution."""

    def __init__(self, config: PervasiveAttentionConfig, in_channels: int) -> None:
        super().__init__()
        bottleneck = config.bottleneck_factor * config.growth_rate
        eps, momentum = config.batch_norm_eps, config.batch_norm_momentum
        self.norm1 = GridBatchNorm(in_channels, eps, momentum, track=False)
        self.conv1 = PointwiseConvolution(in_channels, bottleneck)
        self.norm2 = GridBatchNorm(bottleneck, eps, momentum)
        self.conv2 = MaskedConvolution(bottleneck, config.growth_rate * (1 + config.gated), config.kernel_size)

    def weights(self) -> LayerWeights:
        """The parameters and running statistics in the order of the block's computation."""
        return LayerWeights(
            self.norm1.weight,
            self.norm1.bias,
            self.conv1.weight,
            self.norm2.weight,
            self.norm2.bias,
            self.conv2.weight,
            self.norm2.running_mean,
            self.norm2.running_var,
        )


class Transition(nn.Module):
    """The weights of the transition: BN, ReLU and a 1×1 convolution that halves the channels."""

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__()
        channels = config.block_channels
        self.norm = GridBatchNorm(channels, config.batch_norm_eps, config.batch_norm_momentum, track=False)
        self.conv = PointwiseConvolution(channels, config.grid_channels)

    def weights(self) -> TransitionWeights:
        """The parameters in the order of the block's computation."""
        return TransitionWeights(self.norm.weight, self.norm.bias, self.conv.weight)


class DenseBlock(nn.Module):
    """L dense layers and the transition.

    A feature channel has the same statistics whichever layer reads it: `running_mean` and `running_var` [C] serve the
    first normalisation of every layer and that of the transition, which have only their affine maps of their own.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor
    num_batches_tracked: torch.Tensor

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__()
        self.config = config
        widths = [config.input_channels + number * config.growth_rate for number in range(config.num_layers)]
        self.layers = nn.ModuleList([DenseLayer(config, width) for width in widths])
        self.transition = Transition(config)
        add_running_statistics(self, config.block_channels)
        self.process_group: Any = None
        self.momentum = config.batch_norm_momentum
        self.gradient_checkpointing = False

    def dense_layers(self) -> list[DenseLayer]:
        """The layers, from the input on."""
        return cast(list[DenseLayer], list(self.layers))

    def forward(self, inputs: torch.Tensor, cells: GridCells) -> torch.Tensor:
        """Real cells [R, c_1] through the block, differentiably; [R, f_L]."""
        layers = self.dense_layers()
        if self.training:
            self.num_batches_tracked.add_(1)
            for layer in layers:
                layer.norm2.num_batches_tracked.add_(1)
        settings = BlockSettings(
            kernel_size=self.config.kernel_size,
            gated=self.config.gated,
            dropout=self.config.dropout if self.training else 0.0,
            norm=NormSettings(self.training, self.momentum, self.config.batch_norm_eps, self.process_group),
            recompute=self.gradient_checkpointing and self.training,
            dtype=_compute_dtype(inputs),
        )
        weights = [weight for layer in layers for weight in layer.weights()]
        output: torch.Tensor = DenseBlockFunction.apply(
            inputs,
            self.running_mean,
            self.running_var,
            cells,
            settings,
            *weights,
            *self.transition.weights(),
        )
        return output

    def infer(self, grid: torch.Tensor, real: torch.Tensor | None, cache: GridCache | None = None) -> torch.Tensor:
        """A grid of new target rows through the block with running statistics and without gradients.

        Args:
            grid: [B, I, J, c_1].
            real: [B, I, J], True = a real cell; None = all are.
            cache: The rows before these; they are kept in it for the rows after.

        Returns:
            [B, I, J, f_L]; what it holds at cells that are not real means nothing.
        """
        dtype = _compute_dtype(grid)
        folded = cache.folded_weights if cache is not None else None
        if folded is None:
            folded = self.fold(dtype, by_row=cache is not None)
            if cache is not None:
                cache.folded_weights = folded
        with torch.autocast(grid.device.type, enabled=False):
            return run_folded_block(folded, grid.to(dtype), real, cache)

    @torch.no_grad()
    def fold(self, dtype: torch.dtype, by_row: bool) -> FoldedBlock:
        """The block's weights with the running statistics multiplied in; `by_row` as steps with a cache want them."""
        scale = torch.rsqrt(self.running_var + self.config.batch_norm_eps)
        layers = []
        for layer in self.dense_layers():
            inner_scale = layer.norm2.weight * torch.rsqrt(layer.norm2.running_var + layer.norm2.eps)
            inner_shift = layer.norm2.bias - layer.norm2.running_mean * inner_scale
            conv2 = layer.conv2.weight.to(dtype)
            if by_row:
                conv2 = conv2.flip(2).permute(2, 0, 1, 3).flatten(0, 1).unsqueeze(2)
            layers.append(
                FoldedLayer(
                    layer.norm1.weight.to(dtype),
                    layer.norm1.bias.to(dtype),
                    (layer.conv1.weight * inner_scale.unsqueeze(1)).to(dtype).t(),
                    inner_shift.to(dtype),
                    conv2.contiguous(memory_format=torch.channels_last),
                )
            )
        norm, conv = self.transition.norm, self.transition.conv
        return FoldedBlock(
            layers=layers,
            feature_scale=scale.to(dtype),
            feature_shift=(-self.running_mean * scale).to(dtype),
            transition_scale=norm.weight.to(dtype),
            transition_shift=norm.bias.to(dtype),
            transition=conv.weight.to(dtype).t(),
            gated=self.config.gated,
        )


def _compute_dtype(tensor: torch.Tensor) -> torch.dtype:
    """The type that autocast asks for here, else the tensor's own."""
    device = tensor.device.type
    if tensor.is_floating_point() and torch.is_autocast_enabled(device) and tensor.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return tensor.dtype
