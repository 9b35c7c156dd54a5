# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Methods that change the sub-layer: block self-attention in its place, convolutions before it.

Bi-directional block self-attention, Bi-BloSA (Shen et al., ICLR 2018; `BLOCK` of Yang et al., NAACL 2019): a
sentence is cut into blocks of r tokens. In each of two directions, a token attends to the tokens of its block before
(after) it, a block is summed up in one vector, and blocks attend to those before (after) them; a gate brings token,
block and context together. All attention is multi-dimensional: one softmax for each of the w features.

Convolutions: Yu et al., ICLR 2018, "QANet", section 2.2; `CNN` of Yang et al., NAACL 2019.

Shapes: B batch, T positions, R blocks, r tokens of a block, d model width, w width of a direction.
"""

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import nn

from .locality import AttentionSite, LocalityMethod, LocalityModule, check_number, first_real_token
from .seq2seq_model import drop

_SCORE_LIMIT = 5.0
"""Scores are 5 tanh(x / 5), c of section 2.3."""


class MaskedSelfAttention(nn.Module):
    """Each state's average of those before it, or after it (section 2.3); zeros where there is none."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.target, self.source = nn.Linear(width, width, bias=False), nn.Linear(width, width)

    def forward(self, states: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """States [..., n, w], `visible` broadcastable to [..., n, n] -> [..., n, w]."""
        scores = self.target(states).unsqueeze(-2) + self.source(states).unsqueeze(-3)  # [..., n, n, w]
        weights = _softmax(_SCORE_LIMIT * torch.tanh(scores / _SCORE_LIMIT), visible.unsqueeze(-1))
        return (weights * states.unsqueeze(-3)).sum(dim=-2)


class BlockSummary(nn.Module):
    """One vector for a block, source2token attention (section 2.2)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden, self.score = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, states: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """States [..., n, w], `real` [..., n] -> [..., w]."""
        return (_softmax(self.score(F.elu(self.hidden(states))), real.unsqueeze(-1)) * states).sum(dim=-2)


class ContextGate(nn.Module):
    """G ⊙ o + (1 - G) ⊙ v of a block's context o and summary v (section 3.1)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.context, self.local = nn.Linear(width, width, bias=False), nn.Linear(width, width)

    def forward(self, context: torch.Tensor, summary: torch.Tensor) -> torch.Tensor:
        """[B, R, w] each -> [B, R, w]."""
        return torch.lerp(summary, context, torch.sigmoid(self.context(context) + self.local(summary)))


class FeatureFusion(nn.Module):
    """G ⊙ F + (1 - G) ⊙ x of a token x, with F and G of x, its attention h and its block's context e (section 3.1)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.candidate, self.gate = nn.Linear(3 * width, width), nn.Linear(3 * width, width)

    def forward(self, tokens: torch.Tensor, attended: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """[..., w] each -> [..., w]."""
        features = torch.cat([tokens, attended, context], dim=-1)
        return torch.lerp(tokens, F.elu(self.candidate(features)), torch.sigmoid(self.gate(features)))


class BlockDirection(nn.Module):
    """Masked block self-attention in one direction, mBloSA (section 3.1)."""

    def __init__(self, d_model: int, width: int, is_past: bool) -> None:
        super().__init__()
        self.is_past = is_past
        self.input = nn.Linear(d_model, width)
        self.intra, self.inter = MaskedSelfAttention(width), MaskedSelfAttention(width)
        self.summary, self.gate, self.fusion = BlockSummary(width), ContextGate(width), FeatureFusion(width)

    def forward(self, blocks: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Tokens [B, R, r, d], `real` [B, R, r] -> [B, R, r, w]."""
        tokens = F.elu(self.input(blocks))
        attended = self.intra(tokens, self._side(tokens.shape[2], tokens.device) & real.unsqueeze(-2))
        summaries = self.summary(attended, real)  # [B, R, w]
        some = real.any(dim=-1).unsqueeze(-2)  # blocks with tokens
        context = self.inter(summaries, self._side(summaries.shape[1], tokens.device) & some)
        context = self.gate(context, summaries).unsqueeze(2).expand_as(tokens)
        return self.fusion(tokens, attended, context)

    def _side(self, length: int, device: torch.device) -> torch.Tensor:
        """Which of `length` states each sees, [length, length]; never itself."""
        ones = torch.ones(length, length, dtype=torch.bool, device=device)
        return ones.tril(-1) if self.is_past else ones.triu(1)


def _softmax(scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Weights over the second to last axis [..., n, w] for each feature; zeros where nothing is visible."""
    exact = torch.promote_types(scores.dtype, torch.float32)
    scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    return (torch.softmax(scores, dim=-2, dtype=exact) * visible).to(scores.dtype)


class BlockSelfAttention(LocalityModule):
    """Both directions, and the projection of what they give to the model's width."""

    def __init__(self, d_model: int, width: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.past, self.future = BlockDirection(d_model, width, True), BlockDirection(d_model, width, False)
        self.output = nn.Linear(2 * width, d_model)

    def forward(self, states: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """[B, T, d] -> [B, T, d]; blocks are of ranks among the real tokens (`padding` [B, T])."""
        batch, length = states.shape[:2]
        if padding is None:
            padding = torch.ones(1, 1, dtype=torch.bool, device=states.device).expand(batch, length)
        first = first_real_token(padding)
        assert first is not None  # for the type checker
        places = torch.arange(length, device=states.device)
        ranked, real = _take(states, places + first[:, None]), _take(padding, places + first[:, None])
        size = self.length
        if not torch.compiler.is_compiling():
            size = min(size, length)  # compiled, one size serves sentences of all lengths
        missing = -length % size
        blocks = F.pad(ranked, (0, 0, 0, missing)).unflatten(1, (-1, size))
        real = F.pad(real, (0, missing)).unflatten(1, (-1, size))
        both = torch.cat([self.past(blocks, real), self.future(blocks, real)], dim=-1)
        return _take(self.output(both.flatten(1, 2)[:, :length]), places - first[:, None])


def _take(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Positions `places` [B, T], modulo T, of `states` [B, T, ...]."""
    places = places % states.shape[1]
    if states.dim() == 3:
        places = places.unsqueeze(-1).expand_as(states)
    return states.gather(1, places)


@dataclass(frozen=True)
class Block(LocalityMethod):
    """Bi-BloSA in place of the attention.

    What the paper leaves open is as in its authors' code: ELU, zeros for a token that attends to nothing. The bias of
    the summary's scores is left out: it cancels in the softmax.

    Attributes:
        length: r, tokens of a block; the paper recommends the cube root of twice the sentence's length.
        width: w, features of a direction; None = d / 2.
    """

    length: int = 4
    width: int | None = None

    key: ClassVar[str] = "block"
    parts: ClassVar[tuple[str, ...]] = ("encoder",)
    replaces_attention: ClassVar[bool] = True
    presets: ClassVar = {"block": {"encoder_locality": {"block": {"length": 4, "width": 300}}}}

    def check(self, site: AttentionSite, name: str) -> None:
        """See `LocalityMethod`."""
        check_number(self.length, f"{name}.length", "a number of tokens")
        if self.width is not None:
            check_number(self.width, f"{name}.width", "a number of features")

    def build(self, site: AttentionSite) -> BlockSelfAttention:
        """See `LocalityMethod`."""
        width = site.d_model // 2 if self.width is None else self.width
        return BlockSelfAttention(site.d_model, width, self.length)

    def attend(
        self, module: BlockSelfAttention, states: torch.Tensor, padding: torch.Tensor | None
    ) -> tuple[torch.Tensor, None]:
        """See `LocalityMethod`; the weights are of features, not of positions."""
        return module(states, padding), None


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

    What comes out takes the place of the layer's input, in the attention and in its residual connection. A decoder
    would have to cache the last k - 1 states of each convolution: not offered.

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
        return cast(torch.Tensor, module(states, padding))
