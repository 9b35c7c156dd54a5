# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""How a row of the grid becomes one vector, and what each source token contributes to a word (section 3).

Shapes: B batch, I target rows, J source columns, f channels of the grid. H is the grid [B, I, J, f], at least 0
everywhere and 0 at padding.
"""

import torch
from torch import nn

from .configuration_pervasive_attention import PervasiveAttentionConfig


class Aggregation(nn.Module):
    """Collapses the source axis: `"max"`, `"average"`, `"attention"` or `"max_attention"` (equations 2, 3, 8, 9)."""

    def __init__(self, config: PervasiveAttentionConfig) -> None:
        super().__init__()
        self.kind = config.aggregation
        if "attention" in self.kind:
            self.attention = nn.Linear(config.grid_channels, 1)

    def forward(
        self, grid: torch.Tensor, source_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Aggregate H [B, I, J, f].

        Args:
            grid: H.
            source_mask: [B, J], True = a real source token; None = all are.

        Returns:
            [B, I, f], or [B, I, 2f] for `"max_attention"`; and the attention ρ [B, I, J], where there is one.
        """
        if self.kind == "max":
            return _maximum(grid), None
        root = _root_of_lengths(grid, source_mask)
        if self.kind == "average":
            return grid.sum(dim=2) / root, None
        weights = self._attend(grid, source_mask)
        attended = (weights.unsqueeze(2) @ grid).squeeze(2) * root
        if self.kind == "attention":
            return attended, weights
        return torch.cat([_maximum(grid), attended], dim=-1), weights

    def _attend(self, grid: torch.Tensor, source_mask: torch.Tensor | None) -> torch.Tensor:
        """ρ [B, I, J] (equation 8); zeros for a sentence without real source tokens."""
        energies = self.attention(grid).squeeze(-1)
        energies = energies.to(torch.promote_types(energies.dtype, torch.float32))
        if source_mask is None:
            return energies.softmax(dim=-1).to(grid.dtype)
        visible = source_mask.unsqueeze(1)
        weights = energies.masked_fill(~visible, torch.finfo(energies.dtype).min).softmax(dim=-1)
        return weights.masked_fill(~visible, 0.0).to(grid.dtype)

    def extra_repr(self) -> str:
        """What print(model) shows."""
        return self.kind

    def contributions(
        self,
        grid: torch.Tensor,
        source_mask: torch.Tensor | None,
        weights: torch.Tensor | None,
        directions: torch.Tensor,
    ) -> torch.Tensor:
        """What each source token adds to a linear function of the aggregated row (equation 7).

        Args:
            grid: H [B, I, J, f].
            source_mask: [B, J].
            weights: ρ [B, I, J], where there is one.
            directions: [B, I, f or 2f], the linear function at each row: the row of E of a word.

        Returns:
            α [B, I, J]; its sum over J is the function's value at the aggregated row.
        """
        pooled, attended = directions, directions
        if self.kind == "max_attention":
            pooled, attended = directions.chunk(2, dim=-1)
        parts = []
        if self.kind in ("max", "max_attention"):
            values, columns = grid.max(dim=2)
            parts.append(grid.new_zeros(grid.shape[:3]).scatter_add_(2, columns, values * pooled))
        if self.kind != "max":
            scores = (grid @ attended.unsqueeze(-1)).squeeze(-1)
            root = _root_of_lengths(grid, source_mask)
            parts.append(scores / root if weights is None else scores * weights * root)
        return sum(parts[1:], parts[0])

    def pooled_share(self, grid: torch.Tensor) -> torch.Tensor:
        """The share of channels whose maximum lies at each source token, |B_ij| / f: [B, I, J].

        A channel that is 0 at all source tokens has its maximum at none of them.
        """
        values, columns = grid.max(dim=2)
        live = values.gt(0).to(grid.dtype)
        return grid.new_zeros(grid.shape[:3]).scatter_add_(2, columns, live) / grid.shape[-1]


def _maximum(grid: torch.Tensor) -> torch.Tensor:
    """The maximum over the source; its gradient goes to the first of equal ones, for which places must be searched."""
    return grid.max(dim=2).values if grid.requires_grad else grid.amax(dim=2)


def _root_of_lengths(grid: torch.Tensor, source_mask: torch.Tensor | None) -> torch.Tensor | float:
    """Square root of the number of real source tokens, [B, 1, 1]."""
    if source_mask is None:
        return float(grid.shape[2]) ** 0.5
    return source_mask.sum(dim=1).clamp(min=1).to(grid.dtype).sqrt().view(-1, 1, 1)
