# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Long texts and the pieces that they are joined of."""

from csan_hf.evaluation.pieces import cut_like, group_pieces

SENTENCES = ["one red house", "two", "we meet at noon today", "page three is missing"]
WHOLE = " ".join(SENTENCES)


def test_a_text_is_cut_where_the_pieces_of_its_reference_end():
    assert cut_like(WHOLE, SENTENCES) == SENTENCES
    longer = WHOLE.replace("house", "house of cards").replace("three", "4")
    assert cut_like(longer, SENTENCES)[3] == "page 4 is missing"
    assert cut_like(longer, SENTENCES)[2] == SENTENCES[2]
    assert cut_like(WHOLE.replace(SENTENCES[2] + " ", ""), SENTENCES) == [
        *SENTENCES[:2],
        "",
        SENTENCES[3],
    ]
    assert cut_like("", SENTENCES) == [""] * 4
    assert cut_like("nothing of it", ["a b c"]) == ["nothing of it"]


def test_pieces_are_grouped_by_the_words_of_the_texts():
    pairs = [("a b", "1"), ("c", "2"), ("", "3"), ("d", "4")]
    assert list(group_pieces(["a b  c", "d"], iter(pairs))) == [pairs[:2], pairs[2:]]
    empty_lines_at_the_end = [("", ""), (" ", "")]
    assert list(group_pieces(["a b c", "d"], iter(pairs + empty_lines_at_the_end))) == [
        pairs[:2],
        pairs[2:],
    ]
