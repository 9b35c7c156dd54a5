# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Loop oracles of the locality methods of Table 1 (Yang et al., NAACL 2019) that act inside the
attention.

Written from the papers, not from the product ("the released layer" is the one in
baosongyang/Context-Aware-SAN, read where a paper leaves something open): one sentence, head, query
and key at a time, scalars in float64, and autograd for the gradients. `local_attention` takes a
list of methods; each adds visibility, an energy or a value:

    e[h,i,s,j] = λ · q[h,i]·k[s,j] + Σ energies      over the (s, j) that every method shows, under one softmax
    o[h,i]     = Σ α[h,i,s,j] · (v[s,j] + Σ values)

so that whatever composes is composed here: area + REL_POS, Gaussian + REL_POS, window + BI_DIRECT.
`locality_block.py` and `locality_cnn.py` hold the methods that act outside of it (BLOCK, CNN).

Rules for every method:
- Padding is taken out before anything is computed. Positions and lengths are therefore ranks among
  real tokens, and padding on either side changes nothing. A padding query yields zeros, and so does
  a query that sees no key.
- In a causal layer the I queries are the last I of the J positions and see no later key. Whatever a
  method reads of the sentence (its length, its mean) it reads of the keys up to the query, so that
  cached decoding equals the full forward.
- A pair (query head h, key head s ≠ h), which areas show, takes the quantities of the query's head
  where a method predicts them from the query (centre, width, direction) and those of the key's head
  where a method stores them with the key (REL_POS): a key of head s is the same vector whoever
  looks at it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import torch
from reference.local_attention import visible_heads, visible_positions
from torch import Tensor

HEAD_WINDOW_LIMIT = 50.0  # tokens


@dataclass(frozen=True, eq=False)
class Sentence:
    """One sentence without its padding: query [H, I, D], key and value [H, J, D] in float64."""

    query: Tensor
    key: Tensor
    value: Tensor
    causal: bool

    def position(self, i: int) -> int:
        """Rank of query i among the sentence's tokens: the queries are the last I of J."""
        return self.key.shape[1] - self.query.shape[1] + i

    def length(self, i: int) -> int:
        """L, the keys that query i may know of: the sentence, or the tokens up to the query in a
        causal layer.
        """
        return self.position(i) + 1 if self.causal else self.key.shape[1]

    def whole_query(self, i: int) -> Tensor:
        """The query before it was split into heads [d]."""
        return torch.cat([self.query[h, i] for h in range(self.query.shape[0])])

    def mean_key(self, i: int) -> Tensor:
        """The mean [d] of the keys that query i may know of, before they were split into heads."""
        keys = [self.key[:, j].flatten() for j in range(self.length(i))]
        return sum(keys) / len(keys)


class Method:
    """What a method adds to the pair (query head h, query i; key head s, key rank j). The default
    adds nothing.
    """

    def visible(self, sentence: Sentence, h: int, i: int, s: int, j: int) -> bool:
        return True

    def energy(self, sentence: Sentence, h: int, i: int, s: int, j: int) -> Tensor | float:
        return 0.0

    def value(self, sentence: Sentence, h: int, i: int, s: int, j: int) -> Tensor | float:
        return 0.0


