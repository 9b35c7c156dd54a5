# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Lines as they come."""

import pytest

from csan_hf_runtime.windows import ahead


@pytest.mark.parametrize("count", [0, 1, 2])
def test_what_was_made_before_an_error_is_handed_on(count):
    def items():
        yield from range(5)
        raise KeyError

    made = ahead(items(), count)
    assert [next(made) for _ in range(5)] == [*range(5)]
    with pytest.raises(KeyError):
        next(made)
