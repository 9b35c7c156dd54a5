"""Loop oracles of the locality methods of Table 1 (Yang et al., NAACL 2019) that act inside the attention.

Written from the papers, not from the product: one sentence, head, query and key at a time, scalars in float64, and
autograd for the gradients. `local_attention` takes a list of methods; each adds visibility, an energy or a value:

    e[h,i,s,j] = λ · q[h,i]·k[s,j] + Σ energies      over the (s, j) that every method shows, under one softmax
    o[h,i]     = Σ α[h,i,s,j] · (v[s,j] + Σ values)

so that whatever composes is composed here: area + REL_POS, Gaussian + REL_POS, window + BI_DIRECT. `locality_block.py`
and `locality_cnn.py` hold the methods that act outside of it (BLOCK, CNN), `locality_parameters.py` counts parameters.

Rules for every method:
- Padding is taken out before anything is computed. Positions and lengths are therefore ranks among real tokens, and
  padding on either side changes nothing. A padding query yields zeros, and so does a query that sees no key.
- In a causal layer the I queries are the last I of the J positions and see no later key. Whatever a method reads of
  the sentence (its length, its mean) it reads of the keys up to the query, so that cached decoding equals the full
  forward.
- A pair (query head h, key head s ≠ h), which areas show, takes the quantities of the query's head where a method
  predicts them from the query (centre, width, direction) and those of the key's head where a method stores them with
  the key (REL_POS): a key of head s is the same vector whoever looks at it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
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
        """L, the keys that query i may know of: the sentence, or the tokens up to the query in a causal layer."""
        return self.position(i) + 1 if self.causal else self.key.shape[1]

    def whole_query(self, i: int) -> Tensor:
        """The query before it was split into heads [d]."""
        return torch.cat([self.query[h, i] for h in range(self.query.shape[0])])


class Method:
    """What a method adds to the pair (query head h, query i; key head s, key rank j). The default adds nothing."""

    def visible(self, sentence: Sentence, h: int, i: int, s: int, j: int) -> bool:
        return True

    def energy(self, sentence: Sentence, h: int, i: int, s: int, j: int) -> Tensor | float:
        return 0.0

    def value(self, sentence: Sentence, h: int, i: int, s: int, j: int) -> Tensor | float:
        return 0.0


@dataclass(frozen=True)
class Window(Method):
    """1D-CSAN (Yang et al., NAACL 2019, equations 4-6): |j - i| <= m with m = (M - 1) / 2. No parameters."""

    width: int

    def visible(self, sentence, h, i, s, j):
        return abs(j - sentence.position(i)) <= (self.width - 1) // 2


@dataclass(frozen=True)
class HeadArea(Method):
    """2D-CSAN (Yang et al., NAACL 2019, equations 7-9): |s - h| <= n with n = (N - 1) / 2. No parameters."""

    height: int
    boundary: str = "mask"

    def visible(self, sentence, h, i, s, j):
        n = (self.height - 1) // 2
        if self.boundary == "circular":
            H = sentence.key.shape[0]
            return min((s - h) % H, (h - s) % H) <= n
        return abs(s - h) <= n


@dataclass(frozen=True)
class RelativePositions(Method):
    """REL_POS: a learned vector for every clipped distance, added to keys and to values (Shaw et al., NAACL 2018).

    Equations 3, 4 and section 3.2: e = λ q_i·(k_j + a^K_r), o_i = Σ α_ij (v_j + a^V_r), r = clip(j - i, -k, k).

    key_table, value_table: row r + k is a_r. [H, 2k+1, D], one for each head, or [2k+1, D] shared by the heads.
        Shaw's base model has "unique edge representations per layer and head" with k = 16, the big one k = 8 and
        tables shared by the heads (section 4.1). The paper's +0.1M is the former in three layers. With an area the
        key's head s gives the row, since a^K belongs to the key.
    clip: k, 1 or more.

    The scale λ covers both parts of the energy. Nothing is added to queries. A window narrower than k leaves the outer
    rows without a gradient; a causal layer uses rows 0..k alone. Absolute positions stay (Yang et al. add methods to
    the full Transformer; Shaw removes the sinusoids and reports no gain from having both).
    """

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


def attend_one_query(sentence: Sentence, methods: Sequence[Method], h: int, i: int) -> Tensor:
    """Output [D] of query i in head h."""
    H, J, D = sentence.key.shape
    energies, values = [], []
    for s in range(H):
        for j in range(J):
            if sentence.causal and j > sentence.position(i):
                continue
            if not all(method.visible(sentence, h, i, s, j) for method in methods):
                continue
            energy = sentence.query[h, i] @ sentence.key[s, j] / math.sqrt(D)
            value = sentence.value[s, j]
            for method in methods:
                energy = energy + method.energy(sentence, h, i, s, j)
                value = value + method.value(sentence, h, i, s, j)
            energies.append(energy)
            values.append(value)
    if not energies:
        return sentence.query.new_zeros(D)
    weights = torch.softmax(torch.stack(energies), dim=0)
    output = sentence.query.new_zeros(D)
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
) -> Tensor:
    """Self-attention with any of the methods, under one softmax for each query.

    query [B, H, I, D]; key, value [B, H, J, D], I = J unless causal; key_padding_mask [B, J], True = real token.
    Returns [B, H, I, D] in float64; padding queries yield zeros.
    """
    B, H, I, D = query.shape  # noqa: E741
    J = key.shape[2]
    all_methods: list[Method] = [HeadArea(head_area, head_boundary), *methods]
    if window is not None:
        all_methods.append(Window(window))
    outputs = []
    for b in range(B):
        real = [j for j in range(J) if key_padding_mask is None or bool(key_padding_mask[b, j])]
        real_queries = [i for i in range(I) if J - I + i in real]
        sentence = Sentence(
            query[b][:, real_queries].double(), key[b][:, real].double(), value[b][:, real].double(), causal
        )
        for h in range(H):
            for i in range(I):
                if i in real_queries:
                    outputs.append(attend_one_query(sentence, all_methods, h, real_queries.index(i)))
                else:
                    outputs.append(torch.zeros(D, dtype=torch.float64))
    return torch.stack(outputs).view(B, H, I, D)


def rel_pos(
    query: Tensor, key: Tensor, value: Tensor, key_table: Tensor, value_table: Tensor, clip: int, **composition
) -> Tensor:
    """REL_POS alone or with a window, an area, padding or a causal mask; see `RelativePositions`."""
    return local_attention(query, key, value, [RelativePositions(key_table, value_table, clip)], **composition)
