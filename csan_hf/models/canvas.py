# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The cells of a batch's grids, and the image on which they are convolved.

What works on single cells gets the real ones alone, packed as rows of a matrix [R, channels]. For a
convolution they are put on one canvas: the sentences lie side by side on shelves, with k // 2
columns of zeros between neighbours and k // 2 rows of zeros above each shelf, so that no window
reaches from one sentence into another.

    . . . . . . . . . . .      2 shelves, 4 sentences, k = 3:
    a a a a . b b b . c c      . is a zero
    a a a a . b b b . c c
    a a a a . b b b . . .
    . . . . . . . . . . .
    d d d d d d d . . . .

Without padding, the batch's grids themselves serve as the canvas, one below the other. They also do
while torch traces a program for all lengths; there padding is masked instead.

Shapes: B sentences, I target rows, J source columns, N real rows, R real cells.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .configuration_pervasive_attention import PervasiveAttentionConfig

Aggregate = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
# Widths of the canvas that are tried, in units of the widest sentence
_WIDTHS = (1, 2, 3, 4, 6)


@dataclass(frozen=True)
class _Places:
    """Where the real cells are, cells in ascending order of (sentence, row, column).

    Args:
        rows: [N], real rows among B · I.
        row_of_cell: [R], each cell's row among the N.
        column_of_cell: [R], each cell's column among B · J.
        in_grid: [R], cells among B · I · J.
        in_rows: [R], cells among N · J.
        on_canvas: [R], cells among the canvas's.
    """

    rows: Tensor
    row_of_cell: Tensor
    column_of_cell: Tensor
    in_grid: Tensor
    in_rows: Tensor
    on_canvas: Tensor


