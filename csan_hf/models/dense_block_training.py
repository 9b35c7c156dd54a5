# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The dense block with its gradients, computed by hand.

Each dense layer reads all features before it. What makes that cheap here:

- Features are normalised once, when they are made, and kept normalised in one matrix [R, C]; a layer adds its own
  affine map. Nothing is concatenated: a layer writes its g channels into that matrix.
- Backward needs that matrix and the 4g channels between a layer's two convolutions; ReLU inputs are recomputed from
  them. With gradient checkpointing the 4g channels are recomputed, too.
- On a CPU in float32, what a layer reads is made, multiplied and discarded in blocks of rows that fit its cache.
- The masked convolution stores and multiplies only the rows of its kernel that are not masked.

Shapes: R cells, C channels of the block, c <= C those that a layer reads, g growth rate, k kernel size.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from .canvas import Canvas
from .dropout import draw_kept, scale_kept
from .grid_convolutions import convolve
from .grid_norm import (
    NormSettings,
    normalize,
    normalize_backward,
    normalize_with,
    sum_over_processes,
    total_cells,
)

# Bytes of a block of rows of all features; what a layer reads of them on the average fits a core's cache
_BLOCK_BYTES = 2**22
# Division by a smaller weight of a normalisation would lose digits
_SMALL_WEIGHT = 1e-2
_Running = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class LayerSettings:
    """What a dense layer computes with.

    Args:
        norm: Statistics of its second normalisation.
        dropout: Dropout after its masked convolution.
    """

    norm: NormSettings
    dropout: float


@dataclass(frozen=True)
class BlockSettings:
    """What the dense block computes with.

    Args:
        kernel_size: Kernel k of the masked convolutions.
        gated: Whether they are gated.
        norm: Statistics of the features.
        layers: What is each layer's own.
        recompute: Whether backward recomputes the layers' inner features instead of keeping them.
        dtype: Type of the features.
    """

    kernel_size: int
    gated: bool
    norm: NormSettings
    layers: tuple[LayerSettings, ...]
    recompute: bool
    dtype: torch.dtype


class LayerWeights(NamedTuple):
    """The parameters of a dense layer."""

    norm1_weight: torch.Tensor  # [c]
    norm1_bias: torch.Tensor  # [c]
    conv1: torch.Tensor  # [4g, c]
    norm2_weight: torch.Tensor  # [4g]
    norm2_bias: torch.Tensor  # [4g]
    conv2: torch.Tensor  # [g or 2g, 4g, ceil(k / 2), k]


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
    """One buffer, lent as matrices [rows, channels]: a new one for every layer would cost page faults."""

    def __init__(self, like: torch.Tensor, rows: int, channels: int) -> None:
        self.buffer = like.new_empty(rows * channels)

    def matrix(self, rows: int, channels: int) -> torch.Tensor:
        """[rows, channels], whose former content is lost."""
        return self.buffer[: rows * channels].view(rows, channels)


