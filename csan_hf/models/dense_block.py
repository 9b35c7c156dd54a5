# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The dense block (section 3 of Elbayad et al., 2018; Huang et al., 2017) as modules.

The modules' `forward` methods define the result. Autograd functions compute the same and keep less for the backward
pass: a dense layer keeps the blocks of features that it reads, shared with all other readers, and the 4g channels
between its convolutions (recomputed, too, with gradient checkpointing); what lies between is recomputed. With a cache,
`dense_block_inference` multiplies running statistics into the weights. Both are taken only where all modules are the
ones of this file and none has a hook, so that the results are the same.

A feature channel has the same mean and variance whichever layer reads it. The block therefore normalises a feature
once, when it is made, with statistics of its own; the readers' norms have only their affine maps.

Shapes: R cells, C channels of the block, c <= C those that a layer reads, f_L those of the final grid, g growth rate.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable
from torch.nn.modules.module import _has_any_global_hook

from .canvas import Canvas
from .configuration_pervasive_attention import PervasiveAttentionConfig
from .dense_block_inference import (
    FoldedBlock,
    FoldedLayer,
    FoldedReader,
    convolve_new_rows,
    kernel_by_row,
    run_folded_block,
)
from .grid_cache import ONLY_IN_EVALUATION, GridCache, RowSums
from .grid_norm import (
    GridBatchNorm,
    NormSettings,
    is_traced,
    normalize,
    normalize_backward,
    normalize_features,
    normalize_with,
)
from .seq2seq_model import draw_kept, scale_kept


class PointwiseConvolution(nn.Linear):
    """A 1×1 convolution without bias: on cells [R, in], a linear map."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, bias=False)


class MaskedConvolution(nn.Module):
    """A masked k×k convolution without bias, as the kernel's unmasked rows [out, in, ceil(k / 2), k].

    Axis 2 runs over target rows, the last entry being the row itself; axis 3 over source columns, the middle entry
    being the column itself. The masked taps are not stored.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel_size // 2 + 1, kernel_size))

    def forward(self, cells: torch.Tensor, canvas: Canvas, rows_above: RowSums | None = None) -> torch.Tensor:
        """Convolve cells [R, in] to [R, out]; with `rows_above`, the cells are new rows below earlier ones."""
        if rows_above is None:
            return convolve(canvas.paint(cells), self.weight, canvas)
        return convolve_new_rows(cells, kernel_by_row(self.weight), canvas, rows_above)


