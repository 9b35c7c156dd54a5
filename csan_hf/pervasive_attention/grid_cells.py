# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Which cells of a batch's grids are real, and which sentences a convolution takes together.

Most of the network works on the real cells alone, packed in a matrix. What needs grids, the k×k convolutions and the
aggregation, gets one for each group of sentences of like sizes, no larger than the longest of them, instead of one for
the batch that is padding for the most part.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

# A group takes sentences while so much of its grid is real cells...
_FULL_ENOUGH = 0.8
# ... and in any case until its grid has so many cells: a convolution of fewer costs more to start than to run.
_CELLS_WORTH_A_CONVOLUTION = 512


@dataclass(frozen=True)
class _Cells:
    """Some cells of a grid.

    Args:
        shape: (B, I, J) of the grid: sentences, target rows, source columns.
        index: [R], the cells' numbers in it; None = all of them, in order.
    """

    shape: tuple[int, int, int]
    index: torch.Tensor | None

    def pack(self, grid: torch.Tensor) -> torch.Tensor:
        """The cells [R, channels] of a grid [B, I, J, channels]."""
        cells = grid.reshape(-1, grid.shape[-1])
        return cells if self.index is None else cells.index_select(0, self.index)

    def unpack(self, cells: torch.Tensor) -> torch.Tensor:
        """A grid [B, I, J, channels] of the cells [R, channels], zero elsewhere."""
        if self.index is not None:
            batch, rows, columns = self.shape
            grid = cells.new_zeros(batch * rows * columns, cells.shape[-1])
            cells = grid.index_copy(0, self.index, cells)
        return cells.view(*self.shape, cells.shape[-1])


@dataclass(frozen=True)
class GridGroup(_Cells):
    """Sentences that one convolution takes together, and their real cells.

    Args:
        cells: which of the batch's packed cells are theirs.
        rows: [B', I'], the numbers of the grid's rows among the batch's B * I, and B * I where a sentence has ended;
            None = the group is the whole batch.
        columns: [B', J'], likewise of its columns among B * J.
    """

    cells: slice = field(default_factory=lambda: slice(None))
    rows: torch.Tensor | None = None
    columns: torch.Tensor | None = None

    def rows_of(self, batch: torch.Tensor) -> torch.Tensor:
        """What stands at the group's rows [B', I', ...] in a tensor [B, I, ...] of the batch; zero after an end."""
        return _look_up(batch, self.rows)

    def columns_of(self, batch: torch.Tensor) -> torch.Tensor:
        """What stands at the group's columns [B', J', ...] in a tensor [B, J, ...] of the batch, likewise."""
        return _look_up(batch, self.columns)


