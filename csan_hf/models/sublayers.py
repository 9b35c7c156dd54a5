# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Methods that change the sub-layer: block self-attention in its place, convolutions before it.

Bi-directional block self-attention, Bi-BloSA (Shen et al., ICLR 2018; `BLOCK` of Yang et al., NAACL
2019): a sentence is cut into blocks of r tokens. In each of two directions, a token attends to the
tokens of its block before (after) it, a block is summed up in one vector, and blocks attend to
those before (after) them; a gate brings token, block and context together. All attention is
multi-dimensional: one softmax for each of the w features.

Convolutions: Yu et al., ICLR 2018, "QANet", section 2.2; `CNN` of Yang et al., NAACL 2019.

Shapes: B batch, T positions, R blocks, r tokens of a block, d model width, w width of a direction.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .configuration_seq2seq import MOST_LAYERS, MOST_TOKENS, bounded
from .layers import drop
from .locality import AttentionSite, LocalityMethod

_SCORE_LIMIT = 5.0  # c of section 2.3


class MaskedSelfAttention(nn.Module):
    """Each state's average of those before it, or after it (section 2.3); zeros where there is
    none.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.target = nn.Linear(width, width, bias=False)
        self.source = nn.Linear(width, width)

    def forward(self, states: Tensor, visible: Tensor) -> Tensor:
        """States [..., n, w], `visible` broadcastable to [..., n, n] -> [..., n, w]."""
        targets = self.target(states).unsqueeze(-2)
        scores = targets + self.source(states).unsqueeze(-3)  # [..., n, n, w]
        weights = _softmax(_SCORE_LIMIT * torch.tanh(scores / _SCORE_LIMIT), visible.unsqueeze(-1))
        return (weights * states.unsqueeze(-3)).sum(dim=-2)


class BlockSummary(nn.Module):
    """One vector for a block, source2token attention (section 2.2)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.score = nn.Linear(width, width, bias=False)

    def forward(self, states: Tensor, real: Tensor) -> Tensor:
        """States [..., n, w], `real` [..., n] -> [..., w]."""
        weights = _softmax(self.score(F.elu(self.hidden(states))), real.unsqueeze(-1))
        return (weights * states).sum(dim=-2)


class BlockDirection(nn.Module):
    """Masked block self-attention in one direction, mBloSA (section 3.1)."""

    def __init__(self, d_model: int, width: int, is_past: bool) -> None:
        super().__init__()
        self.is_past = is_past
        self.input = nn.Linear(d_model, width)
        self.intra = MaskedSelfAttention(width)
        self.inter = MaskedSelfAttention(width)
        self.summary = BlockSummary(width)
        self.gate = nn.ModuleDict(
            {"context": nn.Linear(width, width, bias=False), "local": nn.Linear(width, width)}
        )
        self.fusion = nn.ModuleDict(
            {"candidate": nn.Linear(3 * width, width), "gate": nn.Linear(3 * width, width)}
        )

    def forward(self, blocks: Tensor, real: Tensor) -> Tensor:
        """Tokens [B, R, r, d], `real` [B, R, r] -> [B, R, r, w]."""
        tokens = F.elu(self.input(blocks))
        visible = self._side(tokens.shape[2], tokens.device) & real.unsqueeze(-2)
        attended = self.intra(tokens, visible)
        summaries = self.summary(attended, real)  # [B, R, w]
        has_tokens = real.any(dim=-1).unsqueeze(-2)  # [B, 1, R]
        visible = self._side(summaries.shape[1], tokens.device) & has_tokens
        context = self.inter(summaries, visible)  # [B, R, w]
        gate = torch.sigmoid(self.gate["context"](context) + self.gate["local"](summaries))
        context = summaries + gate * (context - summaries)
        context = context.unsqueeze(2).expand_as(tokens)  # [B, R, r, w]
        features = torch.cat([tokens, attended, context], dim=-1)
        gate = torch.sigmoid(self.fusion["gate"](features))
        candidate = F.elu(self.fusion["candidate"](features))
        return tokens + gate * (candidate - tokens)  # torch.lerp refuses autocast's mixed types

    def _side(self, length: int, device: torch.device) -> Tensor:
        """Which of `length` states each sees, [length, length]; never itself."""
        ones = torch.ones(length, length, dtype=torch.bool, device=device)
        return ones.tril(-1) if self.is_past else ones.triu(1)


def _softmax(scores: Tensor, visible: Tensor) -> Tensor:
    """Weights over the second to last axis [..., n, w] for each feature; zeros where nothing is
    visible.
    """
    exact = torch.promote_types(scores.dtype, torch.float32)
    scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    return (torch.softmax(scores, dim=-2, dtype=exact) * visible).to(scores.dtype)


