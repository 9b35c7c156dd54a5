# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The dense block (section 3 of Elbayad et al., 2018; Huang et al., 2017).

A feature channel has the same mean and variance whichever layer reads it. The block therefore
normalises a feature once, when it is made, with statistics of its own; the readers' norms have only
their affine maps.

Every layer reads all features before it, so what lies between these and a convolution would fill
the memory in training. It is cheap, so `ReadFunction` computes it again in the backward pass: kept
are the blocks of features, shared by all readers, and the normalised 4g channels between a layer's
convolutions. It stands for two modules where these are the ones of this file and none has a hook,
so that the results are the same.

Shapes: R cells, C channels of the block, c <= C those that a layer reads, f_L those of the final
grid, g growth rate."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.checkpoint import checkpoint

from .canvas import Canvas
from .configuration_pervasive_attention import PervasiveAttentionConfig
from .grid_cache import GridCache, RowSums
from .grid_norm import GridBatchNorm, Statistics, is_traced, normalize, normalize_backward
from .layers import drop

# What a part of the features takes that is read at once: with what is made of it, it fits a core's
# cache
_PART_BYTES = 2**21


class PointwiseConvolution(nn.Linear):
    """A 1×1 convolution without bias: on cells [R, in], a linear map."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, bias=False)


class MaskedConvolution(nn.Module):
    """A masked k×k convolution without bias, as the kernel's unmasked rows [out, in, ceil(k / 2),
    k].

    Axis 2 runs over target rows, the last entry being the row itself; axis 3 over source columns,
    the middle entry being the column itself. The masked taps are not stored."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty(out_channels, in_channels, kernel_size // 2 + 1, kernel_size)
        )

    def forward(
        self, cells: torch.Tensor, canvas: Canvas, rows_above: RowSums | None = None
    ) -> torch.Tensor:
        """Convolve cells [R, in] to [R, out]; with `rows_above`, the cells are new rows below
        earlier ones.
        """
        if rows_above is None:
            return convolve(canvas.paint(cells), self.weight, canvas)
        kernel = rows_above.prepared((self, cells.dtype), lambda: self._rows_as_one(cells.dtype))
        return rows_above.add(convolve(canvas.paint(cells), kernel, canvas), self.weight.shape[0])

    def _rows_as_one(self, dtype: torch.dtype) -> torch.Tensor:
        """The kernel's rows as one convolution of a single row, [ceil(k / 2) · out, in, 1, k], its
        own row first.
        """
        kernel = self.weight.to(dtype).flip(2).permute(2, 0, 1, 3).flatten(0, 1).unsqueeze(2)
        return kernel.contiguous(memory_format=torch.channels_last)


