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

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm


def is_traced() -> bool:
    """Whether torch must see every operation: in a compiled program, or under a transformation of
    `torch.func`.
    """
    return torch.compiler.is_compiling() or bool(torch._C._are_functorch_transforms_active())


def _as_image(cells: torch.Tensor) -> torch.Tensor:
    """[R, channels] as a channels-last image [1, channels, R, 1]: torch has a fast kernel for
    these.
    """
    return cells.t()[None, :, :, None]


def _as_rows(image: torch.Tensor) -> torch.Tensor:
    return image[0, :, :, 0].t()


class Statistics(NamedTuple):
    """What cells are normalised with: mean and variance [channels], and whether these depend on the
    cells.
    """

    mean: torch.Tensor
    variance: torch.Tensor  # epsilon included
    of_batch: bool
    group: Any  # the processes that share them


def normalize(
    cells: torch.Tensor, statistics: Statistics | None, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """weight · (cells - mean) / deviation + bias, [R, channels], rounded once; None = mean 0 and
    deviation 1.
    """
    if statistics is not None:
        weight = torch.rsqrt(statistics.variance) * weight
        bias = bias - statistics.mean * weight
    if cells.dtype == weight.dtype:
        return torch.addcmul(bias, cells, weight)
    zeros, ones = torch.zeros_like(weight), torch.ones_like(weight)
    # An epsilon that adds nothing to 1: some versions of torch refuse 0
    return _as_rows(
        F.batch_norm(_as_image(cells.contiguous()), zeros, ones, weight, bias, eps=1e-30)
    )


def normalize_backward(
    grad: torch.Tensor, cells: torch.Tensor, statistics: Statistics | None, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of cells [R, channels], weight and bias from that of `normalize`'s output."""
    if statistics is None:
        exact = weight.to(torch.promote_types(weight.dtype, torch.float32))
        statistics = Statistics(torch.zeros_like(exact), torch.ones_like(exact), False, None)
    mean, variance, of_batch, group = statistics
    weight, rstd = weight.to(mean.dtype), torch.rsqrt(variance)
    if not of_batch or group is None:
        images = _as_image(grad.contiguous()), _as_image(cells.contiguous())
        found = torch.ops.aten.native_batch_norm_backward(
            *images, weight, mean, variance, mean, rstd, of_batch, 0.0, [True, True, True]
        )
        return _as_rows(found[0]), found[1], found[2]
    exact, normalized = grad.to(mean.dtype), (cells - mean) * rstd
    grad_weight, grad_bias = (exact * normalized).sum(0), exact.sum(0)
    sums = torch.stack([grad_weight, grad_bias, torch.full_like(mean, len(grad))])
    sums = _sum_over_processes(sums, group)
    means = sums[:2] / sums[2]
    return (
        ((exact - means[1] - normalized * means[0]) * (rstd * weight)).to(grad.dtype),
        grad_weight,
        grad_bias,
    )


def _sum_over_processes(values: torch.Tensor, process_group: Any) -> torch.Tensor:
    if process_group is not None:
        values = values.clone()
        torch.distributed.all_reduce(values, group=process_group)
    return values


class _Standardize(torch.autograd.Function):
    """(cells - mean) / deviation. Its output is kept for the backward pass, as those that read it
    keep it, too.
    """

    @staticmethod
    def forward(ctx: Any, cells: torch.Tensor, statistics: Statistics) -> torch.Tensor:
        mean, rstd = statistics.mean, torch.rsqrt(statistics.variance)
        output = normalize(cells, None, rstd, -mean * rstd)
        ctx.save_for_backward(output, rstd)
        ctx.statistics = Statistics(torch.zeros_like(mean), torch.ones_like(mean), *statistics[2:])
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        output, rstd = ctx.saved_tensors  # of mean 0 and variance 1
        return normalize_backward(grad, output, ctx.statistics, rstd)[0], None


class _ProcessGroup:
    """A group of torch.distributed as an attribute: copies of a module share it, and saved ones
    have none.
    """

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

    def __init__(
        self, channels: int, eps: float, momentum: float | None, affine: bool = True
    ) -> None:
        super().__init__(channels, eps, momentum, affine=affine)
        self._process_group = _ProcessGroup()
        for name in _STATISTICS:  # of a model that is made in bf16
            statistics = getattr(self, name)
            self._buffers[name] = statistics.to(
                torch.promote_types(statistics.dtype, torch.float32)
            )

    @property
    def process_group(self) -> Any:
        """Processes that share their batches; None = each its own."""
        return self._process_group.group

    @process_group.setter
    def process_group(self, group: Any) -> None:
        self._process_group = _ProcessGroup(group)

    def affine_weights(self) -> Iterable[nn.Parameter]:
        """The weights of what is normalised here; where none is trainable, the running statistics
        stay.
        """
        return (self.weight,)

    @property
    def is_frozen(self) -> bool:
        """Whether this is a constant, in training, too."""
        return not any(weight.requires_grad for weight in self.affine_weights())

    @property
    def is_of_batch(self) -> bool:
        """Whether the next batch is normalised with its own statistics."""
        return self.training and (self.momentum is None or not self.is_frozen)

    def forward(self, input: torch.Tensor, real: torch.Tensor | None = None) -> torch.Tensor:
        """Normalise cells.

        Args:
            input: [R, channels].
            real: [R, 1], True = a real cell; None = all are.

        Returns:
            [R, channels]; what it holds at cells that are not real means nothing.

        Raises:
            ValueError: Training with fewer than two cells, which have no variance.
        """
        if self.is_of_batch or torch.is_grad_enabled():
            normalized = self.standardize(input, real=real)
            return torch.addcmul(self.bias, normalized, self.weight).to(input.dtype)
        scale, shift = self.affine_of_running()
        return torch.addcmul(shift, input, scale).to(input.dtype)

    def affine_of_running(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and shift [channels] of a normalisation with the running statistics."""
        scale = torch.rsqrt(self.running_var + self.eps) * self.weight
        return scale, self.bias - self.running_mean * scale

    def standardize(
        self, cells: torch.Tensor, start: int = 0, real: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`forward` without the affine map, of the channels from `start` on; the first ones begin a
        batch.
        """
        statistics = self.statistics(cells, start, real)
        mean, rstd = statistics.mean, torch.rsqrt(statistics.variance)
        if is_traced():
            return ((cells.to(mean.dtype) - mean) * rstd).to(cells.dtype)
        if not torch.is_grad_enabled():
            return normalize(cells, None, rstd, -mean * rstd)
        output: torch.Tensor = _Standardize.apply(cells, statistics)
        return output

    def statistics(
        self, cells: torch.Tensor, start: int = 0, real: torch.Tensor | None = None
    ) -> Statistics:
        """What the channels from `start` on are normalised with; a batch enters the running
        statistics.
        """
        part = slice(start, start + cells.shape[1])
        mean, variance = self.running_mean[part], self.running_var[part]
        if self.is_of_batch:
            mean, variance = self._statistics_of_batch(cells, part, real)
        elif torch.is_grad_enabled() and not is_traced():
            mean = mean.clone()  # as it is now, for a backward that comes later
        return Statistics(mean, variance + self.eps, self.is_of_batch, self.process_group)

    def _statistics_of_batch(
        self, cells: torch.Tensor, part: slice, real: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance of the real cells of all processes, which enter the running statistics.

        The variance takes a second pass, for accuracy; one cell counts as an unbiased variance of
        0."""
        running_mean, running_var = self.running_mean[part], self.running_var[part]
        is_new = (
            is_traced() or torch._C._current_graph_task_id() == -1
        )  # not computed again within a backward
        if part.start == 0 and is_new:
            self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        momentum = momentum if is_new else 0.0
        if not is_traced():
            cells = cells.detach()  # `normalize_backward` has the whole gradient
        if real is None and self.process_group is None and not is_traced():
            self._check_count(len(cells))
            return torch.batch_norm_update_stats(
                _as_image(cells), running_mean, running_var, momentum
            )

        def total(values: torch.Tensor) -> torch.Tensor:
            values = values if real is None else torch.where(real, values, 0.0)
            return _sum_over_processes(values.sum(0), self.process_group)

        exact = cells.to(running_mean.dtype)
        count = total(torch.ones_like(exact[:, :1]))
        if (
            not is_traced() and cells.device.type == "cpu"
        ):  # reading the number would wait for a GPU
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

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """What `.to`, `.half` and the like do, save that statistics stay float32 at least."""
        before = {name: self._buffers[name] for name in _STATISTICS}
        super()._apply(fn, recurse)
        for name, statistics in before.items():
            after = self._buffers[name]
            if (
                after is not None
                and statistics is not None
                and after.dtype.itemsize < torch.float32.itemsize
            ):
                source = after if statistics.is_meta else statistics
                self._buffers[name] = source.to(after.device, torch.float32)
        return self


_STATISTICS = ("running_mean", "running_var")
