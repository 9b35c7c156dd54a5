# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Batch normalisation (Ioffe and Szegedy, 2015) of the real cells of a grid, as rows [R, channels].

`GridBatchNorm` is a batch normalisation as torch means it: `train` and `eval`, `momentum` (None = a cumulative
average), `reset_running_stats` and `torch.optim.swa_utils.update_bn` act on it as on torch's own. Beyond that

- its statistics are float32 (or float64), whatever the type of the model;
- frozen, with no trainable weight, it is a constant: it neither uses nor gathers statistics of batches, unless a
  cumulative average is asked for. Its bias may be trained: an adapter with biases is saved without statistics;
- its statistics can be those of several processes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm


@dataclass(frozen=True)
class NormSettings:
    """How cells are normalised: with statistics of the batch (of all processes of the group) or running ones."""

    of_batch: bool
    momentum: float
    eps: float
    process_group: Any = None

    @property
    def is_shared(self) -> bool:
        """Whether statistics are exchanged with other processes."""
        return self.of_batch and self.process_group is not None


def normalize(
    cells: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    settings: NormSettings,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalise cells [R, channels], and bring the running statistics up to date in training.

    Returns:
        The cells [R, channels]; the mean and the inverse standard deviation [channels] that were used.

    Raises:
        ValueError: Training with fewer than two cells, which have no variance.
    """
    if not settings.of_batch:
        # A copy: later batches change the running statistics before the backward of this one
        mean, rstd = running_mean.clone(), torch.rsqrt(running_var + settings.eps)
        return normalize_with(cells, weight, bias, mean, rstd), mean, rstd
    if settings.is_shared:
        mean, variance = _batch_statistics(cells, running_mean, running_var, settings)
        rstd = torch.rsqrt(variance + settings.eps)
        return normalize_with(cells, weight, bias, mean, rstd), mean, rstd
    _check_count(cells.shape[0])
    output, mean, rstd = torch.native_batch_norm(
        _as_image(cells),
        _like(weight, running_mean),
        _like(bias, running_mean),
        running_mean,
        running_var,
        True,
        settings.momentum,
        settings.eps,
    )
    return _as_rows(output), mean, rstd


def normalize_with(
    cells: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    rstd: torch.Tensor,
) -> torch.Tensor:
    """Normalise cells [R, channels] with a given mean and inverse standard deviation [channels]."""
    output, _, _ = torch.native_batch_norm(
        _as_image(cells), _like(weight, mean), _like(bias, mean), mean, rstd**-2, False, 0.0, 0.0
    )
    return _as_rows(output)


def normalize_backward(
    grad: torch.Tensor,
    cells: torch.Tensor,
    weight: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    settings: NormSettings,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of `normalize` with respect to cells [R, channels], weight and bias [channels]."""
    if settings.is_shared:
        exact = grad.to(mean.dtype)
        normalized = (cells.to(mean.dtype) - mean) * rstd
        grad_weight, grad_bias = (exact * normalized).sum(0), exact.sum(0)
        shared = sum_over_processes(torch.stack([grad_bias, grad_weight]), settings) / total_cells(cells, settings)
        grad_cells = (exact - shared[0] - normalized * shared[1]) * (rstd * weight)
        return grad_cells.to(cells.dtype), grad_weight, grad_bias
    grads = torch.ops.aten.native_batch_norm_backward(
        _as_image(grad),
        _as_image(cells),
        _like(weight, mean),
        mean,
        rstd**-2,
        mean,
        rstd,
        settings.of_batch,
        0.0,
        [True, True, True],
    )
    return _as_rows(grads[0]), grads[1], grads[2]


def _as_image(cells: torch.Tensor) -> torch.Tensor:
    """[R, channels] as a channels-last image [1, channels, R, 1]: torch has a fast kernel for these."""
    return cells.unsqueeze(0).unsqueeze(2).permute(0, 3, 1, 2)


def _as_rows(image: torch.Tensor) -> torch.Tensor:
    return image.permute(0, 2, 3, 1).reshape(-1, image.shape[1])


def _like(affine: torch.Tensor | None, statistics: torch.Tensor) -> torch.Tensor | None:
    return None if affine is None else affine.to(statistics.dtype)


def _check_count(count: int | float) -> None:
    if count < 2:
        raise ValueError(
            f"Batch normalisation needs at least 2 real cells (source tokens times target tokens) in a training "
            f"batch, got {int(count)}; give more or longer sentences, or call model.eval()."
        )


def total_cells(cells: torch.Tensor, settings: NormSettings) -> torch.Tensor | int:
    """Number of cells in the batch, those of the other processes included."""
    if not settings.is_shared:
        return cells.shape[0]
    return sum_over_processes(torch.tensor(float(cells.shape[0]), device=cells.device), settings)


def sum_over_processes(values: torch.Tensor, settings: NormSettings) -> torch.Tensor:
    """The sum of `values` over the processes that share the batch."""
    if settings.is_shared:
        values = values.clone()
        torch.distributed.all_reduce(values, group=settings.process_group)
    return values


class _BatchNormFunction(torch.autograd.Function):
    """`normalize` with its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        cells: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        running: tuple[torch.Tensor, torch.Tensor],
        settings: NormSettings,
    ) -> torch.Tensor:
        output, mean, rstd = normalize(cells, weight, bias, *running, settings)
        ctx.save_for_backward(cells, weight, mean, rstd)
        ctx.settings = settings
        return output.data  # no view of an image for autograd: a hook may edit it in place

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        cells, weight, mean, rstd = ctx.saved_tensors
        grads = normalize_backward(grad.contiguous(), cells, weight, mean, rstd, ctx.settings)
        return *grads, None, None


class _FeatureNormFunction(torch.autograd.Function):
    """`normalize` without an affine map. Its output is kept for the backward pass, as its readers keep it, too."""

    @staticmethod
    def forward(
        ctx: Any, cells: torch.Tensor, running_mean: torch.Tensor, running_var: torch.Tensor, settings: NormSettings
    ) -> torch.Tensor:
        output, _, rstd = normalize(cells, None, None, running_mean, running_var, settings)
        ctx.save_for_backward(output, rstd)
        ctx.settings = settings
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        output, rstd = ctx.saved_tensors
        if ctx.settings.of_batch:
            sums = torch.stack([grad.sum(0, dtype=rstd.dtype), (grad * output).sum(0, dtype=rstd.dtype)])
            means = sum_over_processes(sums, ctx.settings) / total_cells(output, ctx.settings)
            grad = grad - means[0].to(grad.dtype) - output * means[1].to(grad.dtype)
        return grad * rstd.to(grad.dtype), None, None, None


def normalize_features(
    cells: torch.Tensor, running_mean: torch.Tensor, running_var: torch.Tensor, settings: NormSettings
) -> torch.Tensor:
    """Normalise cells [R, channels] without an affine map, differentiably; as `normalize`."""
    output: torch.Tensor = _FeatureNormFunction.apply(cells, running_mean, running_var, settings)
    return output


def _batch_statistics(
    cells: torch.Tensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    settings: NormSettings,
    real: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of the real cells of all processes, by which the running statistics are brought up to date.

    The variance takes a second pass, for accuracy; one cell counts as an unbiased variance of 0.
    """
    exact = cells.to(running_mean.dtype)
    exact = exact if real is None else torch.where(real, exact, 0.0)
    count = torch.as_tensor(cells.shape[0], device=cells.device) if real is None else real.sum()
    count = sum_over_processes(count.to(exact.dtype), settings)
    if not is_traced() and cells.device.type == "cpu":  # reading the number would wait for a GPU
        _check_count(float(count))
    mean = sum_over_processes(exact.sum(0), settings) / count
    centered = exact - mean
    centered = centered if real is None else torch.where(real, centered, 0.0)
    variance = sum_over_processes(centered.square().sum(0), settings) / count
    unbiased = variance * (count / (count - 1).clamp(min=1))
    running_mean.lerp_(mean.detach(), settings.momentum)
    running_var.lerp_(unbiased.detach(), settings.momentum)
    return mean, variance


def _normalize_traced(
    cells: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    settings: NormSettings,
    real: torch.Tensor | None,
) -> torch.Tensor:
    """`normalize` in operations that torch traces and differentiates, with padding among the cells [R, channels]."""
    mean, variance = running_mean, running_var
    if settings.of_batch:
        mean, variance = _batch_statistics(cells, running_mean, running_var, settings, real)
    scale = torch.rsqrt(variance + settings.eps) * weight
    return (cells.to(mean.dtype) * scale + (bias - mean * scale)).to(cells.dtype)


def is_traced() -> bool:
    """Whether torch must see every operation: in a compiled program, or under a transformation of `torch.func`."""
    return torch.compiler.is_compiling() or bool(torch._C._are_functorch_transforms_active())


class _ProcessGroup:
    """A group of torch.distributed as an attribute: copies of a module share it, and saved ones have none."""

    def __init__(self, group: Any = None) -> None:
        self.group = group

    def __deepcopy__(self, memo: dict[int, Any]) -> "_ProcessGroup":
        return self

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _ProcessGroup, ()


class GridBatchNorm(_BatchNorm):
    """Batch normalisation of cells, with torch's arguments; see the head of the file."""

    running_mean: torch.Tensor
    running_var: torch.Tensor
    num_batches_tracked: torch.Tensor

    def __init__(self, channels: int, eps: float, momentum: float | None, affine: bool = True) -> None:
        super().__init__(channels, eps, momentum, affine=affine)
        self._process_group = _ProcessGroup()
        for name in _STATISTICS:  # of a model that is made in bf16
            self._buffers[name] = _at_least_float32(getattr(self, name))

    @property
    def process_group(self) -> Any:
        """Processes that share their batches; None = each its own."""
        return self._process_group.group

    @process_group.setter
    def process_group(self, group: Any) -> None:
        self._process_group = _ProcessGroup(group)

    def affine_weights(self) -> Iterable[nn.Parameter]:
        """The weights of what is normalised here; where none is trainable, the running statistics stay."""
        return (self.weight,)

    @property
    def is_frozen(self) -> bool:
        """Whether this is a constant, in training, too."""
        return not any(weight.requires_grad for weight in self.affine_weights())

    @property
    def is_of_batch(self) -> bool:
        """Whether the next batch is normalised with its own statistics."""
        return self.training and (self.momentum is None or not self.is_frozen)

    def begin_batch(self) -> NormSettings:
        """Return how the next batch is normalised, and count it if it enters the running statistics."""
        of_batch = self.is_of_batch
        momentum = 0.0 if self.momentum is None else self.momentum
        if of_batch:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        return NormSettings(of_batch, momentum, self.eps, self.process_group)

    def forward(self, input: torch.Tensor, real: torch.Tensor | None = None) -> torch.Tensor:
        """Normalise cells.

        Args:
            input: [R, channels].
            real: [R, 1], True = a real cell; None = all are.

        Returns:
            [R, channels]; what it holds at cells that are not real means nothing.
        """
        return self._normalize(input, 0, self.begin_batch(), real)

    def _normalize(
        self, cells: torch.Tensor, start: int, settings: NormSettings, real: torch.Tensor | None
    ) -> torch.Tensor:
        """`forward` for the channels from `start` on, in a batch that has begun."""
        part = slice(start, start + cells.shape[1])
        running = (self.running_mean[part], self.running_var[part])
        affine = (self.weight, self.bias)
        if self.weight is None:
            affine = (torch.ones_like(running[0]), torch.zeros_like(running[0]))
        if real is not None or is_traced():
            return _normalize_traced(cells, *affine, *running, settings, real)
        output: torch.Tensor = _BatchNormFunction.apply(cells, *affine, running, settings)
        return output

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """What `.to`, `.half` and the like do, save that statistics stay float32 at least."""
        before = {name: self._buffers[name] for name in _STATISTICS}
        super()._apply(fn, recurse)
        for name, statistics in before.items():
            after = self._buffers[name]
            if after is not None and statistics is not None and after.dtype.itemsize < torch.float32.itemsize:
                source = after if statistics.is_meta else statistics
                self._buffers[name] = source.to(after.device, torch.float32)
        return self


_STATISTICS = ("running_mean", "running_var")


def _at_least_float32(statistics: torch.Tensor) -> torch.Tensor:
    return statistics.to(torch.promote_types(statistics.dtype, torch.float32))
