# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The dense block's backward pass, written by hand to take less memory and time in training.

Every layer reads all features before it, so what lies between these and a convolution would fill
the memory in training. It is cheap, so it is computed again in the backward pass: kept are the
blocks of features, shared by all readers, and the normalised 4g channels between a layer's
convolutions.

Checkpoints do not carry this file: without csan_hf, autograd differentiates the modules that it
replaces, to the same gradients.

Shapes: R cells, c channels of all blocks."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .canvas import Canvas
from .dense_block import convolve, join
from .depthwise_operator import convolution_gradients, depthwise_convolution
from .grid_norm import (
    BACKWARD,
    Statistics,
    as_image,
    as_rows,
    scale_and_shift,
    sum_over_processes,
)

# Bytes of the features that are read at once: with what is made of them they fit a core's cache
_PART_BYTES = 2**21


def install_backward() -> None:
    """Let models of csan_hf train with this backward pass."""
    BACKWARD.update(
        standardize=_Standardize.apply,
        read=_Read.apply,
        convolve=_Convolve.apply,
        depthwise=depthwise_convolution,
    )


class _Standardize(torch.autograd.Function):
    """(cells - mean) / deviation, [R, channels].

    The output is kept for the backward pass, as those that read it keep it, too."""

    @staticmethod
    def forward(ctx: Any, cells: Tensor, statistics: Statistics) -> Tensor:
        mean = statistics.mean
        rstd = torch.rsqrt(statistics.variance)
        output = scale_and_shift(cells, rstd, -mean * rstd)
        ctx.save_for_backward(output, rstd)
        ctx.statistics_of_output = statistics._replace(
            mean=torch.zeros_like(mean), variance=torch.ones_like(mean)
        )
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        output, rstd = ctx.saved_tensors
        grad_cells, _, _ = _normalize_backward(grad, output, ctx.statistics_of_output, rstd)
        return grad_cells, None


