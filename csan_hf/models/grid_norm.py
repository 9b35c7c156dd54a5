# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Batch normalisation (Ioffe and Szegedy, 2015) of the real cells of a grid, as rows [R, channels].

`GridBatchNorm` is a batch normalisation as torch means it: `train` and `eval`, `momentum` (None = a
cumulative average), `reset_running_stats` and `torch.optim.swa_utils.update_bn` act on it as on
torch's own. Beyond that

- its statistics are float32 (or float64), whatever the type of the model;
- frozen, with no trainable weight, it is a constant: it neither uses nor gathers statistics of
  batches, unless a cumulative average is asked for. Its bias may be trained: an adapter with biases
  is saved without statistics;
- its statistics can be those of several processes;
- a forward that is computed again for its backward (gradient checkpointing) does not count as
  another batch.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.modules.batchnorm import _BatchNorm

from .layers import is_traced

# Functions with a hand-written backward pass by name, which csan_hf installs (`dense_backward`).
# A checkpoint's own code has none of them; autograd differentiates its modules
BACKWARD: dict[str, Callable[..., Tensor]] = {}


def _is_differentiated() -> bool:
    """Whether torch itself derives gradients, also those that reach cells through statistics."""
    return is_traced() or (torch.is_grad_enabled() and not BACKWARD)


def as_image(cells: Tensor) -> Tensor:
    """[R, channels] as a channels-last image [1, channels, R, 1]: torch has a fast kernel for
    these.
    """
    return cells.t()[None, :, :, None]


def as_rows(image: Tensor) -> Tensor:
    """The inverse of `as_image`."""
    return image[0, :, :, 0].t()


class Statistics(NamedTuple):
    """Mean and variance [channels] of a normalisation."""

    mean: Tensor
    variance: Tensor  # epsilon included
    of_batch: bool  # whether they depend on the cells
    group: ProcessGroup | None  # the processes that share them


