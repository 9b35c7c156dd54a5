# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Lines of a text: cross-attention sees the source tokens of the query's own line alone.

The group attention of G-Transformer (Bao et al., ACL 2021, section 3.2), in all layers and with a
mark, `config.line_token_id`, that ends a line in source and target. A source token's line is the
number of marks before it, a query's the number of marks among its inputs so far, at most the
source's last line.

Shapes: B sentences, I queries, J source tokens, W of them in the lines of the queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from .attention_call import AttentionCall, CarriedValue, Cells, Term
from .locality import LocalityMethod


class Lines(NamedTuple):
    """The lines of one forward pass of a decoder.

    Attributes:
        key: [B, J], line of each source token.
        query: [B, I], line of each query.
        begins: [B, I] boolean, whether the query is the first of its line.
        is_last: [B, I] boolean, whether its line is the source's last.
        first: [B, I], position of the first source token of its line.
        length: [B, I], source tokens of its line.
        places: [B, W], of the source tokens that are left of all; None = all.
    """

    key: Tensor
    query: Tensor
    begins: Tensor
    is_last: Tensor
    first: Tensor
    length: Tensor
    places: Tensor | None = None

    @property
    def same(self) -> Tensor:
        """Whether query and key are of one line, [B, 1, I, J]."""
        return self.query[:, None, :, None] == self.key[:, None, None]

    def sums(self, values: Tensor, before: Tensor | float, start: Tensor | float) -> Tensor:
        """Running sums of values [B, C, I], from `start` on in each line that begins, from `before`
        on until then.
        """
        is_earlier = (self.query[:, :, None] == self.query[:, None]).tril()
        sums = values @ is_earlier.mT.to(values.dtype)
        has_begun = self.begins.long().cumsum(-1)[:, None] > 0
        return sums + torch.where(has_begun, start, before)

    def take(self, states: Tensor) -> Tensor:
        """States [B, H, J, D] of the source tokens that are left, [B, H, W, D]."""
        if self.places is None:
            return states
        batch, heads, length, _ = states.shape
        first = torch.arange(batch * heads, device=states.device).view(batch, heads, 1) * length
        # As rows of a table: several times as fast as `gather`
        return torch.embedding(states.flatten(0, 2), first + self.places[:, None])

    def near(self, masks: Any) -> Any:
        """Masks of these lines for the source tokens of the queries' lines alone, of which `places`
        are taken.
        """
        start = self.first.amin(-1)
        length = (self.first + self.length).amax(-1) - start
        width = length.max().clamp(min=1).item()  # 1 where no source has a real token
        torch._check(width >= 1)
        torch._check(width <= self.key.shape[1])
        steps = torch.arange(width, device=start.device)
        real = steps < length[:, None]
        places = start[:, None] + steps * real
        if masks.first_real is not None:
            places += masks.first_real[:, None]
        return masks._replace(
            lines=self._replace(key=self.key.gather(1, places), places=places),
            padding=real,
            first_real=-start,
        )

    def penalties(self, tokens: Tensor) -> Tensor:
        """Penalties of the logits of the end, of the mark and of all others, [B, I, 3], so
        that a translation gets the source's lines, each of at most twice its source tokens and 50;
        `tokens` [B, I] of the line come before.
        """
        is_late = tokens >= 2 * self.length + 50
        is_forbidden = torch.stack([~self.is_last, self.is_last, is_late], dim=-1)
        return torch.where(is_forbidden, torch.inf, 0.0)


def read_lines(
    key: Tensor, real: Tensor | None, queries: Tensor, carried: CarriedValue
) -> tuple[Lines, Tensor]:
    """The lines of the queries, and how many tokens of its line come before each, [B, I].

    Args:
        key: Line of each source token, [B, J].
        real: [B, J] boolean, True = a real source token; None = all.
        queries: [B, I], whether each query reads a mark (boolean), or its line (int64).
        carried: The line of the query before these, and how many queries of it there are.
    """
    if real is None:
        real = torch.ones_like(key, dtype=torch.bool)
    before = torch.zeros(key.shape[0], 2, 1, device=key.device) + carried.previous
    line_before = before[:, 0].long()
    if queries.dtype == torch.bool:
        queries = line_before + queries.long().cumsum(-1)
    last = (key * real).amax(-1, keepdim=True)
    query = torch.minimum(queries, last)
    sizes = torch.zeros_like(key).scatter_add(1, key, real.long())  # of lines
    lines = Lines(
        key=key,
        query=query,
        begins=query != torch.cat([line_before, query[:, :-1]], dim=-1),
        is_last=query == last,
        first=(sizes.cumsum(-1) - sizes).gather(1, query),
        length=sizes.gather(1, query),
    )
    ones = carried.mask_padding(torch.ones_like(query, dtype=torch.float32)[:, None])
    queries_of_line = lines.sums(ones, before=before[:, 1:], start=0.0)
    carried.keep(torch.cat([query[:, None].float(), queries_of_line], dim=1))
    return lines, queries_of_line[:, 0] - 1.0


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
    paper = "bao-etal-2021-g"
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
        return LineTerm(call.lines.same)

    def source_lines(self, config: Any, input_ids: Tensor) -> Tensor | None:
        """The line of each source token, [B, J]; None where no mark is known."""
        if config.line_token_id is None:
            return None
        marks = (input_ids == config.line_token_id).long()
        return marks.cumsum(-1) - marks

    def read(
        self,
        config: Any,
        masks: Any,
        *,
        source_lines: Tensor | None,
        target_lines: Tensor | None,
        input_ids: Tensor | None,
        cache: Any,
        wants_weights: bool,
    ) -> tuple[Any, Tensor]:
        """The masks of cross-attention with those of the layers that attend by line, and what is
        taken from logits in generation, [B, I, 3]; see `Lines.penalties`.

        Args:
            config: The model's.
            masks: The masks of layers that do not.
            source_lines: Line of each source token, [B, J].
            target_lines: Line of each query, [B, I]; default: by the marks of `input_ids` [B, I].
            cache: The decoder's; with one, attention computes the keys of these lines alone.
            wants_weights: Whether it computes all keys, for weights.

        Raises:
            ValueError: The lines are not known.
        """
        mark = config.line_token_id
        queries = target_lines
        if queries is None and input_ids is not None and mark is not None:
            queries = input_ids == mark
        if source_lines is None or queries is None:
            raise ValueError(
                "This model attends line by line: set `config.line_token_id`, and pass the output "
                "of its encoder whole; or pass `line_ids` and `decoder_line_ids`."
            )
        held = getattr(cache, "self_attention_cache", cache)
        carried = CarriedValue(masks.real_queries, held, config.decoder_layers)
        lines, tokens = read_lines(source_lines, masks.padding, queries, carried)
        by_line = masks._replace(lines=lines)
        # A compiled program would be another for each number of keys
        is_compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
        if cache is not None and not wants_weights and not is_compiled:
            by_line = lines.near(by_line)
        return masks._replace(by_line=by_line), lines.penalties(tokens)
