# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Lines of a text: cross-attention sees the source tokens of the query's own line alone.

The group attention of G-Transformer (Bao et al., ACL 2021, section 3.2), in all layers and with a
mark, `config.line_token_id`, that ends a line in source and target. A source token's line is the
number of marks before it, a query's the number of marks among its inputs so far, at most the
source's last line.

Shapes: B sentences, I queries, J source tokens, W of them in the lines of the queries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention_call import AttentionCall, CarriedValue, Cells, Term
from .locality import LocalityMethod

TOKENS_OF_LINE = 2, 50
"""The most tokens of a generated line: so many for each source token, and so many more."""


@dataclass
class Lines:
    """The lines of one forward pass of a decoder.

    Attributes:
        key: [B, J], line of each source token.
        query: [B, I], line of each query.
        begins: [B, I] boolean, whether the query is the first of its line.
        first: [B, I], position of the first source token of the query's line.
        length: [B, I], source tokens of the query's line.
        last: [B, 1], the source's last line.
    """

    key: Tensor
    query: Tensor
    begins: Tensor
    first: Tensor
    length: Tensor
    last: Tensor

    @property
    def same(self) -> Tensor:
        """Whether query and key are of one line, [B, 1, I, J]."""
        return (self.query[:, :, None] == self.key[:, None, :])[:, None]

    def sums(self, values: Tensor, before: Tensor | float, start: Tensor | float) -> Tensor:
        """Running sums of values [B, C, I], from `start` on in each line that begins, from `before`
        on until then.
        """
        sums = values.cumsum(-1)
        begun = self.begins.long().cumsum(-1)  # how many lines have begun
        places = torch.arange(begun.shape[-1], device=begun.device)
        first_queries = torch.zeros_like(F.pad(begun, (0, 1)))
        first_queries = first_queries.scatter_add(1, begun, places * self.begins)
        first_query = first_queries.gather(1, begun)[:, None].expand_as(values)
        earlier = (sums - values).gather(-1, first_query)
        return torch.where(begun[:, None] > 0, sums - earlier + start, sums + before)

    def near(self, first_real: Tensor | None) -> tuple[Lines, Tensor, Tensor, Tensor]:
        """The lines with the source tokens of the queries' lines alone, and those tokens: places
        [B, W] (whose first token has the place `first_real` [B]), which of these are real [B, W],
        and the position of the first [B].
        """
        start = self.first.amin(-1)
        length = (self.first + self.length).amax(-1) - start
        steps = torch.arange(int(length.max()), device=start.device)
        real = steps < length[:, None]
        offset = start if first_real is None else start + first_real
        places = offset[:, None] + steps * real
        return replace(self, key=self.key.gather(1, places)), places, real, start

    def handicaps(self, tokens: Tensor) -> Tensor:
        """What is taken from the logits of the end, of the mark and of all others, [B, I, 3], so
        that a translation gets the source's lines; `tokens` [B, I] are those of the line so far.
        """
        factor, constant = TOKENS_OF_LINE
        is_last = self.query == self.last
        is_late = tokens >= factor * self.length + constant
        is_forbidden = torch.stack([~is_last, is_last, is_late], dim=-1)
        return torch.where(is_forbidden, torch.inf, 0.0)


def source_lines(input_ids: Tensor, mark: int) -> Tensor:
    """The line of each source token, [B, J]."""
    marks = (input_ids == mark).long()
    return marks.cumsum(-1) - marks


def read_lines(
    key: Tensor,
    real: Tensor | None,
    queries: Tensor,
    carried: CarriedValue,
) -> tuple[Lines, Tensor]:
    """The lines of the queries, and how many tokens of its line come before each, [B, I].

    Args:
        key: Line of each source token, [B, J].
        real: [B, J] boolean, True = a real source token; None = all.
        queries: [B, I], whether each query reads a mark (boolean), or its line (int64).
        carried: Line and tokens of the query before these.
    """
    if real is None:
        real = torch.ones_like(key, dtype=torch.bool)
    last = key.masked_fill(~real, 0).amax(-1, keepdim=True)
    before: Any = carried.previous  # [B, 2, 1]; 0 before the first
    if not isinstance(before, Tensor):
        before = torch.tensor([0.0, -1.0], device=key.device)[None, :, None]
        before = before.expand(len(key), -1, -1)
    line_before = before[:, 0].long()
    if queries.dtype == torch.bool:
        queries = line_before + queries.long().cumsum(-1)
    query = torch.minimum(queries, last)
    sizes = torch.zeros_like(key).scatter_add(1, key, real.long())  # of lines
    lines = Lines(
        key=key,
        query=query,
        begins=query != torch.cat([line_before, query[:, :-1]], dim=-1),
        first=(sizes.cumsum(-1) - sizes).gather(1, query),
        length=sizes.gather(1, query),
        last=last,
    )
    ones = carried.mask_padding(torch.ones_like(query, dtype=torch.float32)[:, None])
    tokens = lines.sums(ones, before=before[:, 1:], start=-1.0)
    carried.keep(torch.cat([query[:, None].float(), tokens], dim=1))
    return lines, tokens[:, 0]


@dataclass
class LineTerm(Term):
    """Only the source tokens of the query's line are visible; `same` is [B, 1, I, J]."""

    same: Tensor

    def visible(self, cells: Cells) -> Tensor:
        """See `Term`."""
        return cells.of_pair(self.same)


@dataclass(frozen=True)
class Line(LocalityMethod):
    """Cross-attention sees the source tokens of the line that is being translated."""

    key = "line"
    phrase = "the source tokens of the line that is being translated"
    label = "lines"
    paper = "bao-etal-2021-g-transformer"
    parts = ("cross",)
    presets: ClassVar = {
        "lines": {
            "position_embeddings": None,
            "local_window": 11,
            "encoder_locality": [{"relative_positions": 16}],
            "decoder_locality": [{"relative_positions": 16}],
            "cross_locality": [{"line": True, "moving_gaussian": {"gain": 0.1}}],
        }
    }
    takes_any_length = True
    needs_lines = True

    def conflict(self, other: LocalityMethod) -> str | None:
        """See `LocalityMethod`."""
        if other.key in ("gaussian", "local_hard"):
            return "its centre is a share of the whole source"
        return super().conflict(other)

    def term(self, module: None, call: AttentionCall) -> LineTerm:
        """See `LocalityMethod`."""
        assert call.lines is not None
        return LineTerm(call.lines.same)