@dataclass(frozen=True)
class GridCells(_Cells):
    """The real cells of a batch, group by group.

    Args:
        groups: what the convolutions take together.
    """

    groups: tuple[GridGroup, ...]

    @classmethod
    def from_mask(cls, shape: tuple[int, int, int], mask: torch.Tensor | None) -> "GridCells":
        """Cells of a boolean mask [B, I, J], True = real; None = all are."""
        index = None if mask is None else mask.flatten().nonzero().squeeze(1)
        if mask is None or index is None or index.shape[0] == mask.numel():
            return cls(shape, None, (GridGroup(shape, None),))
        if index.shape[0] == 0 or index.shape[0] >= _FULL_ENOUGH * mask.numel():
            return cls(shape, index, (GridGroup(shape, index),))
        return _grouped(shape, mask, index)

    def sum_of(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """At each real cell [R, channels], its row of [B, I, channels] plus its column of [B, J, channels]."""
        parts = [
            group.pack(group.rows_of(rows).unsqueeze(2) + group.columns_of(columns).unsqueeze(1))
            for group in self.groups
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def aggregate(
        self,
        cells: torch.Tensor,
        source_mask: torch.Tensor | None,
        aggregation: Callable[[torch.Tensor, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor | None]],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """An aggregation of real cells [R, f] over the source, group by group.

        Args:
            cells: H.
            source_mask: [B, J], True = a real source token; None = all are.
            aggregation: Takes a grid [B', I', J', f] and a mask [B', J'], and returns [B', I', f'] and ρ [B', I', J']
                or None.

        Returns:
            [B, I, f'] and ρ [B, I, J] or None; zero where a row has no real cell.
        """
        vectors, weights = [], []
        for group in self.groups:
            mask = None if source_mask is None else group.columns_of(source_mask)
            vector, weight = aggregation(group.unpack(cells[group.cells]), mask)
            vectors.append(vector)
            weights.append(None if weight is None else group.pack(weight.unsqueeze(-1)))
        attention = None
        if weights[0] is not None:
            attention = self.unpack(torch.cat([weight for weight in weights if weight is not None])).squeeze(-1)
        return self._put_rows_back(vectors), attention

    def _put_rows_back(self, vectors: list[torch.Tensor]) -> torch.Tensor:
        """[B, I, f'] from those of the groups' rows [B', I', f']."""
        if self.groups[0].rows is None:
            return vectors[0]
        batch, rows, _ = self.shape
        places = torch.cat([group.rows.flatten() for group in self.groups if group.rows is not None])
        values = torch.cat([vector.flatten(0, 1) for vector in vectors])
        # One more row takes what stands beyond a sentence
        return (
            values.new_zeros(batch * rows + 1, values.shape[-1])
            .index_copy(0, places, values)[:-1]
            .view(batch, rows, -1)
        )


def _look_up(batch: torch.Tensor, index: torch.Tensor | None) -> torch.Tensor:
    if index is None:
        return batch
    places = batch.flatten(0, 1)
    return torch.cat([places, places.new_zeros(1, *places.shape[1:])])[index]


def _grouped(shape: tuple[int, int, int], mask: torch.Tensor, index: torch.Tensor) -> GridCells:
    """Cells of a mask that is padding for a good part; `index` are their numbers in ascending order."""
    _, rows, columns = shape
    top, height = _extent(mask.any(dim=2))
    left, width = _extent(mask.any(dim=1))
    heights, widths, counts = torch.stack([height, width, mask.sum(dim=(1, 2))]).tolist()
    grouped = _form_groups(heights, widths)
    order = torch.tensor([sentence for group in grouped for sentence in group], device=mask.device)
    rank = order.new_zeros(shape[0]).index_copy(0, order, torch.arange(len(order), device=mask.device))
    # The cells of a sentence stay together; sentences come in the order of the groups
    index = index[rank[index // (rows * columns)].argsort(stable=True)]
    sentence = index // (rows * columns)
    row = index // columns % rows - top[sentence]
    column = index % columns - left[sentence]
    groups, start, before = [], 0, 0
    for group in grouped:
        size = (len(group), max(heights[i] for i in group), max(widths[i] for i in group))
        cells = slice(start, start + sum(counts[i] for i in group))
        place = ((rank[sentence[cells]] - before) * size[1] + row[cells]) * size[2] + column[cells]
        full = place.shape[0] == size[0] * size[1] * size[2]
        members = order[before : before + len(group)]
        group_rows = _places(members, top, height, size[1], rows, shape[0])
        group_columns = _places(members, left, width, size[2], columns, shape[0])
        groups.append(GridGroup(size, None if full else place, cells, group_rows, group_columns))
        start, before = cells.stop, before + len(group)
    return GridCells(shape, index, tuple(groups))


def _places(
    members: torch.Tensor, first: torch.Tensor, extent: torch.Tensor, count: int, stride: int, batch: int
) -> torch.Tensor:
    """Numbers [B', count] of each member's rows (or columns) among the batch's; batch * stride after its end."""
    steps = torch.arange(count, device=members.device)
    places = (members * stride + first[members]).unsqueeze(1) + steps
    return places.where(steps < extent[members].unsqueeze(1), batch * stride)


def _extent(real: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First real place of each sentence and how many places there are up to the last, [B] both, of a mask [B, N]."""
    places = real.shape[1]
    first = real.int().argmax(dim=1)
    last = places - 1 - real.flip(1).int().argmax(dim=1)
    return first, torch.where(real.any(dim=1), last - first + 1, 0)


def _form_groups(heights: list[int], widths: list[int]) -> list[list[int]]:
    """Sentences with real cells, largest first, in groups of like sizes."""
    sizes = [height * width for height, width in zip(heights, widths, strict=True)]
    groups: list[list[int]] = []
    height = width = real = 0
    for sentence in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        if not sizes[sentence]:
            break
        height, width = max(height, heights[sentence]), max(width, widths[sentence])
        grid = (len(groups[-1]) + 1 if groups else 1) * height * width
        real += sizes[sentence]
        if not groups or (real < _FULL_ENOUGH * grid and grid > _CELLS_WORTH_A_CONVOLUTION):
            groups.append([])
            height, width, real = heights[sentence], widths[sentence], sizes[sentence]
        groups[-1].append(sentence)
    return groups