@dataclass(frozen=True)
class RelativePositions(Method):
    """REL_POS: a learned vector for every clipped distance, added to keys and to values (Shaw et
    al., NAACL 2018).

    Equations 3, 4 and section 3.2: e = λ q_i·(k_j + a^K_r), o_i = Σ α_ij (v_j + a^V_r), r = clip(j
    - i, -k, k).

    key_table, value_table: row r + k is a_r. [H, 2k+1, D], one for each head, or [2k+1, D] shared
        by the heads. Shaw's base model has "unique edge representations per layer and head" with k
        = 16, the big one k = 8 and tables shared by the heads (section 4.1). The paper's +0.1M is
        the former in three layers. With an area the key's head s gives the row, since a^K belongs
        to the key.
    clip: k, 1 or more.

    The scale λ covers both parts of the energy. Nothing is added to queries. A window narrower than
    k leaves the outer rows without a gradient; a causal layer uses rows 0..k alone. Absolute
    positions stay (Yang et al. add methods to the full Transformer; Shaw removes the sinusoids and
    reports no gain from having both)."""

    key_table: Tensor
    value_table: Tensor
    clip: int

    def row(self, table: Tensor, sentence: Sentence, i: int, s: int, j: int) -> Tensor:
        distance = max(-self.clip, min(self.clip, j - sentence.position(i)))
        per_head = table if table.dim() == 2 else table[s]
        return per_head[distance + self.clip].double()

    def energy(self, sentence, h, i, s, j):
        D = sentence.query.shape[2]
        return (sentence.query[h, i] @ self.row(self.key_table, sentence, i, s, j)) / math.sqrt(D)

    def value(self, sentence, h, i, s, j):
        return self.row(self.value_table, sentence, i, s, j)


@dataclass(frozen=True)
class RelativeBias(Method):
    """A number for each head and bucket of distances, the query's head's: table [K, H] (Raffel et
    al., 2020, T5).

    A bidirectional layer has K / 2 buckets for j <= i, then K / 2 for j > i; a causal one K for the
    past. Half of a side's are for a distance each, the others grow by equal factors up to
    `max_distance`, the last takes the rest."""

    table: Tensor
    max_distance: int

    def energy(self, sentence, h, i, s, j):
        distance = j - sentence.position(i)
        side = self.table.shape[0] if sentence.causal else self.table.shape[0] // 2
        far = abs(distance)
        exact = side // 2
        bucket = far
        if far >= exact:
            share = math.log(far / exact) / math.log(self.max_distance / exact)
            bucket = min(side - 1, exact + int(share * (side - exact)))
        bucket += side if distance > 0 and not sentence.causal else 0
        return self.table[bucket, h].double()


@dataclass(frozen=True)
class BiDirectional(Method):
    """BI_DIRECT: the first half of the heads sees the past, the second half the future (Shen et
    al., AAAI 2018).

    DiSAN's forward and backward masks as Yang et al. put them into multi-head attention. No
    parameters. H is even.

    - The query itself is visible in both directions. DiSAN leaves it out and lets a gate bring it
      back; a Transformer has no such gate, the first (last) token would see nothing, and Yang et
      al.'s released layer keeps the diagonal.
    - The released layer alternates past, future, past, ... Without an area the order of heads is a
      renaming; with one, halves make neighbours agree in direction. A key of any head is visible if
      the query's head may see its position.
    - In a causal layer a future head would see itself alone: the product refuses it, this oracle
      computes just that.
    """

    def visible(self, sentence, h, i, s, j):
        past = h < sentence.key.shape[0] // 2
        return j <= sentence.position(i) if past else j >= sentence.position(i)


@dataclass(frozen=True, eq=False)
class Predictor:
    """scalar[h] = u_h · tanh(W q_i) for the whole query q_i (Yang et al., EMNLP 2018, equations 7
    and 9).

    weight [w, d], head_weight [H, w]. The query is the projected one, with its bias, before the
    scale λ. `of_keys` takes the mean of the keys in its place (equation 8)."""

    weight: Tensor
    head_weight: Tensor
    of_keys: bool = False


@lru_cache(maxsize=256)  # every key of the query asks again
def predicted(predictor: Predictor, sentence: Sentence, h: int, i: int) -> Tensor:
    states = sentence.mean_key(i) if predictor.of_keys else sentence.whole_query(i)
    hidden = torch.tanh(predictor.weight.double() @ states)
    return predictor.head_weight[h].double() @ hidden


