# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Which cells of a batch's grids are real, and which sentences a convolution takes together.

Everything but the k×k convolutions works on the real cells alone, packed in a matrix. The convolutions need grids:
where the sentences of a batch differ in size, they are sorted into groups of like sizes, each with a grid no larger
than its longest sentences, instead of one grid that is padding for the most part.
"""

from dataclasses import dataclass

import torch

# A group takes sentences while so much of its grid is real cells...
_FULL_ENOUGH = 0.8
# ... and in any case until its grid has so many cells: a convolution of fewer costs more to start than to run.
_CELLS_WORTH_A_CONVOLUTION = 512


@dataclass(frozen=True)
class GridGroup:
    """Sentences that one convolution takes together.

    Args:
        shape: (B', I', J') of their grid.
        cells: which of the batch's packed cells are theirs.
        index: [R'], the number of each of these cells in the group's grid; None = the grid has no other cells.
    """

    shape: tuple[int, int, int]
    cells: slice
    index: torch.Tensor | None

    def pack(self, grid: torch.Tensor) -> torch.Tensor:
        """The real cells [R', channels] of a grid [B', I', J', channels]."""
        return _pack(grid, self.index)

    def unpack(self, cells: torch.Tensor) -> torch.Tensor:
        """A grid [B', I', J', channels] of real cells [R', channels], zero elsewhere."""
        return _unpack(cells, self.index, self.shape)


@dataclass(frozen=True)
class GridCells:
    """The real cells of a batch.

    Args:
        shape: (B, I, J): sentences, target rows, source columns.
        index: [R], the numbers of the real cells in the batch's grid, group by group; None = all of them, in order.
        groups: what the convolutions take together.
    """

    shape: tuple[int, int, int]
    index: torch.Tensor | None
    groups: tuple[GridGroup, ...]

    @classmethod
    def from_mask(cls, shape: tuple[int, int, int], mask: torch.Tensor | None) -> "GridCells":
        """Cells of a boolean mask [B, I, J], True = real; None = all are."""
        whole = cls(shape, None, (GridGroup(shape, slice(None), None),))
        if mask is None:
            return whole
        index = mask.flatten().nonzero().squeeze(1)
        if index.shape[0] == mask.numel():
            return whole
        if index.shape[0] == 0 or index.shape[0] >= _FULL_ENOUGH * mask.numel():
            return cls(shape, index, (GridGroup(shape, slice(None), index),))
        return _grouped(shape, mask, index)

    def pack(self, grid: torch.Tensor) -> torch.Tensor:
        """The real cells [R, channels] of a grid [B, I, J, channels]."""
        return _pack(grid, self.index)

    def unpack(self, cells: torch.Tensor) -> torch.Tensor:
        """A grid [B, I, J, channels] of real cells [R, channels], zero elsewhere."""
        return _unpack(cells, self.index, self.shape)


def _pack(grid: torch.Tensor, index: torch.Tensor | None) -> torch.Tensor:
    cells = grid.reshape(-1, grid.shape[-1])
    return cells if index is None else cells.index_select(0, index)


def _unpack(cells: torch.Tensor, index: torch.Tensor | None, shape: tuple[int, int, int]) -> torch.Tensor:
    if index is not None:
        grid = cells.new_zeros(shape[0] * shape[1] * shape[2], cells.shape[-1])
        cells = grid.index_copy(0, index, cells)
    return cells.view(*shape, cells.shape[-1])


def _grouped(shape: tuple[int, int, int], mask: torch.Tensor, index: torch.Tensor) -> GridCells:
    """Cells of a mask that is padding for a good part; `index` are their numbers in ascending order."""
    _, rows, columns = shape
    top, height = _extent(mask.any(dim=2))
    left, width = _extent(mask.any(dim=1))
    heights, widths, counts = torch.stack([height, width, mask.sum(dim=(1, 2))]).tolist()
    members = _form_groups(heights, widths)
    order = torch.tensor([sentence for group in members for sentence in group], device=mask.device)
    rank = order.new_zeros(shape[0]).index_copy(0, order, torch.arange(len(order), device=mask.device))
    # The cells of a sentence stay together; sentences come in the order of the groups
    index = index[rank[index // (rows * columns)].argsort(stable=True)]
    sentence = index // (rows * columns)
    row = index // columns % rows - top[sentence]
    column = index % columns - left[sentence]
    groups, start, before = [], 0, 0
    for group in members:
        size = (len(group), max(heights[i] for i in group), max(widths[i] for i in group))
        cells = slice(start, start + sum(counts[i] for i in group))
        place = ((rank[sentence[cells]] - before) * size[1] + row[cells]) * size[2] + column[cells]
        full = place.shape[0] == size[0] * size[1] * size[2]
        groups.append(GridGroup(size, cells, None if full else place))
        start, before = cells.stop, before + len(group)
    return GridCells(shape, index, tuple(groups))


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
