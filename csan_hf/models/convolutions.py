# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Convolutions before the attention (Yu et al., ICLR 2018, "QANet", section 2.2; `CNN` of Yang et al., NAACL 2019)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from .locality import AttentionSite, LocalityMethod, LocalityModule, check_number
from .seq2seq_model import drop


class SeparableConvolution(nn.Module):
    """x + relu(pointwise(depthwise(layernorm(x)))): k taps on each channel by itself, then channels are mixed."""

    def __init__(self, d_model: int, kernel_size: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm = nn.LayerNorm(d_model)
        padding = (kernel_size - 1) // 2
        self.depthwise = nn.Conv1d(d_model, d_model, kernel_size, padding=padding, groups=d_model, bias=False)
        self.pointwise = nn.Conv1d(d_model, d_model, 1)

    def forward(self, states: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """[B, T, d] -> [B, T, d]; taps at padding (`padding` [B, T], True = real) count as zero."""
        normed = self.norm(states)
        if padding is not None:
            normed = normed.masked_fill(~padding.unsqueeze(-1), 0.0)
        mixed = F.relu(self.pointwise(self.depthwise(normed.transpose(1, 2)))).transpose(1, 2)
        return states + drop(mixed, self.dropout, self.training)


class Convolutions(LocalityModule):
    """A stack of `SeparableConvolution`, under the names 0, 1, ..."""

    def __init__(self, site: AttentionSite, kernel_size: int, layers: int) -> None:
        super().__init__()
        for index in range(layers):
            self.add_module(str(index), SeparableConvolution(site.d_model, kernel_size, site.dropout))

    def forward(self, states: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """[B, T, d] -> [B, T, d]."""
        for convolution in self.children():
            states = convolution(states, padding)
        return states


@dataclass(frozen=True)
class Convolution(LocalityMethod):
    """Depthwise separable convolutions before the attention, each in a residual block of its own.

    What comes out takes the place of the layer's input, in the attention and in its residual connection. QANet's
    encoder has 4 of kernel 7, and names no activation; its public re-implementations have a ReLU after the pointwise
    part, as here. The model's dropout stands on that.

    In three layers of base they are 3.2M parameters. The paper's 42.6M cannot be separable ones of width 512, which
    would be 159 of 0.27M each; its convolutions were full ones. A decoder would have to cache the last k - 1 states
    of each convolution: not offered.

    Attributes:
        kernel_size: k, in tokens; odd.
        layers: Convolutions before the attention.
    """

    kernel_size: int = 7
    layers: int = 4

    key: ClassVar[str] = "cnn"
    parts: ClassVar[tuple[str, ...]] = ("encoder",)
    presets: ClassVar = {"cnn": {"encoder_locality": {"cnn": {"kernel_size": 7, "layers": 4}}}}

    def check(self, site: AttentionSite, name: str) -> None:
        """See `LocalityMethod`."""
        check_number(self.kernel_size, f"{name}.kernel_size", "an odd number of tokens")
        if self.kernel_size % 2 == 0:
            raise ValueError(f"`{name}.kernel_size` must be an odd number of tokens, got {self.kernel_size}.")
        check_number(self.layers, f"{name}.layers", "a number of convolutions", most=1000)

    def build(self, site: AttentionSite) -> Convolutions:
        """See `LocalityMethod`."""
        return Convolutions(site, self.kernel_size, self.layers)

    def before(self, module: Convolutions, states: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """See `LocalityMethod`."""
        output: torch.Tensor = module(states, padding)
        return output
