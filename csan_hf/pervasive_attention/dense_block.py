# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The dense block's computation, forward and backward (section 3 of Elbayad et al., 2018; Huang et al., 2017).

Each dense layer reads all features before it. What makes that cheap here:

- A feature channel has one mean and one variance, whichever layer reads it. Features are therefore normalised once,
  when they are made, and live normalised in one matrix [R, C]; a layer adds its own affine map.
- Nothing is concatenated: a layer writes its g channels into that matrix.
- Backward needs that matrix and the 4g channels between a layer's two convolutions; ReLU inputs are made again from
  them. With gradient checkpointing the 4g channels are made again, too.
- The masked convolution computes its live rows only.

Shapes: R real cells, C channels of the block, c <= C those that a layer reads, g growth rate, k kernel size.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from .batch_norm import (
    NormSettings,
    normalize,
    normalize_backward,
    normalize_with,
    sum_over_processes,
    total_cells,
)
from .grid_cells import GridCells


@dataclass(frozen=True)
class BlockSettings:
    """What the dense block computes with.

    Args:
        kernel_size: Kernel k of the masked convolutions.
        gated: Whether they are gated.
        dropout: Dropout after them, 0 outside training.
        norm: Statistics of the normalisations.
        recompute: Whether backward makes the layers' inner features again instead of keeping them.
        dtype: Type of the features.
    """

    kernel_size: int
    gated: bool
    dropout: float
    norm: NormSettings
    recompute: bool
    dtype: torch.dtype


class LayerWeights(NamedTuple):
    """The parameters of a dense layer, then the running statistics of its second normalisation."""

    norm1_weight: torch.Tensor  # [c]
    norm1_bias: torch.Tensor  # [c]
    conv1: torch.Tensor  # [4g, c]
    norm2_weight: torch.Tensor  # [4g]
    norm2_bias: torch.Tensor  # [4g]
    conv2: torch.Tensor  # [g or 2g, 4g, ceil(k / 2), k]
    running_mean: torch.Tensor  # [4g]
    running_var: torch.Tensor  # [4g]


class TransitionWeights(NamedTuple):
    """The parameters of the transition."""

    norm_weight: torch.Tensor  # [C]
    norm_bias: torch.Tensor  # [C]
    conv: torch.Tensor  # [f_L, C]


def _split_weights(weights: tuple[torch.Tensor, ...]) -> tuple[list[LayerWeights], TransitionWeights]:
    width = len(LayerWeights._fields)
    layers = [LayerWeights(*weights[i : i + width]) for i in range(0, len(weights) - 3, width)]
    return layers, TransitionWeights(*weights[-3:])


class _Scratch:
    """One buffer, lent as matrices [R, channels] of any width: a new one for every layer would cost page faults."""

    def __init__(self, cells: torch.Tensor, channels: int, dtype: torch.dtype) -> None:
        self.rows = cells.shape[0]
        self.buffer = cells.new_empty(self.rows * channels, dtype=dtype)

    def matrix(self, channels: int) -> torch.Tensor:
        """[R, channels], whose former content is lost."""
        return self.buffer[: self.rows * channels].view(self.rows, channels)


