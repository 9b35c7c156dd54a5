# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The dense block (section 3 of Elbayad et al., 2018; Huang et al., 2017).

A feature channel has the same mean and variance whichever layer reads it. The block therefore
normalises a feature once, when it is made, with statistics of its own; the readers' norms have only
their affine maps.

In training csan_hf replaces some of the modules by `dense_backward`, which takes less memory and
time, and in evaluation a layer's first convolution and second norm are one matrix. Both are done
only where the modules are those of this file and none has a hook, so that the results are the same.

Shapes: R cells, C channels of the block, c <= C those that a layer reads, f_L those of the final
grid, g growth rate."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.checkpoint import checkpoint

from .canvas import Canvas
from .configuration_pervasive_attention import PervasiveAttentionConfig
from .grid_cache import RowSums
from .grid_norm import BACKWARD, GridBatchNorm
from .layers import drop, is_traced


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

    def forward(self, cells: Tensor, canvas: Canvas, rows_above: RowSums | None = None) -> Tensor:
        """Convolve cells [R, in] to [R, out].

        With `rows_above` the cells are new rows below earlier ones, for which sums are kept.
        """
        if rows_above is not None:
            products = self.multiply(rows_above.select(cells), rows_above)
            outputs = rows_above.add(products, self.weight.shape[0])
            if not rows_above.is_prefix:
                return outputs
        return self.convolve(cells, canvas, self.weight)

    def convolve(self, cells: Tensor, canvas: Canvas, kernel: Tensor) -> Tensor:
        """Convolve the cells of a canvas with rows of the kernel, or with all of it."""
        return convolve(canvas.paint(cells), kernel, canvas)

    def multiply(self, cells: Tensor, rows_above: RowSums) -> Tensor:
        """Products [R, ceil(k / 2) · out] with each row of the kernel, the cell's own row first."""
        dtype = cells.dtype
        kernel = rows_above.prepared((self, dtype), lambda: self._rows_as_one(dtype))
        return self.convolve(cells, rows_above.canvas, kernel)

    def _rows_as_one(self, dtype: torch.dtype) -> Tensor:
        """The kernel's rows as one convolution of a single row, [ceil(k / 2) · out, in, 1, k]."""
        kernel = self.weight.to(dtype).flip(2).permute(2, 0, 1, 3).flatten(0, 1).unsqueeze(2)
        return kernel.contiguous(memory_format=torch.channels_last)


