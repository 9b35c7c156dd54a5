# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The residual block's depthwise convolution as an operator of its own, for `torch.compile`.

Inductor leaves it as it is. It compiles torch's own convolution anew for each length of a source,
and fails in bf16 behind a gated aggregation (torch 2.13).

Checkpoints do not carry this file: without csan_hf, `torch.compile` sees torch's convolution.
"""

from typing import Any

import torch
from torch import Tensor

from .residual_block import convolve_channels


def convolution_gradients(
    grad: Tensor, image: Tensor, kernel: Tensor, *, groups: int
) -> tuple[Tensor, Tensor]:
    """Gradients of the image and kernel of a masked convolution from that of its output."""
    grad_image, grad_kernel, _ = torch.ops.aten.convolution_backward(
        grad,
        image,
        kernel,
        bias_sizes=None,
        stride=[1, 1],
        padding=[0, kernel.shape[3] // 2],
        dilation=[1, 1],
        transposed=False,
        output_padding=[0, 0],
        groups=groups,
        output_mask=[True, True, False],
    )
    return grad_image, grad_kernel


@torch.library.custom_op("csan_hf::convolve_channels", mutates_args=())
def depthwise_convolution(image: Tensor, kernel: Tensor) -> Tensor:
    """See `convolve_channels`; the output is channels-last."""
    return _channels_last(convolve_channels(image, kernel))


@depthwise_convolution.register_fake
def _(image: Tensor, kernel: Tensor) -> Tensor:
    count, _, height, width = image.shape
    outputs, _, rows, _ = kernel.shape  # some for each channel, in a step of decoding
    return _channels_last(image.new_empty(count, outputs, height - rows + 1, width))


@torch.library.custom_op("csan_hf::convolve_channels_backward", mutates_args=())
def _backward(grad: Tensor, image: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    """See `convolution_gradients`."""
    grad_image, grad_kernel = convolution_gradients(grad, image, kernel, groups=image.shape[1])
    return _channels_last(grad_image), grad_kernel.contiguous()


@_backward.register_fake
def _(grad: Tensor, image: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    return _channels_last(torch.empty_like(image)), torch.empty_like(kernel).contiguous()


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    return _backward(grad, *ctx.saved_tensors)


depthwise_convolution.register_autograd(_differentiate, setup_context=_save)


def _channels_last(image: Tensor) -> Tensor:
    return image.contiguous(memory_format=torch.channels_last)