class _ConvolutionInput:
    """The zero-padded grids that the masked convolutions read, one for each group of sentences.

    Each has k // 2 rows of zeros above, and zeros at padding cells.
    """

    def __init__(self, cells: GridCells, like: torch.Tensor, channels: int, kernel_size: int) -> None:
        self.above = kernel_size // 2
        self.groups = cells.groups
        self.grids: list[torch.Tensor] = []
        self.indices: list[torch.Tensor | None] = []
        for group in cells.groups:
            batch, rows, columns = group.shape
            self.grids.append(like.new_zeros(batch, rows + self.above, columns, channels))
            index = group.index
            if index is not None and self.above:
                # Every sentence has `above` more rows in this grid than in the one that the index counts in
                index = index + (index // (rows * columns) + 1) * (self.above * columns)
            self.indices.append(index)

    def fill(self, features: torch.Tensor) -> list[torch.Tensor]:
        """Put real cells [R, channels] in their places; returns images [B', channels, I' + above, J']."""
        for group, grid, index in zip(self.groups, self.grids, self.indices, strict=True):
            part = features[group.cells]
            if index is None:
                grid[:, self.above :] = part.view(*group.shape, -1)
            else:
                grid.view(-1, features.shape[-1]).index_copy_(0, index, part)
        return [grid.permute(0, 3, 1, 2) for grid in self.grids]

    def gather(self, image: torch.Tensor, number: int, out: torch.Tensor) -> None:
        """Write the real cells of such an image, that of group `number`, to their rows of `out` [R, channels]."""
        grid, index = image.permute(0, 2, 3, 1), self.indices[number]
        part = out[self.groups[number].cells]
        if index is None:
            part.view(*self.groups[number].shape, -1).copy_(grid[:, self.above :])
        else:
            torch.index_select(grid.reshape(-1, grid.shape[-1]), 0, index, out=part)


def _affine_relu(
    features: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """ReLU(weight · features + bias), [R, c]."""
    dtype = features.dtype
    return torch.addcmul(bias.to(dtype), features, weight.to(dtype), out=out).relu_()


def _image_kernel(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return weight.to(dtype).contiguous(memory_format=torch.channels_last)


def _gate(cells: torch.Tensor) -> torch.Tensor:
    """A gated linear unit: [R, 2g], gate before value, -> [R, g]."""
    gate, value = cells.chunk(2, dim=1)
    return torch.sigmoid(gate) * value


def _gate_backward(grad: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    gate, value = cells.chunk(2, dim=1)
    share = torch.sigmoid(gate)
    return torch.cat([grad * value * share * (1 - share), grad * share], dim=1)


class _Forward:
    """One run of the block over packed cells; keeps what backward needs."""

    def __init__(self, cells: GridCells, settings: BlockSettings, layers: list[LayerWeights]) -> None:
        self.cells, self.settings, self.layers = cells, settings, layers
        self.inner: list[torch.Tensor] = []  # [R, 4g] before the second normalisation
        self.ungated: list[torch.Tensor] = []  # [R, 2g]
        self.kept: list[torch.Tensor] = []  # [R, g], which features dropout kept
        self.means: list[torch.Tensor] = []
        self.rstds: list[torch.Tensor] = []
        self.feature_rstds: list[torch.Tensor] = []

    def run(
        self, inputs: torch.Tensor, running: tuple[torch.Tensor, torch.Tensor], transition: TransitionWeights
    ) -> torch.Tensor:
        """From [R, c_1] to [R, f_L]; `self.features` [R, C] holds the normalised features."""
        dtype, channels = self.settings.dtype, transition.conv.shape[1]
        self.features = inputs.new_empty(inputs.shape[0], channels, dtype=dtype)
        self.scratch = _Scratch(inputs, channels, dtype)
        bottleneck = self.layers[0].conv1.shape[0]
        self.padded = _ConvolutionInput(self.cells, self.features, bottleneck, self.settings.kernel_size)
        self._store(inputs.to(dtype), 0, running)
        width = inputs.shape[1]
        for layer in self.layers:
            self._store(self._layer(layer, width), width, running)
            width += layer.conv2.shape[0] // (1 + self.settings.gated)
        read = _affine_relu(
            self.features, transition.norm_weight, transition.norm_bias, out=self.scratch.matrix(channels)
        )
        return read @ transition.conv.to(dtype).t()

    def _store(self, cells: torch.Tensor, start: int, running: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Normalise new features and put them behind the earlier ones."""
        part = slice(start, start + cells.shape[1])
        normalized, _, rstd = normalize(cells, None, None, running[0][part], running[1][part], self.settings.norm)
        self.features[:, part] = normalized
        self.feature_rstds.append(rstd)

    def _layer(self, layer: LayerWeights, width: int) -> torch.Tensor:
        """New features [R, g] from the first `width` ones."""
        read = _affine_relu(
            self.features[:, :width], layer.norm1_weight, layer.norm1_bias, out=self.scratch.matrix(width)
        )
        inner = read @ layer.conv1.to(read.dtype).t()
        normalized, mean, rstd = normalize(
            inner, layer.norm2_weight, layer.norm2_bias, layer.running_mean, layer.running_var, self.settings.norm
        )
        images = self.padded.fill(normalized.relu_())
        new = _convolve(images, layer.conv2, self.cells, self.settings)
        self.means.append(mean)
        self.rstds.append(rstd)
        if not self.settings.recompute:
            self.inner.append(inner)
        if self.settings.gated:
            if not self.settings.recompute:
                self.ungated.append(new)
            new = _gate(new)
        if self.settings.dropout > 0.0:
            kept = _draw_kept(new, self.settings.dropout)
            self.kept.append(kept)
            new = _drop(new, kept, self.settings.dropout)
        return new


def _convolve(
    images: list[torch.Tensor], weight: torch.Tensor, cells: GridCells, settings: BlockSettings
) -> torch.Tensor:
    """The masked convolution of the groups' images [B', 4g, I' + k // 2, J']; its real cells [R, g or 2g]."""
    kernel = _image_kernel(weight, images[0].dtype)
    parts = []
    for image, group in zip(images, cells.groups, strict=True):
        output = F.conv2d(image, kernel, padding=(0, settings.kernel_size // 2))
        parts.append(group.pack(output.permute(0, 2, 3, 1)))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


_DRAWS = 2**16


def _draw_kept(cells: torch.Tensor, probability: float) -> torch.Tensor:
    """Which of the features [R, g] dropout keeps, as booleans.

    A 64-bit draw serves four features (random numbers cost more than the convolution otherwise), so the probability
    is rounded to 1 / 65536.
    """
    count = cells.numel()
    draws = torch.empty(-(-count // 4), dtype=torch.int64, device=cells.device).random_(-(2**63), None)
    threshold = round(probability * _DRAWS) - _DRAWS // 2
    return (draws.view(torch.int16)[:count] >= threshold).view_as(cells)


def _drop(cells: torch.Tensor, kept: torch.Tensor, probability: float) -> torch.Tensor:
    return cells * kept * (_DRAWS / (_DRAWS - round(probability * _DRAWS)))


class DenseBlockFunction(torch.autograd.Function):
    """The dense block and its transition on packed cells: [R, c_1] -> [R, f_L]."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,
        inputs: torch.Tensor,
        running_mean: torch.Tensor,
        running_var: torch.Tensor,
        cells: GridCells,
        settings: BlockSettings,
        *weights: torch.Tensor,
    ) -> torch.Tensor:
        layers, transition = _split_weights(weights)
        with torch.autocast(inputs.device.type, enabled=False):
            run = _Forward(cells, settings, layers)
            output = run.run(inputs, (running_mean, running_var), transition)
        ctx.save_for_backward(
            run.features,
            *weights,
            *run.means,
            *run.rstds,
            *run.feature_rstds,
            *run.inner,
            *run.ungated,
            *run.kept,
        )
        ctx.cells, ctx.settings, ctx.num_layers = cells, settings, len(layers)
        ctx.input_channels, ctx.input_dtype = inputs.shape[1], inputs.dtype
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: D102
        with torch.autocast(grad.device.type, enabled=False):
            return _Backward(ctx).run(grad)


class _Backward:
    """One run backwards through the block."""

    def __init__(self, ctx: Any) -> None:
        self.settings: BlockSettings = ctx.settings
        self.cells: GridCells = ctx.cells
        self.input_channels, self.input_dtype = ctx.input_channels, ctx.input_dtype
        saved = iter(ctx.saved_tensors)
        count = ctx.num_layers
        self.features = next(saved)
        self.layers, self.transition = _split_weights(_take(saved, len(LayerWeights._fields) * count + 3))
        self.means, self.rstds = _take(saved, count), _take(saved, count)
        self.feature_rstds = _take(saved, count + 1)
        keeps = not self.settings.recompute
        self.inner = _take(saved, count if keeps else 0)
        self.ungated = _take(saved, count if keeps and self.settings.gated else 0)
        self.kept = _take(saved, count if self.settings.dropout > 0.0 else 0)

    def run(self, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients for the arguments of `DenseBlockFunction.forward`, from that of its output [R, f_L]."""
        features, dtype = self.features, self.features.dtype
        channels = features.shape[1]
        self.read_scratch = _Scratch(features, channels, dtype)
        self.grad_scratch = _Scratch(features, channels, dtype)
        bottleneck = self.layers[0].conv1.shape[0]
        self.padded = _ConvolutionInput(self.cells, features, bottleneck, self.settings.kernel_size)
        self.grad_features = torch.zeros_like(features)
        # Sums over cells of the features' gradient and of its product with the features
        self.sums = self.feature_rstds[0].new_zeros(2, channels)
        self.count = total_cells(features, self.settings.norm)
        read = self._read(self.transition.norm_weight, self.transition.norm_bias)
        transition_grads = self._read_backward(grad.to(dtype), read, self.transition.norm_weight, self.transition.conv)
        layer_grads: list[torch.Tensor | None] = []
        growth = (channels - self.input_channels) // len(self.layers)
        for number in reversed(range(len(self.layers))):
            start = self.input_channels + number * growth
            layer_grads = [*self._layer(number, start, growth), None, None, *layer_grads]
        inputs = self._store_backward(0, 0, self.input_channels).to(self.input_dtype)
        return inputs, None, None, None, None, *layer_grads, *transition_grads

    def _read(self, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        width = weight.shape[0]
        return _affine_relu(self.features[:, :width], weight, bias, out=self.read_scratch.matrix(width))

    def _read_backward(
        self, grad: torch.Tensor, read: torch.Tensor, norm_weight: torch.Tensor, conv: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Backward of affine map, ReLU and 1×1 convolution, from the gradient [R, out] of the latter.

        Adds to the features' gradient. `read` [R, c], what the convolution read, is overwritten.
        """
        width, dtype = read.shape[1], read.dtype
        grad_conv = grad.t() @ read
        grad_read = torch.mm(grad, conv.to(dtype), out=self.grad_scratch.matrix(width))
        torch.ops.aten.threshold_backward.grad_input(grad_read, read, 0, grad_input=grad_read)
        grad_bias = grad_read.sum(0).to(norm_weight.dtype)
        features = self.features[:, :width]
        grad_weight = torch.mul(grad_read, features, out=read).sum(0).to(norm_weight.dtype)
        self.grad_features[:, :width].addcmul_(grad_read, norm_weight.to(dtype))
        self.sums[0, :width] += norm_weight * grad_bias
        self.sums[1, :width] += norm_weight * grad_weight
        return grad_weight, grad_bias, grad_conv.to(conv.dtype)

    def _store_backward(self, number: int, start: int, width: int) -> torch.Tensor:
        """Gradient [R, width] of the features that were normalised and stored at `start`."""
        part = slice(start, start + width)
        grad, rstd = self.grad_features[:, part], self.feature_rstds[number]
        if self.settings.norm.training:
            means = sum_over_processes(self.sums[:, part], self.settings.norm) / self.count
            grad = grad - means[0].to(grad.dtype) - self.features[:, part] * means[1].to(grad.dtype)
        return grad * rstd.to(grad.dtype)

    def _layer(self, number: int, start: int, growth: int) -> tuple[torch.Tensor, ...]:
        """Backward of dense layer `number`, whose features begin at `start`: the gradients of its parameters."""
        layer, settings = self.layers[number], self.settings
        grad = self._store_backward(number + 1, start, growth)
        if settings.dropout > 0.0:
            grad = _drop(grad, self.kept[number], settings.dropout)
        read = self._read(layer.norm1_weight, layer.norm1_bias)
        inner = read @ layer.conv1.to(read.dtype).t() if settings.recompute else self.inner[number]
        mean, rstd = self.means[number], self.rstds[number]
        active = normalize_with(inner, layer.norm2_weight, layer.norm2_bias, mean, rstd).relu_()
        images = self.padded.fill(active)
        if settings.gated:
            ungated = (
                _convolve(images, layer.conv2, self.cells, settings) if settings.recompute else self.ungated[number]
            )
            grad = _gate_backward(grad, ungated)
        grad_active, grad_conv2 = self._convolve_backward(grad, images, layer.conv2)
        torch.ops.aten.threshold_backward.grad_input(grad_active, active, 0, grad_input=grad_active)
        grad_inner, grad_norm2_weight, grad_norm2_bias = normalize_backward(
            grad_active, inner, layer.norm2_weight, mean, rstd, settings.norm
        )
        grads = self._read_backward(grad_inner, read, layer.norm1_weight, layer.conv1)
        return *grads, grad_norm2_weight, grad_norm2_bias, grad_conv2

    def _convolve_backward(
        self, grad: torch.Tensor, images: list[torch.Tensor], weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of the masked convolution: its input's real cells [R, 4g] and its kernel."""
        kernel = _image_kernel(weight, grad.dtype)
        grad_cells = grad.new_empty(grad.shape[0], weight.shape[1])
        grad_kernel = torch.zeros_like(weight)
        for number, (group, image) in enumerate(zip(self.cells.groups, images, strict=True)):
            grad_image, grad_part, _ = torch.ops.aten.convolution_backward(
                group.unpack(grad[group.cells]).permute(0, 3, 1, 2),
                image,
                kernel,
                None,
                [1, 1],
                [0, self.settings.kernel_size // 2],
                [1, 1],
                False,
                [0, 0],
                1,
                [True, True, False],
            )
            self.padded.gather(grad_image, number, out=grad_cells)
            grad_kernel += grad_part
        return grad_cells, grad_kernel


def _take(values: Iterator[torch.Tensor], count: int) -> tuple[torch.Tensor, ...]:
    return tuple(next(values) for _ in range(count))
