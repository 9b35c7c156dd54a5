# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The canvas: every real cell at one place, sentences out of each other's reach, little room
wasted.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.dispatch import Operations
from tiny import RESIDUAL, every_mode, mask_of, padded_sources, padded_targets
from tiny import grid as tiny_model

from csan_hf.models.canvas import Canvas


def canvas_of(heights, widths, room=15, start=(0, 0), above=2, beside=2, holes=False):
    rows, columns = (
        mask_of(lengths, room).roll(first, dims=1).bool()
        for lengths, first in zip((heights, widths), start, strict=True)
    )
    if holes:
        rows &= torch.arange(room) % 5 != 1
        columns &= torch.arange(room) % 4 != 2
    shape = (len(heights), room, room)
    return Canvas.of_masks(shape, rows, columns, above, beside), rows.unsqueeze(
        2
    ) & columns.unsqueeze(1)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=9),
    start=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    holes=st.booleans(),
    reach=st.sampled_from([(0, 0), (1, 1), (2, 2), (0, 2)]),
)
@settings(max_examples=100, deadline=None)
def test_every_cell_has_its_place_and_no_window_meets_another_sentence(sizes, start, holes, reach):
    heights, widths = zip(*sizes, strict=True)
    above, beside = reach
    canvas, real = canvas_of(heights, widths, start=start, above=above, beside=beside, holes=holes)
    grid = torch.arange(1, real.numel() + 1).view(*real.shape, 1)
    cells = canvas.pack(grid)
    assert cells.flatten().tolist() == grid[real].flatten().tolist()
    assert torch.equal(canvas.unpack(cells), grid * real.unsqueeze(-1))
    image = canvas.paint(cells)
    assert torch.equal(canvas.read(image), cells)
    assert image.count_nonzero() == len(cells)
    assert_windows_stay_inside(canvas, image[:, 0], grid, real, above, beside)


def assert_windows_stay_inside(canvas, image, grid, real, above, beside):
    """What a window at a cell sees on the canvas is what it sees in the cell's own grid."""
    pad = torch.nn.functional.pad
    padded_grid = pad((grid * real.unsqueeze(-1)).squeeze(-1), (beside, beside, above, 0))
    for row in range(above + 1):
        for column in range(2 * beside + 1):
            window = padded_grid[:, row : row + grid.shape[1], column : column + grid.shape[2]]
            expected = window.unsqueeze(-1)
            seen = pad(image, (beside, beside))[:, :, column : column + image.shape[2]]
            seen = seen[:, row : seen.shape[1] - above + row]
            assert torch.equal(canvas.read(seen.unsqueeze(1)), canvas.pack(expected))


def test_sums_of_rows_and_columns():
    canvas, real = canvas_of((3, 0, 5), (4, 2, 6), start=(1, 2), holes=True)
    rows, columns = torch.randn(3, 15, 2), torch.randn(3, 15, 2)
    assert torch.equal(
        canvas.sum_of(rows, columns), (rows.unsqueeze(2) + columns.unsqueeze(1))[real]
    )


def test_what_is_not_padded_is_the_canvas():
    full = torch.ones(2, 5, dtype=torch.bool)
    for masks in ((None, None), (full, full), (None, full)):
        canvas = Canvas.of_masks((2, 5, 5), *masks, above=1, beside=1)
        assert canvas.places is None
        assert canvas.size == (2, 6, 5)


def test_an_image_for_training_by_inductor_is_no_view():
    """inductor of torch 2.13 fails on a view saved for a backward pass of all lengths."""
    canvas = Canvas(shape=(2, 5, 4), size=(2, 7, 4), above=2)
    image = canvas.paint(torch.randn(2 * 5 * 4, 3, requires_grad=True))
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert not image._is_view()


def test_little_room_is_wasted():
    """Of 64 sentences from 3 to 40 tokens a grid padded to the longest is 34 % real."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 41, (64,), generator=generator).tolist()
    canvas, real = canvas_of(lengths, lengths, room=40)
    assert real.float().mean() < 0.4
    _, height, width = canvas.size
    assert real.sum() > 0.75 * height * width


@every_mode
def test_the_number_of_operations_is_the_same_for_all_lengths(training):
    """On a GPU each would be a kernel. Nor are lengths read more often; grouped by size, sentences of twelve lengths took twelve
    times as many.
    """
    counts = set()
    for lengths in ((5, 3), (7, 6, 5, 4, 3, 2, 1, 2, 3, 4, 5, 8), (40, 2, 30)):
        model = tiny_model(kernel_size=3).train(training)
        batch = {**padded_sources(lengths), **padded_targets(lengths)}
        with torch.set_grad_enabled(training), Operations() as operations:
            logits = model(**batch, use_cache=False).logits
            if training:
                logits.square().sum().backward()
        counts.add(operations.count)
    assert len(counts) == 1, counts


@pytest.mark.parametrize("options", [{}, RESIDUAL], ids=["dense", "residual"])
@pytest.mark.parametrize("kernel_size", [3, 5])
def test_a_cache_for_mixed_lengths_costs_little(options, kernel_size):
    """Without gradients a forward pass keeps rows by default. It computes real cells and the last
    rows; ten times as much was written when every padded cell had its pending sums.
    """
    model = tiny_model(kernel_size=kernel_size, num_layers=4, growth_rate=16, **options)
    lengths = (6, 7, 8, 9, 10, 11, 12, 13, 14, 60)
    batch = {**padded_sources(lengths), **padded_targets(lengths)}
    written = {}
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients), Operations() as operations:
            cache = model(**batch).cache
        written[gradients] = operations.written
        assert (cache is None) == gradients
    assert written[False] <= 1.5 * written[True], written
