# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Gaussian localness (Yang et al., EMNLP 2018; `LOCAL_SOFT` of NAACL 2019): energies fall off
around a centre.

The authors' released code has (L - 1) · sigmoid(p) as the centre, 0.1 added to the window, and
biases in the predictors; here as in the text, with a floor of the window that has a gradient
(`raise_to_floor`)."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from .attention_call import AttentionCall, Cells, Term, at_least_float32
from .configuration_seq2seq import MOST_TOKENS, bounded
from .locality import AttentionSite, LocalityMethod, LocalityModule, ModuleTerm

MINIMUM_WINDOW = 0.1
"""Floor of the Gaussian's window D, in tokens: keeps σ = D/2 away from zero."""
_SLOPE_BELOW_FLOOR = 0.1
_MOST_TAKEN_BACK = 0.5
"""Share of a step that the correction after it may take back."""
_QUERIES_HELD = 64
"""Queries whose energies are computed at once, where centres follow one by one."""
_ROUNDS = 2
"""Passes over the corrections of a whole target in training, and where several queries are
compiled.
"""


@dataclass
class GaussianTerm(Term):
    """The Gaussian energies of every query, G[i, j] = -(j - P_i)² / (2 σ_i²) with σ_i = D_i / 2
    (equation 5).

    P is `center`, a position, and D `width`, in tokens, raised to `MINIMUM_WINDOW`: broadcastable
    to [B, H, I]."""

    center: Tensor
    width: Tensor

    def energy(self, cells: Cells) -> Tensor:
        """G, float32 or better."""
        center = at_least_float32(cells.of_query(self.center))
        width = at_least_float32(cells.of_query(self.width))
        # Not clamp, which from torch 2.15 on has no gradient where a width is the floor
        sigma = width.masked_fill(width < MINIMUM_WINDOW, MINIMUM_WINDOW) / 2
        return -0.5 * ((cells.key_position - center) / sigma) ** 2


@dataclass
class MovingGaussianTerm(GaussianTerm):
    """A Gaussian that may say what is left of the source; see `Term`."""

    tokens_left: Tensor | None = None


@dataclass
class CutOffGaussianTerm(GaussianTerm):
    """A Gaussian truncated at |j - P| <= D, a constant."""

    def __post_init__(self) -> None:
        # FlexAttention's masks take no tensor that wants a gradient
        self.fixed_center = self.center.detach()

    def visible(self, cells: Cells) -> Tensor:
        """Whether the key lies within the window; the centre gets its gradient from the energies
        alone.
        """
        center = at_least_float32(cells.of_query(self.fixed_center))
        return (cells.key_position - center).abs() <= at_least_float32(cells.of_query(self.width))


def raise_to_floor(width: Tensor) -> Tensor:
    """max(D, 0.1 + 0.1 D) of a predicted window D >= 0: at least `MINIMUM_WINDOW`, with a gradient
    everywhere.
    """
    return torch.maximum(width, MINIMUM_WINDOW + _SLOPE_BELOW_FLOOR * width)


