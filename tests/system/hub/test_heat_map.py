# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The picture of an alignment."""

import warnings

import numpy as np
import pytest
from matplotlib import font_manager, get_data_path
from matplotlib.figure import Figure

from csan_hf.alignment import Alignment, TokenizedText
from csan_hf.hub.heat_map import draw_heat_map, plot_heat_map


def text_of(tokens):
    return TokenizedText(
        " ".join(tokens), tuple(range(len(tokens))), tuple(tokens), tuple(tokens), tuple(tokens)
    )


def alignment_of(source, target, matrix=None, measure="weight"):
    if matrix is None:
        matrix = np.random.default_rng(0).random((len(target), len(source)))
    return Alignment(
        text_of(source), text_of(target), np.asarray(matrix, dtype=np.float32), measure
    )


def drawn(alignment) -> Figure:
    figure = plot_heat_map(alignment)
    figure.draw_without_rendering()
    return figure


def test_rows_are_target_tokens_from_top_to_bottom():
    matrix = [[0.1, 0.9, 0.2], [0.3, 0.4, 0.5]]
    figure = drawn(alignment_of(["$", "$\\frac{$", "a_b^c"], "xy", matrix, "some measure"))
    axes, colour_bar = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "y"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["$", "$\\frac{$", "a_b^c"]
    heights = [label.get_window_extent().y0 for label in axes.get_yticklabels()]
    assert heights[0] > heights[1]
    assert axes.transData.transform((0, 0))[1] > axes.transData.transform((0, 1))[1]
    np.testing.assert_allclose(axes.images[0].get_array(), matrix, rtol=1e-6)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("source", "target")
    assert colour_bar.get_ylabel() == "some measure"


def test_colours_are_white_at_zero():
    def colours(matrix):
        image = drawn(alignment_of("ab", "x", matrix)).axes[0].images[0]
        return image.get_clim(), [image.cmap(image.norm(value)) for value in (0, *matrix[0])]

    limits, (zero, low, high) = colours([[0.25, 0.5]])
    assert limits == (0, 0.5)
    assert min(zero[:3]) > 0.95
    assert sum(low[:3]) > sum(high[:3])
    limits, (zero, negative, positive) = colours([[-1, 3]])
    assert limits == (-3, 3)
    assert min(zero[:3]) > 0.95
    assert negative[0] > negative[2]  # red
    assert positive[0] < positive[2]  # blue
    assert colours([[0, 0]])[0] == (0, 1)


def test_characters_that_another_font_has_and_one_warning_for_those_that_none_has(
    tmp_path, monkeypatch
):
    # matplotlib's own, read from its folder: its cached list lacks them if an environment was
    # removed in use
    files = font_manager.findSystemFonts(get_data_path())
    fonts = [font_manager.ttfFontProperty(font_manager.get_font(file)) for file in files]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = drawn(alignment_of(["Ⓐ", "ü"], ["␣the", "ß", "</s>", "ж"]))
    assert "STIXGeneral" in figure.axes[0].get_xticklabels()[0].get_fontfamily()
    with pytest.warns(UserWarning, match="'。がる犬走'") as caught:
        draw_heat_map(
            alignment_of(["犬", "が", "走る", "。"], ["the", "dog", "runs"]), tmp_path / "a.png"
        )
    assert len(caught) == 1
    assert (tmp_path / "a.png").exists()