def convolve(image: Tensor, kernel: Tensor, canvas: Canvas) -> Tensor:
    """The masked convolution of a canvas [S, in, H, W] with a kernel [out, in, rows, k]; its cells
    [R, out].
    """
    return canvas.read(F.conv2d(image, kernel, padding=(0, kernel.shape[3] // 2)))


class FeatureAffine(nn.Module):
    """The affine map of one layer that reads the normalised features: weight · features + bias."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, features: Tensor) -> Tensor:
        """[R, c] -> [R, c]."""
        return torch.addcmul(self.bias.to(features.dtype), features, self.weight.to(features.dtype))


def join(blocks: Sequence[Tensor], dim: int = 1) -> Tensor:
    """Concatenate blocks; a single block is not copied."""
    return blocks[0] if len(blocks) == 1 else torch.cat(list(blocks), dim=dim)


def read(blocks: Sequence[Tensor], norm: nn.Module, conv: nn.Module) -> Tensor:
    """A 1×1 convolution [R, out] of ReLU(norm(features)), the features [R, c] in blocks."""
    if "read" in BACKWARD and _are_plain(norm, conv):
        return BACKWARD["read"](norm.weight, norm.bias, conv.weight, *blocks)
    return conv(norm(join(blocks)).relu())


class Dropout(nn.Dropout):
    """Dropout with fewer random numbers on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
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
        self, blocks: Sequence[Tensor], canvas: Canvas, rows_above: RowSums | None = None
    ) -> Tensor:
        """New features [R, g] from the normalised ones [R, c] before them."""
        new = self._convolve(blocks, canvas, rows_above)
        if self.gated:  # the gate comes first
            new = F.glu(new.roll(new.shape[1] // 2, dims=1), dim=1)
        return self.dropout(new)

    def _convolve(
        self, blocks: Sequence[Tensor], canvas: Canvas, rows_above: RowSums | None
    ) -> Tensor:
        is_plain = _are_plain(self.norm1, self.conv1, self.norm2, self.conv2)
        if is_plain and torch.is_grad_enabled() and BACKWARD:
            inner = read(blocks, self.norm1, self.conv1)
            norm = self.norm2
            return BACKWARD["convolve"](
                canvas, norm.statistics(inner), norm.weight, norm.bias, self.conv2.weight, inner
            )
        if is_plain and not torch.is_grad_enabled() and not self.norm2.is_of_batch:
            features = join(blocks)
            fold = functools.partial(self._fold, features.dtype)
            if rows_above is None:
                matrix, bias = fold()
            else:
                matrix, bias = rows_above.prepared((self, features.dtype), fold)
            inner = torch.addmm(bias, self.norm1(features).relu_(), matrix).relu_()
        else:
            inner = self.norm2(read(blocks, self.norm1, self.conv1), canvas.real).relu()
        return self.conv2(inner, canvas, rows_above)

    def _fold(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The first convolution and the second norm in one: a matrix [c, 4g] and a bias [4g]."""
        scale, shift = self.norm2.affine_of_running()
        return (self.conv1.weight * scale.unsqueeze(1)).t().to(dtype).contiguous(), shift.to(dtype)


class Transition(nn.Module):
    """The transition: BN, ReLU and a 1×1 convolution that halves the channels."""

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__()
        self.norm = FeatureAffine(config.block_channels)
        self.conv = PointwiseConvolution(config.block_channels, config.grid_channels)

    def forward(self, blocks: Sequence[Tensor]) -> Tensor:
        """Normalised features [R, C], in blocks -> [R, f_L]."""
        return read(blocks, self.norm, self.conv)


# Former names of the features' statistics -> their names, within the block
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

    def affine_weights(self) -> list[nn.Parameter]:
        """The weights of all readers."""
        (block,) = self._block
        return [norm.weight for norm in block.readers()]

    def forward(  # type: ignore[override]
        self, input: Tensor, start: int, real: Tensor | None
    ) -> Tensor:
        """Normalise the features [R, channels] from channel `start` on."""
        return self.standardize(input, start, real)


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

    def readers(self) -> list[Any]:
        """The affine maps of all that read the features."""
        return [*(layer.norm1 for layer in self.layers), self.transition.norm]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load statistics under their former names, too."""
        for former, name in FORMER_NAMES.items():
            if prefix + former in state_dict:
                state_dict[prefix + name] = state_dict.pop(prefix + former)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward(self, inputs: Tensor, canvas: Canvas, rows_above: RowSums | None = None) -> Tensor:
        """Run the block.

        Args:
            inputs: [R, c_1].
            canvas: The places of the cells; of new rows, with `rows_above`.
            rows_above: The sums of the rows before these.

        Returns:
            [R, f_L].
        """
        width = inputs.shape[1]
        blocks = [self.feature_norm(inputs, 0, canvas.real)]
        features = None
        if not torch.is_grad_enabled() and not is_traced():
            # All blocks in one place, so that no layer joins them
            features = blocks[0].new_empty(len(inputs), self.feature_norm.num_features)
            features[:, :width] = blocks[0]
        for layer in self.layers:
            if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
                new = checkpoint(layer, list(blocks), canvas, use_reentrant=False)
            else:
                new = layer(blocks, canvas, rows_above)
            new = self.feature_norm(new, width, canvas.real)
            start = width
            width += new.shape[1]
            if features is None:
                blocks.append(new)
            else:
                features[:, start:width] = new
                blocks = [features[:, :width]]
        return self.transition(blocks)


_KINDS = (FeatureAffine, PointwiseConvolution, GridBatchNorm, MaskedConvolution)


def _are_plain(*modules: nn.Module) -> bool:
    """Whether modules are of this file, as they were made, without hooks, and not traced."""
    return not (_has_any_global_hook() or is_traced() or any(map(_is_altered, modules)))


def _is_altered(module: nn.Module) -> bool:
    """Whether a module is another's, or has a hook or a replaced `forward`."""
    return bool(
        type(module) not in _KINDS
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )
