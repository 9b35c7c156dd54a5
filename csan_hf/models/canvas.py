# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Which cells of a batch's grids are real, and the one image that every convolution reads.

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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .configuration_pervasive_attention import PervasiveAttentionConfig

Aggregate = Callable[[torch.Tensor, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor | None]]
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

    rows: torch.Tensor
    row_of_cell: torch.Tensor
    column_of_cell: torch.Tensor
    in_grid: torch.Tensor
    in_rows: torch.Tensor
    on_canvas: torch.Tensor


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
    real: torch.Tensor | None = None

    @classmethod
    def of_masks(
        cls,
        shape: tuple[int, int, int],
        target_mask: torch.Tensor | None,
        source_mask: torch.Tensor | None,
        above: int,
        beside: int,
    ) -> "Canvas":
        """The canvas of the cells where both tokens are real.

        The lengths are read once, together, and nothing else waits for a GPU. They determine the
        size of the canvas and the number of cells, which the host must know, as they are shapes of
        tensors. Without them every padded cell would have to be computed.

        Args:
            shape: (B, I, J).
            target_mask: [B, I], True = a real token; None = all are.
            source_mask: [B, J], likewise.
            above: Rows above a cell that the convolutions read.
            beside: Columns to either side of a cell that they read.
        """
        batch, rows, columns = shape
        whole = cls(shape, (batch, above + rows, columns), above)
        if target_mask is None and source_mask is None:
            return whole
        given = target_mask if target_mask is not None else source_mask
        if target_mask is None:
            target_mask = given.new_ones(batch, rows)  # type: ignore[union-attr]
        if source_mask is None:
            source_mask = given.new_ones(batch, columns)  # type: ignore[union-attr]
        if torch.compiler.is_compiling():
            real = (target_mask.unsqueeze(2) & source_mask.unsqueeze(1)).view(-1, 1)
            return cls(shape, whole.size, above, real=real)
        target_mask = target_mask & source_mask.any(dim=1, keepdim=True)
        source_mask = source_mask & target_mask.any(dim=1, keepdim=True)
        lengths = torch.stack([*_extent(target_mask), *_extent(source_mask)])
        _, heights, row_counts, _, widths, column_counts = lengths.tolist()
        if min(row_counts) == rows and min(column_counts) == columns:
            return whole
        tops, lefts, height, width = _arrange(heights, widths, above, beside)
        corners = torch.tensor([tops, lefts], device=lengths.device) - lengths[[0, 3]]
        cells = sum(count * wide for count, wide in zip(row_counts, column_counts, strict=True))
        places = _find_places(
            target_mask, source_mask, lengths[5], corners, width, sum(row_counts), cells
        )
        return cls(shape, (1, height, width), above, places)

    def pack(self, grid: torch.Tensor) -> torch.Tensor:
        """The cells [R, channels] of a grid [B, I, J, channels]."""
        cells = grid.reshape(-1, grid.shape[-1])
        return cells if self.places is None else cells.index_select(0, self.places.in_grid)

    def unpack(self, cells: torch.Tensor) -> torch.Tensor:
        """A grid [B, I, J, channels] of the cells [R, channels], zero elsewhere."""
        batch, rows, columns = self.shape
        if self.places is not None:
            cells = _spread(cells, self.places.in_grid, batch * rows * columns)
        cells = cells if self.real is None else torch.where(self.real, cells, 0.0)
        return cells.view(batch, rows, columns, cells.shape[-1])

    def sum_of(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """At each cell [R, channels], its row of [B, I, channels] plus its column of [B, J,
        channels].
        """
        if self.places is None:
            return (rows.unsqueeze(2) + columns.unsqueeze(1)).flatten(0, 2)
        rows = rows.flatten(0, 1).index_select(0, self.places.rows)
        columns = columns.flatten(0, 1).index_select(0, self.places.column_of_cell)
        return rows.index_select(0, self.places.row_of_cell) + columns

    def paint(self, cells: torch.Tensor) -> torch.Tensor:
        """An image [S, channels, H, W], channels last, with the cells [R, channels] on it."""
        if self.places is None:
            grid = self.unpack(cells)
            canvas = (
                torch.nn.functional.pad(grid, (0, 0, 0, 0, self.above, 0)) if self.above else grid
            )
        else:
            canvas = _spread(cells, self.places.on_canvas, self.size[1] * self.size[2])
            canvas = canvas.view(*self.size, cells.shape[-1])
        return canvas.permute(0, 3, 1, 2)

    def paint_output(self, cells: torch.Tensor) -> torch.Tensor:
        """Put cells [R, channels] where `read` finds them: an image [S, channels, H - above, W],
        zero elsewhere.
        """
        if self.places is None:
            return self.unpack(cells).permute(0, 3, 1, 2)
        _, height, width = self.size
        places = self.places.on_canvas - self.above * width
        image = _spread(cells, places, (height - self.above) * width)
        return image.view(1, height - self.above, width, cells.shape[-1]).permute(0, 3, 1, 2)

    def read(self, image: torch.Tensor, skip: int = 0) -> torch.Tensor:
        """The cells [R, channels] of an image [S, channels, H - above + skip, W].

        Args:
            image: A convolution's output, which lacks the rows of zeros at the top.
            skip: The number of these rows that the image still has.
        """
        grid = image.permute(0, 2, 3, 1)
        if self.places is None:
            return grid[:, skip:].reshape(-1, grid.shape[-1])
        places = self.places.on_canvas - (self.above - skip) * self.size[2]
        return grid.reshape(-1, grid.shape[-1]).index_select(0, places)

    def aggregate(
        self, cells: torch.Tensor, source_mask: torch.Tensor | None, aggregation: Aggregate
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """An aggregation of real cells [R, f] over the source, of which the mask [B, J] says what
        is real.

        Returns:
            [B, I, f'] and ρ [B, I, J] or None; zero where a row has no real cell.
        """
        _, rows, columns = self.shape
        if self.places is None:
            return aggregation(self.unpack(cells), source_mask)
        count = self.places.rows.shape[0]
        grid = _spread(cells, self.places.in_rows, count * columns).view(
            count, 1, columns, cells.shape[-1]
        )
        mask = (
            None if source_mask is None else source_mask.index_select(0, self.places.rows // rows)
        )
        vectors, weights = aggregation(grid, mask)
        attention = None if weights is None else self._put_rows_back(weights.squeeze(1))
        return self._put_rows_back(vectors.squeeze(1)), attention

    def _put_rows_back(self, vectors: torch.Tensor) -> torch.Tensor:
        """[B, I, channels] from the real rows' [N, channels]."""
        assert self.places is not None  # for the type checker
        batch, rows, _ = self.shape
        return _spread(vectors, self.places.rows, batch * rows).view(batch, rows, vectors.shape[-1])


def _spread(cells: torch.Tensor, places: torch.Tensor, count: int) -> torch.Tensor:
    """[count, channels] with cells [R, channels] at their places, zero elsewhere."""
    return cells.new_zeros(count, cells.shape[-1]).index_copy_(0, places, cells)


def _extent(real: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For a mask [B, T]: the first real place, the places from it to the last real one, the real
    ones, [B] each.
    """
    places = real.shape[1]
    count = real.sum(dim=1)
    first = real.int().argmax(dim=1)
    last = places - 1 - real.flip(1).int().argmax(dim=1)
    return first, torch.where(count > 0, last - first + 1, 0), count


def _arrange(
    heights: list[int], widths: list[int], above: int, beside: int
) -> tuple[list[int], list[int], int, int]:
    """Put rectangles on shelves, the highest first, each on the first shelf with room for it.

    Returns:
        Top row and left column of each, and height and width of the smallest canvas found.
    """
    order = sorted(range(len(heights)), key=lambda number: (-heights[number], -widths[number]))
    order = [number for number in order if heights[number] and widths[number]]
    widest = max(max(widths), 1)
    best: tuple[int, Any] | None = None
    for multiple in _WIDTHS:
        width = multiple * (widest + beside) - beside
        found = _fill_shelves(order, heights, widths, width, above, beside)
        if best is None or found[2] * width < best[0]:
            best = (found[2] * width, (*found, width))
        if found[2] <= above + max(heights):  # one shelf holds all of them
            break
    assert best is not None  # for the type checker
    tops, lefts, height, width = best[1]
    return tops, lefts, height, width


def _fill_shelves(
    order: list[int], heights: list[int], widths: list[int], width: int, above: int, beside: int
) -> tuple[list[int], list[int], int]:
    """Top row and left column of each rectangle on shelves of one width, and the height of all
    shelves.
    """
    tops, lefts = [0] * len(heights), [0] * len(heights)
    shelves: list[list[int]] = []  # top row and first free column of each
    height = 0
    for number in order:
        shelf = next((shelf for shelf in shelves if shelf[1] + widths[number] <= width), None)
        if shelf is None:
            shelf = [height + above, 0]
            shelves.append(shelf)
            height += above + heights[number]
        tops[number], lefts[number] = shelf
        shelf[1] += widths[number] + beside
    return tops, lefts, max(height, above + 1)


def _find_places(
    target_mask: torch.Tensor,
    source_mask: torch.Tensor,
    column_counts: torch.Tensor,
    corners: torch.Tensor,
    width: int,
    row_count: int,
    cell_count: int,
) -> _Places:
    """The places of the real cells of masks [B, I] and [B, J] with `column_counts` [B] real
    columns.

    `corners` [2, B] are the row and column of the canvas where row 0 and column 0 of a sentence's
    grid would lie."""
    rows_each, columns_each = target_mask.shape[1], source_mask.shape[1]
    rows = torch.nonzero_static(target_mask.flatten(), size=row_count).squeeze(1)
    columns = torch.nonzero_static(
        source_mask.flatten(), size=int(source_mask.shape[0] * columns_each), fill_value=0
    )
    columns = columns.squeeze(1)
    sentence = rows // rows_each
    cells_of_row = column_counts[sentence]
    row_of_cell = torch.arange(row_count, device=rows.device).repeat_interleave(
        cells_of_row, output_size=cell_count
    )
    first_cell = cells_of_row.cumsum(0) - cells_of_row
    number_in_row = torch.arange(cell_count, device=rows.device) - first_cell[row_of_cell]
    sentence_of_cell = sentence[row_of_cell]
    first_column = column_counts.cumsum(0) - column_counts
    column_of_cell = columns[first_column[sentence_of_cell] + number_in_row]
    row, column = rows[row_of_cell], column_of_cell % columns_each
    top = corners[0][sentence_of_cell] + row % rows_each
    left = corners[1][sentence_of_cell] + column
    return _Places(
        rows=rows,
        row_of_cell=row_of_cell,
        column_of_cell=column_of_cell,
        in_grid=row * columns_each + column,
        in_rows=row_of_cell * columns_each + column,
        on_canvas=top * width + left,
    )


def rows_with_labels(labels: torch.Tensor) -> torch.Tensor:
    """[B, I], True up to the last label of each row that is not -100."""
    return _up_to_last(labels.ne(-100))


def rows_before_padding(
    decoder_input_ids: torch.Tensor, config: PervasiveAttentionConfig
) -> torch.Tensor:
    """[B, I], True for the start token and what follows, up to trailing padding.

    A last end of sentence is not real, either: it is there because a longer sentence is in the
    batch, and no token follows it. An end of sentence before other tokens counts as real."""
    following = decoder_input_ids[:, 1:]
    real = torch.ones_like(decoder_input_ids, dtype=torch.bool)
    unpadded = _up_to_last(following.ne(config.pad_token_id))
    ends = config.eos_token_id
    if ends is not None:
        is_end = torch.isin(following, torch.tensor(ends, device=following.device).reshape(-1))
        is_last = unpadded & ~torch.nn.functional.pad(unpadded[:, 1:], (0, 1))
        unpadded = unpadded & ~(is_end & is_last)
    real[:, 1:] = unpadded
    return real


def _up_to_last(chosen: torch.Tensor) -> torch.Tensor:
    """[B, T], True up to the last True of each row."""
    return chosen.flip(1).cumsum(1).flip(1).gt(0)


def words_to_explain(
    logits: torch.Tensor,
    decoder_input_ids: torch.Tensor | None,
    decoder_attention_mask: torch.Tensor | None,
    labels: torch.Tensor | None,
) -> torch.Tensor:
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
