# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Gold alignments in Pharaoh's format and that of the NAACL 2003 shared task."""

import pytest

from csan_hf.evaluation.alignment_files import parse_links, read_alignments


def test_both_formats_say_the_same(tmp_path):
    (tmp_path / "pharaoh").write_text("0-0 1p2\n\n2?1 0-0\n")
    (tmp_path / "naacl").write_text("0001 1 1\n1 2 3 P\n3 1 1 S 0.9\n\n3 3 2 P\n")
    pharaoh, naacl = (read_alignments(tmp_path / name, ["a b c"] * 3, ["x y z"] * 3) for name in ("pharaoh", "naacl"))
    assert pharaoh == naacl
    assert [links.pharaoh() for links in naacl] == ["0-0 1p2", "", "0-0 2p1"]
    assert parse_links("0-0 0p0").sure == {(0, 0)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-0\n1:2\n", "gold, line 2: '1:2' is no link"),
        ("0-0\n", "gold has 1 lines for 2 sentence pairs"),
        ("1 1 1\n3 1 1\n", "gold, line 2: '3 1 1' is no link; write the sentence, up to 2,"),
        ("1 1 1\n1 0 1\n", "gold, line 2: '1 0 1' is no link"),
        ("1 1 1 0.5\n1 1 2 p\n", "gold, line 2: '1 1 2 p' is no link"),
        ("2-0\n\n", "gold, sentence 1: the link 2-0, .* outside of its 2 source and 3 target words"),  # from 1
        ("0p3\n\n", "gold, sentence 1: the link 0-3, .* outside of its 2 source and 3 target words"),
        ("1 1 1 nan\n", "gold, line 1: '1 1 1 nan' is no link"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, message):
    (tmp_path / "gold").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_alignments(tmp_path / "gold", ["a b", ""], ["x y z", ""])
