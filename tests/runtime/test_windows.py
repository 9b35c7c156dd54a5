# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Lines as they come."""

import pytest

from csan_hf_runtime.text_files import read_lines
from csan_hf_runtime.windows import ahead, windows_of


def test_lines_before_one_that_cannot_be_read_are_a_window(tmp_path):
    (tmp_path / "in").write_bytes(b"one\ntwo\n\xff\nfour\n")
    windows = windows_of(read_lines(tmp_path / "in"), size_of=len, largest=99)
    assert next(windows) == ["one", "two"]
    with pytest.raises(ValueError, match="in, line 3: not UTF-8"):
        next(windows)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_what_was_made_before_an_error_is_handed_on(count):
    def items():
        yield from range(5)
        raise KeyError

    prefetched = ahead(items(), count)
    assert [next(prefetched) for _ in range(5)] == [*range(5)]
    with pytest.raises(KeyError):
        next(prefetched)