def _rows_of_a_block(features: torch.Tensor) -> int:
    """How many rows of features [R, C] are worked on at once: on a CPU, what its cache holds.

    In bf16 all of them: products of few rows cost more to start than passes over memory.
    """
    if features.device.type != "cpu" or features.element_size() < 4:
        return max(features.shape[0], 1)
    return min(max(_BLOCK_BYTES // (features.shape[1] * features.element_size()), 64), max(features.shape[0], 1))


def _affine_relu(features: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """ReLU(weight · features + bias), [rows, c]."""
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


class _Reader:
    """What reads features: an affine map, ReLU and a 1×1 convolution, in blocks of rows."""

    def __init__(self, features: torch.Tensor) -> None:
        self.features = features
        self.block = _rows_of_a_block(features)
        self.scratch = _Scratch(features, self.block, features.shape[1])

    def _blocks(self, width: int) -> Iterator[tuple[slice, torch.Tensor]]:
        """Blocks of rows, and the first `width` features of each."""
        for start in range(0, self.features.shape[0], self.block):
            rows = slice(start, min(start + self.block, self.features.shape[0]))
            yield rows, self.features[rows, :width]

    def forward(self, weight: torch.Tensor, bias: torch.Tensor, conv: torch.Tensor) -> torch.Tensor:
        """[R, out] from the first c features; `weight` and `bias` [c], `conv` [out, c]."""
        out_channels, width = conv.shape
        matrix = conv.to(self.features.dtype).t()
        output = self.features.new_empty(self.features.shape[0], out_channels)
        for rows, features in self._blocks(width):
            read = _affine_relu(features, weight, bias, out=self.scratch.matrix(len(features), width))
            torch.mm(read, matrix, out=output[rows])
        return output


class _ReaderBackward(_Reader):
    """The gradients of `_Reader`."""

    def __init__(self, features: torch.Tensor, sums: torch.Tensor) -> None:
        super().__init__(features)
        self.grad_scratch = _Scratch(features, self.block, features.shape[1])
        # The transition, whose backward runs first, reads all features: it writes what the layers then add to
        self.grad_features = torch.empty_like(features)
        self.is_first = True
        # Sums over cells of the features' gradient and of its product with the features, [2, C]
        self.sums = sums

    def backward(
        self, grad: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, conv: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients of `weight`, `bias` and `conv` from that [R, out] of the output; adds to the features'."""
        width, exact = weight.shape[0], self.sums.dtype
        matrix, scale = conv.to(self.features.dtype), weight.to(self.features.dtype)
        grad_bias, grad_conv = self.sums.new_zeros(width), torch.zeros_like(conv, dtype=exact)
        grad_weight = torch.zeros_like(grad_bias)
        on_cpu = self.features.device.type == "cpu"
        ones = self.features.new_ones(1, self.block)
        for rows, features in self._blocks(width):
            read = _affine_relu(features, weight, bias, out=self.scratch.matrix(len(features), width))
            grad_conv += grad[rows].t() @ read
            grad_read = torch.mm(grad[rows], matrix, out=self.grad_scratch.matrix(len(features), width))
            torch.ops.aten.threshold_backward.grad_input(grad_read, read, 0, grad_input=grad_read)
            if self.is_first:
                torch.mul(grad_read, scale, out=self.grad_features[rows])
            else:
                self.grad_features[rows, :width].addcmul_(grad_read, scale)
            grad_bias += (ones[:, : len(features)] @ grad_read).squeeze(0)
            if not on_cpu:
                grad_weight += torch.mul(grad_read, features, out=read).sum(0)
        self.is_first = False
        self.sums[0, :width] += weight * grad_bias
        if not on_cpu:  # a GPU has the bandwidth, and a search for small weights would wait for it
            self.sums[1, :width] += weight * grad_weight
            return grad_weight, grad_bias, grad_conv
        # The sum of gradient · read over cells is that of conv · grad_conv over outputs, and read = weight · features
        # + bias wherever the gradient is not 0
        product = (conv * grad_conv).sum(0) - bias * grad_bias
        self.sums[1, :width] += product
        small = (weight.abs() < _SMALL_WEIGHT).nonzero().squeeze(1)
        grad_weight = product / weight
        grad_weight[small] = self._grad_of_weights(grad, small, weight, bias, matrix)
        return grad_weight, grad_bias, grad_conv

    def _grad_of_weights(
        self, grad: torch.Tensor, chosen: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, matrix: torch.Tensor
    ) -> torch.Tensor:
        """The gradients of weights too small to divide by, as sums over cells."""
        features = self.features[:, chosen]
        is_read = torch.addcmul(bias[chosen], features, weight[chosen]) > 0
        return ((grad @ matrix[:, chosen]) * is_read * features).sum(0).to(self.sums.dtype)


class DenseBlockFunction(torch.autograd.Function):
    """The dense block and its transition on cells: [R, c_1] -> [R, f_L]."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,
        inputs: torch.Tensor,
        canvas: Canvas,
        settings: BlockSettings,
        running: list[_Running],
        *weights: torch.Tensor,
    ) -> torch.Tensor:
        layers, transition = _split_weights(weights)
        with torch.autocast(inputs.device.type, enabled=False):
            run = _Forward(canvas, settings, layers, running)
            output = run.run(inputs, transition)
        kept = [*run.means, *run.rstds, *run.feature_rstds, *run.inner, *run.ungated, *run.kept]
        ctx.save_for_backward(run.features, *weights, *kept)
        ctx.canvas, ctx.settings = canvas, settings
        ctx.input_channels, ctx.input_dtype = inputs.shape[1], inputs.dtype
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: D102
        with torch.autocast(grad.device.type, enabled=False):
            return _Backward(ctx).run(grad)


class _Forward:
    """One run of the block; keeps what backward needs."""

    def __init__(
        self, canvas: Canvas, settings: BlockSettings, layers: list[LayerWeights], running: list[_Running]
    ) -> None:
        self.canvas, self.settings, self.layers = canvas, settings, layers
        self.running, *self.layers_running = running
        self.inner: list[torch.Tensor] = []  # [R, 4g] before the second normalisation
        self.ungated: list[torch.Tensor] = []  # [R, 2g]
        self.kept: list[torch.Tensor] = []  # [R, g], 1 for features that dropout kept
        self.means: list[torch.Tensor] = []
        self.rstds: list[torch.Tensor] = []
        self.feature_rstds: list[torch.Tensor] = []

    def run(self, inputs: torch.Tensor, transition: TransitionWeights) -> torch.Tensor:
        """From [R, c_1] to [R, f_L]; `self.features` [R, C] holds the normalised features."""
        dtype = self.settings.dtype
        self.features = inputs.new_empty(inputs.shape[0], transition.conv.shape[1], dtype=dtype)
        self.reader = _Reader(self.features)
        self.image = self.canvas.blank(self.features, self.layers[0].conv1.shape[0])
        self._store(inputs.to(dtype), 0)
        width = inputs.shape[1]
        for number in range(len(self.layers)):
            new = self._layer(number)
            self._store(new, width)
            width += new.shape[1]
        return self.reader.forward(*transition)

    def _store(self, cells: torch.Tensor, start: int) -> None:
        """Normalise new features and put them behind the earlier ones."""
        part = slice(start, start + cells.shape[1])
        mean, variance = self.running
        normalized, _, rstd = normalize(cells, None, None, mean[part], variance[part], self.settings.norm)
        self.features[:, part] = normalized
        self.feature_rstds.append(rstd)

    def _layer(self, number: int) -> torch.Tensor:
        """New features [R, g] of a layer."""
        layer, settings = self.layers[number], self.settings.layers[number]
        inner = self.reader.forward(layer.norm1_weight, layer.norm1_bias, layer.conv1)
        normalized, mean, rstd = normalize(
            inner, layer.norm2_weight, layer.norm2_bias, *self.layers_running[number], settings.norm
        )
        image = self.canvas.paint_relu(normalized, on=self.image)
        new = convolve(image, _image_kernel(layer.conv2, inner.dtype), self.canvas)
        self.means.append(mean)
        self.rstds.append(rstd)
        if not self.settings.recompute:
            self.inner.append(inner)
        if self.settings.gated:
            if not self.settings.recompute:
                self.ungated.append(new)
            new = _gate(new)
        if settings.dropout > 0.0:
            kept = draw_kept(new, settings.dropout).to(torch.uint8)  # it stays until the backward
            self.kept.append(kept)
            new = scale_kept(new, kept, settings.dropout)
        return new


class _Backward:
    """One run backwards through the block."""

    def __init__(self, ctx: Any) -> None:
        self.settings: BlockSettings = ctx.settings
        self.canvas: Canvas = ctx.canvas
        self.input_channels, self.input_dtype = ctx.input_channels, ctx.input_dtype
        saved = iter(ctx.saved_tensors)
        count = len(self.settings.layers)
        self.features = next(saved)
        self.layers, self.transition = _split_weights(_take(saved, len(LayerWeights._fields) * count + 3))
        self.means, self.rstds = _take(saved, count), _take(saved, count)
        self.feature_rstds = _take(saved, count + 1)
        keeps = not self.settings.recompute
        self.inner = _take(saved, count if keeps else 0)
        self.ungated = _take(saved, count if keeps and self.settings.gated else 0)
        self.kept = tuple(next(saved) if layer.dropout > 0.0 else None for layer in self.settings.layers)

    def run(self, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients for the arguments of `DenseBlockFunction.forward`, from that of its output [R, f_L]."""
        channels = self.features.shape[1]
        self.reader = _ReaderBackward(self.features, self.feature_rstds[0].new_zeros(2, channels))
        self.image = self.canvas.blank(self.features, self.layers[0].conv1.shape[0])
        self.count = total_cells(self.features, self.settings.norm)
        transition_grads = self.reader.backward(grad.to(self.features.dtype), *self.transition)
        layer_grads: list[torch.Tensor | None] = []
        growth = (channels - self.input_channels) // len(self.layers)
        for number in reversed(range(len(self.layers))):
            start = self.input_channels + number * growth
            layer_grads = [*self._layer(number, start, growth), *layer_grads]
        inputs = self._store_backward(0, 0, self.input_channels).to(self.input_dtype)
        return inputs, None, None, None, *layer_grads, *transition_grads

    def _store_backward(self, number: int, start: int, width: int) -> torch.Tensor:
        """Gradient [R, width] of the features that were normalised and stored at `start`."""
        part = slice(start, start + width)
        grad, rstd = self.reader.grad_features[:, part], self.feature_rstds[number]
        if self.settings.norm.of_batch:
            means = sum_over_processes(self.reader.sums[:, part], self.settings.norm) / self.count
            grad = grad - means[0].to(grad.dtype) - self.features[:, part] * means[1].to(grad.dtype)
        return grad * rstd.to(grad.dtype)

    def _layer(self, number: int, start: int, growth: int) -> tuple[torch.Tensor, ...]:
        """Backward of dense layer `number`, whose features begin at `start`: the gradients of its parameters."""
        layer, settings = self.layers[number], self.settings.layers[number]
        grad = self._store_backward(number + 1, start, growth)
        kept = self.kept[number]
        if kept is not None:
            grad = scale_kept(grad, kept, settings.dropout)
        recompute = self.settings.recompute
        inner = self.reader.forward(*layer[:3]) if recompute else self.inner[number]
        mean, rstd = self.means[number], self.rstds[number]
        normalized = normalize_with(inner, layer.norm2_weight, layer.norm2_bias, mean, rstd)
        image, kernel = self.canvas.paint_relu(normalized, on=self.image), _image_kernel(layer.conv2, inner.dtype)
        if self.settings.gated:
            ungated = convolve(image, kernel, self.canvas) if recompute else self.ungated[number]
            grad = _gate_backward(grad, ungated)
        grad_image, grad_conv2 = self._convolve_backward(grad, image, kernel)
        grad_normalized = self.canvas.read_relu_backward(grad_image, normalized)
        grad_inner, grad_norm2_weight, grad_norm2_bias = normalize_backward(
            grad_normalized, inner, layer.norm2_weight, mean, rstd, settings.norm
        )
        grads = self.reader.backward(grad_inner, layer.norm1_weight, layer.norm1_bias, layer.conv1)
        return *grads, grad_norm2_weight, grad_norm2_bias, grad_conv2

    def _convolve_backward(
        self, grad: torch.Tensor, image: torch.Tensor, kernel: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of the masked convolution: its input image and its kernel."""
        grad_image, grad_kernel, _ = torch.ops.aten.convolution_backward(
            self.canvas.paint_output(grad),
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
        return grad_image, grad_kernel


def _take(values: Iterator[torch.Tensor], count: int) -> tuple[torch.Tensor, ...]:
    return tuple(next(values) for _ in range(count))