class QueryPredictor(LocalityModule):
    """L · sigmoid(u_h · tanh(W q_i)), a position or a window in tokens for each head and query.

    W (`query_proj`) is [d/2, d], u (`head_proj`) [H, d/2]: half the width gives the +0.4M of NAACL
    2019, Table 1."""

    def __init__(self, site: AttentionSite) -> None:
        super().__init__()
        self.query_proj = nn.Linear(site.d_model, site.d_model // 2, bias=False)
        self.head_proj = nn.Linear(site.d_model // 2, site.num_heads, bias=False)

    def forward(self, call: AttentionCall) -> Tensor:
        """[B, H, I], float32 or better."""
        hidden = torch.tanh(self.query_proj(_merge_heads(call.query)))  # [B, I, d / 2]
        return _share_of(call.visible_length, self.head_proj(hidden))


class GaussianLocalness(LocalityModule):
    """Predicts centre and window of each query's Gaussian (Yang et al., EMNLP 2018, sections
    3.1-3.4).

    W_p is `query_proj`, U_p `center_proj`, U_d `window_proj`, W_d `key_proj`.
    """

    def __init__(self, strategy: str, window_size: float, num_heads: int, d_model: int) -> None:
        super().__init__()
        self.strategy = strategy
        self.window_size = float(window_size)
        self.query_proj = nn.Linear(d_model, d_model, bias=False)
        self.center_proj = nn.Linear(d_model, num_heads, bias=False)
        if strategy in ("layer", "query"):
            self.window_proj = nn.Linear(d_model, num_heads, bias=False)
        if strategy == "layer":
            self.key_proj = nn.Linear(d_model, d_model, bias=False)
        if strategy == "head":
            self.head_window = nn.Parameter(torch.zeros(num_heads))

    def init_weights(self, config: Any) -> None:
        """Set the windows of the `"head"` strategy to 25 tokens."""
        if self.strategy == "head":
            init.zeros_(self.head_window)

    def forward(self, call: AttentionCall) -> GaussianTerm:
        """The Gaussian of every query."""
        hidden = torch.tanh(self.query_proj(_merge_heads(call.query)))  # [B, I, d]
        length = call.visible_length  # L, [B or 1, 1, I or 1]
        center = _share_of(length, self.center_proj(hidden))
        if self.strategy == "fixed":
            return GaussianTerm(center, center.new_full((1, 1, 1), self.window_size))
        if self.strategy == "layer":
            hidden = torch.tanh(self.key_proj(_mean_key(call)))  # [B, 1 or I, d]
        if self.strategy == "head":
            width = 50.0 * torch.sigmoid(at_least_float32(self.head_window))[None, :, None]
        else:
            width = _share_of(length, self.window_proj(hidden))
        return GaussianTerm(center, raise_to_floor(width))


def _share_of(length: Tensor, logits: Tensor) -> Tensor:
    """L · sigmoid of logits [B, I, H]: [B, H, I], float32 or better."""
    return length * torch.sigmoid(at_least_float32(logits.transpose(1, 2)))


def _merge_heads(states: Tensor) -> Tensor:
    """[B, H, T, D] -> [B, T, d]."""
    return states.transpose(1, 2).flatten(2)


def _mean_key(call: AttentionCall) -> Tensor:
    """Mean of the keys that each query sees: [B, 1, d], or [B, I, d] prefix means in a causal
    layer.
    """
    keys = at_least_float32(_merge_heads(call.key))  # [B, J, d]
    real = keys.new_ones(keys.shape[:2])
    if call.key_padding_mask is not None:
        real = real * call.key_padding_mask
    keys = keys * real.unsqueeze(-1)
    if call.area.causal:
        queries = call.query.shape[2]  # the last positions
        sums = keys.cumsum(dim=1)[:, -queries:]
        counts = real.cumsum(dim=1)[:, -queries:]
    else:
        sums = keys.sum(dim=1, keepdim=True)
        counts = real.sum(dim=1, keepdim=True)
    return (sums / counts.clamp(min=1.0).unsqueeze(-1)).to(call.key.dtype)


class GaussianMethod(ModuleTerm):
    """One Gaussian for each query: `Gaussian` predicts both, `Neighbor` the width alone,
    `LocalHard` the centre.
    """

    def build(self, site: AttentionSite) -> LocalityModule:
        """See `LocalityMethod`."""
        return QueryPredictor(site)

    def conflict(self, other: LocalityMethod) -> str | None:
        """See `LocalityMethod`."""
        if isinstance(other, GaussianMethod):
            return "a query has one Gaussian; `gaussian` predicts both its centre and its width"
        return None


@dataclass(frozen=True)
class Gaussian(GaussianMethod):
    """A Gaussian around a position predicted from each query.

    Attributes:
        width: How its window D is set: `"fixed"`, `"layer"`, `"query"` or `"head"`.
        size: D of `"fixed"`, in tokens.
    """

    width: Literal["fixed", "layer", "query", "head"]
    size: float | int = bounded(10.0, above=0, most=MOST_TOKENS)

    key = "gaussian"
    phrase = (
        "a Gaussian around a position predicted from each query, its window by the strategy "
        "{0.strategy}, added to the energies"
    )
    module_name = "localness"
    label = "Gaussian localness"
    paper = "yang-etal-2018-modeling"
    presets: ClassVar = {"local_soft": {"localness_window": "query"}}

    @property
    def strategy(self) -> str:
        """The strategy of the window, for cards."""
        return f"`fixed`, {self.size:g} tokens" if self.width == "fixed" else f"`{self.width}`"

    @property
    def needs_all_keys(self) -> bool:
        """The `"layer"` window depends on the mean of all earlier keys."""
        return self.width == "layer"

    def build(self, site: AttentionSite) -> GaussianLocalness:
        """See `LocalityMethod`."""
        return GaussianLocalness(self.width, self.size, site.num_heads, site.d_model)


@dataclass(frozen=True)
class Neighbor(GaussianMethod):
    """Energies fall off with the distance to the query, the faster the narrower the window
    predicted from it.

    Sperber et al. learn one variance for each head; Yang et al. predict it ("predicting a window
    size"), as here."""

    key = "neighbor"
    phrase = "a Gaussian around each query, its window predicted from that, added to the energies"
    label = "a Gaussian around each query"
    paper = "sperber-etal-2018-self"
    parts = ("encoder", "decoder")
    presets: ClassVar = {"neighbor": {"encoder_locality": {"neighbor": True}}}

    def term(self, module: QueryPredictor, call: AttentionCall) -> GaussianTerm:
        """See `LocalityMethod`."""
        return GaussianTerm(call.query_positions.float()[:, None], raise_to_floor(module(call)))


@dataclass(frozen=True)
class LocalHard(GaussianMethod):
    """Energies fall off around a position predicted from each query, over a window of fixed width.

    Luong et al. (equations 9-10) multiply the weights after the softmax and see nothing beyond P ±
    D; Yang et al. add the Gaussian to the energies and cut nothing off, as here. P is not rounded:
    W needs its gradient.

    Attributes:
        width: D, in tokens, at least 1.
        cut_off: Whether keys farther than D from P are invisible, as Luong et al. have it.
    """

    width: float | int = bounded(10.0, 1, MOST_TOKENS)
    cut_off: bool = False

    key = "local_hard"
    phrase = (
        "a Gaussian around a position predicted from each query, with a window of {0.width:g} "
        "tokens, added to the energies; cut off there: {0.cut_off}"
    )
    label = "a Gaussian around a predicted position"
    paper = "luong-etal-2015-effective"
    presets: ClassVar = {"local_hard": {"encoder_locality": {"local_hard": {"width": 10.0}}}}

    def term(self, module: QueryPredictor, call: AttentionCall) -> GaussianTerm:
        """See `LocalityMethod`."""
        center = module(call)
        width = center.new_full((1, 1, 1), float(self.width))
        if self.cut_off:
            return CutOffGaussianTerm(center, width)
        return GaussianTerm(center, width)


class ExactLinear(nn.Linear):
    """A linear layer that computes in the type of its input, whatever that of its weights."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., d] -> [..., n]."""
        output = F.linear(input, self.weight.to(input.dtype))
        return output if self.bias is None else output + self.bias


class StepPredictor(LocalityModule):
    """How far a centre moves on at each query, softplus(u_h · tanh(W q_i) + b_h) tokens, each
    head's window D, and the gain g by which the centre follows what the heads attend to.

    Without a gain each head has a centre of its own, with it all have the same one, C = H or 1.
    W (`query_proj`) is [d/2, d], u and b (`step_proj`) [C, d/2] and [C]; D is exp of `log_width`
    [H], g the sigmoid of `gain_logit` [1]. All computed in float32 or better: a step rounded to
    bfloat16 is some tokens off after a thousand."""

    def __init__(self, site: AttentionSite, width: float, gain: float, ends_within: float) -> None:
        super().__init__()
        self.initial_width = width
        self.initial_gain = gain
        self.ends_within = ends_within
        self.query_proj = ExactLinear(site.d_model, site.d_model // 2, bias=False)
        self.step_proj = ExactLinear(site.d_model // 2, 1 if gain > 0 else site.num_heads)
        self.log_width = nn.Parameter(torch.zeros(site.num_heads))
        if gain > 0:
            self.gain_logit = nn.Parameter(torch.zeros(1))
        self.init_weights(None)

    def init_weights(self, config: Any) -> None:
        """Start with steps of one token, and the windows and gains of the setting."""
        init.constant_(self.step_proj.bias, math.log(math.e - 1))
        init.constant_(self.log_width, math.log(self.initial_width))
        if self.initial_gain > 0:
            init.constant_(self.gain_logit, math.log(self.initial_gain / (1 - self.initial_gain)))

    def forward(self, call: AttentionCall) -> MovingGaussianTerm:
        """The Gaussian of every query around the sum of its and all earlier steps and corrections;
        the first position is 0.
        """
        carried = call.carried
        query = at_least_float32(_merge_heads(call.query))
        with torch.autocast(query.device.type, enabled=False):
            hidden = torch.tanh(self.query_proj(query))  # [B, I, d / 2]
            steps = F.softplus(self.step_proj(hidden).transpose(1, 2))
            steps = carried.mask_padding(steps)  # [B, C, I]
            width = raise_to_floor(torch.exp(at_least_float32(self.log_width)))[None, :, None]
            before = carried.previous - 1.0
            center = call.sums_over_queries(steps, before, call.first_visible - 1.0)
            corrected = center
            if self.initial_gain > 0:
                gain = torch.sigmoid(at_least_float32(self.gain_logit))
                gain = carried.mask_padding(gain.expand_as(steps))
                correction = _Correction(call, width, gain, steps)
                if self.training or torch.compiler.is_compiling():
                    center, corrected = correction.in_rounds(center)
                else:
                    center, corrected = correction.one_by_one(before)
            carried.keep(corrected + 1.0)
            if self.ends_within == 0:
                return MovingGaussianTerm(center, width)
            end = call.first_visible + call.visible_length - 1.0
            left = end - center.mean(dim=1, keepdim=True)  # [B, 1, I]
        return MovingGaussianTerm(center, width, (left - self.ends_within).squeeze(1))


class _Correction:
    """The correction of the heads' common centre by what they attend to: P_{i+1} = P_i + c_i +
    step_{i+1} with c_i = max(g (z_i - P_i), -step_i / 2), where z_i is the mean position attended
    to from P_i, over all heads.

    z comes from dot products and Gaussians alone, without dropout. The centre is common because a
    head that loses its place alone costs no loss in training, where the others know theirs. By the
    bound of c it moves on, all in all, by half of the steps at least: attention to the last word
    would hold it there for ever.
    """

    def __init__(self, call: AttentionCall, width: Tensor, gain: Tensor, steps: Tensor) -> None:
        self.gain = gain  # [B, 1, I]
        self.steps = steps  # [B, 1, I]
        self.precision = 4.0 / width.unsqueeze(-1) ** 2  # 1 / σ²
        self.call = call
        self.query = at_least_float32(call.query * call.scale)
        self.key = at_least_float32(call.key)
        self.positions = call.key_positions[:, None, None, :].to(self.query.dtype)

    def _dot_products(self, queries: slice) -> Tensor:
        """[B, H, I, J], padding and other lines at the lowest number."""
        energies = self.query[:, :, queries] @ self.key.transpose(-1, -2)
        lowest = torch.finfo(energies.dtype).min
        if self.call.key_padding_mask is not None:
            padding = ~self.call.key_padding_mask[:, None, None, :]
            energies = energies.masked_fill(padding, lowest)
        if self.call.lines is not None:
            energies = energies.masked_fill(~self.call.lines.same[:, :, queries], lowest)
        return energies

    def _at(self, center: Tensor, dot_products: Tensor, queries: slice) -> Tensor:
        """c for centres P of `queries`, [B, 1, I]."""
        distance = self.positions - center.unsqueeze(-1)
        energies = dot_products - 0.5 * self.precision * distance**2
        offset = (torch.softmax(energies, dim=-1) * distance).sum(dim=-1)  # [B, H, I]
        correction = self.gain[:, :, queries] * offset.mean(dim=1, keepdim=True)
        return torch.maximum(correction, -_MOST_TAKEN_BACK * self.steps[:, :, queries])

    def one_by_one(self, place: Tensor | float) -> tuple[Tensor, Tensor]:
        """All centres [B, 1, I] and where each is corrected to, from the `place` before the first
        step; the energies of some queries at a time are held.
        """
        centers = []
        corrected = []
        lines = self.call.lines
        for index in range(self.steps.shape[-1]):
            row = index % _QUERIES_HELD
            if row == 0:
                dot_products = self._dot_products(slice(index, index + _QUERIES_HELD))
            query = slice(index, index + 1)
            if lines is not None:
                start = lines.first[:, None, query] - 1.0
                place = torch.where(lines.begins[:, None, query], start, place)
            center = place + self.steps[:, :, query]
            place = center + self._at(center, dot_products[:, :, row : row + 1], query)
            centers.append(center)
            corrected.append(place)
        return torch.cat(centers, -1), torch.cat(corrected, -1)

    def in_rounds(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """The same nearly, all centres at once, from the `sums` of steps: each round has the
        corrections at the centres of the round before. As many rounds as queries are exact.
        """
        center = sums
        queries = slice(None)
        dot_products = self._dot_products(queries)
        for _ in range(min(_ROUNDS, sums.shape[-1])):
            corrections = self._at(center, dot_products, queries)
            total = self.call.sums_over_queries(corrections, before=0.0, start=0.0)
            center = sums + total - corrections
        return center, sums + total


@dataclass(frozen=True)
class MovingGaussian(GaussianMethod):
    """A Gaussian that moves on through the source with every target token, so that attention keeps
    its place.

    The centre is that of Graves (2013, equation 51), with softplus for exp as in Battenberg et al.
    (2020, GMMv2b); it is added to the energies, which stay content-based. Without other positions
    it needs no length to be known, and works on texts longer than those of training.

    Beside `line` the centre starts anew at each line.

    Attributes:
        width: D at the start of training, in tokens; each head learns its own.
        gain: Share g, at the start of training, of the way from the centre to the mean position
            attended to, by which the centre is corrected at each token, so that errors of the steps
            do not add up; learned. A correction takes back half a step at most. The heads then
            have one centre. 0 = each head has its own, which is never corrected.
        ends_within: Distance of the centre from the source's end, in tokens, beyond which a target
            ends less easily when it is generated: each further token takes 1 from the logit of
            `config.eos_token_id`, at most 4, so that a doubtful end is passed over and a sure one
            is not. 0 = no distance does.
    """

    width: float | int = bounded(10.0, 1, MOST_TOKENS)
    gain: float | int = bounded(0.0, 0, below=1)
    ends_within: float | int = bounded(0, 0, MOST_TOKENS)

    key = "moving_gaussian"
    phrase = (
        "a Gaussian that moves on with every target token by a step predicted from the query, and "
        "by the gain {0.gain:g} towards the mean position attended to by all heads, with one "
        "learned window per head, added to the energies"
    )
    label = "a moving Gaussian"
    paper = "graves-2013-generating"
    parts = ("cross",)
    presets: ClassVar = {
        "long": {
            "position_embeddings": None,
            "local_window": 11,
            "encoder_locality": [{"relative_positions": 16}],
            "decoder_locality": [{"relative_positions": 16}],
            "cross_locality": [{"moving_gaussian": {"gain": 0.1, "ends_within": 50}}],
        }
    }
    takes_any_length = True
    carries_value = True

    def build(self, site: AttentionSite) -> StepPredictor:
        """See `LocalityMethod`."""
        return StepPredictor(site, self.width, self.gain, self.ends_within)
