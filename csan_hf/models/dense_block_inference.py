# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The dense block on the new rows alone, while a sentence is generated.

Running statistics are multiplied into the weights where a product follows. What reads features takes one pass over
them: with t = -b / w, ReLU(w x + b) is w max(x, t) + b for positive w, w min(x, t) + b for negative w. The maximum and
minimum are taken, w goes into the matrix that follows and b into its bias. Weights begin at 1 and seldom become
negative: without any, the maximum is taken alone, which in bf16 costs half as much as a maximum and a minimum.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor

from .canvas import Canvas
from .grid_cache import RowSums


@dataclass
class FoldedReader:
    """What reads features: an affine map, ReLU and a 1×1 convolution, as a clamp and a linear map."""

    lower: torch.Tensor  # [c]
    upper: torch.Tensor | None  # [c]; None = infinite throughout
    matrix: torch.Tensor  # [c, out]
    bias: torch.Tensor  # [out]

    @classmethod
    def of(
        cls, weight: torch.Tensor, bias: torch.Tensor, conv: torch.Tensor, shift: torch.Tensor, dtype: torch.dtype
    ) -> "FoldedReader":
        """Fold ReLU(weight · x + bias), [c], into the map `conv` [out, c] with bias `shift` [out] that follows it."""
        threshold = (-bias / weight).to(dtype)
        # Where the weight is 0, or so small that the threshold is infinite, ReLU(bias) is what is read
        is_constant = ~threshold.isfinite() & ~weight.isnan()
        threshold = threshold.masked_fill(is_constant, 0.0)
        matrix = (conv * weight).masked_fill(is_constant, 0.0).to(dtype)
        constant = conv @ bias.relu().masked_fill(~is_constant, 0.0) - matrix.to(conv.dtype) @ threshold.to(conv.dtype)
        return cls(
            lower=threshold.masked_fill(~is_constant & (weight < 0), -torch.inf),
            upper=threshold.masked_fill(~is_constant & (weight > 0), torch.inf) if _may_be_negative(weight) else None,
            matrix=matrix.t().contiguous(),
            bias=(shift + constant).to(dtype),
        )

    def __call__(self, features: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
        """[R, out] of features [R, c]; `scratch` has room for what is read."""
        out = scratch[: features.numel()].view_as(features)
        if self.upper is None:
            read = torch.maximum(features, self.lower, out=out)
        else:
            read = torch.clamp(features, self.lower, self.upper, out=out)
        return torch.addmm(self.bias, read, self.matrix)


def _may_be_negative(weight: torch.Tensor) -> bool:
    """Whether a weight is negative, or cannot be looked at without waiting for an accelerator."""
    return weight.device.type != "cpu" or isinstance(weight, FakeTensor) or bool((weight < 0).any())


@dataclass
class FoldedLayer:
    """A dense layer with its second normalisation, and that of its features, in its weights."""

    reader: FoldedReader  # with the second normalisation
    conv2: torch.Tensor  # [ceil(k / 2) * (g or 2g), 4g, 1, k], its own row first; channels last
    scale: torch.Tensor  # [g], normalisation of the features that the layer makes
    shift: torch.Tensor  # [g]


@dataclass
class FoldedBlock:
    """The weights of a dense block and its transition with the running statistics multiplied in."""

    scale: torch.Tensor  # [c_1], normalisation of the inputs
    shift: torch.Tensor  # [c_1]
    layers: list[FoldedLayer]
    transition: FoldedReader
    gated: bool


def run_folded_block(block: FoldedBlock, inputs: torch.Tensor, canvas: Canvas, rows_above: RowSums) -> torch.Tensor:
    """The dense block on the cells [R, c_1] of new target rows: [R, f_L]; their sums are added to `rows_above`."""
    width = inputs.shape[1]
    features = inputs.new_empty(inputs.shape[0], block.transition.lower.shape[0])
    # One buffer for what the layers read in turn: a new matrix for each would cost page faults
    scratch = torch.empty_like(features).flatten()
    torch.addcmul(block.shift, inputs, block.scale, out=features[:, :width])
    for layer in block.layers:
        inner = layer.reader(features[:, :width], scratch).relu_()
        new = convolve_new_rows(inner, layer.conv2, canvas, rows_above)
        if block.gated:
            gate, value = new.chunk(2, dim=1)
            new = torch.sigmoid(gate) * value
        torch.addcmul(layer.shift, new, layer.scale, out=features[:, width : width + new.shape[1]])
        width += new.shape[1]
    return block.transition(features, scratch)


def kernel_by_row(weight: torch.Tensor) -> torch.Tensor:
    """The kernel's rows as one convolution of a single row, [ceil(k / 2) · out, in, 1, k], its own row first."""
    return weight.flip(2).permute(2, 0, 1, 3).flatten(0, 1).unsqueeze(2)


def convolve_new_rows(cells: torch.Tensor, kernel: torch.Tensor, canvas: Canvas, rows_above: RowSums) -> torch.Tensor:
    """The masked convolution [R, out] of new rows' cells [R, in] with the kernel of `kernel_by_row`.

    The canvas has no rows above; `rows_above` has the earlier rows' sums, to which the new rows' are added.
    """
    above = kernel.shape[3] // 2  # rows, and as many columns to either side
    products = canvas.read(F.conv2d(canvas.paint(cells), kernel, padding=(0, above)))
    return rows_above.add(products, kernel.shape[0] // (above + 1))
