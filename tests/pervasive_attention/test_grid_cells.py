"""The cells of a batch and the groups of sentences that its convolutions take together."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from csan_hf.pervasive_attention import grid_cells
from csan_hf.pervasive_attention.grid_cells import GridCells


def masks_of_sizes(sizes, rows, columns):
    """Cells of sentences with so many target and source tokens."""
    mask = torch.zeros(len(sizes), rows, columns, dtype=torch.bool)
    for sentence, (height, width) in enumerate(sizes):
        mask[sentence, :height, :width] = True
    return mask


@given(
    sizes=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=12),
    start=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    holes=st.booleans(),
    worth=st.sampled_from([1, 60]),
)
@settings(max_examples=150, deadline=None)
def test_groups_hold_every_cell_at_its_place(sizes, start, holes, worth):
    mask = torch.zeros(len(sizes), 15, 15, dtype=torch.bool)
    mask[:, start[0] : start[0] + 12, start[1] : start[1] + 12] = masks_of_sizes(sizes, 12, 12)
    if holes:
        mask &= (torch.arange(15) % 4 != 2) & (torch.arange(15) % 5 != 1).unsqueeze(1)
    grid = torch.arange(1, mask.numel() + 1).view(*mask.shape, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid_cells, "_CELLS_WORTH_A_CONVOLUTION", worth)
        cells = GridCells.from_mask(tuple(mask.shape), mask)
    packed = cells.pack(grid)
    assert sorted(packed.flatten().tolist()) == grid[mask].flatten().tolist()
    assert torch.equal(cells.unpack(packed), grid * mask.unsqueeze(-1))
    parts = [packed[group.cells] for group in cells.groups]
    assert torch.equal(torch.cat(parts) if parts else packed, packed)
    for group, part in zip(cells.groups, parts, strict=True):
        image = group.unpack(part)
        assert torch.equal(group.pack(image), part)
        assert_neighbours_stay_neighbours(image[..., 0], mask.shape[2])


def assert_neighbours_stay_neighbours(image, columns):
    """Numbers of cells that stand side by side differ by 1, those below each other by a row of the batch's grid."""
    for values in image.unbind():
        real = values[values > 0]
        if not len(real):
            continue
        row, column = (values > 0).nonzero().unbind(1)
        assert torch.equal(real - real[0], (row - row[0]) * columns + column - column[0])


def test_full_grids_stay_whole():
    assert GridCells.from_mask((2, 5, 5), None).index is None
    assert GridCells.from_mask((2, 5, 5), torch.ones(2, 5, 5, dtype=torch.bool)).index is None
    nearly = masks_of_sizes([(40, 40), (36, 38)], 40, 40)
    cells = GridCells.from_mask(tuple(nearly.shape), nearly)
    assert len(cells.groups) == 1
    assert torch.equal(cells.index, nearly.flatten().nonzero().squeeze(1))


def test_sentences_of_like_sizes_go_together_and_little_is_padded():
    sizes = [(40, 40), (10, 11), (38, 40), (11, 11), (40, 39), (30, 12), (11, 10)]
    mask = masks_of_sizes(sizes, 40, 40)
    cells = GridCells.from_mask(tuple(mask.shape), mask)
    assert [group.shape for group in cells.groups] == [(3, 40, 40), (1, 30, 12), (3, 11, 11)]
    grids = sum(rows * columns * count for count, rows, columns in (group.shape for group in cells.groups))
    assert mask.sum() > 0.95 * grids
    assert cells.groups[1].index is None, "a group without padding needs no index"


def test_small_grids_are_not_worth_a_convolution_of_their_own():
    mask = masks_of_sizes([(9, 9), (3, 3), (9, 2), (1, 9)], 9, 9)
    assert len(GridCells.from_mask(tuple(mask.shape), mask).groups) == 1