@dataclass(frozen=True)
class Gaussian(Method):
    """NEIGHBOR, LOCAL_HARD and LOCAL_SOFT: the energy -(j - P)^2 / (2 σ^2), σ = D / 2, of each head
    and query.

    Yang et al., EMNLP 2018, equations 4-6 and 10; which of P and D is predicted is what tells the
    three apart (the preprint of the NAACL paper, section 4.2: NEIGHBOR and LOCAL_HARD "use local
    Gaussian biases to revise the attention distribution by predicting a window size and a central
    position respectively. Yang et al. (2018) combined the two"):

    | method     | P                | D                    | predictors                                       |
    | ---------- | ---------------- | -------------------- | ------------------------------------------------ |
    | NEIGHBOR   | the query's rank | L · sigmoid(z)       | width: W [d/2, d], U [H, d/2]                    |
    | LOCAL_HARD | L · sigmoid(p)   | `fixed_width` = 10   | center: W [d/2, d], U [H, d/2]                   |
    | LOCAL_SOFT | L · sigmoid(p)   | L · sigmoid(z)       | center and width: one shared W [d, d], two U [H, d] |

    NEIGHBOR: Sperber et al. (Interspeech 2018) train one σ for each head, H numbers a layer; +0.4M says
    that Yang et al. predict it. LOCAL_HARD: Luong et al. (EMNLP 2015, equations 9 and 10) have S · sigmoid, D = 10,
    σ = D / 2, but multiply the weights after the softmax and cut them off at P ± D. Yang et al. add the energy before
    the softmax and cut nothing off (released layer, and EMNLP 2018 section 3.3, "Fixed-Window"); this is also what
    gives P a gradient. `cut_off` is Luong's window: it leaves at least one key, since P lies within the sentence.

    center, width: predictors of p and z, or None for the query's rank and `fixed_width`; a `width`
        [H] holds a free z for each head, D = 50 · sigmoid(z).
    minimum_width: the D so far counts as max(D, minimum_width + D / 10), a floor with a gradient; 0
    is none.
    """

    center: Predictor | None = None
    width: Predictor | Tensor | None = None
    fixed_width: float = 10.0
    minimum_width: float = 0.0
    cut_off: bool = False

    def center_of(self, sentence: Sentence, h: int, i: int) -> Tensor:
        if self.center is None:
            return sentence.query.new_tensor(float(sentence.position(i)))
        return sentence.length(i) * torch.sigmoid(predicted(self.center, sentence, h, i))

    def width_of(self, sentence: Sentence, h: int, i: int) -> Tensor:
        if self.width is None:
            return sentence.query.new_tensor(self.fixed_width)
        if isinstance(self.width, Tensor):
            width = HEAD_WINDOW_LIMIT * torch.sigmoid(self.width[h].double())
        else:
            width = sentence.length(i) * torch.sigmoid(predicted(self.width, sentence, h, i))
        if not self.minimum_width:
            return width
        return torch.maximum(width, self.minimum_width + width / 10)

    def energy(self, sentence, h, i, s, j):
        sigma = self.width_of(sentence, h, i) / 2
        return -((j - self.center_of(sentence, h, i)) ** 2) / (2 * sigma**2)

    def visible(self, sentence, h, i, s, j):
        if not self.cut_off:
            return True
        return (
            abs(j - self.center_of(sentence, h, i).item()) <= self.width_of(sentence, h, i).item()
        )


