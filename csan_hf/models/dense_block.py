# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The dense block (section 3 of Elbayad et al., 2018; Huang et al., 2017) as modules.

The modules' `forward` methods define the result. Two shortcuts compute the same faster: `dense_block_training` keeps
little for the backward pass, `dense_block_inference` multiplies running statistics into the weights. They are taken
only where all modules are the ones of this file and none has a hook, so that nobody can see the difference.

A feature channel has the same mean and variance whichever layer reads it. The block therefore normalises a feature
once, when it is made, with statistics of its own; the readers' norms have only their affine maps.

Shapes: R cells, C channels of the block, c <= C those that a layer reads, f_L those of the final grid, g growth rate.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any, cast

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.module import _has_any_global_hook

from .canvas import Canvas
from .configuration_pervasive_attention import PervasiveAttentionConfig
from .dense_block_inference import FoldedBlock, FoldedLayer, FoldedReader, run_folded_block
from .dense_block_training import BlockSettings, DenseBlockFunction, LayerSettings
from .grid_cache import ONLY_IN_EVALUATION, GridCache, RowSums
from .grid_convolutions import MaskedConvolution, PointwiseConvolution, kernel_by_row
from .grid_norm import GridBatchNorm, NormSettings, is_traced


class FeatureAffine(nn.Module):
    """The affine map of one layer that reads the normalised features: weight · features + bias."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """[R, c] -> [R, c]."""
        return torch.addcmul(self.bias.to(features.dtype), features, self.weight.to(features.dtype))

    def extra_repr(self) -> str:
        """What print(model) shows."""
        return str(self.weight.shape[0])


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
            gate, value = new.chunk(2, dim=1)
            new = torch.sigmoid(gate) * value
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
        needs_grad = torch.is_grad_enabled() and (
            inputs.requires_grad or any(parameter.requires_grad for parameter in self.parameters())
        )
        if in_training or needs_grad:
            return self._run_differentiably(inputs, canvas)
        dtype = _compute_dtype(inputs)
        if cache is None:
            folded = self.fold(dtype, by_row=False)
        else:
            folded = cache.prepared.folded_weights
            if folded is None or folded.scale.dtype != dtype:  # autocast may begin or end between steps
                folded = cache.prepared.folded_weights = self.fold(dtype, by_row=True)
        rows_above = self._rows_above(canvas, cache)
        with torch.autocast(inputs.device.type, enabled=False):
            output = run_folded_block(folded, inputs.to(dtype), canvas, rows_above)
        if rows_above is not None:
            rows_above.finish()
        return output

    def _rows_above(self, canvas: Canvas, cache: GridCache | None) -> RowSums | None:
        if cache is None:
            return None
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
        rows_above = self._rows_above(canvas, cache)
        for layer in self.layers:
            new = layer(features, canvas, rows_above)
            features = torch.cat([features, self.feature_norm(new, width, settings, canvas.real)], dim=1)
            width += new.shape[1]
        if rows_above is not None:
            rows_above.finish()
        output: torch.Tensor = self.transition(features)
        return output

    def _run_differentiably(self, inputs: torch.Tensor, canvas: Canvas) -> torch.Tensor:
        layers = self.dense_layers()
        settings = BlockSettings(
            kernel_size=self.kernel_size,
            gated=self.gated,
            norm=self.feature_norm.begin_batch(),
            layers=tuple(
                LayerSettings(layer.norm2.begin_batch(), layer.dropout.p if layer.dropout.training else 0.0)
                for layer in layers
            ),
            recompute=self.gradient_checkpointing and self.training,
            dtype=_compute_dtype(inputs),
        )
        weights = [
            (
                layer.norm1.weight,
                layer.norm1.bias,
                layer.conv1.weight,
                layer.norm2.weight,
                layer.norm2.bias,
                layer.conv2.weight,
            )
            for layer in layers
        ]
        running = [
            (self.feature_norm.running_mean, self.feature_norm.running_var),
            *((layer.norm2.running_mean, layer.norm2.running_var) for layer in layers),
        ]
        transition = (self.transition.norm.weight, self.transition.norm.bias, self.transition.conv.weight)
        output: torch.Tensor = DenseBlockFunction.apply(
            inputs, canvas, settings, running, *chain.from_iterable(weights), *transition
        )
        return output

    @torch.no_grad()
    def fold(self, dtype: torch.dtype, by_row: bool) -> FoldedBlock:
        """The block's weights with the running statistics multiplied in; `by_row`: in the form for cached decoding."""
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
            conv2 = layer.conv2.weight.to(dtype)
            conv2 = kernel_by_row(conv2) if by_row else conv2
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