def convolve(image: torch.Tensor, kernel: torch.Tensor, canvas: Canvas) -> torch.Tensor:
    """The masked convolution of a canvas [S, in, H, W] with a kernel [out, in, rows, k]; its cells
    [R, out].
    """
    return canvas.read(F.conv2d(image, kernel, padding=(0, kernel.shape[3] // 2)))


class ReadFunction(torch.autograd.Function):
    """Normalisation, ReLU and convolution of concatenated blocks [R, c], of which the blocks alone
    are kept.

    The convolution is 1×1 with a kernel [out, c], or on a canvas with that of `MaskedConvolution`.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,
        canvas: Canvas | None,
        statistics: Statistics | None,
        *weights_and_blocks: torch.Tensor,
    ) -> torch.Tensor:
        ctx.canvas, ctx.statistics = canvas, statistics
        ctx.save_for_backward(*weights_and_blocks)
        weight, bias, kernel, *blocks = weights_and_blocks
        if canvas is None:
            parts = (
                normalize(features, None, weight, bias).relu_() for features in _in_parts(blocks)
            )
            return _cat([F.linear(read, kernel) for read in parts], dim=0)
        read = normalize(blocks[0], statistics, weight, bias).relu_()
        return convolve(canvas.paint(read), _as_image_kernel(kernel, read.dtype), canvas)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: D102
        weight, bias, kernel, *blocks = ctx.saved_tensors
        grads: list[Any] = []
        start = 0
        for features in _in_parts(blocks) if ctx.canvas is None else blocks:
            read = normalize(features, ctx.statistics, weight, bias).relu_()
            part, start = grad[start : start + len(read)], start + len(read)
            if ctx.canvas is None:
                grad_kernel, grad_read = part.t() @ read, part @ kernel.to(grad.dtype)
            else:
                grad_read, grad_kernel = _convolve_backward(part, read, kernel, ctx.canvas)
            torch.ops.aten.threshold_backward.grad_input(grad_read, read, 0, grad_input=grad_read)
            grad_cells, *sums = normalize_backward(grad_read, features, ctx.statistics, weight)
            grads.append(
                (grad_cells.split([block.shape[1] for block in blocks], dim=1), *sums, grad_kernel)
            )
        cells, *others = zip(*grads, strict=True)
        grad_blocks = [_cat(parts, dim=0) for parts in zip(*cells, strict=True)]
        totals = (sum(parts[1:], parts[0]).to(kernel.dtype) for parts in others)
        return None, None, *totals, *grad_blocks


def _cat(tensors: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim=dim)


def _in_parts(blocks: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Concatenated blocks [R, c], on a CPU in float32 as many rows at once as its cache holds."""
    rows, width = len(blocks[0]), sum(block.shape[1] for block in blocks)
    if blocks[0].device.type == "cpu" and blocks[0].element_size() >= 4:
        rows = _PART_BYTES // (width * blocks[0].element_size())
    for parts in zip(*(block.split(max(rows, 64)) for block in blocks), strict=True):
        yield _cat(parts, dim=1)


def _as_image_kernel(kernel: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return kernel.to(dtype).contiguous(memory_format=torch.channels_last)


def _convolve_backward(
    grad: torch.Tensor, cells: torch.Tensor, kernel: torch.Tensor, canvas: Canvas
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of `convolve` with respect to the cells [R, in] and the kernel from that of its
    output [R, out].
    """
    kernel, padding = _as_image_kernel(kernel, cells.dtype), [0, kernel.shape[3] // 2]
    images = canvas.paint_output(grad), canvas.paint(cells)
    options = [1, 1], padding, [1, 1], False, [0, 0], 1, [True, True, False]
    grad_image, grad_kernel, _ = torch.ops.aten.convolution_backward(
        *images, kernel, None, *options
    )
    return canvas.read(grad_image, skip=canvas.above), grad_kernel


class FeatureAffine(nn.Module):
    """The affine map of one layer that reads the normalised features: weight · features + bias."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """[R, c] -> [R, c]."""
        return torch.addcmul(self.bias.to(features.dtype), features, self.weight.to(features.dtype))


def read(blocks: Sequence[torch.Tensor], norm: nn.Module, conv: nn.Module) -> torch.Tensor:
    """A 1×1 convolution [R, out] of ReLU(norm(features)), the features [R, c] in blocks."""
    if _are_plain(norm, conv):
        output: torch.Tensor = ReadFunction.apply(
            None, None, norm.weight, norm.bias, conv.weight, *blocks
        )
        return output
    convolved: torch.Tensor = conv(norm(_cat(blocks, dim=1)).relu())
    return convolved


class Dropout(nn.Dropout):
    """Dropout with fewer random numbers on a CPU."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """See `layers.drop`."""
        return drop(input, self.p, self.training)


class DenseLayer(nn.Module):
    """One dense layer: BN, ReLU, 1×1 convolution, BN, ReLU, masked convolution, perhaps a gate,
    dropout.
    """

    def __init__(self, config: PervasiveAttentionConfig, in_channels: int) -> None:
        super().__init__()
        bottleneck = config.bottleneck_factor * config.growth_rate
        self.gated = config.gated
        self.norm1 = FeatureAffine(in_channels)
        self.conv1 = PointwiseConvolution(in_channels, bottleneck)
        self.norm2 = GridBatchNorm(bottleneck, config.batch_norm_eps, config.batch_norm_momentum)
        self.conv2 = MaskedConvolution(
            bottleneck, config.growth_rate * (1 + config.gated), config.kernel_size
        )
        self.dropout = Dropout(config.dropout)

    def forward(
        self, blocks: Sequence[torch.Tensor], canvas: Canvas, rows_above: RowSums | None = None
    ) -> torch.Tensor:
        """New features [R, g] from the normalised ones [R, c] before them."""
        is_plain = _are_plain(self.norm1, self.conv1, self.norm2, self.conv2)
        if is_plain and torch.is_grad_enabled():
            norm, inner = self.norm2, read(blocks, self.norm1, self.conv1)
            new = ReadFunction.apply(
                canvas, norm.statistics(inner), norm.weight, norm.bias, self.conv2.weight, inner
            )
        elif is_plain and not self.norm2.is_of_batch:
            features = _cat(blocks, dim=1)
            make = functools.partial(self._fold, features.dtype)
            matrix, bias = (
                make() if rows_above is None else rows_above.prepared((self, features.dtype), make)
            )
            inner = torch.addmm(bias, self.norm1(features).relu_(), matrix).relu_()
            new = self.conv2(inner, canvas, rows_above)
        else:
            inner = self.norm2(read(blocks, self.norm1, self.conv1), canvas.real)
            new = self.conv2(inner.relu(), canvas, rows_above)
        if self.gated:  # the gate comes first
            new = F.glu(new.roll(new.shape[1] // 2, dims=1), dim=1)
        dropped: torch.Tensor = self.dropout(new)
        return dropped

    def _fold(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """The first convolution and the second norm in one: a matrix [c, 4g] and a bias [4g]."""
        scale, shift = self.norm2.affine_of_running()
        return (self.conv1.weight * scale.unsqueeze(1)).t().to(dtype).contiguous(), shift.to(dtype)


class Transition(nn.Module):
    """The transition: BN, ReLU and a 1×1 convolution that halves the channels."""

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__()
        self.norm = FeatureAffine(config.block_channels)
        self.conv = PointwiseConvolution(config.block_channels, config.grid_channels)

    def forward(self, blocks: Sequence[torch.Tensor]) -> torch.Tensor:
        """Normalised features [R, C], in blocks -> [R, f_L]."""
        return read(blocks, self.norm, self.conv)


# What the statistics of the features were called while the block was their normalisation itself
FORMER_NAMES = {
    name: f"feature_norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
}


class FeatureNorm(GridBatchNorm):
    """The normalisation of the block's features, each once, when it is made.

    Its statistics do not change while no reader's weight is trained.
    """

    def __init__(self, config: PervasiveAttentionConfig, block: "DenseBlock") -> None:
        super().__init__(
            config.block_channels, config.batch_norm_eps, config.batch_norm_momentum, affine=False
        )
        self._block = [block]  # in a list, so that it is no module within this one

    def affine_weights(self) -> Sequence[nn.Parameter]:
        """The weights of all readers."""
        layers: Any = self._block[0].layers
        return (*(layer.norm1.weight for layer in layers), self._block[0].transition.norm.weight)

    def forward(  # type: ignore[override]
        self, input: torch.Tensor, start: int, real: torch.Tensor | None
    ) -> torch.Tensor:
        """Normalise the features [R, channels] from channel `start` on."""
        features = self.standardize(input, start, real)
        return (
            features.clone() if self._forward_hooks else features
        )  # which a hook may edit in place


class DenseBlock(nn.Module):
    """L dense layers and the transition, and the normalisation of their features."""

    needs_norm = True

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__()
        self.feature_norm = FeatureNorm(config, self)
        self.pending_channels = config.kernel_size // 2 * config.growth_rate * (1 + config.gated)
        widths = [
            config.input_channels + number * config.growth_rate
            for number in range(config.num_layers)
        ]
        self.layers = nn.ModuleList([DenseLayer(config, width) for width in widths])
        self.transition = Transition(config)
        self.gradient_checkpointing = False

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load statistics under their former names, too."""
        for former, own in FORMER_NAMES.items():
            if prefix + former in state_dict:
                state_dict[prefix + own] = state_dict.pop(prefix + former)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward(
        self, inputs: torch.Tensor, canvas: Canvas, cache: GridCache | None = None
    ) -> torch.Tensor:
        """Run the block.

        Args:
            inputs: [R, c_1].
            canvas: The places of the cells; of new rows, with a cache.
            cache: The sums of the rows before these, to which these are added for the rows after.

        Returns:
            [R, f_L].
        """
        rows_above = (
            None
            if cache is None
            else RowSums(cache, canvas, len(self.layers), self.pending_channels)
        )
        blocks, width = [self.feature_norm(inputs, 0, canvas.real)], inputs.shape[1]
        features = None
        if (
            not torch.is_grad_enabled() and not is_traced()
        ):  # the blocks in one place, where nothing is to be joined
            features = blocks[0].new_empty(len(inputs), self.feature_norm.num_features)
            features[:, :width] = blocks[0]
        for layer in self.layers:
            if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
                new: Any = checkpoint(layer, list(blocks), canvas, use_reentrant=False)
            else:
                new = layer(blocks, canvas, rows_above)
            made, start = self.feature_norm(new, width, canvas.real), width
            width += new.shape[1]
            if features is None:
                blocks.append(made)
            else:
                features[:, start:width] = made
                blocks = [features[:, :width]]
        if rows_above is not None:
            rows_above.finish()
        output: torch.Tensor = self.transition(blocks)
        return output


_KINDS = (FeatureAffine, PointwiseConvolution, GridBatchNorm, MaskedConvolution)
_WEIGHTS = (
    nn.Parameter,
    torch.Tensor,
    FakeTensor,
    type(None),
)  # a fake one stands for a plain one: sizes, no content


def _are_plain(*modules: nn.Module) -> bool:
    """Whether modules are of this file, as they were made, and nothing is hooked to them or traced."""
    return not (_has_any_global_hook() or is_traced() or any(map(_is_altered, modules)))


def _is_altered(module: nn.Module) -> bool:
    """Whether a module is another's, has a hook or a replaced `forward`, or weights of a tensor
    subclass.
    """
    return bool(
        type(module) not in _KINDS
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
        or any(type(weight) not in _WEIGHTS for weight in module._parameters.values())
    )
