# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The convolutions over the source × target grid (section 3 of Elbayad et al., 2018), on packed cells.

Shapes: B sentences, I target rows, J source columns, R cells, g growth rate, k kernel size.
"""

import torch
import torch.nn.functional as F
from torch import nn

from .canvas import Canvas
from .grid_cache import RowSums


class JointProjection(nn.Module):
    """The grid's input: [y_i ; x_j] (equation 1) through the 1×1 convolution that halves the channels.

    Computed as the sum of a projection of the targets and one of the sources, so that the grid of all pairs is never
    built at full width.
    """

    def __init__(self, target_dim: int, source_dim: int) -> None:
        super().__init__()
        self.target_dim = target_dim
        channels = target_dim + source_dim
        self.weight = nn.Parameter(torch.empty(channels // 2, channels))
        self.bias = nn.Parameter(torch.zeros(channels // 2))

    def forward(self, target: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Project target [B, I, d_t] and source embeddings [B, J, d_s].

        Returns:
            [B, I, channels] and [B, J, channels], (d_t + d_s) / 2 channels: a cell is the sum of its row's and its
            column's.
        """
        rows = F.linear(target, self.weight[:, : self.target_dim])
        return rows, F.linear(source, self.weight[:, self.target_dim :], self.bias)

    def extra_repr(self) -> str:
        """What print(model) shows."""
        return f"{self.target_dim} + {self.weight.shape[1] - self.target_dim}, {self.weight.shape[0]}"


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

    @property
    def masked_taps(self) -> int:
        """Weights of the full k×k kernel that are masked."""
        out_channels, in_channels, rows, kernel_size = self.weight.shape
        return out_channels * in_channels * (kernel_size - rows) * kernel_size

    def extra_repr(self) -> str:
        """What print(model) shows."""
        out_channels, in_channels, rows, kernel_size = self.weight.shape
        return f"{in_channels}, {out_channels}, kernel_size=({rows}, {kernel_size})"


def convolve(image: torch.Tensor, kernel: torch.Tensor, canvas: Canvas) -> torch.Tensor:
    """The masked convolution of a canvas [S, in, H, W] with a kernel [out, in, ceil(k / 2), k]; its cells [R, out]."""
    return canvas.read(F.conv2d(image, kernel, padding=(0, kernel.shape[3] // 2)))


def kernel_by_row(weight: torch.Tensor) -> torch.Tensor:
    """The kernel's rows as one convolution of a single row, [ceil(k / 2) · out, in, 1, k], its own row first."""
    return weight.flip(2).permute(2, 0, 1, 3).flatten(0, 1).unsqueeze(2)


def convolve_new_rows(cells: torch.Tensor, kernel: torch.Tensor, canvas: Canvas, rows_above: RowSums) -> torch.Tensor:
    """The masked convolution of new rows, below earlier ones.

    Args:
        cells: [R, in].
        kernel: `kernel_by_row`.
        canvas: The places of the new rows' cells, without rows above.
        rows_above: The earlier rows' sums for the new ones; the new rows' contributions are added.

    Returns:
        [R, out].
    """
    above = kernel.shape[3] // 2  # rows, and as many columns to either side
    products = canvas.read(F.conv2d(canvas.paint(cells), kernel, padding=(0, above)))
    return rows_above.add(products, kernel.shape[0] // (above + 1))