def convolve(image: torch.Tensor, kernel: torch.Tensor, canvas: Canvas) -> torch.Tensor:
    """The masked convolution of a canvas [S, in, H, W] with a kernel [out, in, ceil(k / 2), k]; its cells [R, out]."""
    return canvas.read(F.conv2d(image, kernel, padding=(0, kernel.shape[3] // 2)))


class LayerSettings(NamedTuple):
    """What a dense layer computes with: its second norm, its dropout, a gate, and whether backward recomputes."""

    norm: NormSettings
    dropout: float
    gated: bool
    recompute: bool


def _read(features: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """ReLU(weight · features + bias), [R, c]."""
    return torch.addcmul(bias.to(features.dtype), features, weight.to(features.dtype), out=out).relu_()


def _read_backward(
    grad: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, conv: torch.Tensor, blocks: list[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Gradients of the affine map, the convolution [out, c] and the blocks from that of the output [R, out]."""
    features = torch.cat(blocks, dim=1)
    read = _read(features, weight, bias, out=torch.empty_like(features))
    grad_conv = (grad.t() @ read).to(conv.dtype)
    grad_read = grad @ conv.to(grad.dtype)
    torch.ops.aten.threshold_backward.grad_input(grad_read, read, 0, grad_input=grad_read)
    grad_bias = grad_read.sum(0, dtype=bias.dtype)
    grad_weight = torch.mul(grad_read, features, out=read).sum(0, dtype=weight.dtype)
    grad_blocks = grad_read.mul_(weight.to(grad.dtype)).split([block.shape[1] for block in blocks], dim=1)
    return grad_weight, grad_bias, grad_conv, *grad_blocks


class ReadFunction(torch.autograd.Function):
    """Affine map, ReLU and 1×1 convolution of concatenated blocks, of which the blocks alone are kept."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, weight: torch.Tensor, bias: torch.Tensor, conv: torch.Tensor, *blocks: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(weight, bias, conv, *blocks)
        features = torch.cat(blocks, dim=1)
        return _read(features, weight, bias, out=features) @ conv.to(features.dtype).t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:  # noqa: D102
        weight, bias, conv, *blocks = ctx.saved_tensors
        return _read_backward(grad, weight, bias, conv, blocks)


class DenseLayerFunction(torch.autograd.Function):
    """A dense layer on the blocks of features before it; keeps these and the 4g channels between its convolutions."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,
        canvas: Canvas,
        settings: LayerSettings,
        running: tuple[torch.Tensor, torch.Tensor],
        *weights_and_blocks: torch.Tensor,
    ) -> torch.Tensor:
        weight1, bias1, conv1, weight2, bias2, conv2, *blocks = weights_and_blocks
        features = torch.cat(blocks, dim=1)
        inner = _read(features, weight1, bias1, out=features) @ conv1.to(features.dtype).t()
        del features
        normalized, mean, rstd = normalize(inner, weight2, bias2, *running, settings.norm)
        new = convolve(canvas.paint(normalized.relu_()), _image_kernel(conv2, inner.dtype), canvas)
        del normalized
        kept = None
        ungated = new if settings.gated and not settings.recompute else None
        if settings.gated:
            new = _gate(new)
        if settings.dropout > 0.0:
            kept = draw_kept(new, settings.dropout).to(torch.uint8)  # it stays until the backward
            new = scale_kept(new, kept, settings.dropout)
        kept_inner = None if settings.recompute else inner
        ctx.save_for_backward(mean, rstd, kept_inner, ungated, kept, *weights_and_blocks)
        ctx.canvas, ctx.settings = canvas, settings
        return new

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: D102
        mean, rstd, inner, ungated, kept, *weights_and_blocks = ctx.saved_tensors
        weight1, bias1, conv1, weight2, bias2, conv2, *blocks = weights_and_blocks
        canvas, settings = ctx.canvas, ctx.settings
        if kept is not None:
            grad = scale_kept(grad, kept, settings.dropout)
        if inner is None:
            features = torch.cat(blocks, dim=1)
            inner = _read(features, weight1, bias1, out=features) @ conv1.to(features.dtype).t()
            del features
        read = normalize_with(inner, weight2, bias2, mean, rstd).relu_()
        image = canvas.paint(read)
        kernel = _image_kernel(conv2, inner.dtype)
        if settings.gated:
            grad = _gate_backward(grad, convolve(image, kernel, canvas) if ungated is None else ungated)
        padding = [0, kernel.shape[3] // 2]
        grad_image, grad_conv2, _ = torch.ops.aten.convolution_backward(
            canvas.paint_output(grad),
            image,
            kernel,
            None,
            [1, 1],
            padding,
            [1, 1],
            False,
            [0, 0],
            1,
            [True, True, False],
        )
        grad_normalized = canvas.read(grad_image, skip=canvas.above)
        torch.ops.aten.threshold_backward.grad_input(grad_normalized, read, 0, grad_input=grad_normalized)
        del image, grad_image, read
        grad_inner, *grad_norm2 = normalize_backward(grad_normalized, inner, weight2, mean, rstd, settings.norm)
        grads = _read_backward(grad_inner, weight1, bias1, conv1, blocks)
        return None, None, None, *grads[:3], *grad_norm2, grad_conv2.to(conv2.dtype), *grads[3:]


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


class FeatureAffine(nn.Module):
    """The affine map of one layer that reads the normalised features: weight · features + bias."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """[R, c] -> [R, c]."""
        return torch.addcmul(self.bias.to(features.dtype), features, self.weight.to(features.dtype))


class DenseLayer(nn.Module):
    """One dense layer: BN, ReLU, 1×1 convolution, BN, ReLU, masked convolution, perhaps a gate, dropout."""

    def __init__(self, config: PervasiveAttentionConfig, in_channels: int) -> None:
        super().__init__()
        bottleneck = config.bottleneck_factor * config.growth_rate
        self.gated = config.gated
        self.norm1 = FeatureAffine(in_channels)
        self.conv1 = PointwiseConvolution(in_channels, bottleneck)
        self.norm2 = GridBatchNorm(bottleneck, config.batch_norm_eps, config.batch_norm_momentum)
        self.conv2 = MaskedConvolution(bottleneck, config.growth_rate * (1 + config.gated), config.kernel_size)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, features: torch.Tensor, canvas: Canvas, rows_above: RowSums | None = None) -> torch.Tensor:
        """New features [R, g] from the normalised ones [R, c] before them."""
        inner = self.conv1(self.norm1(features).relu())
        new = self.conv2(self.norm2(inner, canvas.real).relu(), canvas, rows_above)
        if self.gated:
            new = _gate(new)
        dropped: torch.Tensor = self.dropout(new)
        return dropped


class Transition(nn.Module):
    """The transition: BN, ReLU and a 1×1 convolution that halves the channels."""

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__()
        self.norm = FeatureAffine(config.block_channels)
        self.conv = PointwiseConvolution(config.block_channels, config.grid_channels)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Normalised features [R, C] -> [R, f_L]."""
        output: torch.Tensor = self.conv(self.norm(features).relu())
        return output


# What the statistics of the features were called while the block was their normalisation itself
FORMER_NAMES = {name: f"feature_norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}


class FeatureNorm(GridBatchNorm):
    """The normalisation of the block's features, each once, when it is made.

    Its statistics do not change while no reader's weight is trained.
    """

    def __init__(self, config: PervasiveAttentionConfig, block: "DenseBlock") -> None:
        super().__init__(config.block_channels, config.batch_norm_eps, config.batch_norm_momentum, affine=False)
        self._block = [block]  # in a list, so that it is no module within this one

    def affine_weights(self) -> Iterator[nn.Parameter]:
        """The weights of all readers."""
        return self._block[0].reader_weights()

    def forward(  # type: ignore[override]
        self, input: torch.Tensor, start: int, settings: NormSettings, real: torch.Tensor | None
    ) -> torch.Tensor:
        """Normalise the features [R, channels] from channel `start` on, in a batch that has begun."""
        return self._normalize(input, start, settings, real)


_KINDS = (
    DenseLayer,
    Transition,
    FeatureAffine,
    FeatureNorm,
    PointwiseConvolution,
    GridBatchNorm,
    MaskedConvolution,
    nn.Dropout,
)
_WEIGHTS = (nn.Parameter, torch.Tensor, FakeTensor, type(None))  # a fake one stands for a plain one: sizes, no content


class DenseBlock(nn.Module):
    """L dense layers and the transition, and the normalisation of their features."""

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__()
        self.feature_norm = FeatureNorm(config, self)
        self.kernel_size, self.gated, self.growth_rate = config.kernel_size, config.gated, config.growth_rate
        widths = [config.input_channels + number * config.growth_rate for number in range(config.num_layers)]
        self.layers = nn.ModuleList([DenseLayer(config, width) for width in widths])
        self.transition = Transition(config)
        self.gradient_checkpointing = False

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load statistics under their former names, too."""
        for former, own in FORMER_NAMES.items():
            if prefix + former in state_dict:
                state_dict[prefix + own] = state_dict.pop(prefix + former)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def dense_layers(self) -> list[DenseLayer]:
        """The layers, from the input on."""
        return cast(list[DenseLayer], list(self.layers))

    def reader_weights(self) -> Iterator[nn.Parameter]:
        """The weights of what reads the normalised features."""
        yield from (layer.norm1.weight for layer in self.dense_layers())
        yield self.transition.norm.weight

    def forward(self, inputs: torch.Tensor, canvas: Canvas, cache: GridCache | None = None) -> torch.Tensor:
        """Run the block.

        Args:
            inputs: [R, c_1].
            canvas: The places of the cells; of new rows, with a cache.
            cache: The sums of the rows before these, to which these are added for the rows after.

        Returns:
            [R, f_L].

        Raises:
            ValueError: A norm uses the statistics of its batch, and there is a cache.
        """
        if is_traced():
            return self._run_modules(inputs, canvas, cache)
        modules = list(self.modules())
        in_training = any(module.training for module in modules)
        dropout_alone = in_training and cache is not None
        if dropout_alone and any(isinstance(module, GridBatchNorm) and module.is_of_batch for module in modules):
            raise ValueError(ONLY_IN_EVALUATION)
        if dropout_alone or not self._are_plain(modules):
            return self._run_modules(inputs, canvas, cache)
        if cache is None:
            return self._run_layers(inputs, canvas)
        dtype = _compute_dtype(inputs)
        folded = cache.prepared.folded_weights
        if folded is None or folded.scale.dtype != dtype:  # autocast may begin or end between steps
            folded = cache.prepared.folded_weights = self.fold(dtype)
        rows_above = self._rows_above(canvas, cache)
        with torch.autocast(inputs.device.type, enabled=False):
            output = run_folded_block(folded, inputs.to(dtype), canvas, rows_above)
        rows_above.finish()
        return output

    def _rows_above(self, canvas: Canvas, cache: GridCache) -> RowSums:
        pending = self.kernel_size // 2 * self.growth_rate * (1 + self.gated)
        return RowSums(cache, canvas, len(self.layers), pending)

    def _are_plain(self, modules: list[nn.Module]) -> bool:
        """Whether every module in the block is one of this file, as it was made, and nothing is hooked to it."""
        return not _has_any_global_hook() and all(
            type(module) in _KINDS and not _is_altered(module)
            for module in modules
            if module is not self and module is not self.layers
        )

    def _run_modules(self, inputs: torch.Tensor, canvas: Canvas, cache: GridCache | None) -> torch.Tensor:
        """Run the block module by module, without a shortcut."""
        width = inputs.shape[1]
        settings = self.feature_norm.begin_batch()
        features = self.feature_norm(inputs, 0, settings, canvas.real)
        rows_above = None if cache is None else self._rows_above(canvas, cache)
        for layer in self.layers:
            new = layer(features, canvas, rows_above)
            features = torch.cat([features, self.feature_norm(new, width, settings, canvas.real)], dim=1)
            width += new.shape[1]
        if rows_above is not None:
            rows_above.finish()
        output: torch.Tensor = self.transition(features)
        return output

    def _run_layers(self, inputs: torch.Tensor, canvas: Canvas) -> torch.Tensor:
        """Run the block layer by layer, keeping little for the backward pass."""
        norm, start = self.feature_norm.begin_batch(), inputs.shape[1]
        running = (self.feature_norm.running_mean, self.feature_norm.running_var)
        recompute = self.gradient_checkpointing and self.training
        inputs = inputs.to(_compute_dtype(inputs))
        with torch.autocast(inputs.device.type, enabled=False):
            blocks = [normalize_features(inputs, running[0][:start], running[1][:start], norm)]
            for layer in self.dense_layers():
                dropout = layer.dropout.p if layer.dropout.training else 0.0
                settings = LayerSettings(layer.norm2.begin_batch(), dropout, self.gated, recompute)
                weights = [layer.norm1.weight, layer.norm1.bias, layer.conv1.weight]
                weights += [layer.norm2.weight, layer.norm2.bias, layer.conv2.weight]
                statistics = (layer.norm2.running_mean, layer.norm2.running_var)
                new = DenseLayerFunction.apply(canvas, settings, statistics, *weights, *blocks)
                part = slice(start, start + self.growth_rate)
                blocks.append(normalize_features(new, running[0][part], running[1][part], norm))
                start = part.stop
            norm1, conv = self.transition.norm, self.transition.conv
            output: torch.Tensor = ReadFunction.apply(norm1.weight, norm1.bias, conv.weight, *blocks)
        return output

    @torch.no_grad()
    def fold(self, dtype: torch.dtype) -> FoldedBlock:
        """The block's weights with the running statistics multiplied in, in the form for cached decoding."""
        norm = self.feature_norm
        exact = norm.running_var.dtype
        rstd = torch.rsqrt(norm.running_var + norm.eps)
        scales = rstd.to(dtype)
        shifts = (-norm.running_mean * rstd).to(dtype)
        layers, width = [], self.dense_layers()[0].norm1.weight.shape[0]
        inputs = slice(0, width)
        for layer in self.dense_layers():
            inner_scale = layer.norm2.weight.to(exact) * torch.rsqrt(layer.norm2.running_var + layer.norm2.eps)
            inner_shift = layer.norm2.bias - layer.norm2.running_mean * inner_scale
            conv1 = layer.conv1.weight * inner_scale.unsqueeze(1)
            conv2 = kernel_by_row(layer.conv2.weight.to(dtype))
            made = slice(width, width + self.growth_rate)
            layers.append(
                FoldedLayer(
                    reader=_fold_reader(layer.norm1, conv1, inner_shift, dtype),
                    conv2=conv2.contiguous(memory_format=torch.channels_last),
                    scale=scales[made],
                    shift=shifts[made],
                )
            )
            width = made.stop
        conv = self.transition.conv.weight.to(exact)
        transition = _fold_reader(self.transition.norm, conv, conv.new_zeros(conv.shape[0]), dtype)
        return FoldedBlock(scales[inputs], shifts[inputs], layers, transition, self.gated)


def _fold_reader(affine: FeatureAffine, conv: torch.Tensor, shift: torch.Tensor, dtype: torch.dtype) -> FoldedReader:
    return FoldedReader.of(affine.weight.to(conv.dtype), affine.bias.to(conv.dtype), conv, shift, dtype)


def _is_altered(module: nn.Module) -> bool:
    """Whether a module has a hook or a replaced `forward`, or weights of a tensor subclass."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
        or any(type(weight) not in _WEIGHTS for weight in module._parameters.values())
    )


def _compute_dtype(tensor: torch.Tensor) -> torch.dtype:
    """The type that autocast asks for here, else the tensor's own."""
    device = tensor.device.type
    if tensor.is_floating_point() and torch.is_autocast_enabled(device) and tensor.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return tensor.dtype