@dataclass(frozen=True)
class Canvas:
    """The cells of a batch and their places for the convolutions.

    Args:
        shape: (B, I, J) of the grids.
        size: (S, H, W) of the canvas, `above` rows of zeros at the top of each of the S images.
        above: Rows of zeros above a sentence.
        places: Where the real cells are; None = all cells are there, in order, each grid an image
            of its own.
        real: [B · I · J, 1], True = a real cell, where padding is among the cells; None = it is
            not.
    """

    shape: tuple[int, int, int]
    size: tuple[int, int, int]
    above: int
    places: _Places | None = None
    real: Tensor | None = None

    @classmethod
    def of_masks(
        cls,
        shape: tuple[int, int, int],
        target_mask: Tensor | None,
        source_mask: Tensor | None,
        above: int,
        beside: int,
    ) -> "Canvas":
        """The canvas of the cells where both tokens are real.

        The lengths are read once, together: this waits for a GPU. They determine the size of the
        canvas and the number of cells, which the host must know, as they are shapes of tensors.
        Without them every padded cell would have to be computed.

        Args:
            shape: (B, I, J).
            target_mask: [B, I], True = a real token; None = all are.
            source_mask: [B, J], likewise.
            above: Rows above a cell that the convolutions read.
            beside: Columns to either side of a cell that they read.
        """
        batch, rows, columns = shape
        whole = cls(shape, (batch, above + rows, columns), above)
        if target_mask is None:
            if source_mask is None:
                return whole
            target_mask = source_mask.new_ones(batch, rows)
        if source_mask is None:
            source_mask = target_mask.new_ones(batch, columns)
        if torch.compiler.is_compiling():
            real = (target_mask.unsqueeze(2) & source_mask.unsqueeze(1)).view(-1, 1)
            return cls(shape, whole.size, above, real=real)
        target_mask = target_mask & source_mask.any(dim=1, keepdim=True)
        source_mask = source_mask & target_mask.any(dim=1, keepdim=True)
        extents = torch.stack([*_extent(target_mask), *_extent(source_mask)])
        _, heights, row_counts, _, widths, column_counts = extents.tolist()
        if min(row_counts) == rows and min(column_counts) == columns:
            return whole
        shelves = _arrange(heights, widths, above, beside)
        corners = torch.tensor([shelves.tops, shelves.lefts], device=extents.device)
        places = _find_places(
            target_mask,
            source_mask,
            corners=corners - extents[[0, 3]],
            width=shelves.width,
            row_count=sum(row_counts),
            cell_count=sum(map(operator.mul, row_counts, column_counts)),
        )
        return cls(shape, (1, shelves.height, shelves.width), above, places)

    def last_rows(self, count: int, device: torch.device) -> Tensor:
        """Numbers [R'] among the R cells of those in the last rows of every grid."""
        batch, rows, columns = self.shape
        if self.places is None:
            in_grid = torch.arange(batch * rows * columns, device=device)
        else:
            in_grid = self.places.in_grid
        return (in_grid // columns % rows >= rows - count).nonzero().squeeze(1)

    def pack(self, grid: Tensor) -> Tensor:
        """The cells [R, channels] of a grid [B, I, J, channels]."""
        cells = grid.reshape(-1, grid.shape[-1])
        return cells if self.places is None else cells.index_select(0, self.places.in_grid)

    def unpack(self, cells: Tensor) -> Tensor:
        """A grid [B, I, J, channels] of the cells [R, channels], zero elsewhere."""
        batch, rows, columns = self.shape
        if self.places is not None:
            cells = _spread(cells, self.places.in_grid, batch * rows * columns)
        if self.real is not None:
            cells = torch.where(self.real, cells, 0.0)
        return cells.view(batch, rows, columns, cells.shape[-1])

    def sum_of(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Cells [R, channels]: the sum of their row of [B, I, channels] and column of [B, J,
        channels].
        """
        if self.places is None:
            return (rows.unsqueeze(2) + columns.unsqueeze(1)).flatten(0, 2)
        rows = rows.flatten(0, 1).index_select(0, self.places.rows)
        columns = columns.flatten(0, 1).index_select(0, self.places.column_of_cell)
        return rows.index_select(0, self.places.row_of_cell) + columns

    def paint(self, cells: Tensor) -> Tensor:
        """An image [S, channels, H, W], channels last, with the cells [R, channels] on it."""
        if self.places is not None:
            _, height, width = self.size
            image = _spread(cells, self.places.on_canvas, height * width)
            return image.view(1, height, width, cells.shape[-1]).permute(0, 3, 1, 2)
        image = self.unpack(cells).permute(0, 3, 1, 2)
        # Padded last: inductor of torch 2.13 cannot save a view for a backward pass of all lengths
        return F.pad(image, (0, 0, self.above, 0)) if self.above else image

    def read(self, image: Tensor) -> Tensor:
        """The cells [R, channels] of an image [S, channels, H, W].

        The image may lack rows at the top, as a convolution's output does."""
        lacking = self.size[1] - image.shape[2]
        grid = image.permute(0, 2, 3, 1)
        if self.places is None:
            return grid[:, self.above - lacking :].reshape(-1, grid.shape[-1])
        places = self.places.on_canvas - lacking * self.size[2]
        return grid.reshape(-1, grid.shape[-1]).index_select(0, places)

    def aggregate(
        self, cells: Tensor, source_mask: Tensor | None, aggregation: Aggregate
    ) -> tuple[Tensor, Tensor | None]:
        """An aggregation of the real cells [R, f] over the source, with its mask [B, J].

        Returns:
            [B, I, f'] and ρ [B, I, J] or None; zero where a row has no real cell.
        """
        if self.places is None:
            return aggregation(self.unpack(cells), source_mask)
        _, rows, columns = self.shape
        count = len(self.places.rows)
        grid = _spread(cells, self.places.in_rows, count * columns)
        if source_mask is not None:
            source_mask = source_mask.index_select(0, self.places.rows // rows)
        vectors, weights = aggregation(
            grid.view(count, 1, columns, cells.shape[-1]),
            source_mask,
        )
        attention = None if weights is None else self._put_rows_back(weights.squeeze(1))
        return self._put_rows_back(vectors.squeeze(1)), attention

    def _put_rows_back(self, vectors: Tensor) -> Tensor:
        """[B, I, channels] from the real rows' [N, channels]."""
        assert self.places is not None  # for the type checker
        batch, rows, _ = self.shape
        return _spread(vectors, self.places.rows, batch * rows).view(batch, rows, vectors.shape[-1])


def _spread(cells: Tensor, places: Tensor, count: int) -> Tensor:
    """[count, channels] with cells [R, channels] at their places, zero elsewhere."""
    return cells.new_zeros(count, cells.shape[-1]).index_copy_(0, places, cells)


def _extent(real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Extent of the real places of a mask [B, T], [B] each.

    Returns:
        The first real place, the number of places from it to the last real one, that of real ones.
    """
    count = real.sum(dim=1)
    first = real.int().argmax(dim=1)
    last = real.shape[1] - 1 - real.flip(1).int().argmax(dim=1)
    return first, torch.where(count > 0, last - first + 1, 0), count


@dataclass
class _Shelf:
    """A row of sentences: its top row of the canvas, its first free column."""

    top: int
    end: int = 0


class _Shelves(NamedTuple):
    """Top row and left column of each rectangle, height and width of the canvas."""

    tops: list[int]
    lefts: list[int]
    height: int
    width: int


def _arrange(heights: list[int], widths: list[int], above: int, beside: int) -> _Shelves:
    """Put rectangles on the shelves of the smallest canvas, with zeros above and between them."""
    widest = max(max(widths), 1)
    candidates = [
        _fill_shelves(heights, widths, multiple * (widest + beside) - beside, above, beside)
        for multiple in _WIDTHS
    ]
    return min(candidates, key=lambda shelves: shelves.height * shelves.width)


def _fill_shelves(
    heights: list[int], widths: list[int], width: int, above: int, beside: int
) -> _Shelves:
    """Put rectangles on shelves, the highest first, each on the first shelf with room for it."""
    tops = [0] * len(heights)
    lefts = [0] * len(heights)
    shelves: list[_Shelf] = []
    height = 0
    order = sorted(range(len(heights)), key=lambda number: (-heights[number], -widths[number]))
    for number in order:
        if heights[number] == 0 or widths[number] == 0:
            continue
        shelf = next((shelf for shelf in shelves if shelf.end + widths[number] <= width), None)
        if shelf is None:
            shelf = _Shelf(top=height + above)
            shelves.append(shelf)
            height = shelf.top + heights[number]
        tops[number] = shelf.top
        lefts[number] = shelf.end
        shelf.end += widths[number] + beside
    return _Shelves(tops, lefts, max(height, above + 1), width)


def _find_places(
    target_mask: Tensor,
    source_mask: Tensor,
    *,
    corners: Tensor,
    width: int,
    row_count: int,
    cell_count: int,
) -> _Places:
    """The places of the real cells.

    Args:
        target_mask: [B, I].
        source_mask: [B, J].
        corners: [2, B], row and column of the canvas where row 0 and column 0 of a sentence's grid
            would lie.
        width: Columns of the canvas.
        row_count: Real rows N.
        cell_count: Real cells R.
    """
    height_of_grid = target_mask.shape[1]
    width_of_grid = source_mask.shape[1]
    real_rows = target_mask.flatten()
    real_cells = (target_mask.unsqueeze(2) & source_mask.unsqueeze(1)).flatten()
    in_grid = torch.nonzero_static(real_cells, size=cell_count).squeeze(1)
    row = in_grid // width_of_grid
    column = in_grid % width_of_grid
    sentence = row // height_of_grid
    row_of_cell = (real_rows.cumsum(0) - 1)[row]
    top = corners[0][sentence] + row % height_of_grid
    left = corners[1][sentence] + column
    return _Places(
        rows=torch.nonzero_static(real_rows, size=row_count).squeeze(1),
        row_of_cell=row_of_cell,
        column_of_cell=sentence * width_of_grid + column,
        in_grid=in_grid,
        in_rows=row_of_cell * width_of_grid + column,
        on_canvas=top * width + left,
    )


def rows_before_padding(decoder_input_ids: Tensor, config: PervasiveAttentionConfig) -> Tensor:
    """[B, I], True for the start token and what follows, up to trailing padding.

    A last end of sentence is not real, either: it is there because a longer sentence is in the
    batch, and no token follows it. An end of sentence before other tokens counts as real."""
    following = decoder_input_ids[:, 1:]
    real = torch.ones_like(decoder_input_ids, dtype=torch.bool)
    unpadded = up_to_last(following.ne(config.pad_token_id))
    ends = config.eos_token_id
    if ends is not None:
        is_end = torch.isin(following, torch.tensor(ends, device=following.device).reshape(-1))
        is_last = unpadded & ~F.pad(unpadded[:, 1:], (0, 1))
        unpadded = unpadded & ~(is_end & is_last)
    real[:, 1:] = unpadded
    return real


def up_to_last(chosen: Tensor) -> Tensor:
    """[B, T], True up to the last True of each row."""
    return chosen.flip(1).cumsum(1).flip(1).gt(0)


def words_to_explain(
    logits: Tensor,
    decoder_input_ids: Tensor | None,
    decoder_attention_mask: Tensor | None,
    labels: Tensor | None,
) -> Tensor:
    """The word [B, I] whose logit each row's alignment explains: the label, the next input, or the
    likeliest word.
    """
    words = logits.argmax(dim=-1)
    if decoder_input_ids is not None and decoder_input_ids.shape[1] > 1:
        following = decoder_input_ids[:, 1:]
        if decoder_attention_mask is not None:
            real = decoder_attention_mask[:, -following.shape[1] :].bool()
            following = torch.where(real, following, words[:, :-1])
        words = torch.cat([following, words[:, -1:]], dim=1)
    if labels is not None:
        words = torch.where(labels.eq(-100), words, labels)
    return words
