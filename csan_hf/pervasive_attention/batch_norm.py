# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Batch normalisation (Ioffe and Szegedy, 2015) of the real cells of a grid, packed as rows [R, channels].

Statistics can be shared by several processes. They are float32 even where the cells are bf16.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class NormSettings:
    """How cells are normalised.

    Args:
        training: With the statistics of the batch; else with the running ones.
        momentum: Weight of a batch in the running statistics.
        eps: Added to the variance.
        process_group: Processes that share a batch; None = this one alone.
    """

    training: bool
    momentum: float
    eps: float
    process_group: Any = None

    @property
    def is_shared(self) -> bool:
        """Whether statistics are exchanged with other processes."""
        return self.training and self.process_group is not None


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
    if not settings.training:
        rstd = torch.rsqrt(running_var + settings.eps)
        return normalize_with(cells, weight, bias, running_mean, rstd), running_mean, rstd
    if settings.is_shared:
        return _normalize_shared(cells, weight, bias, running_mean, running_var, settings)
    if cells.shape[0] < 2:
        raise ValueError(
            f"Batch normalisation needs at least 2 real cells (source tokens times target tokens) in a training "
            f"batch, got {cells.shape[0]}; give more or longer sentences, or call model.eval()."
        )
    output, mean, rstd = torch.native_batch_norm(
        _as_image(cells), weight, bias, running_mean, running_var, True, settings.momentum, settings.eps
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
    output, _, _ = torch.native_batch_norm(_as_image(cells), weight, bias, mean, rstd**-2, False, 0.0, 0.0)
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
        return _normalize_shared_backward(grad, cells, weight, mean, rstd, settings)
    grads = torch.ops.aten.native_batch_norm_backward(
        _as_image(grad),
        _as_image(cells),
        weight,
        mean,
        rstd**-2,
        mean,
        rstd,
        settings.training,
        0.0,
        [True, True, True],
    )
    return _as_rows(grads[0]), grads[1], grads[2]


def _as_image(cells: torch.Tensor) -> torch.Tensor:
    """[R, channels] as a channels-last image [1, channels, R, 1]: torch has a fast kernel for these."""
    return cells.unsqueeze(0).unsqueeze(2).permute(0, 3, 1, 2)


def _as_rows(image: torch.Tensor) -> torch.Tensor:
    return image.permute(0, 2, 3, 1).reshape(-1, image.shape[1])


def total_cells(cells: torch.Tensor, settings: NormSettings) -> torch.Tensor | int:
    """Number of cells in the batch, those of the other processes included."""
    if not settings.is_shared:
        return cells.shape[0]
    return _sum_over_processes(torch.tensor(float(cells.shape[0]), device=cells.device), settings)


def sum_over_processes(values: torch.Tensor, settings: NormSettings) -> torch.Tensor:
    """The sum of `values` over the processes that share the batch."""
    return _sum_over_processes(values, settings) if settings.is_shared else values


def _sum_over_processes(values: torch.Tensor, settings: NormSettings) -> torch.Tensor:
    values = values.clone()
    torch.distributed.all_reduce(values, group=settings.process_group)
    return values


def _normalize_shared(
    cells: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    settings: NormSettings,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`normalize` in training with the cells of all processes; the variance in a second pass, for accuracy."""
    exact = cells.to(running_mean.dtype)
    count = total_cells(cells, settings)
    mean = _sum_over_processes(exact.sum(0), settings) / count
    variance = _sum_over_processes((exact - mean).square().sum(0), settings) / count
    running_mean.lerp_(mean, settings.momentum)
    running_var.lerp_(variance * (count / (count - 1)), settings.momentum)
    rstd = torch.rsqrt(variance + settings.eps)
    return normalize_with(cells, weight, bias, mean, rstd), mean, rstd


def _normalize_shared_backward(
    grad: torch.Tensor,
    cells: torch.Tensor,
    weight: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    settings: NormSettings,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    exact = grad.to(mean.dtype)
    normalized = (cells.to(mean.dtype) - mean) * rstd
    grad_weight, grad_bias = (exact * normalized).sum(0), exact.sum(0)
    count = total_cells(cells, settings)
    shared = _sum_over_processes(torch.stack([grad_bias, grad_weight]), settings) / count
    grad_cells = (exact - shared[0] - normalized * shared[1]) * (rstd * weight)
    return grad_cells.to(cells.dtype), grad_weight, grad_bias


class _BatchNormFunction(torch.autograd.Function):
    """`normalize` with its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        cells: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        running_mean: torch.Tensor,
        running_var: torch.Tensor,
        settings: NormSettings,
    ) -> torch.Tensor:
        output, mean, rstd = normalize(cells, weight, bias, running_mean, running_var, settings)
        ctx.save_for_backward(cells, weight, mean, rstd)
        ctx.settings = settings
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        cells, weight, mean, rstd = ctx.saved_tensors
        grads = normalize_backward(grad.contiguous(), cells, weight, mean, rstd, ctx.settings)
        return *grads, None, None, None


class GridBatchNorm(nn.Module):
    """Batch normalisation of packed cells with an affine map.

    Args:
        channels: Number of channels.
        eps: Added to the variance.
        momentum: Weight of a batch in the running statistics.
        track: Whether the module has running statistics of its own; without them it only holds the affine map.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor
    num_batches_tracked: torch.Tensor

    def __init__(self, channels: int, eps: float, momentum: float, track: bool = True) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.process_group: Any = None
        if track:
            add_running_statistics(self, channels)

    def settings(self) -> NormSettings:
        """How this module normalises now."""
        return NormSettings(self.training, self.momentum, self.eps, self.process_group)

    def forward(self, cells: torch.Tensor) -> torch.Tensor:
        """[R, channels] -> [R, channels]."""
        if self.training:
            self.num_batches_tracked.add_(1)
        output: torch.Tensor = _BatchNormFunction.apply(
            cells, self.weight, self.bias, self.running_mean, self.running_var, self.settings()
        )
        return output

    def extra_repr(self) -> str:
        """What print(model) shows."""
        return f"{self.weight.shape[0]}, eps={self.eps}, momentum={self.momentum}"


def add_running_statistics(module: nn.Module, channels: int) -> None:
    """Give a module running statistics under torch's names."""
    module.running_mean = nn.Buffer(torch.zeros(channels))
    module.running_var = nn.Buffer(torch.ones(channels))
    module.num_batches_tracked = nn.Buffer(torch.tensor(0, dtype=torch.long))