@dataclass(frozen=True)
class MovingGaussian(Method):
    """The energy -(j - P)^2 / (2 σ^2), σ = D / 2, around a centre that moves on: P_i = Σ_{k <= i}
    softplus(z_k) - 1.

    Graves (2013, equation 51) has P_i = P_{i-1} + exp(z_i); Battenberg et al. (2020) the softplus.
    Queries count from the first of the target. z is what `step` predicts, plus bias [H]; D =
    exp(log_width) [H]. With a gain g = sigmoid(gain_logit) [1] all heads have one centre, by the
    only row of `step` and bias; it moves by g (a - P_{k-1}) before each step, a the mean position
    attended to from P_{k-1}, over all heads, but back by no more than half of step k - 1."""

    step: Predictor
    bias: Tensor
    log_width: Tensor
    gain_logit: Tensor | None = None

    def energy(self, sentence, h, i, s, j):
        center = torch.tensor(-1.0, dtype=torch.float64)
        step = torch.tensor(0.0, dtype=torch.float64)
        heads = range(len(self.log_width))
        row = h if self.gain_logit is None else 0
        for k in range(i + 1):
            if k > 0 and self.gain_logit is not None:
                attended = [self.attended(sentence, head, k - 1, center) for head in heads]
                gain = torch.sigmoid(self.gain_logit[0].double())
                correction = gain * (torch.stack(attended).mean() - center)
                center = center + torch.maximum(correction, -step / 2)
            logit = predicted(self.step, sentence, row, k) + self.bias[row].double()
            step = torch.log1p(torch.exp(logit))
            center = center + step
        return self.around(center, h, j)

    def around(self, center, h, j):
        sigma = torch.exp(self.log_width[h].double()) / 2
        return -((j - center) ** 2) / (2 * sigma**2)

    def attended(self, sentence, h, i, center):
        """The mean position that query i attends to around `center`."""
        positions = range(sentence.key.shape[1])
        scale = math.sqrt(sentence.key.shape[2])
        energies = [
            sentence.query[h, i] @ sentence.key[h, j] / scale + self.around(center, h, j)
            for j in positions
        ]
        weights = torch.softmax(torch.stack(energies), dim=0)
        return weights @ torch.tensor(positions, dtype=torch.float64)


def attend_one_query(
    sentence: Sentence,
    methods: Sequence[Method],
    h: int,
    i: int,
    keys: Iterable[tuple[int, int]],
) -> Tensor:
    """Output of query i in head h, as wide as the values; `keys` are the (s, j) of window and area."""
    energies, values = [], []
    for s, j in keys:
        if not all(method.visible(sentence, h, i, s, j) for method in methods):
            continue
        energy = sentence.query[h, i] @ sentence.key[s, j] / math.sqrt(sentence.key.shape[2])
        value = sentence.value[s, j]
        for method in methods:
            energy = energy + method.energy(sentence, h, i, s, j)
            value = value + method.value(sentence, h, i, s, j)
        energies.append(energy)
        values.append(value)
    if not energies:
        return torch.zeros_like(sentence.value[h, 0])
    weights = torch.softmax(torch.stack(energies), dim=0)
    output = torch.zeros_like(sentence.value[h, 0])
    for weight, value in zip(weights, values, strict=True):
        output = output + weight * value
    return output


def local_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    methods: Sequence[Method] = (),
    *,
    window: int | None = None,
    head_area: int = 1,
    head_boundary: str = "mask",
    key_padding_mask: Tensor | None = None,
    causal: bool = False,
    cross: bool = False,
) -> Tensor:
    """Attention with any of the methods, under one softmax for each query.

    query [B, H, I, D]; key, value [B, H, J, D], I = J unless causal or cross; key_padding_mask [B,
    J], True = real token. In cross-attention every query counts as real. Returns [B, H, I, D] in
    float64; padding queries yield zeros. (Values may have a width of their own.)"""
    B, H, I, _ = query.shape  # noqa: E741
    J = key.shape[2]
    outputs = []
    for b in range(B):
        real = [j for j in range(J) if key_padding_mask is None or bool(key_padding_mask[b, j])]
        real_queries = [i for i in range(I) if cross or J - I + i in real]
        sentence = Sentence(
            query[b][:, real_queries].double(),
            key[b][:, real].double(),
            value[b][:, real].double(),
            causal,
        )
        for h in range(H):
            heads = visible_heads(h, H, head_area, head_boundary)
            for i in range(I):
                if i not in real_queries:
                    outputs.append(torch.zeros(value.shape[3], dtype=torch.float64))
                    continue
                rank = real_queries.index(i)
                position = sentence.position(rank)
                positions = visible_positions(position, len(real), window, None, causal)
                keys = product(heads, positions)
                outputs.append(attend_one_query(sentence, methods, h, rank, keys))
    return torch.stack(outputs).view(B, H, I, value.shape[3])