def scale_and_shift(cells: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """weight · cells + bias, [R, channels], rounded once to the cells' type."""
    if cells.dtype == weight.dtype:
        return torch.addcmul(bias, cells, weight)
    zeros = torch.zeros_like(weight)
    ones = torch.ones_like(weight)
    # An epsilon that adds nothing to 1: some versions of torch refuse 0
    image = F.batch_norm(as_image(cells.contiguous()), zeros, ones, weight, bias, eps=1e-30)
    return as_rows(image)


class _SumOverProcesses(torch.autograd.Function):
    """The sum of tensors of all processes of a group, of which each has its own gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        values = values.clone()
        torch.distributed.all_reduce(values, group=group)
        return values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return sum_over_processes(grad, ctx.group), None


def sum_over_processes(values: Tensor, group: ProcessGroup | None) -> Tensor:
    """Sum a tensor over the processes of a group; None = this process alone."""
    if group is None:
        return values
    return _SumOverProcesses.apply(values, group)


class GridBatchNorm(_BatchNorm):
    """Batch normalisation of cells, with torch's arguments; see the head of the file."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    process_group: ProcessGroup | None = None  # processes that share their batches

    def __init__(
        self, channels: int, eps: float, momentum: float | None, affine: bool = True
    ) -> None:
        super().__init__(channels, eps, momentum, affine=affine)
        for name in ("running_mean", "running_var"):
            statistics = getattr(self, name)
            if statistics.dtype.itemsize < 4:  # the model is made in bf16
                self._buffers[name] = statistics.float()

    def __getstate__(self) -> dict[str, Any]:
        """Copies and saved modules share no statistics: a group is bound to its processes."""
        return {name: value for name, value in vars(self).items() if name != "process_group"}

    def affine_weights(self) -> Sequence[nn.Parameter]:
        """The weights of what is normalised here; where none is trainable, the running statistics
        stay.
        """
        return [self.weight]

    @property
    def is_frozen(self) -> bool:
        """Whether this is a constant, in training, too."""
        return not any(weight.requires_grad for weight in self.affine_weights())

    @property
    def is_of_batch(self) -> bool:
        """Whether the next batch is normalised with its own statistics."""
        return self.training and (self.momentum is None or not self.is_frozen)

    def forward(self, input: Tensor, real: Tensor | None = None) -> Tensor:
        """Normalise cells.

        Args:
            input: [R, channels].
            real: [R, 1], True = a real cell; None = all are.

        Returns:
            [R, channels]; undefined at cells that are not real.

        Raises:
            ValueError: Training with fewer than two cells, which have no variance.
        """
        if self.is_of_batch or torch.is_grad_enabled():
            normalized = self.standardize(input, real=real)
            return torch.addcmul(self.bias, normalized, self.weight).to(input.dtype)
        scale, shift = self.affine_of_running()
        return torch.addcmul(shift, input, scale).to(input.dtype)

    def affine_of_running(self) -> tuple[Tensor, Tensor]:
        """Scale and shift [channels] of a normalisation with the running statistics."""
        scale = torch.rsqrt(self.running_var + self.eps) * self.weight
        return scale, self.bias - self.running_mean * scale

    def standardize(self, cells: Tensor, start: int = 0, real: Tensor | None = None) -> Tensor:
        """`forward` without the affine map, of the channels from `start` on; the first ones begin a
        batch.
        """
        statistics = self.statistics(cells, start, real)
        mean = statistics.mean
        rstd = torch.rsqrt(statistics.variance)
        if _is_differentiated():
            return ((cells.to(mean.dtype) - mean) * rstd).to(cells.dtype)
        if torch.is_grad_enabled():
            return BACKWARD["standardize"](cells, statistics)
        return scale_and_shift(cells, rstd, -mean * rstd)

    def statistics(self, cells: Tensor, start: int = 0, real: Tensor | None = None) -> Statistics:
        """Statistics to normalise the channels from `start` on with; a batch's enter the running
        ones.
        """
        part = slice(start, start + cells.shape[1])
        if self.is_of_batch:
            mean, variance = self._statistics_of_batch(cells, part, real)
        else:
            mean = self.running_mean[part]
            variance = self.running_var[part]
            if torch.is_grad_enabled() and not is_traced():
                mean = mean.clone()  # as it is now, for a backward that comes later
        return Statistics(mean, variance + self.eps, self.is_of_batch, self.process_group)

    def _statistics_of_batch(
        self, cells: Tensor, part: slice, real: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of the real cells of all processes, which enter the running statistics.

        The variance takes a second pass, for accuracy; one cell counts as an unbiased variance of
        0."""
        running_mean = self.running_mean[part]
        running_var = self.running_var[part]
        # Not where it is computed again within a backward pass
        is_new = is_traced() or torch._C._current_graph_task_id() == -1
        if part.start == 0 and is_new:
            self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if not is_new:
            momentum = 0.0
        elif momentum is None:
            momentum = 1.0 / float(self.num_batches_tracked)
        if not _is_differentiated():
            cells = cells.detach()  # the hand-written backward pass has the whole gradient
            if real is None and self.process_group is None:
                self._check_count(len(cells))
                return torch.batch_norm_update_stats(
                    as_image(cells), running_mean, running_var, momentum
                )

        def total(values: Tensor) -> Tensor:
            if real is not None:
                values = torch.where(real, values, 0.0)
            return sum_over_processes(values.sum(0), self.process_group)

        exact = cells.to(running_mean.dtype)
        count = total(torch.ones_like(exact[:, :1]))
        if not is_traced() and cells.device.type == "cpu":  # to read it would wait for a GPU
            self._check_count(int(count))
        mean = total(exact) / count
        variance = total((exact - mean).square()) / count
        running_mean.lerp_(mean.detach(), momentum)
        running_var.lerp_((variance * (count / (count - 1).clamp(min=1))).detach(), momentum)
        return mean, variance

    def _check_count(self, count: int) -> None:
        if count < 2:
            raise ValueError(
                "Batch normalisation needs at least 2 real cells (source tokens times target "
                f"tokens) in a training batch, got {count}; give more or longer sentences, or call "
                "model.eval()."
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """`.to`, `.half` and the like, but statistics stay float32 at least."""
        statistics = (self.running_mean, self.running_var)

        def apply(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            if result.dtype.itemsize >= 4 or all(tensor is not buffer for buffer in statistics):
                return result
            exact = result if tensor.is_meta else tensor
            return exact.to(result.device, torch.float32)

        return super()._apply(apply, recurse)