class BlockSelfAttention(nn.Module):
    """Both directions, projected to the model's width."""

    def __init__(self, d_model: int, width: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.past = BlockDirection(d_model, width, is_past=True)
        self.future = BlockDirection(d_model, width, is_past=False)
        self.output = nn.Linear(2 * width, d_model)

    def forward(self, states: Tensor, padding: Tensor | None) -> Tensor:
        """[B, T, d] -> [B, T, d]; blocks are of ranks among the real tokens (`padding` [B, T])."""
        batch, length = states.shape[:2]
        if padding is None:
            padding = states.new_ones(batch, length, dtype=torch.bool)
        first = padding.int().argmax(dim=-1, keepdim=True)  # place of the first real token, [B, 1]
        places = torch.arange(length, device=states.device)
        ranked = _take(states, places + first)
        real = _take(padding, places + first)
        size = self.length
        if not torch.compiler.is_compiling():
            size = min(size, length)  # compiled, one size serves sentences of all lengths
        missing = -length % size
        blocks = F.pad(ranked, (0, 0, 0, missing)).unflatten(1, (-1, size))
        real = F.pad(real, (0, missing)).unflatten(1, (-1, size))
        features = torch.cat([self.past(blocks, real), self.future(blocks, real)], dim=-1)
        output = self.output(features.flatten(1, 2)[:, :length])
        return _take(output, places - first)


def _take(states: Tensor, places: Tensor) -> Tensor:
    """Positions `places` [B, T], modulo T, of `states` [B, T, ...]."""
    places = places % places.new_full((), states.shape[1])  # a tensor: ONNX has no other
    if states.dim() == 3:
        places = places.unsqueeze(-1).expand_as(states)
    return states.gather(1, places)


@dataclass(frozen=True)
class Block(LocalityMethod):
    """Bi-BloSA in place of the attention; ELU, and zeros for a token that attends to nothing, as in
    its authors' code.

    The bias of the summary's scores is left out: it cancels in the softmax.

    Attributes:
        length: r, tokens of a block; the paper recommends the cube root of twice the sentence's
            length.
        width: w, features of a direction; None = d / 2.
    """

    length: int = bounded(4, 1, MOST_TOKENS)
    width: int | None = bounded(None, 1, MOST_TOKENS)

    key = "block"
    phrase = (
        "bi-directional block self-attention in place of multi-head attention: blocks of "
        "{0.length} tokens, {0.width} features in each direction (None: half of the model's)"
    )
    label = "block self-attention"
    paper = "shen-etal-2018-block"
    presets: ClassVar = {"block": {"encoder_locality": {"block": {"length": 4, "width": 300}}}}

    def build(self, site: AttentionSite) -> BlockSelfAttention:
        """See `LocalityMethod`."""
        return BlockSelfAttention(site.d_model, self.width or site.d_model // 2, self.length)

    def attend(
        self, module: BlockSelfAttention, states: Tensor, padding: Tensor | None
    ) -> tuple[Tensor, None]:
        """See `LocalityMethod`; the weights are of features, not of positions."""
        return module(states, padding), None


class SeparableConvolution(nn.Module):
    """x + relu(pointwise(depthwise(layernorm(x)))): k taps on each channel by itself, then channels
    are mixed.
    """

    def __init__(self, d_model: int, kernel_size: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm = nn.LayerNorm(d_model)
        padding = (kernel_size - 1) // 2
        self.depthwise = nn.Conv1d(
            d_model, d_model, kernel_size, padding=padding, groups=d_model, bias=False
        )
        self.pointwise = nn.Conv1d(d_model, d_model, 1)

    def forward(self, states: Tensor, padding: Tensor | None) -> Tensor:
        """[B, T, d] -> [B, T, d]; taps at padding (`padding` [B, T], True = real) count as zero."""
        normed = self.norm(states)
        if padding is not None:
            normed = normed.masked_fill(~padding.unsqueeze(-1), 0.0)
        mixed = F.relu(self.pointwise(self.depthwise(normed.transpose(1, 2)))).transpose(1, 2)
        return states + drop(mixed, self.dropout, self.training)


@dataclass(frozen=True)
class Convolution(LocalityMethod):
    """Depthwise separable convolutions before the attention, each in a residual block.

    Their output replaces the layer's input, in the attention and in its residual connection. A
    decoder would have to cache the last k - 1 states of each convolution: not offered.

    Attributes:
        kernel_size: k, in tokens; odd.
        layers: Convolutions before the attention.
    """

    kernel_size: int = bounded(7, 1, MOST_TOKENS, odd=True)
    layers: int = bounded(4, 1, MOST_LAYERS)

    key = "cnn"
    phrase = (
        "{0.layers} depthwise separable convolutions of {0.kernel_size} tokens before the attention"
    )
    label = "convolutions"
    paper = "yu-etal-2018-qanet"
    presets: ClassVar = {"cnn": {"encoder_locality": {"cnn": {"kernel_size": 7, "layers": 4}}}}

    def build(self, site: AttentionSite) -> nn.ModuleList:
        """See `LocalityMethod`."""
        return nn.ModuleList(
            SeparableConvolution(site.d_model, self.kernel_size, site.dropout)
            for _ in range(self.layers)
        )

    def before(self, module: nn.ModuleList, states: Tensor, padding: Tensor | None) -> Tensor:
        """See `LocalityMethod`."""
        for convolution in module:
            states = convolution(states, padding)
        return states