class _Read(torch.autograd.Function):
    """A 1×1 convolution, kernel [out, c], of ReLU(weight · features + bias), features in blocks."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        bias: Tensor,
        kernel: Tensor,
        *blocks: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(weight, bias, kernel, *blocks)
        outputs = []
        for features in _in_parts(blocks):
            activation = scale_and_shift(features, weight, bias).relu_()
            outputs.append(F.linear(activation, kernel))
        return join(outputs, dim=0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        weight, bias, kernel, *blocks = ctx.saved_tensors
        exact = weight.to(torch.promote_types(weight.dtype, torch.float32))
        statistics = Statistics(torch.zeros_like(exact), torch.ones_like(exact), False, None)
        widths = [block.shape[1] for block in blocks]
        sums: list[tuple[Tensor, ...]] = []
        grad_blocks: list[list[Tensor]] = [[] for _ in blocks]
        start = 0
        for features in _in_parts(blocks):
            part = grad[start : start + len(features)]
            start += len(features)
            activation = scale_and_shift(features, weight, bias).relu_()
            grad_kernel = part.t() @ activation
            grad_features, grad_weight, grad_bias = _normalize_backward(
                _relu_backward(part @ kernel.to(grad.dtype), activation),
                features,
                statistics,
                weight,
            )
            sums.append((grad_weight, grad_bias, grad_kernel))
            for grads, grad_block in zip(
                grad_blocks, grad_features.split(widths, dim=1), strict=True
            ):
                grads.append(grad_block)
        totals = [sum(parts[1:], parts[0]).to(kernel.dtype) for parts in zip(*sums, strict=True)]
        return (*totals, *(join(parts, dim=0) for parts in grad_blocks))


class _Convolve(torch.autograd.Function):
    """A masked convolution of ReLU(weight · (cells - mean) / deviation + bias), cells [R, in]."""

    @staticmethod
    def forward(
        ctx: Any,
        canvas: Canvas,
        statistics: Statistics,
        weight: Tensor,
        bias: Tensor,
        kernel: Tensor,
        cells: Tensor,
    ) -> Tensor:
        ctx.canvas = canvas
        ctx.statistics = statistics
        ctx.save_for_backward(weight, bias, kernel, cells)
        activation = _normalize(cells, statistics, weight, bias).relu_()
        kernel = _as_image_kernel(kernel, activation.dtype)
        return convolve(canvas.paint(activation), kernel, canvas)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, bias, kernel, cells = ctx.saved_tensors
        canvas: Canvas = ctx.canvas
        activation = _normalize(cells, ctx.statistics, weight, bias).relu_()
        grad_image, grad_kernel = convolution_gradients(
            _paint_output(grad, canvas),
            canvas.paint(activation),
            _as_image_kernel(kernel, activation.dtype),
            groups=1,
        )
        grad_cells, grad_weight, grad_bias = _normalize_backward(
            _relu_backward(canvas.read(grad_image), activation), cells, ctx.statistics, weight
        )
        dtype = kernel.dtype
        weights = (grad_weight.to(dtype), grad_bias.to(dtype), grad_kernel.to(dtype))
        return None, None, *weights, grad_cells


def _normalize(cells: Tensor, statistics: Statistics, weight: Tensor, bias: Tensor) -> Tensor:
    """weight · (cells - mean) / deviation + bias, [R, channels]."""
    weight = torch.rsqrt(statistics.variance) * weight
    return scale_and_shift(cells, weight, bias - statistics.mean * weight)


def _normalize_backward(
    grad: Tensor, cells: Tensor, statistics: Statistics, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of cells [R, channels], weight and bias from that of `_normalize`'s output."""
    mean, variance, of_batch, group = statistics
    weight = weight.to(mean.dtype)
    rstd = torch.rsqrt(variance)
    if not of_batch or group is None:
        grad_image, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            as_image(grad.contiguous()),
            as_image(cells.contiguous()),
            weight,
            running_mean=mean,
            running_var=variance,
            save_mean=mean,
            save_invstd=rstd,
            train=of_batch,
            eps=0.0,
            output_mask=[True, True, True],
        )
        return as_rows(grad_image), grad_weight, grad_bias
    exact = grad.to(mean.dtype)
    normalized = (cells - mean) * rstd
    grad_weight = (exact * normalized).sum(0)
    grad_bias = exact.sum(0)
    sums = torch.stack([grad_weight, grad_bias, torch.full_like(mean, len(grad))])
    weight_sum, bias_sum, count = sum_over_processes(sums, group)
    centered = exact - bias_sum / count - normalized * (weight_sum / count)
    return (centered * (rstd * weight)).to(grad.dtype), grad_weight, grad_bias


def _relu_backward(grad: Tensor, activation: Tensor) -> Tensor:
    """The gradient of a ReLU's input, in place of that of its output."""
    torch.ops.aten.threshold_backward.grad_input(grad, activation, 0, grad_input=grad)
    return grad


def _in_parts(blocks: Sequence[Tensor]) -> Iterator[Tensor]:
    """Concatenated blocks [R, c], on a CPU in float32 as many rows at once as its cache holds."""
    rows = len(blocks[0])
    width = sum(block.shape[1] for block in blocks)
    if blocks[0].device.type == "cpu" and blocks[0].element_size() >= 4:
        rows = _PART_BYTES // (width * blocks[0].element_size())
    for parts in zip(*(block.split(max(rows, 64)) for block in blocks), strict=True):
        yield join(parts)


def _as_image_kernel(kernel: Tensor, dtype: torch.dtype) -> Tensor:
    return kernel.to(dtype).contiguous(memory_format=torch.channels_last)


def _paint_output(cells: Tensor, canvas: Canvas) -> Tensor:
    """Cells [R, channels] as an image that lacks the rows of zeros above, as a convolution's output
    does.
    """
    if canvas.places is None:
        return canvas.unpack(cells).permute(0, 3, 1, 2)
    return canvas.paint(cells)[:, :, canvas.above :]
