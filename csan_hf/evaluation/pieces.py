# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Pieces of long texts: the paragraphs or sentences that they are joined of."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from csan_hf.data.joining import LINE_FEED
from csan_hf_runtime.extras import needs_extra

with needs_extra("train"):
    from rapidfuzz.distance import Levenshtein

Pair = tuple[str, str]  # a piece in both languages


def group_pieces(texts: Iterable[str], pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
    """Yields for each text the next pairs, those whose first halves have its words.

    Raises:
        ValueError: No pairs make up a text, or some that are not empty are left over.
    """
    for text in texts:
        text_words = text.split()
        pieces: list[Pair] = []
        words: list[str] = []
        while not pieces or words != text_words:
            pair = next(pairs, None)
            if pair is None:
                raise ValueError(
                    f"The pieces are not those of the text {text[:60]!r}: give those of all texts, "
                    "in their order."
                )
            pieces.append(pair)
            words += pair[0].split()
        yield pieces
    surplus = next((pair for pair in pairs if any(map(str.strip, pair))), None)
    if surplus is not None:
        raise ValueError(f"After the last text, pieces are left over, from {surplus[0][:60]!r} on.")


def pairs_of_lines(source: str, reference: str) -> list[Pair]:
    """The lines of a document in both languages."""
    return list(zip(source.split(LINE_FEED), reference.split(LINE_FEED), strict=True))


def cut_like(text: str, references: Sequence[str]) -> list[str]:
    """Cuts a text at its lines, if there are as many as pieces of the reference; else where the
    ends of the pieces lie when words are aligned by edit distance.

    As mwerSegmenter does (Matusov et al., IWSLT 2005).
    """
    lines = text.split(LINE_FEED)
    if len(lines) == len(references):
        return lines
    words = text.split()
    expected = " ".join(references).split()
    place = np.zeros(len(expected) + 1, dtype=int)  # of each of the reference's words in the text
    for edit in Levenshtein.opcodes(expected, words):
        offsets = np.arange(edit.src_end - edit.src_start)
        place[edit.src_start : edit.src_end] = np.minimum(edit.dest_start + offsets, edit.dest_end)
    place[0] = 0
    place[-1] = len(words)
    ends = np.cumsum([len(piece.split()) for piece in references])
    cuts = place[[0, *ends]]
    return [" ".join(words[start:end]) for start, end in itertools.pairwise(cuts)]
